"""The members of a pack that train: their rows in the stacked model, and their curves and readings.

Members with equal seeds and configurations, apart from interventions and control, are a family. Their pasts are equal
until their interventions differ, or until a rule acts that some of the members lack. Until that step they share a row;
there the row forks.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from objectives.base import RowSpec, Trainer, TrainingConfig
from objectives.control import first_reading
from orchestrator.base.packs import Trace

_VARIABLE = {"interventions", "control"}  # fields in which members of a family may differ
StepValues = tuple[int, Mapping[str, float]]  # a step, and readings by name
# The first steps and the steps after a departure from the trend are read every ``CLOSE_EVERY`` steps, for ``CLOSE``
# steps: instabilities there are faster than the usual distance between readings.
CLOSE, CLOSE_EVERY = 50, 5
# Members are updated at least every so many steps. A departure from the trend is known by then however fast the steps
# are, so the steps that are read do not depend on the speed.
UPDATE_STEPS = 10


def check_takes(trainer: Trainer, objective: str, configs: Sequence[TrainingConfig]) -> None:
    """Raise ValueError if ``trainer`` would ignore a field of ``configs`` that a trainer need not know."""
    needs = {
        "interventions": "takes_interventions",
        "control": "takes_control",
        "ema": "averaged_losses",
        "merge_last": "averaged_losses",
    }
    for field, needed in needs.items():
        if any(getattr(config, field) for config in configs) and not getattr(trainer, needed, False):
            remedy = f"set {needed} = True" if needed.startswith("takes_") else f"give it {needed}"
            message = f"{type(trainer).__name__} of {objective} takes no {field}"
            raise ValueError(f"{message}; make it a PackedTrainer, or {remedy}")


class Roster:
    """Members that train at a time, at most ``width``; a member is identified by its position in the pack.

    Waiting members take the rows of members that end. A family is admitted whole, or in parts of ``width`` members, so
    that each member has a row when it forks. ``groups`` may separate members further: families do not span groups.
    """

    def __init__(
        self,
        configs: Sequence[TrainingConfig],
        seeds: Sequence[int],
        width: int,
        groups: Sequence[Hashable] | None = None,
    ) -> None:
        self.configs, self.seeds, self.width = configs, seeds, width
        self.rows: list[list[int]] = []  # the members of each row of the trainer
        self._family = families(configs, seeds, [None] * len(configs) if groups is None else groups)
        order = sorted(range(len(configs)), key=lambda member: self._family[member])
        self.waiting = deque(order)
        self._row_of: dict[int, int] = {}  # row of each member in the trainer

    @property
    def training(self) -> list[int]:
        """The first member of each row, which trains for all of its members."""
        return [row[0] for row in self.rows]

    @property
    def everybody(self) -> list[int]:
        """All members in a row."""
        return [member for row in self.rows for member in row]

    def drop(self, members: Collection[int]) -> None:
        """Drop ``members``, training or waiting."""
        left = ([member for member in row if member not in members] for row in self.rows)
        self.rows = [row for row in left if row]
        self.waiting = deque(member for member in self.waiting if member not in members)

    def admit(self) -> None:
        """Give free rows to waiting members, in order."""
        num_free = self.width - len(self.everybody)
        while self.waiting:
            family = self._family[self.waiting[0]]
            alike = itertools.takewhile(lambda member: self._family[member] == family, self.waiting)  # noqa: B023
            members = list(itertools.islice(alike, self.width))
            if len(members) > num_free:
                return
            num_free -= len(members)
            for _ in members:
                self.waiting.popleft()
            self.rows += split_at(members, self.configs, 0)

    def next_fork(self, row: int) -> int | None:
        """Return the step before which the members of ``row`` part, or None if they never do."""
        return first_difference([self.configs[member] for member in self.rows[row]])

    def fork(self, age_of: Mapping[int, int]) -> bool:
        """Split rows whose members must not train their next step together; returns whether there were any."""
        num_before = len(self.rows)
        parts = (split_at(row, self.configs, age_of[row[0]]) if len(row) > 1 else [row] for row in self.rows)
        self.rows = [part for row in parts for part in row]
        return len(self.rows) > num_before

    def row_specs(self, num_rows: int) -> list[RowSpec]:
        """Return the rows for the trainer, padded with the first one to ``num_rows``, and record them as trained."""
        specs = [RowSpec(self.configs[m], self.seeds[m], self._row_of.get(m)) for m in self.training]
        self._record_rows()
        return specs + list(itertools.repeat(specs[0], num_rows - len(specs)))

    def state_dict(self) -> dict[str, Any]:
        """The members of each row and the waiting ones, as lists of numbers."""
        return {"rows": [list(row) for row in self.rows], "waiting": list(self.waiting)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a ``state_dict`` of the same members, with a trainer that holds their rows."""
        self.rows, self.waiting = [list(row) for row in state["rows"]], deque(state["waiting"])
        self._record_rows()

    def _record_rows(self) -> None:
        self._row_of = {member: k for k, row in enumerate(self.rows) for member in row}


def families(configs: Sequence[TrainingConfig], seeds: Sequence[int], groups: Sequence[Hashable]) -> list[int]:
    """Number the families of members: equal numbers may share a row. Families do not span ``groups``.

    Without interventions and control each member is a family of its own.
    """
    if not any(config.interventions or config.control for config in configs):
        return list(range(len(configs)))
    number: dict[Hashable, int] = {}
    keys = [
        (config.model_dump_json(exclude=_VARIABLE), seed, group)
        for config, seed, group in zip(configs, seeds, groups, strict=True)
    ]
    return [number.setdefault(key, len(number)) for key in keys]


def first_difference(configs: Sequence[TrainingConfig]) -> int | None:
    """Return the first step before which the members of a family change differently, or None if they never do."""
    steps = [first_reading(config.control) for config in configs if config.control != configs[0].control]
    steps += [first_reading(configs[0].control)] if steps else []
    first, *others = (config.interventions for config in configs)
    for other in others:
        num_alike = next((i for i, (a, b) in enumerate(zip(first, other, strict=False)) if a != b), None)
        num_alike = min(len(first), len(other)) if num_alike is None else num_alike
        steps += [entry.begins for entries in (first, other) for entry in entries[num_alike:]]
    soonest = min(steps, default=math.inf)
    return None if math.isinf(soonest) else int(soonest)


def split_at(members: Sequence[int], configs: Sequence[TrainingConfig], step: int) -> list[list[int]]:
    """Split ``members`` of a family into rows that may train ``step`` together: equal changes up to and including it.

    Rows keep the order of their members, except that members with rules come first: a row keeps the trends that rules
    will read only if its first member has rules.
    """
    parts: dict[str, list[int]] = {}
    for member in members:
        past = [entry.model_dump_json() for entry in configs[member].interventions if entry.begins <= step]
        rules = configs[member].control
        past += [rule.model_dump_json() for rule in rules] if first_reading(rules) <= step else []
        parts.setdefault("\n".join(past), []).append(member)
    return [sorted(part, key=lambda member: not configs[member].control) for part in parts.values()]


# Shapes: T steps between two updates of the members, K members, R rows of a trainer, C columns.


@dataclass(frozen=True, slots=True)
class RowReadings:
    """Readings of some rows of a trainer, ``values_CR`` of ``names``, ``offset`` steps after the last update."""

    offset: int
    rows: tuple[int, ...]
    names: tuple[str, ...]
    values_CR: np.ndarray


def due(age_R: np.ndarray, num_steps: int, every: int | None) -> np.ndarray:
    """Return which rows to read at each of the next steps, (T, R): every ``every``-th step of the member."""
    age_TR = _ages(age_R, num_steps)
    return np.zeros(age_TR.shape, dtype=bool) if every is None else age_TR % every == 0


def closely_due(age_R: np.ndarray, left_R: np.ndarray, num_steps: int, every: int | None) -> np.ndarray:
    """Return which rows to read in addition, (T, R): after the start, and ``UPDATE_STEPS`` after the step ``left_R``.

    No row if ``every`` is None or below ``CLOSE_EVERY``.
    """
    age_TR = _ages(age_R, num_steps)
    if every is None or every < CLOSE_EVERY:
        return np.zeros(age_TR.shape, dtype=bool)
    since_TR = age_TR - left_R - UPDATE_STEPS
    is_close_TR = (age_TR < CLOSE) | ((since_TR >= 0) & (since_TR < CLOSE))
    return is_close_TR & (age_TR % CLOSE_EVERY == 0)


def _ages(age_R: np.ndarray, num_steps: int) -> np.ndarray:
    return age_R + np.arange(num_steps)[:, None]


def unread_steps(trainer: Trainer, count: int) -> Sequence[Mapping[str, Any]]:
    """Train ``count`` steps, at once if the trainer can, and return the metrics of each."""
    at_once = getattr(trainer, "steps_ahead", None)
    return [trainer.step() for _ in range(count)] if at_once is None else at_once(count)


def metrics_on_host(steps: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """Return the metrics of T steps, (K,) each and possibly on a device, as float64 arrays of shape (T, K).

    They are moved in one copy, so a GPU is waited for once per update instead of once per step.
    """
    names = list(steps[0])
    by_step = _flat([row[name] for row in steps for name in names]).reshape(len(steps), len(names), -1)
    return {name: by_step[:, i] for i, name in enumerate(names)}


def readings_on_host(readings: Sequence[tuple[int, Sequence[int], Mapping[str, Any]]]) -> list[RowReadings]:
    """Move readings (offset, rows, name -> (R,)) from a device in one copy."""
    if not readings:
        return []
    flat = _flat([value for _, _, by_name in readings for value in by_name.values()])
    moved, start = [], 0
    for offset, rows, by_name in readings:
        end = start + len(by_name) * len(rows)
        table_CR = flat[start:end].reshape(len(by_name), len(rows))
        moved.append(RowReadings(offset, tuple(rows), tuple(by_name), table_CR))
        start = end
    return moved


def _flat(values: Sequence[Any]) -> np.ndarray:
    """The numbers of 1-D tensors or arrays in one float64 array."""
    if all(hasattr(value, "detach") for value in values):
        import torch

        return torch.cat([value.detach().double() for value in values]).cpu().numpy()
    return np.concatenate([np.asarray(value, dtype=np.float64) for value in values])


def readings_of_row(readings: Sequence[RowReadings], row: int) -> list[StepValues]:
    """Readings of one row, as (steps after the last update, name -> value)."""
    return [
        (reading.offset, dict(zip(reading.names, reading.values_CR[:, reading.rows.index(row)].tolist(), strict=True)))
        for reading in readings
        if row in reading.rows
    ]


def as_table(values: Sequence[StepValues]) -> Trace:
    """Return readings of one member as columns in single precision, NaN for missing values."""
    names = dict.fromkeys(itertools.chain.from_iterable(by_name for _, by_name in values))
    table_NC = np.array([[by_name.get(name, math.nan) for name in names] for _, by_name in values])
    with np.errstate(over="ignore"):  # values beyond single precision become infinite
        table_CN = np.ascontiguousarray(table_NC.T, dtype=np.float32)
    columns = dict(zip(names, table_CN, strict=True))
    return {"step": np.array([step for step, _ in values], dtype=np.int64), **columns}


class MemberCurves:
    """Curves and readings since the last report: every ``every``-th step, the last step and the step of a verdict.

    ``num_steps`` is the length of a whole curve.
    """

    def __init__(self, every: int, num_steps: int) -> None:
        self._every, self._num_steps = every, num_steps
        self._traces: dict[str, list[Trace]] = {}
        self._telemetry: dict[str, list[StepValues]] = {}

    def add(self, trial_id: str, first_step: int, columns: Mapping[str, np.ndarray], *, has_ended: bool) -> None:
        """Add the next steps of a member, as ``columns`` of equal length; ``has_ended`` keeps the last step."""
        step_N = first_step + np.arange(len(columns["loss"]))
        is_kept_N = (step_N % self._every == 0) | (step_N == self._num_steps - 1)
        is_kept_N[-1:] |= has_ended
        if is_kept_N.any():
            kept = {name: values[is_kept_N] for name, values in columns.items()}
            self._traces.setdefault(trial_id, []).append({"step": step_N[is_kept_N], **kept})

    def add_readings(self, trial_id: str, values: Sequence[StepValues]) -> None:
        """Add readings of a member in ascending order of steps; readings of one step become one row."""
        rows = self._telemetry.setdefault(trial_id, []) if values else []
        for step, by_name in values:
            if rows and rows[-1][0] == step:
                rows[-1] = (step, {**rows[-1][1], **by_name})
            else:
                rows.append((step, by_name))

    def take(self) -> tuple[dict[str, Trace], dict[str, Trace]]:
        """Return curves and readings since the last call, by trial."""
        traces: dict[str, Trace] = {
            trial_id: {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
            for trial_id, pieces in self._traces.items()
        }
        telemetry = {trial_id: as_table(values) for trial_id, values in self._telemetry.items()}
        self._traces, self._telemetry = {}, {}
        return traces, telemetry

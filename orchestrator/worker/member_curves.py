"""Curves and readings of a pack's members: which steps are read, moved to the host, and kept for the next report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from orchestrator.base.packs import Trace

# Shapes: T steps between two updates of the members, K members, R rows of a trainer, C columns.

StepValues = tuple[int, Mapping[str, float]]  # a step, and readings by name

# The first steps and the steps after a departure from the trend are read every ``CLOSE_EVERY`` steps, for ``CLOSE``
# steps: instabilities there are faster than the usual distance between readings.
CLOSE, CLOSE_EVERY = 50, 5
# Members are updated at least every so many steps. A departure from the trend is known by then however fast the steps
# are, so the steps that are read do not depend on the speed.
UPDATE_STEPS = 10


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
        (reading.offset, dict(zip(reading.names, reading.values_CR[:, reading.rows.index(row)], strict=True)))
        for reading in readings
        if row in reading.rows
    ]


def as_table(values: Sequence[StepValues]) -> Trace:
    """Return readings of one member as columns in single precision, NaN for missing values."""
    names = dict.fromkeys(name for _, by_name in values for name in by_name)
    with np.errstate(over="ignore"):  # values beyond single precision become infinite
        columns = {
            name: np.array([by_name.get(name, np.nan) for _, by_name in values]).astype(np.float32) for name in names
        }
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

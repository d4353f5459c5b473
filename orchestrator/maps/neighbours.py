"""The cells of a sweep that differ from a trial's cell in one setting only."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from orchestrator.base.space import canonical_text, is_number
from orchestrator.base.trial_result import TrialResult
from orchestrator.base.vocabulary import DEGRADED, cell_state
from orchestrator.sweepfile.settings import settings_of


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A cell with ``value`` of one setting: how many of its finished seeds are stable, and their median final loss.

    Degraded seeds are not stable. ``state`` is from ``cell_state``. ``loss`` is None if no seed has a finite final
    loss. ``onsets`` are of the seeds that left their trend.
    """

    value: Any
    num_finished: int
    num_stable: int
    loss: float | None
    onsets: tuple[int | None, ...]
    state: str

    @property
    def stable_share(self) -> float:
        """The share of its finished seeds that are stable, 0 to 1."""
        return self.num_stable / self.num_finished

    @property
    def is_stable(self) -> bool:
        """Whether all seeds of the sweep are stable."""
        return self.state == "stable"

    @property
    def seeds_text(self) -> str:
        """How many seeds are stable, in words."""
        degraded = " (degraded)" if self.state == DEGRADED else ""
        return f"{self.num_stable} of {self.num_finished} seeds stable{degraded}"


def neighbours(rows: Iterable[TrialResult], trial: TrialResult, setting: str) -> list[Neighbour]:
    """The cells with the trial's configuration except for ``setting``, including its own cell.

    In ascending order of the value, none and words last. Only cells with a finished trial count.
    """
    own = _settings(trial)
    if setting not in own:
        return []
    found: dict[str, tuple[Any, list[TrialResult]]] = {}
    for row in rows:
        settings = _settings(row)
        if setting in settings and _differ_in(settings, own, setting):
            found.setdefault(canonical_text(settings[setting]), (settings[setting], []))[1].append(row)
    cells = [_neighbour(value, trials) for value, trials in found.values()]
    return sorted((cell for cell in cells if cell.num_finished), key=lambda cell: _rank(cell.value))


def trials_of(rows: Iterable[TrialResult], trial: TrialResult, setting: str, value: Any) -> list[TrialResult]:
    """The trials with the configuration of ``trial`` except for ``value`` of ``setting``: those of a neighbour."""
    own, wanted = _settings(trial), canonical_text(value)
    all_settings = ((row, _settings(row)) for row in rows)
    return [
        row
        for row, settings in all_settings
        if setting in settings and canonical_text(settings[setting]) == wanted and _differ_in(settings, own, setting)
    ]


def null_of(setting: str) -> float:
    """The number that null stands for in a setting: no weight, or more than any number as without clipping."""
    return 0.0 if setting == "balance_weight" else math.inf


def below(cells: Iterable[Neighbour], value: Any) -> list[Neighbour]:
    """The ``cells`` with a lower value, the nearest first. None (no clipping) is above all numbers."""
    return [cell for cell in cells if is_number(cell.value) and _rank(cell.value) < _rank(value)][::-1]


def above(cells: Iterable[Neighbour], value: Any, null: float = math.inf) -> list[Neighbour]:
    """The ``cells`` with a higher value, the nearest first. None (no clipping) counts as ``null``."""

    def rank(value: Any) -> float:
        return null if value is None else _rank(value)

    return [cell for cell in cells if rank(cell.value) > rank(value) and not isinstance(cell.value, str | bool)]


def _neighbour(value: Any, trials: Sequence[TrialResult]) -> Neighbour:
    finished = [trial for trial in trials if trial.is_judged]
    onsets = tuple(trial.ending_step for trial in finished if trial.ending != "stable")
    num_stable = sum(trial.label == "stable" for trial in finished)
    losses = [trial.final_loss for trial in finished if trial.final_loss is not None]
    loss = median(losses) if losses else None
    state = cell_state([trial.label for trial in trials])
    return Neighbour(value, len(finished), num_stable, loss, onsets, state)


class _Same:
    """A trial as a key, equal to itself alone."""

    __slots__ = ("row",)

    def __init__(self, row: TrialResult) -> None:
        self.row = row

    def __hash__(self) -> int:
        return id(self.row)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.row is other.row


def _settings(row: TrialResult) -> Mapping[str, Any]:
    return _kept_settings(_Same(row))


@functools.lru_cache(maxsize=16_384)
def _kept_settings(same: _Same) -> Mapping[str, Any]:
    """Return a trial's settings, which a page with a hundred diagnoses needs hundreds of times."""
    return settings_of(same.row.objective, same.row.config, same.row.cell)


def _differ_in(a: Mapping[str, Any], b: Mapping[str, Any], setting: str) -> bool:
    """Whether two trials have the same settings, except for ``setting``.

    A setting that only one of them has may follow from ``setting``, as a loss scale does from float16.
    """
    return all(key == setting or key not in b or value == b[key] for key, value in a.items())


def _rank(value: Any) -> float:
    return float(value) if is_number(value) else math.inf

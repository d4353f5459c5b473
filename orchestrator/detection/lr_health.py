"""Whether a trial's learning rate is right, by the trials beside it along the axis of learning rates.

A trial alone cannot know. What of its curve counts beyond its final loss is in ``orchestrator.maps.lr_curves``.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median, stdev
from typing import Any

from orchestrator.base.trial_result import TrialResult
from orchestrator.base.vocabulary import OSCILLATING, RIGHT, TOO_SLOW, UNSURE

# An axis of one of these names is one of learning rates: the field, or what a custom trainer calls it.
LR_NAMES = ("lr", "learning_rate")
# Final losses differ by more than noise from this many standard deviations of the seeds of a cell on: 5 % of pairs of
# equal cells are farther apart than 2.8, and the same seed on both sides shares most of its noise.
BEYOND_NOISE = 2.0
# Less of the loss itself is no difference, however little the seeds scatter.
LEAST_DIFFERENCE = 0.02
# The same where there is a single seed: the final loss of a seed of gpt scatters by about one percent.
LEAST_OF_ONE_SEED = 0.05
# Below this share of the initial loss all is learned, and no difference matters.
ALL_LEARNED = 1e-4

Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class LrRow:
    """The trials that differ in their learning rate (and seed) only.

    ``judged`` maps a seed to its trials in cells without a trial off its trend, in ascending order of the learning
    rate; ``calm`` to those in cells of which every seed with a result is stable. ``noise`` is the standard deviation of
    the final losses of a cell's seeds, the median of the calm cells that are not degraded: where little is learned,
    seeds differ by what they began with. None with a single seed. ``tried`` are the learning rates with a result.
    """

    axis: str
    judged: Mapping[int, tuple[TrialResult, ...]]
    calm: Mapping[int, tuple[TrialResult, ...]]
    noise: float | None
    tried: tuple[float, ...]

    def best(self, seed: int) -> TrialResult | None:
        """The calm trial of this seed with the lowest final loss; None without one."""
        return min(self.calm.get(seed, ()), key=_final, default=None)

    def differs(self, higher: float, lower: float, initial: float | None) -> bool:
        """Whether a final loss is higher than another by more than noise."""
        least = LEAST_OF_ONE_SEED if self.noise is None else LEAST_DIFFERENCE
        floor = max(least * abs(higher), ALL_LEARNED * abs(initial or 0.0))
        return higher - lower > max(BEYOND_NOISE * (self.noise or 0.0), floor)


def lr_axis(names: Collection[str]) -> str | None:
    """The axis of learning rates among ``names``; None without one."""
    return next((name for name in LR_NAMES if name in names), None)


def lr_rows(rows: Sequence[TrialResult], beside: Collection[str] = ()) -> list[LrRow]:
    """The rows along the axis of learning rates, each with two learning rates or more.

    ``beside`` are axes that advance with it. Empty where the sweep has no such axis.
    """
    axis = lr_axis(rows[0].cell) if rows else None
    if axis is None:
        return []
    grouped: dict[Key, list[TrialResult]] = {}
    for row in rows:
        others = tuple((name, value) for name, value in row.cell.items() if name != axis and name not in beside)
        if isinstance(row.cell[axis], int | float):
            grouped.setdefault(others, []).append(row)
    found = [_row(axis, trials) for trials in grouped.values()]
    return [row for row in found if len(row.tried) > 1]


def _row(axis: str, trials: Sequence[TrialResult]) -> LrRow:
    cells: dict[float, list[TrialResult]] = {}
    for trial in trials:
        if trial.is_judged and trial.outcome != "unknown":
            cells.setdefault(trial.cell[axis], []).append(trial)
    ordered = {rate: cells[rate] for rate in sorted(cells)}
    quiet = [trials for trials in ordered.values() if {trial.outcome for trial in trials} <= {"stable", "stalled"}]
    calm = [trials for trials in ordered.values() if all(trial.outcome == "stable" for trial in trials)]
    learned = [trials for trials in calm if not any(trial.is_degraded for trial in trials)]
    losses = [[trial.final_loss for trial in trials if trial.final_loss is not None] for trials in learned]
    spreads = [stdev(of_cell) for of_cell in losses if len(of_cell) > 1]
    noise = median(spreads) if spreads else None
    return LrRow(axis, _by_seed(quiet), _by_seed(calm), noise, tuple(ordered))


def _by_seed(cells: Sequence[Sequence[TrialResult]]) -> dict[int, tuple[TrialResult, ...]]:
    found: dict[int, list[TrialResult]] = {}
    for trial in (trial for trials in cells for trial in trials if trial.final_loss is not None):
        found.setdefault(trial.seed, []).append(trial)
    return {seed: tuple(trials) for seed, trials in found.items()}


def with_lr_health(rows: Sequence[TrialResult], beside: Collection[str] = ()) -> list[TrialResult]:
    """The rows of one sweep, those of cells whose seeds are stable or stalled with ``lr_health`` and ``lr_regret``.

    Nothing is said where no two trials differ in their learning rate only.
    """
    said = {}
    for row in lr_rows(rows, beside):
        for seed, trials in row.judged.items():
            best = row.best(seed)
            for trial in trials:
                health, regret = _health(trial, row, best), _regret(trial, best)
                said[trial.trial_id] = replace(trial, lr_health=health, lr_regret=regret)
    return [said.get(row.trial_id, row) for row in rows]


def _health(trial: TrialResult, row: LrRow, best: TrialResult | None) -> str:
    """The word on a trial's learning rate; ``best`` is the best calm one of its seed."""
    rate, loss = trial.cell[row.axis], _final(trial)
    others = [one for one in row.calm.get(trial.seed, ()) if one.trial_id != trial.trial_id]
    if best is None or not others:
        return UNSURE
    if row.differs(loss, _final(best), trial.initial_loss):
        if best.cell[row.axis] > rate:
            return TOO_SLOW
        return OSCILLATING if trial.outcome == "stable" else UNSURE
    if trial.outcome == "stalled":
        return UNSURE
    if rate not in (row.tried[0], row.tried[-1]):
        return RIGHT
    beside = min(others, key=lambda one: abs(math.log(one.cell[row.axis] / rate)) if rate > 0 else math.inf)
    is_alone = row.differs(_final(beside), loss, trial.initial_loss)
    return UNSURE if is_alone else RIGHT


def _regret(trial: TrialResult, best: TrialResult | None) -> float | None:
    return None if best is None else max(0.0, _final(trial) - _final(best))


def _final(trial: TrialResult) -> float:
    assert trial.final_loss is not None
    return trial.final_loss

"""Trials of the same cell and seed in two sweeps: how many changed sides, and what a change of a setting gains."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from orchestrator.base.intervals import mean_interval, share_interval
from orchestrator.base.measure import FINAL_LOSS, Measure
from orchestrator.base.space import Cell
from orchestrator.base.trial_result import TrialResult
from orchestrator.base.vocabulary import cell_state
from orchestrator.maps.table import by_cell

Trials = Mapping[tuple[Cell, int], TrialResult]  # by cell and seed


@dataclass(frozen=True, slots=True)
class Pairs:
    """``num`` trials that two sweeps share, cell and seed.

    ``num_gained`` of them are stable only in the new sweep and ``num_lost`` only in the first.
    """

    num: int
    num_gained: int
    num_lost: int


def paired(before: Mapping[tuple[Cell, int], bool], after: Mapping[tuple[Cell, int], bool]) -> Pairs | None:
    """The trials of both sweeps, by cell and seed and whether they are stable; None without any."""
    shared = before.keys() & after.keys()
    num_gained = sum(after[pair] and not before[pair] for pair in shared)
    num_lost = sum(before[pair] and not after[pair] for pair in shared)
    return Pairs(len(shared), num_gained, num_lost) if shared else None


@dataclass(frozen=True, slots=True)
class LowestLoss:
    """The cell of the best median final ``loss``, or score, among cells whose seeds are all stable."""

    cell: Cell
    loss: float


@dataclass(frozen=True, slots=True)
class Gains:
    """What became of the runs of the base, on ``num_pairs`` trials that have an outcome in both.

    Of ``unstable`` runs of the base ``saved`` are stable here; of ``stable`` ones ``harmed`` are not. Degraded runs are
    not stable. Intervals are over seeds, None with few. ``saved_loss`` is the median final loss of the saved runs.

    ``loss_change`` is the median of the change of the final loss over the ``num_losses`` pairs whose runs are both
    stable, with the interval of the mean of each seed's. ``best`` is the best cell here, ``best_of_base`` the
    base's. Losses are values of the ``measure``, which may be a score.
    """

    num_pairs: int
    unstable: int
    saved: int
    saved_interval: tuple[float, float] | None
    saved_loss: float | None
    stable: int
    harmed: int
    harmed_interval: tuple[float, float] | None
    num_losses: int
    loss_change: float | None
    loss_change_interval: tuple[float, float] | None
    best: LowestLoss | None
    best_of_base: LowestLoss | None
    measure: Measure = FINAL_LOSS


def gains(base: Trials, new: Trials, measure: Measure = FINAL_LOSS) -> Gains | None:
    """What ``new`` gains over ``base`` in the ``measure``, or None if no trial has an outcome in both.

    Trials without a partner only count for the best cells.
    """
    pairs = [(base[place], new[place]) for place in base if place in new]
    pairs = [(before, after) for before, after in pairs if before.is_judged and after.is_judged]
    if not pairs:
        return None
    before_after = [(a.label == "stable", b.label == "stable") for a, b in pairs]
    saved = [after for (_, after), turned in zip(pairs, before_after, strict=True) if turned == (False, True)]
    unstable = sum(not before for before, _ in before_after)
    harmed, stable = before_after.count((True, False)), len(pairs) - unstable
    both = [pair for pair, turned in zip(pairs, before_after, strict=True) if all(turned)]
    by_seed: dict[int, list[float]] = {}
    for a, b in both:
        if math.isfinite(change := _value(b, measure) - _value(a, measure)):
            by_seed.setdefault(a.seed, []).append(change)
    changes = [change for of_seed in by_seed.values() for change in of_seed]
    saved_losses = [loss for row in saved if math.isfinite(loss := _value(row, measure))]
    return Gains(
        num_pairs=len(pairs),
        unstable=unstable,
        saved=len(saved),
        saved_interval=_interval(pairs, before_after, (False, True)),
        saved_loss=median(saved_losses) if saved_losses else None,
        stable=stable,
        harmed=harmed,
        harmed_interval=_interval(pairs, before_after, (True, False)),
        num_losses=len(changes),
        loss_change=median(changes) if changes else None,
        loss_change_interval=mean_interval([median(each) for each in by_seed.values()]),
        best=best_cell(new, measure),
        best_of_base=best_cell(base, measure),
        measure=measure,
    )


def _interval(
    pairs: Sequence[tuple[TrialResult, TrialResult]], before_after: Sequence[tuple[bool, bool]], turn: tuple[bool, bool]
) -> tuple[float, float] | None:
    """The interval of the share of runs with the first outcome of ``turn`` that have the second."""
    counts: dict[int, tuple[int, int]] = {}
    for (trial, _), sides in zip(pairs, before_after, strict=True):
        if sides[0] == turn[0]:
            hits, num = counts.get(trial.seed, (0, 0))
            counts[trial.seed] = hits + (sides == turn), num + 1
    return share_interval([*counts.values()]) if counts else None


def _value(row: TrialResult, measure: Measure) -> float:
    """The value; NaN if there is none."""
    value = measure.of(row)
    return math.nan if value is None else value


def best_cell(trials: Trials, measure: Measure = FINAL_LOSS) -> LowestLoss | None:
    """The first of the cells with the best median value whose seeds are all stable; None without any.

    A cell has no median if half of the seeds have no finite value.
    """
    cells = by_cell(trials.values())
    stable = [(cell, rows) for cell, rows in cells.items() if cell_state([row.label for row in rows]) == "stable"]
    found = [LowestLoss(cell, _middle(rows, measure)) for cell, rows in stable]
    known = (cell for cell in found if math.isfinite(cell.loss))
    return min(known, key=lambda cell: measure.cost(cell.loss), default=None)


def _middle(rows: Sequence[TrialResult], measure: Measure) -> float:
    worst = measure.cost(math.inf)
    return median(value if math.isfinite(value := _value(row, measure)) else worst for row in rows)

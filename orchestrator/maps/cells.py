"""One cell of a sweep, summarized over its seeds, and the order of cells from best to worst."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

from orchestrator.base.columns import METRICS
from orchestrator.base.intervals import wilson
from orchestrator.base.measure import Measure
from orchestrator.base.trial_result import TrialResult
from orchestrator.base.vocabulary import DEGRADED, RIGHT, UNSURE, cell_state, is_known
from orchestrator.maps.curve_metrics import Measured
from orchestrator.maps.table import distinct_runs

# The rank of the chosen cell among those reduced to one cell of the map, from the best (0) to the worst (1).
REDUCTIONS: Mapping[str, float] = {"worst": 1.0, "median": 0.5, "best": 0.0}


@dataclass(frozen=True, slots=True)
class CellSummary:
    """One cell, with its ``state`` by ``cell_state``: stable only if all its seeds are.

    ``outcomes`` counts the labels of its seeds: outcomes, degraded, or statuses of seeds without an outcome. All else
    is about the ``num_finished`` of ``num_seeds`` seeds that have a result: ``fraction_stable``, where degraded ones do
    not count, with its 95 % Wilson ``interval``; ``medians`` of METRICS and ``value`` of the map's metric, each None if
    no seed has it; ``total_spikes`` of all seeds; ``num_risen`` seeds that gave up much of what they had learned in
    a slow rise. ``lr_health`` is the majority label of their learning rates.
    """

    x: Any
    y: Any
    num_seeds: int
    num_finished: int
    outcomes: Mapping[str, int]
    fraction_stable: float | None
    interval: tuple[float, float] | None
    medians: Mapping[str, float | None]
    total_spikes: int
    num_risen: int
    value: float | None
    state: str
    lr_health: str | None = None

    @property
    def num_stable(self) -> int:
        """Number of stable seeds, without degraded ones."""
        return self.outcomes.get("stable", 0)


def cell_summary(
    trials: Sequence[TrialResult],
    metric: str = "final_loss",
    measured: Measured | None = None,
    x: Any = None,
    y: Any = None,
) -> CellSummary:
    """Summarize the cell at ``x`` and ``y`` whose seeds are ``trials``; seeds that repeat a run count once."""
    trials, measured = distinct_runs(trials), measured or {}
    labels = [trial.label for trial in trials]
    finished = [trial for trial in trials if trial.is_judged]
    counts = Counter(labels)
    medians = {name: _median_of(name, finished, measured) for name in dict.fromkeys([*METRICS, *measured, metric])}
    return CellSummary(
        x=x,
        y=y,
        num_seeds=len(trials),
        num_finished=len(finished),
        outcomes=dict(counts),
        fraction_stable=counts["stable"] / len(finished) if finished else None,
        interval=wilson(counts["stable"], len(finished)) if finished else None,
        medians=medians,
        total_spikes=sum(trial.num_spikes or 0 for trial in finished),
        num_risen=sum(trial.risen_share is not None for trial in finished),
        value=medians[metric],
        state=cell_state(labels),
        lr_health=_majority([trial.lr_health for trial in finished if trial.lr_health is not None]),
    )


def stable_share(cells: Iterable[Sequence[TrialResult]]) -> float | None:
    """Return the stable share of a sweep: the mean fraction of stable seeds of its cells, or None without a result."""
    judged = [labels for runs in cells if (labels := [run.label for run in runs if run.is_judged])]
    return mean(labels.count("stable") / len(labels) for labels in judged) if judged else None


def _majority(labels: Sequence[str]) -> str | None:
    """The label of more than half of the seeds; on disagreement right if any seed says so, else unknown."""
    if not labels:
        return None
    label, count = Counter(labels).most_common(1)[0]
    return label if 2 * count > len(labels) else RIGHT if RIGHT in labels else UNSURE


def _median_of(name: str, trials: Sequence[TrialResult], measured: Measured) -> float | None:
    """The median of a metric over the trials that have it, or None."""
    if len(trials) == 1 and name not in measured:  # as in most of many cells
        value: float | None = getattr(trials[0], name, None)
        return value
    if name in measured:
        values = [measured[name].get(trial.trial_id) for trial in trials]
    else:
        values = [getattr(trial, name, None) for trial in trials]
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return known[0] if known else None
    return median(known)


def best_first(cells: Sequence[CellSummary], measure: Measure) -> list[CellSummary]:
    """Sort cells: stable, degraded, unknown, not stable.

    Known cells are sorted by their fraction of stable seeds, then by ``measure``, the best first; unknown ones by how
    many seeds are trained, the most first. Ties keep their order.
    """

    def place(cell: CellSummary) -> tuple[int, float, float]:
        if not is_known(cell.state):
            return 2, -cell.num_finished, "errored" not in cell.outcomes
        value = cell.medians[measure.column]
        return (
            {"stable": 0, DEGRADED: 1}.get(cell.state, 3),
            -(cell.fraction_stable or 0.0),
            math.inf if value is None else measure.cost(value),
        )

    return sorted(cells, key=place)


def reduced(cells: Sequence[CellSummary], measure: Measure, how: str) -> CellSummary:
    """Return the worst, the best or the middle cell (the worse of two).

    Unknown cells may turn out stable or not. If the result's state depends on them, return the first unknown cell.
    """
    ordered = best_first(cells, measure)
    place = min(int(REDUCTIONS[how] * len(ordered)), len(ordered) - 1)
    taken = ordered[place]
    unknown = [cell for cell in ordered if not is_known(cell.state)]
    num_stable = sum(cell.state == "stable" for cell in ordered)
    depends = not is_known(taken.state) or (taken.state == DEGRADED and place < num_stable + len(unknown))
    return unknown[0] if depends else taken

"""What counts as over an edge: outcomes other than stable, or a metric at or above a level."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from orchestrator.base.errors import Problem
from orchestrator.base.trial_result import TrialResult
from orchestrator.base.vocabulary import DEGRADED, is_known
from orchestrator.maps.cells import CellSummary
from orchestrator.maps.curve_metrics import Measured


class EdgeRule(Protocol):
    """On which side of an edge cells and trials are: the sides are called ``inner`` and ``outer``."""

    inner: ClassVar[str]
    outer: ClassVar[str]

    def of_cell(self, cell: CellSummary) -> bool | None:
        """Whether a cell is on the inner side: stable, or below the level; None if that is not known."""

    def of_trial(self, trial: TrialResult) -> bool | None:
        """Whether a trial is on the inner side; None if that is not known."""


@dataclass(frozen=True, slots=True)
class StableRule:
    """Cells and trials that are not stable are over the edge; degraded ones only with ``counts_degraded``."""

    inner: ClassVar[str] = "stable"
    outer: ClassVar[str] = "not stable"

    counts_degraded: bool = False

    def of_state(self, state: str) -> bool | None:
        """Whether a cell of this state, or a trial with this label, is stable; None if that is not known."""
        if not is_known(state):
            return None
        return state == "stable" or (state == DEGRADED and not self.counts_degraded)

    def is_over(self, state: str) -> bool:
        """Whether a state or label is known to be over the edge."""
        return self.of_state(state) is False

    def of_cell(self, cell: CellSummary) -> bool | None:
        """Whether a cell is stable; None if that is not known."""
        return self.of_state(cell.state)

    def of_trial(self, trial: TrialResult) -> bool | None:
        """Whether a trial is stable; None if that is not known."""
        return self.of_state(trial.label)


STABLE = StableRule()


@dataclass(frozen=True, slots=True)
class LevelRule:
    """Cells whose median of ``metric`` is at or above ``level`` are over the edge, and so are trials.

    ``measured`` has metrics that are computed from curves. A cell is known once all its seeds have an outcome.
    """

    inner: ClassVar[str] = "below"
    outer: ClassVar[str] = "at or above"

    metric: str
    level: float
    measured: Measured = field(default_factory=dict)

    def of_cell(self, cell: CellSummary) -> bool | None:
        """Whether the median of a cell is below the level; None without one."""
        value = cell.medians[self.metric]
        return None if value is None or cell.num_finished < cell.num_seeds else value < self.level

    def of_trial(self, trial: TrialResult) -> bool | None:
        """Whether the number of a trial is below the level; None without one."""
        own = self.measured.get(self.metric)
        value = getattr(trial, self.metric, None) if own is None else own.get(trial.trial_id)
        return None if value is None or not trial.is_judged else value < self.level

    def unknown(self) -> Problem:
        """The problem that nothing has the metric."""
        remedy = "metrics of the curvature need `telemetry: {curvature: 20}`; docs/maps.md says what each metric is"
        return Problem("--level", self.metric, f"no cell has {self.metric}", remedy)

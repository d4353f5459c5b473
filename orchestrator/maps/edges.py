"""Edges: what counts as over one, where rows cross it, how far a cell is from it, and where it can be escaped."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

from orchestrator.base.errors import Problem
from orchestrator.base.query import reported
from orchestrator.base.space import Cell
from orchestrator.base.trial_result import TrialResult
from orchestrator.base.vocabulary import DEGRADED, is_known
from orchestrator.maps.cells import CellSummary
from orchestrator.maps.curve_metrics import Measured

Basis = Literal["bracket", "fit"]
Side = Literal["stable", "not stable", "at the edge", "not known", "outside"]


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


@dataclass(frozen=True, slots=True)
class Interval:
    """A number with the ends of its 95 % interval."""

    at: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Edge:
    """One crossing of a row, in values of the axis along.

    The bracket of a grid lies between the neighbours ``low`` and ``high``; ``at`` is their midpoint on the axis's
    scale, None if an end has no place on it (no clipping). The interval of a fit is a 95 % interval, whose ends are
    None beyond the axis; ``at`` is None if the row may cross the edge somewhere in the interval. ``is_stable_below``
    says whether the lower values are stable (for a level of a metric, below the level).
    """

    at: float | None
    low: Any
    high: Any
    is_stable_below: bool
    basis: Basis

    @property
    def stable(self) -> Any:
        """The end of a bracket that is stable."""
        return self.low if self.is_stable_below else self.high

    @property
    def not_stable(self) -> Any:
        """The end of a bracket that is not stable."""
        return self.high if self.is_stable_below else self.low


@dataclass(frozen=True, slots=True)
class Row:
    """The edges of the cells that share the values ``setting`` of the other axes, in ascending order.

    ``kind`` is "crosses", "crosses more than once", "not known", or on which side of the edge the row is "throughout".
    On a grid ``not_known`` are the values of unknown cells, which ``kind`` leaves aside, and ``degraded`` the values of
    degraded ones. On a surface ``p_stable`` is P(stable) in the middle of the row.
    """

    setting: Cell
    kind: str
    edges: tuple[Edge, ...]
    not_known: tuple[Any, ...] = ()
    degraded: tuple[Any, ...] = ()
    p_stable: float | None = None


def kind_of(num_edges: int, is_stable: bool | None, inner: str = "stable", outer: str = "not stable") -> str:
    """The ``kind`` of a row; ``is_stable`` is the side of its known cells, None without any, and has these names."""
    if num_edges:
        return "crosses" if num_edges == 1 else "crosses more than once"
    return "not known" if is_stable is None else f"{inner if is_stable else outer} throughout"


@dataclass(frozen=True, slots=True)
class Margin:
    """How far a stable setting is from the edge in one direction of an axis.

    ``known`` is the factor up to which everything is stable, which ends at ``last_stable``. ``edge`` is the factor to
    ``first_not_stable``, None without an edge up to the axis's end; ``not_known`` are unknown values before it.
    On a surface "stable" means that the 95 % interval of P(stable) is above the level, and ``not_known`` has the first
    value of which that does not hold, unless an edge follows. ``first_degraded`` is the first degraded value up to
    ``last_stable``.
    """

    axis: str
    is_upwards: bool
    known: float
    edge: float | None
    last_stable: Any
    first_not_stable: Any
    not_known: tuple[Any, ...]
    first_degraded: Any = None

    @reported
    def is_open(self) -> bool:
        """Whether everything up to the axis's end is stable."""
        return self.edge is None and not self.not_known


@dataclass(frozen=True, slots=True)
class Escape:
    """A change of one axis that reaches what is stable: the first stable value in one direction, and the factor."""

    axis: str
    is_upwards: bool
    stable_from: Any
    factor: float


@dataclass(frozen=True, slots=True)
class Position:
    """On which side of the edge a setting is; ``has_margins`` says whether it has margins, or else escapes.

    On a grid it is read from the ``num_cells`` cells around the setting, ``num_degraded`` being degraded and
    ``is_island`` if a stable one is cut off from the stable region, and on a surface from ``p_stable``.
    """

    side: Side
    has_margins: bool
    num_cells: int = 0
    num_degraded: int = 0
    is_island: bool = False
    p_stable: Interval | None = None

"""What there is to say about an edge: where rows cross it, how far a cell is from it, and where it can be escaped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from orchestrator.base.query import reported
from orchestrator.base.space import Cell

Basis = Literal["bracket", "fit"]
Side = Literal["stable", "not stable", "at the edge", "not known", "outside"]


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
    ``first_not_stable``, None if there is no edge up to the axis's end; ``not_known`` are unknown values before it.
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

    On a grid it is read from the ``num_cells`` cells around the setting, ``num_degraded`` of them degraded, and on a
    surface from ``p_stable``.
    """

    side: Side
    has_margins: bool
    num_cells: int = 0
    num_degraded: int = 0
    p_stable: Interval | None = None

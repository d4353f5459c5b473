"""The edge as lines over another axis: brackets of a grid, or the edge fitted to scattered cells with its interval."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from orchestrator.base.space import Axis, format_value
from orchestrator.maps.axes import ordered, value_labels
from orchestrator.maps.boundary import RowBoundary, boundary
from orchestrator.maps.cell_map import cell_map
from orchestrator.maps.edge_axes import EdgeAxes, edge_axes
from orchestrator.maps.fitted import Fit, FittedRow, as_range, fit, shown_value
from orchestrator.maps.rule import STABLE, StableRule
from orchestrator.maps.table import SweepTable

Kind = Literal["stable below", "stable above", "may cross", "stable throughout", "not stable throughout", "not known"]
EDGE_COLUMNS = ("edge", "low", "high", "kind")  # of the table, after those of the axes
PLACES_ACROSS = 129  # on a range
_LINES_OF_A_RANGE = 3


@dataclass(frozen=True, slots=True)
class EdgePoint:
    """One edge at the value ``across`` of the other axis; or, without an edge, what is known of this row.

    ``low`` and ``high`` are values of the axis along: the neighbours on a grid, the ends of the 95 % interval of a fit,
    None if that reaches the end of the axis. ``at`` is None if a bracket has no middle, where a fitted row only
    may cross the level, and without an edge. ``is_stable_below`` is None without one.
    """

    across: Any
    kind: Kind
    at: float | None = None
    low: Any = None
    high: Any = None
    is_stable_below: bool | None = None


@dataclass(frozen=True, slots=True)
class EdgeLine:
    """The edges at one value of the facet, in the order of the axis across, then of the axis along."""

    facet: Any
    label: str
    points: tuple[EdgePoint, ...]


@dataclass(frozen=True, slots=True)
class EdgeLines:
    """The edge along one axis, drawn against another, with a line for each value of ``facet``, if there is one.

    ``notes`` say what was fixed, and what was fitted.
    """

    name: str
    along: Axis
    across: Axis
    facet: Axis | None
    lines: tuple[EdgeLine, ...]
    is_fitted: bool
    notes: tuple[str, ...]

    @property
    def is_curve(self) -> bool:
        """Whether there is an edge at every place across: a fit over a range."""
        return self.is_fitted and not self.across.values

    @property
    def sides(self) -> frozenset[bool]:
        """For which edges training is stable below them: all (True), none (False), or some (both)."""
        return frozenset(p.is_stable_below for line in self.lines for p in line.points if p.is_stable_below is not None)


def edge_lines(
    table: SweepTable,
    along: str | None = None,
    across: str | None = None,
    facet: str | None = None,
    where: Mapping[str, Any] | None = None,
    rule: StableRule = STABLE,
) -> EdgeLines:
    """The edge along one axis at the values of another; which axes by default, and InputError, as ``edge_axes``.

    On a grid there is a point for each row of ``boundary``, or one for each of its edges. For scattered cells there are
    points for the rows of ``fit``: at each value of a list, and at ``PLACES_ACROSS`` even places of a range. A facet
    that is a range has lines for its ends and its middle. With ``counts_degraded`` degraded cells are over the edge.
    """
    is_scattered = not table.is_grid
    axes = {axis.name: as_range(axis) if is_scattered else axis for axis in table.axes}
    chosen = edge_axes(table, axes, along, across, facet, where)
    read = _fitted if is_scattered else _bracketed
    lines, notes = read(table, chosen, rule)
    notes += ["degraded cells count as over the edge"] if rule.counts_degraded else []
    return EdgeLines(table.name, chosen.along, chosen.across, chosen.facet, tuple(lines), is_scattered, tuple(notes))


def _bracketed(table: SweepTable, chosen: EdgeAxes, rule: StableRule) -> tuple[list[EdgeLine], list[str]]:
    """The lines of a grid, and what else its maps say."""
    lines, notes = [], list(chosen.notes)
    for value, label in _facet_values(chosen.facet):
        where = dict(chosen.fixed) if chosen.facet is None else {**chosen.fixed, chosen.facet.name: value}
        stability = cell_map(table, chosen.along.name, chosen.across.name, where=where, rule=rule)
        points = (point for row in boundary(stability) for point in _points_of_bracket(row))
        lines.append(EdgeLine(value, label, tuple(points)))
        own = f"{chosen.facet.name} = " if chosen.facet is not None else ""
        parts = [part for part in stability.note.split("; ") if part and not (own and part.startswith(own))]
        notes += [part for part in parts if part not in notes]
    return lines, notes


def _points_of_bracket(row: RowBoundary) -> Iterator[EdgePoint]:
    if row.kind in ("stable throughout", "not stable throughout", "not known"):
        yield EdgePoint(row.y, row.kind)
    for edge in row.edges:
        low, high = ordered([edge.stable, edge.not_stable])
        is_below = low == edge.stable
        yield EdgePoint(row.y, "stable below" if is_below else "stable above", edge.at, low, high, is_below)


def _fitted(table: SweepTable, chosen: EdgeAxes, rule: StableRule) -> tuple[list[EdgeLine], list[str]]:
    """The lines of a fit, and what was fitted."""
    fitted = fit(table, chosen.along.name, chosen.fixed, rule=rule)
    across, lines = chosen.across, []
    for value, label in _facet_values(chosen.facet):
        setting = dict(chosen.read_at) if chosen.facet is None else {**chosen.read_at, chosen.facet.name: value}
        rows = [_row(fitted, {**setting, across.name: place}) for place in _places(across)]
        points = (point for row in rows for point in _points_of_fit(row, row.setting[across.name], fitted.level))
        lines.append(EdgeLine(value, label, tuple(points)))
    return lines, [*chosen.notes, f"a fit to {fitted.num_trials} trials in {fitted.num_cells} cells"]


def _row(fitted: Fit, setting: Mapping[str, Any]) -> FittedRow:
    """The row at ``setting``, of which the fit has some."""
    others = [axis.name for axis in fitted.axes if axis.name != fitted.along.name]
    return fitted.row({name: setting[name] for name in others})


def _points_of_fit(row: FittedRow, across: Any, level: float) -> Iterator[EdgePoint]:
    if not row.edges:
        yield EdgePoint(across, "stable throughout" if row.stable > level else "not stable throughout")
    for edge in row.edges:
        kind: Kind = "stable below" if edge.is_stable_below else "stable above"
        yield EdgePoint(
            across, "may cross" if edge.at is None else kind, edge.at, edge.low, edge.high, edge.is_stable_below
        )


def _places(axis: Axis) -> tuple[Any, ...]:
    """The values across: a list, or even places of a range."""
    return axis.values or tuple(axis.at(float(unit)) for unit in np.linspace(0, 1, PLACES_ACROSS))


def _facet_values(axis: Axis | None) -> list[tuple[Any, str]]:
    """The values of the facet with their labels, one without a name if there is no facet."""
    if axis is None:
        return [(None, "")]
    values = axis.values or tuple(shown_value(axis, i / (_LINES_OF_A_RANGE - 1)) for i in range(_LINES_OF_A_RANGE))
    return [(value, f"{axis.name} = {text}") for value, text in zip(values, value_labels(values), strict=True)]


def linked(rows: Sequence[Sequence[float]]) -> list[list[tuple[int, int]]]:
    """The edges of one direction that continue each other from row to row: for each branch the rows and places in them.

    ``rows`` have the places of their edges along the axis, ascending. Branches never cross; where a row has more edges
    than the next, the nearest ones go on.
    """
    done: list[list[tuple[int, int]]] = []
    going_on: list[list[tuple[int, int]]] = []
    for number, row in enumerate(rows):
        last = [rows[at][place] for at, place in (branch[-1] for branch in going_on)]
        before_of = {here: before for before, here in _matched(last, row)}
        done += [branch for i, branch in enumerate(going_on) if i not in before_of.values()]
        going_on = [[*(going_on[before_of[i]] if i in before_of else []), (number, i)] for i in range(len(row))]
    return done + going_on


def _matched(before: Sequence[float], here: Sequence[float]) -> list[tuple[int, int]]:
    """Pairs of indices: each place of the shorter row with the nearest of the longer one, in the same order."""
    if len(before) > len(here):
        return [(a, b) for b, a in _matched(here, before)]
    pairs, start = [], 0
    for i, place in enumerate(before):
        end = len(here) - (len(before) - i) + 1  # as many are left as are still needed
        nearest = min(range(start, end), key=lambda j: abs(here[j] - place))
        pairs.append((i, nearest))
        start = nearest + 1
    return pairs


def edge_table(found: EdgeLines) -> pd.DataFrame:
    """A row for each edge, and for each row of cells without one: the values of the facet and of the axis across, then
    ``EDGE_COLUMNS``.
    """
    names = [axis.name for axis in (found.facet, found.across) if axis is not None]
    rows = [
        [
            *([_told(line.facet)] if found.facet is not None else []), _told(point.across),
            point.at, *_ends(point, found.is_fitted), point.kind,
        ]
        for line in found.lines
        for point in line.points
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=[*names, *EDGE_COLUMNS], dtype=object)


def _ends(point: EdgePoint, is_fitted: bool) -> list[Any]:
    """The bracket or the interval; an end that is None is a value of a grid's axis, and of a fit beyond the axis."""
    if is_fitted or point.is_stable_below is None:
        return [point.low, point.high]
    return [_told(point.low), _told(point.high)]


def _told(value: Any) -> Any:
    """A value of an axis as tables have it: numbers as they are, none and files as they are shown."""
    return value if isinstance(value, str | int | float) else format_value(value)

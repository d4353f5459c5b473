"""The edge as lines over another axis: brackets of a grid, or a fitted edge with its interval; and which axes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pandas as pd

from orchestrator.base.errors import InputError, Problem
from orchestrator.base.space import Axis, is_number
from orchestrator.base.words import count, plural
from orchestrator.maps.axes import led, together, value_labels
from orchestrator.maps.edges import STABLE, Edge, Row, StableRule
from orchestrator.maps.front import table_value
from orchestrator.maps.grid_map import GridMap
from orchestrator.maps.surface_map import as_range, shown_value, surface_map
from orchestrator.maps.table import SweepTable, axis_named

Kind = Literal["stable below", "stable above", "may cross", "stable throughout", "not stable throughout", "not known"]
EDGE_COLUMNS = ("edge", "low", "high", "kind")  # of the table, after those of the axes
MOST_LINES = 8  # values of an axis up to which each gets a line without being asked for
PLACES_ACROSS = 129  # on a range
_LINES_OF_A_RANGE = 3


@dataclass(frozen=True, slots=True)
class EdgeLine:
    """The rows at one value of the facet, in the order of the axis across."""

    facet: Any
    label: str
    rows: tuple[Row, ...]

    @property
    def edges(self) -> list[tuple[Row, Edge]]:
        """All edges, each with its row."""
        return [(row, edge) for row in self.rows for edge in row.edges]


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
        """Whether edges are stable below: all (True), none (False), or some (both)."""
        return frozenset(edge.is_stable_below for line in self.lines for _, edge in line.edges)


def edge_lines(
    table: SweepTable,
    along: str | None = None,
    across: str | None = None,
    facet: str | None = None,
    where: Mapping[str, Any] | None = None,
    rule: StableRule = STABLE,
) -> EdgeLines:
    """Follow the edge along one axis over the values of another; the axes are by default from ``edge_axes``.

    On a range across there are rows at ``PLACES_ACROSS`` even places. A facet that is a range has lines for its ends
    and its middle. Raises InputError as ``edge_axes`` and ``map_of`` do.
    """
    axes = {axis.name: axis if table.is_grid else as_range(axis) for axis in table.axes}
    chosen = edge_axes(table, axes, along, across, facet, where)
    lines, notes = (_bracketed if table.is_grid else _fitted)(table, chosen, rule)
    notes += ["degraded cells count as over the edge"] if rule.counts_degraded else []
    return EdgeLines(
        table.name, chosen.along, chosen.across, chosen.facet, tuple(lines), not table.is_grid, tuple(notes)
    )


def _bracketed(table: SweepTable, chosen: EdgeAxes, rule: StableRule) -> tuple[list[EdgeLine], list[str]]:
    """The lines of a grid, and what else its maps say."""
    lines, notes = [], list(chosen.notes)
    for value, label in _facet_values(chosen.facet):
        where = dict(chosen.fixed) if chosen.facet is None else {**chosen.fixed, chosen.facet.name: value}
        grid = GridMap(table, rule, chosen.along.name, chosen.across.name, where)
        lines.append(EdgeLine(value, label, tuple(grid.rows())))
        own = f"{chosen.facet.name} = " if chosen.facet is not None else ""
        parts = [part for part in grid.cells.note.split("; ") if part and not (own and part.startswith(own))]
        notes += [part for part in parts if part not in notes]
    return lines, notes


def _fitted(table: SweepTable, chosen: EdgeAxes, rule: StableRule) -> tuple[list[EdgeLine], list[str]]:
    """The lines of a surface, and what was fitted."""
    surface = surface_map(table, chosen.along.name, chosen.fixed, rule)
    names, across, lines = [axis.name for axis in surface.axes if axis.name != surface.along.name], chosen.across, []
    places = _places(next((axis for axis in surface.reach if axis.name == across.name), across))
    for value, label in _facet_values(chosen.facet):
        setting = dict(chosen.read_at) if chosen.facet is None else {**chosen.read_at, chosen.facet.name: value}
        settings = ({**setting, across.name: place} for place in places)
        rows = (surface.row({name: values[name] for name in names}) for values in settings)
        lines.append(EdgeLine(value, label, tuple(rows)))
    return lines, [
        *chosen.notes,
        f"a fit to {count(surface.num_trials, 'trial')} in {count(surface.num_cells, 'cell')}",
    ]


def _places(axis: Axis) -> tuple[Any, ...]:
    """The values across: the values of a list, or even places of a range."""
    return axis.values or tuple(axis.at(float(unit)) for unit in np.linspace(0, 1, PLACES_ACROSS))


def _facet_values(axis: Axis | None) -> list[tuple[Any, str]]:
    """The values of the facet with their labels, or one without a name, without a facet."""
    if axis is None:
        return [(None, "")]
    values = axis.values or tuple(shown_value(axis, i / (_LINES_OF_A_RANGE - 1)) for i in range(_LINES_OF_A_RANGE))
    return [(value, f"{axis.name} = {text}") for value, text in zip(values, value_labels(values), strict=True)]


# --- which axes -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EdgeAxes:
    """The axis ``along`` which the edge lies, the one ``across``, and the one of which each value has a line.

    The latter two have the values of the trials that are selected.
    ``fixed`` are the values that trials must have. ``read_at`` are the values of ranges at which a fitted surface is
    read, with those of the axes that have only one. ``notes`` say in words what was fixed.
    """

    along: Axis
    across: Axis
    facet: Axis | None
    fixed: Mapping[str, Any]
    read_at: Mapping[str, Any]
    notes: tuple[str, ...]


def edge_axes(
    table: SweepTable,
    axes: Mapping[str, Axis],
    along: str | None = None,
    across: str | None = None,
    facet: str | None = None,
    where: Mapping[str, Any] | None = None,
) -> EdgeAxes:
    """The axes named, or by default: along the first, against the first other one of numbers, with lines for the next.

    A search has its own axis along. Of the last one, each of at most ``MOST_LINES`` values has a line. An axis without
    values is a range over which cells are scattered. Raises InputError for an unknown axis or value, where axes
    coincide, where there is nothing to draw the edge against, and where a further axis is not fixed.
    """
    where = where or {}
    check_names(axes, {"--along": along, "--across": across, "--by": facet}, where)
    ranges = {name: _in_range(axes[name], value) for name, value in where.items() if _is_range(axes.get(name))}
    listed = {name: value for name, value in where.items() if name not in ranges}
    selected = table.where("--where", listed)
    found = {name: dict.fromkeys(row.cell[name] for row in selected.trials) for name in axes}
    leaders = [name for name in axes if name not in led(axes.values()) and name not in together(axes, where)]
    free = _beside(axes, leaders, (across, facet))
    along = along or (table.edge_axis if table.edge_axis in free else _first(free))
    if along is None:
        raise InputError(
            Problem("--along", "", "no axis is left along which the edge could lie", "fix or name fewer axes")
        )
    varying = _beside(
        axes, [name for name in leaders if _is_range(axes[name]) or len(found[name]) > 1], (along, across, facet)
    )
    if across is None:
        across = _first([name for name in varying if _is_numeric(axes[name])] or varying)
        varying = _beside(axes, varying, (across,))
    if across is None:
        what = f"no axis besides {along} is free, so there is nothing to draw the edge against"
        raise InputError(Problem("--across", "", what, "`sweep boundary NAME` shows this one edge"))
    if facet is None and varying and 0 < len(axes[varying[0]].values) <= MOST_LINES:
        facet = varying[0]
    _refuse_free(_beside(axes, varying, (facet,)), facet)
    single = {name: next(iter(values)) for name, values in found.items() if len(values) == 1}
    notes = selected.fixed_notes()
    notes += [f"{name} = {where[name]}" for name in ranges]
    drawn = {name: replace(axes[name], values=tuple(v for v in axes[name].values if v in found[name])) for name in axes}
    of_facet = None if facet is None else drawn[facet]
    return EdgeAxes(axes[along], drawn[across], of_facet, selected.fixed, {**single, **ranges}, tuple(notes))


def check_names(axes: Mapping[str, Axis], chosen: Mapping[str, str | None], where: Mapping[str, Any]) -> None:
    """Raise InputError where a chosen name is not an axis, is chosen twice, or is fixed."""
    taken = dict.fromkeys(where, "--where")
    for option, name in chosen.items():
        if name is None:
            continue
        axis_named(name, axes.values(), option)
        if name in taken:
            raise InputError(Problem(option, "", f"{name!r} is also in {taken[name]}", "choose another axis"))
        taken[name] = option


def _refuse_free(names: Sequence[str], facet: str | None) -> None:
    """Raise InputError where axes ``names`` are left besides those that are drawn."""
    if not names:
        return
    what = f"{', '.join(names)} {plural(len(names), 'is', 'are')} neither drawn nor fixed"
    fixes = " ".join(f"--where {name}=VALUE" for name in names)
    lines = "" if facet is not None else f", or --by {names[0]} for lines at its values"
    raise InputError(Problem("--where", "", what, f"add {fixes}{lines}"))


def _beside(axes: Mapping[str, Axis], names: Iterable[str], drawn: Iterable[str | None]) -> list[str]:
    """``names`` without the axes that are drawn, or advance with one that is."""
    return [name for name in names if name not in together(axes, drawn)]


def _first(names: Sequence[str]) -> str | None:
    return names[0] if names else None


def _is_range(axis: Axis | None) -> bool:
    return axis is not None and not axis.values and axis.ends is not None


def _is_numeric(axis: Axis) -> bool:
    """Whether the values of ``axis`` are numbers, or numbers and none (no clipping)."""
    numbers = [value for value in axis.values if value is not None]
    return _is_range(axis) or (len(numbers) > 0 and all(map(is_number, numbers)))


def _in_range(axis: Axis, value: Any) -> float:
    """The number that ``value`` means on a range. Raises InputError where it is none, or beyond the ends."""
    assert axis.ends is not None
    low, high = axis.ends
    try:
        number = float(value)
    except ValueError:
        number = float("nan")
    if not low <= number <= high:
        remedy = f"choose a number from {low:g} to {high:g}"
        raise InputError(Problem("--where", axis.name, f"{value} is not within its range", remedy))
    return number


# --- linking and tables ----------------------------------------------------------------------------


def kind_of_edge(edge: Edge) -> Kind:
    """Which side of an edge is stable, in words."""
    if edge.at is None and edge.basis == "fit":
        return "may cross"
    return "stable below" if edge.is_stable_below else "stable above"


def linked(rows: Sequence[Sequence[float]]) -> list[list[tuple[int, int]]]:
    """The branches of edges that continue each other from row to row, as pairs of a row and a place in it.

    ``rows`` have the places of their edges of one direction along the axis, ascending. Branches never cross; if a row
    has more edges than the next, the nearest ones go on.
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
    """Pairs of indices: each place of the shorter row with the nearest one of the longer row, in the same order."""
    if len(before) > len(here):
        return [(a, b) for b, a in _matched(here, before)]
    pairs, start = [], 0
    for i, place in enumerate(before):
        end = len(here) - (len(before) - i) + 1  # as many are left as are still needed
        nearest = min(range(start, end), key=lambda j: abs(here[j] - place))
        pairs.append((i, nearest))
        start = nearest + 1
    return pairs


def edge_table(lines: EdgeLines) -> pd.DataFrame:
    """A row for each edge, and for each row of cells without one: the values of the facet and of the axis across, then
    ``EDGE_COLUMNS``.
    """
    names = [axis.name for axis in (lines.facet, lines.across) if axis is not None]
    rows = []
    for line in lines.lines:
        for row in line.rows:
            at = [] if lines.facet is None else [table_value(line.facet)]
            at.append(table_value(row.setting[lines.across.name]))
            rows += [[*at, *numbers] for numbers in _numbers(row)]
    return pd.DataFrame(rows, columns=[*names, *EDGE_COLUMNS], dtype=object)


def _numbers(row: Row) -> Iterator[list[Any]]:
    """The ``EDGE_COLUMNS`` of each edge of a row; an end that is None is a value of a grid, or beyond a fit's axis."""
    if not row.edges:
        yield [None, None, None, row.kind]
    for edge in row.edges:
        ends = [edge.low, edge.high] if edge.basis == "fit" else [table_value(edge.low), table_value(edge.high)]
        yield [edge.at, *ends, kind_of_edge(edge)]

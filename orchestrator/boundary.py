"""Where a map turns from stable to not stable, and how far a setting is from there."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from orchestrator.errors import InputError, Problem
from orchestrator.space import Axis, format_value
from orchestrator.stability import MapCell, StabilityMap

RowKind = Literal["crosses", "crosses more than once", "stable throughout", "not stable throughout", "not run"]


@dataclass(frozen=True, slots=True)
class Edge:
    """One change between neighbours of a row: the edge lies between ``stable`` and ``not_stable``.

    ``at`` is the middle of this bracket on the axis's own scale, None where an end has no place on it
    (no clipping).
    """

    stable: Any
    not_stable: Any
    at: float | None


@dataclass(frozen=True, slots=True)
class RowBoundary:
    """The edges of one row of a map, from its first value on. ``missing`` are values without a result."""

    y: Any
    kind: RowKind
    edges: tuple[Edge, ...]
    missing: tuple[Any, ...]


def boundary(stability: StabilityMap) -> list[RowBoundary]:
    """The boundary along x, row by row. A cell is stable when all its seeds are; nothing is smoothed.

    Cells without a result are left out, which widens the bracket. Raises InputError for a sampled sweep,
    which has no rows, and for an axis whose values have no order.
    """
    if stability.is_sampled:
        remedy = "a grid (num: on each axis) has rows; the map of a sampled sweep shows its points"
        raise InputError(Problem(stability.name, "", "its cells are sampled, so there are no rows", remedy))
    if not is_ordered(stability.x_values):
        raise InputError(Problem("--x", "", f"the values of {stability.x.name} have no order", "choose another axis"))
    return [
        row_boundary(y, [(x, _state(stability.cells.get((x, y)))) for x in stability.x_values], stability.x)
        for y in stability.y_values
    ]


def is_ordered(values: Sequence[Any]) -> bool:
    """Whether values are numbers, in ascending order, with none (no clipping: the loosest) last."""
    numbers = values[:-1] if values and values[-1] is None else values
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in numbers)


def row_boundary(y: Any, states: Sequence[tuple[Any, str | None]], axis: Axis) -> RowBoundary:
    """The edges of one row: values of ``axis`` in order with the states of their cells, None without a result."""
    known = [(x, state == "stable") for x, state in states if state is not None]
    edges = tuple(
        Edge(a, b, axis.between(a, b)) if a_is_stable else Edge(b, a, axis.between(a, b))
        for (a, a_is_stable), (b, b_is_stable) in itertools.pairwise(known)
        if a_is_stable != b_is_stable
    )
    kind: RowKind = "crosses" if len(edges) == 1 else "crosses more than once"
    if not edges:
        kind = "not run" if not known else "stable throughout" if known[0][1] else "not stable throughout"
    return RowBoundary(y, kind, edges, tuple(x for x, state in states if state is None))


def _state(cell: MapCell | None) -> str | None:
    return cell.state if cell is not None and cell.num_finished else None


def boundary_lines(stability: StabilityMap) -> list[str]:
    """The boundary in words, a line per row from the top of the map down."""
    x, y = stability.x.name, stability.y
    rows = boundary(stability)
    names = [f"{y.name}={format_value(row.y)}" if y else "all cells" for row in rows]
    width = max(map(len, names), default=0)
    return [f"{name:<{width}}  {row_text(row, x)}" for name, row in reversed(list(zip(names, rows, strict=True)))]


def row_text(row: RowBoundary, x: str) -> str:
    """What is known of one row's edge."""
    missing = f" (without a result: {', '.join(map(format_value, row.missing))})" if row.missing else ""
    if not row.edges:
        return row.kind + missing
    edges = "; ".join(edge_text(edge, x) for edge in row.edges)
    return (f"crosses {len(row.edges)} times: " if len(row.edges) > 1 else "") + edges + missing


def edge_text(edge: Edge, x: str) -> str:
    """An edge with its bracket."""
    bracket = f"{x} {format_value(edge.stable)} is stable, {format_value(edge.not_stable)} is not"
    return bracket if edge.at is None else f"edge near {x}={edge.at:.3g} ({bracket})"


@dataclass(frozen=True, slots=True)
class Margin:
    """How far a setting is from the nearest cell that is not stable, in one direction of an axis.

    ``known`` is the factor up to which everything tried is stable; ``edge`` the factor to the first value
    that is not, None where none was found up to the axis's end.
    """

    axis: str
    is_upwards: bool
    known: float
    edge: float | None
    last_stable: Any
    first_not_stable: Any


def margins(setting: Mapping[str, Any], axes: Sequence[Axis], states: Mapping[tuple[Any, ...], str]) -> list[Margin]:
    """The margins of a stable cell along each ordered axis, the other axes fixed.

    ``states`` maps the values of all axes, in their order, to a cell's state; what has not run counts as
    neither stable nor not, and nothing beyond it is known.
    """
    found = []
    for i, axis in enumerate(axes):
        if len(axis.values) < 2 or not is_ordered(axis.values):
            continue
        here = axis.values.index(setting[axis.name])
        for is_upwards in (False, True):
            beyond = axis.values[here + 1 :] if is_upwards else axis.values[:here][::-1]
            found.append(_margin(setting, axes, i, beyond, is_upwards, states))
    return found


def _margin(
    setting: Mapping[str, Any],
    axes: Sequence[Axis],
    i: int,
    beyond: Sequence[Any],
    is_upwards: bool,
    states: Mapping[tuple[Any, ...], str],
) -> Margin:
    axis, here = axes[i], setting[axes[i].name]
    key = [setting[axis.name] for axis in axes]
    last_stable, first_not_stable, edge = here, None, None
    for value in beyond:
        key[i] = value
        state = states.get(tuple(key), "not_run")
        if state == "not_run":
            break
        if state != "stable":
            first_not_stable, edge = value, axis.factor(here, value)
            break
        last_stable = value
    return Margin(axis.name, is_upwards, axis.factor(here, last_stable), edge, last_stable, first_not_stable)

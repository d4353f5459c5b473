"""Where a map turns from stable to not stable, and how far a setting is from there."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from orchestrator.base.errors import InputError, Problem
from orchestrator.base.query import named, reported
from orchestrator.base.space import Axis, Cell, is_ordered
from orchestrator.base.vocabulary import DEGRADED, OSCILLATING, TOO_SLOW, is_known, is_over_edge
from orchestrator.base.words import columns, listed
from orchestrator.detection.relative import LR_NAMES
from orchestrator.maps.axes import existing, label_between, led, value_labels
from orchestrator.maps.cell_map import CellMap
from orchestrator.maps.cells import CellSummary
from orchestrator.maps.related_cells import state_beside
from orchestrator.maps.rule import STABLE, StableRule

RowKind = Literal["crosses", "crosses more than once", "stable throughout", "not stable throughout", "not known"]
SHOWN = 8  # values without a result listed in one line


@dataclass(frozen=True, slots=True)
class Edge:
    """One change between neighbours of a row: the edge lies between ``stable`` and ``not_stable``.

    ``at`` is the midpoint of this bracket on the axis's scale, None if an end has no place on it (no clipping).
    """

    stable: Any
    not_stable: Any
    at: float | None


@dataclass(frozen=True, slots=True)
class RowBoundary:
    """The edges of one row of a map, in the order of its values.

    ``missing`` are the values of cells that are not known (``cell_state``); ``kind`` describes the others. ``degraded``
    are the values of degraded cells.
    """

    y: Any
    kind: RowKind
    edges: tuple[Edge, ...]
    missing: tuple[Any, ...]
    degraded: tuple[Any, ...] = ()


def boundary(stability: CellMap) -> list[RowBoundary]:
    """The boundary along x, row by row. A cell is stable when all its seeds are; nothing is smoothed.

    Degraded cells are over the edge only where the map counts them so.

    Cells that are not known (``cell_state``) are skipped, which widens the bracket. Raises InputError for a sampled
    sweep, which has no rows, and for an axis with unordered values.
    """
    xs = row_values(stability)
    return [
        row_boundary(y, [(x, stability.state((x, y))) for x in xs], stability.x, stability.rule)
        for y in stability.y_values
    ]


def row_values(stability: CellMap) -> tuple[Any, ...]:
    """The values along x of the map's rows. Raises InputError as ``boundary`` does."""
    if not stability.is_grid:
        remedy = "a grid (num: on each axis) has rows; the map of a sampled sweep shows its points"
        raise InputError(Problem(stability.name, "", "its cells are sampled, so there are no rows", remedy))
    if not is_ordered(stability.x_values):
        raise InputError(
            Problem("--along", "", f"the values of {stability.x.name} have no order", "choose another axis")
        )
    if stability.y is not None and stability.y.name in stability.x.zipped:
        message = f"{stability.y.name} advances with {stability.x.name}, so each row has one cell"
        raise InputError(Problem("--across", "", message, "name another axis, or none"))
    return existing(stability.x, stability.x_values)


def row_boundary(y: Any, states: Sequence[tuple[Any, str]], axis: Axis, rule: StableRule = STABLE) -> RowBoundary:
    """The edges of one row: values of ``axis`` in order with the states of their cells."""
    known = [(x, not rule.is_over(state)) for x, state in states if is_known(state)]
    edges = tuple(Edge(stable, other, axis.between(stable, other)) for stable, other in changes(known))
    kind: RowKind = "crosses" if len(edges) == 1 else "crosses more than once"
    if not edges:
        kind = "not known" if not known else "stable throughout" if known[0][1] else "not stable throughout"
    missing = tuple(x for x, state in states if not is_known(state))
    return RowBoundary(y, kind, edges, missing, tuple(x for x, state in states if state == DEGRADED))


def changes(known: Sequence[tuple[Any, bool]]) -> list[tuple[Any, Any]]:
    """Where a row changes between neighbours: the value that is so, then the one that is not."""
    pairs = itertools.pairwise(known)
    return [(a, b) if a_is_so else (b, a) for (a, a_is_so), (b, b_is_so) in pairs if a_is_so != b_is_so]


def boundary_lines(stability: CellMap) -> list[str]:
    """The boundary in words, a line per row from the top of the map down."""
    rows = boundary(stability)
    labels = dict(zip(stability.x_values, value_labels(stability.x_values), strict=True))
    return row_lines(stability, [_row_text(row, stability, labels) for row in rows])


def row_lines(stability: CellMap, texts: Sequence[str]) -> list[str]:
    """A line per row of the map from the top down: its value of y, and its text of ``texts``."""
    names = [""] * len(texts) if stability.y is None else value_labels(stability.y_values)
    names = [f"{stability.y.name}={name}" if stability.y else "all cells" for name in names]
    return columns(list(zip(names, texts, strict=True))[::-1])


def _row_text(row: RowBoundary, stability: CellMap, labels: Mapping[Any, str]) -> str:
    """What is known about the edge of one row of ``stability``; ``labels`` are the texts of the values along x."""
    if all(stability.state((x, row.y)) == "not_run" for x in stability.x_values):
        return "not run"
    if stability.x.when and all((x, row.y) not in stability.cells for x in existing(stability.x, stability.x_values)):
        return f"there is no {stability.x.name} here"
    missing = [_missing_text(labels[x], stability.cells.get((x, row.y))) for x in row.missing]
    shown = listed(missing, SHOWN)
    if row.kind == "not known":
        return f"not known at {stability.x.name} {shown}"
    kind = row.kind.replace("throughout", "wherever it is known") if missing else row.kind
    edges = "; ".join(_edge_text(edge, stability.x.name, labels) for edge in row.edges)
    what = kind if not row.edges else f"crosses {len(row.edges)} times: {edges}" if len(row.edges) > 1 else edges
    what += f" (not known at {shown})" if missing else ""
    places = {} if stability.rule.counts_degraded else {DEGRADED: row.degraded}
    if stability.x.name in LR_NAMES:
        places |= {word: lr_places(stability, row.y, word) for word in (TOO_SLOW, OSCILLATING)}
    where = (f"{word} at {listed([labels[x] for x in xs], SHOWN)}" for word, xs in places.items() if xs)
    return "; ".join([what, *where])


def lr_places(stability: CellMap, y: Any, word: str) -> tuple[Any, ...]:
    """The values along x of the row at ``y`` whose cells have this word on their learning rate."""
    cells = ((x, stability.cells.get((x, y))) for x in stability.x_values)
    return tuple(x for x, cell in cells if cell is not None and cell.lr_health == word)


def lr_words(stability: CellMap, y: Any) -> dict[str, list[Any]]:
    """Return the learning rates of a row that are too slow or oscillating, if they lie along it."""
    if stability.x.name not in LR_NAMES:
        return {}
    return {word.replace(" ", "_"): list(lr_places(stability, y, word)) for word in (TOO_SLOW, OSCILLATING)}


def _missing_text(label: str, cell: CellSummary | None) -> str:
    """A value whose cell is not known, with the results of its seeds so far."""
    if cell is None or cell.state == "not_run":
        return label
    return f"{label} ({', '.join(f'{count} {name}' for name, count in sorted(cell.outcomes.items()))})"


def _edge_text(edge: Edge, x: str, labels: Mapping[Any, str]) -> str:
    """An edge with its bracket; ``labels`` are the texts of the axis's values."""
    bracket = f"{x} {labels[edge.stable]} is stable, {labels[edge.not_stable]} is not"
    if edge.at is None:
        return bracket
    return f"edge near {x}={label_between(edge.stable, edge.not_stable, edge.at)} ({bracket})"


@dataclass(frozen=True, slots=True)
class Margin:
    """How far a setting is from the nearest cell that is not stable, in one direction of an axis.

    ``known`` is the factor up to which every cell is stable, the last one at ``last_stable``. ``edge`` is the
    factor to the first value that is not stable, None if there is none up to the axis's end; ``missing`` are the
    values before it (or the end) whose cells are not known. ``first_degraded`` is the first value of those up to
    ``last_stable`` whose cell is degraded: stable, but it learned little.
    """

    axis: str
    is_upwards: bool
    known: float
    edge: float | None
    last_stable: Any
    first_not_stable: Any
    missing: tuple[Any, ...] = named("not_known")
    first_degraded: Any = None

    @reported
    def is_open(self) -> bool:
        """Whether everything up to the axis's end is stable."""
        return self.edge is None and not self.missing


def margins(
    setting: Cell,
    axes: Sequence[Axis],
    states: Mapping[Cell, str],
    rule: StableRule = STABLE,
) -> list[Margin]:
    """The margins of a stable cell along each ordered axis, with the other axes fixed.

    ``states`` has the state of each cell. With ``counts_degraded`` degraded cells
    are over the edge.
    """
    found = []
    for axis in ordered_axes(axes):
        values = existing(axis, axis.values)
        if setting[axis.name] not in values:
            continue
        here = values.index(setting[axis.name])
        for is_upwards in (False, True):
            beyond = values[here + 1 :] if is_upwards else values[:here][::-1]
            row = [(value, state_beside(setting, axis, value, axes, states)) for value in beyond]
            found.append(margin_along(axis, values[here], is_upwards, row, rule))
    return found


def ordered_axes(axes: Sequence[Axis]) -> Iterator[Axis]:
    """The axes of two or more ordered values; the first of those that advance together."""
    done, followers = set[str](), led(axes)
    for axis in sorted(axes, key=lambda axis: axis.name in followers):
        if len(existing(axis, axis.values)) > 1 and is_ordered(axis.values) and axis.name not in done:
            yield axis
            done.update(axis.zipped)


def margin_along(axis: Axis, here: Any, is_upwards: bool, row: Sequence[tuple[Any, str]], rule: StableRule) -> Margin:
    """The margin from ``here`` along ``row``, the values in one direction with the states of their cells."""
    last_stable, first_not_stable, edge, missing, degraded = here, None, None, [], None
    for value, state in row:
        if not is_known(state):
            missing.append(value)
        elif rule.is_over(state):
            first_not_stable, edge = value, axis.factor(here, value)
            break
        elif not missing:
            last_stable = value
            degraded = value if degraded is None and state == DEGRADED else degraded
    known = axis.factor(here, last_stable)
    return Margin(axis.name, is_upwards, known, edge, last_stable, first_not_stable, tuple(missing), degraded)


def distance_to_edge(cell: Cell, axes: Sequence[Axis], states: Mapping[Cell, str]) -> float | None:
    """Decades from a cell to the nearest one on the other side of the edge, along any ordered axis.

    log10 of the factor; negative for a cell that is over the edge. None without another side in any direction,
    or where the cell is not known.
    """
    state = states.get(cell, "not_run")
    if not is_known(state):
        return None
    factors = []
    for axis in ordered_axes(axes):
        values = existing(axis, axis.values)
        for value in values if cell[axis.name] in values else ():
            other = state_beside(cell, axis, value, axes, states)
            if is_known(other) and is_over_edge(other) != is_over_edge(state):
                factors.append(axis.factor(cell[axis.name], value))
    finite = [factor for factor in factors if math.isfinite(factor) and factor > 0]
    if not finite:
        return None
    distance = math.log10(min(finite))
    return -distance if is_over_edge(state) else distance

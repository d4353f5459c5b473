"""Where a metric of the map's cells passes a level: the brackets of each row, as those of the edge of stability."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from orchestrator.base.errors import InputError, Problem
from orchestrator.base.space import Axis
from orchestrator.base.words import listed
from orchestrator.maps.axes import label_between, value_labels
from orchestrator.maps.boundary import SHOWN, changes, row_lines, row_values
from orchestrator.maps.cell_map import CellMap

LevelKind = Literal["crosses", "crosses more than once", "below throughout", "at or above throughout", "not known"]


@dataclass(frozen=True, slots=True)
class LevelEdge:
    """One passing of the level between neighbours of a row: at ``below`` the metric is below it, at ``above`` not.

    ``at`` is the midpoint of this bracket on the axis's scale, None if an end has no place on it (no clipping).
    """

    below: Any
    above: Any
    at: float | None


@dataclass(frozen=True, slots=True)
class LevelRow:
    """Where one row passes the level, in the order of its values; ``missing`` are the values without a number."""

    y: Any
    kind: LevelKind
    edges: tuple[LevelEdge, ...]
    missing: tuple[Any, ...]


def level_boundary(stability: CellMap, level: float) -> list[LevelRow]:
    """Where the map's metric passes ``level`` along x, row by row; a cell at the level counts as above. No smoothing.

    A cell's number is the median over its seeds that have it. Cells without one, or some of whose seeds have no
    outcome yet, are skipped, which widens the bracket. Raises InputError for a sampled sweep, an axis with unordered
    values, a level that is not a number, and where no cell has the metric.
    """
    if not abs(level) < float("inf"):
        raise InputError(Problem("--level", "", f"{level} is no level", "write a finite number, such as 3"))
    xs = row_values(stability)
    rows = [level_row(y, [(x, _value(stability, (x, y))) for x in xs], stability.x, level) for y in stability.y_values]
    if all(row.kind == "not known" for row in rows):
        message = f"no cell has {stability.metric}"
        remedy = "those of the curvature need `telemetry: {curvature: 20}`; docs/maps.md says what each metric is"
        raise InputError(Problem("--level", stability.metric, message, remedy))
    return rows


def level_row(y: Any, numbers: Sequence[tuple[Any, float | None]], axis: Axis, level: float) -> LevelRow:
    """Where one row passes ``level``: values of ``axis`` in order with the numbers of their cells."""
    known = [(x, value < level) for x, value in numbers if value is not None]
    edges = tuple(LevelEdge(below, above, axis.between(below, above)) for below, above in changes(known))
    kind: LevelKind = "crosses" if len(edges) == 1 else "crosses more than once"
    if not edges:
        kind = "not known" if not known else "below throughout" if known[0][1] else "at or above throughout"
    return LevelRow(y, kind, edges, tuple(x for x, value in numbers if value is None))


def _value(stability: CellMap, key: tuple[Any, Any]) -> float | None:
    cell = stability.cells.get(key)
    return None if cell is None or cell.num_finished < cell.num_seeds else cell.value


def level_lines(stability: CellMap, level: float) -> list[str]:
    """The brackets in words, a line per row from the top of the map down."""
    labels = dict(zip(stability.x_values, value_labels(stability.x_values), strict=True))
    return row_lines(stability, [_row_text(row, stability, labels) for row in level_boundary(stability, level)])


def _row_text(row: LevelRow, stability: CellMap, labels: Mapping[Any, str]) -> str:
    if stability.x.when and not any((x, row.y) in stability.cells for x in row_values(stability)):
        return f"there is no {stability.x.name} here"
    shown = listed([labels[x] for x in row.missing], SHOWN)
    if row.kind == "not known":
        return f"not known at {stability.x.name} {shown}"
    kind = row.kind.replace("throughout", "wherever it is known") if row.missing else row.kind
    edges = "; ".join(_edge_text(edge, stability.x.name, labels) for edge in row.edges)
    what = kind if not row.edges else f"crosses {len(row.edges)} times: {edges}" if len(row.edges) > 1 else edges
    return f"{what} (not known at {shown})" if row.missing else what


def _edge_text(edge: LevelEdge, x: str, labels: Mapping[Any, str]) -> str:
    bracket = f"{x} {labels[edge.below]} is below, {labels[edge.above]} is not"
    if edge.at is None:
        return bracket
    return f"level passed near {x}={label_between(edge.below, edge.above, edge.at)} ({bracket})"

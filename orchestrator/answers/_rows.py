"""The rows of a map in words: where each one crosses the edge, and what is not known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.base.vocabulary import DEGRADED, OSCILLATING, TOO_SLOW
from orchestrator.base.words import count, listed
from orchestrator.detection.relative import is_learning_rate
from orchestrator.maps.axes import axis_number, existing, label_between, value_labels
from orchestrator.maps.cell_map import CellMap
from orchestrator.maps.cells import CellSummary
from orchestrator.maps.edges import Edge, EdgeRule, Row, StableRule
from orchestrator.maps.grid_map import GridMap
from orchestrator.maps.surface_map import SurfaceMap, setting_text

_SHOWN = 8  # values listed in one line


def named_rows(stability: GridMap | SurfaceMap) -> list[tuple[str, str]]:
    """Return the name and the text of each row, from the top of the map down."""
    rows = stability.rows()
    if isinstance(stability, SurfaceMap):
        named = [(setting_text(row.setting, stability.axes), surface_row_text(row, stability)) for row in rows]
        return named[::-1]
    cells = stability.cells
    labels = dict(zip(cells.x_values, value_labels(cells.x_values), strict=True))
    texts = [_grid_row_text(row, cells, stability.rule, labels) for row in rows]
    if cells.y is None:
        return [("all cells", text) for text in texts]
    names = (f"{cells.y.name}={label}" for label in value_labels(cells.y_values))
    return list(zip(names, texts, strict=True))[::-1]


def lr_labels(row: Row, cells: CellMap) -> dict[str, list[Any]]:
    """Return the learning rates of a row that are too slow or oscillating, if they lie along it."""
    if not is_learning_rate(cells.x.name):
        return {}
    return {label.replace(" ", "_"): _lr_places(row, cells, label) for label in (TOO_SLOW, OSCILLATING)}


def surface_row_text(row: Row, surface: SurfaceMap) -> str:
    """Return the edges of a fitted row in words."""
    return "; ".join(_fitted_text(edge, surface) for edge in row.edges) or row.kind


def _fitted_text(edge: Edge, surface: SurfaceMap) -> str:
    axis = surface.along
    low = "below the axis" if edge.low is None else axis_number(axis, edge.low)
    high = "beyond the axis" if edge.high is None else axis_number(axis, edge.high)
    if edge.at is None:
        return f"an edge may lie at {axis.name} {low} .. {high}"
    side = f"{surface.rule.inner} {'up to' if edge.is_stable_below else 'from'}"
    return f"{side} {axis.name} {axis_number(axis, edge.at)} ({low} .. {high})"


def _grid_row_text(row: Row, cells: CellMap, rule: EdgeRule, labels: Mapping[Any, str]) -> str:
    x, of_row = cells.x, {x: cells.cells.get(_key(row, x)) for x in cells.x_values}
    is_about_stability = isinstance(rule, StableRule)
    if is_about_stability and all(cell is None or cell.state == "not_run" for cell in of_row.values()):
        return "not run"
    if x.when and all(of_row[value] is None for value in existing(x, cells.x_values)):
        return f"there is no {x.name} here"
    missing = [labels[value] + (_results(of_row[value]) if is_about_stability else "") for value in row.not_known]
    shown = listed(missing, _SHOWN)
    if row.kind == "not known":
        return f"not known at {x.name} {shown}"
    degraded = () if rule == StableRule(True) else row.degraded
    edges = "; ".join(_bracket_text(edge, x.name, rule, labels, degraded) for edge in row.edges)
    text = edges if len(row.edges) == 1 else f"crosses {count(len(row.edges), 'time')}: {edges}"
    if not row.edges:
        kind = row.kind.replace("stable", "inside the edge") if degraded else row.kind
        text = kind.replace("throughout", "wherever it is known") if missing else kind
    text += f" (not known at {shown})" if missing else ""
    if not isinstance(rule, StableRule):
        return text
    places: dict[str, Sequence[Any]] = {DEGRADED: degraded}
    if is_learning_rate(x.name):
        places |= {label: _lr_places(row, cells, label) for label in (TOO_SLOW, OSCILLATING)}
    where = (f"{label} at {listed([labels[x] for x in xs], _SHOWN)}" for label, xs in places.items() if xs)
    return "; ".join([text, *where])


def _key(row: Row, x: Any) -> tuple[Any, Any]:
    return x, next(iter(row.setting.values()), None)


def _lr_places(row: Row, cells: CellMap, label: str) -> list[Any]:
    """The values along x whose cells have this label of their learning rate."""
    of_row = ((x, cells.cells.get(_key(row, x))) for x in cells.x_values)
    return [x for x, cell in of_row if cell is not None and cell.lr_health == label]


def _results(cell: CellSummary | None) -> str:
    """The results so far of the seeds of an unknown cell."""
    if cell is None or cell.state == "not_run":
        return ""
    return f" ({', '.join(f'{num} {label}' for label, num in sorted(cell.outcomes.items()))})"


def _bracket_text(edge: Edge, x: str, rule: EdgeRule, labels: Mapping[Any, str], degraded: Sequence[Any]) -> str:
    inner = "inside the edge" if edge.stable in degraded else rule.inner
    bracket = f"{x} {labels[edge.stable]} is {inner}, {labels[edge.not_stable]} is not"
    if edge.at is None:
        return bracket
    what = "edge" if isinstance(rule, StableRule) else "level passed"
    return f"{what} near {x}={label_between(edge.stable, edge.not_stable, edge.at)} ({bracket})"

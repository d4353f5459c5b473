"""Where the map turns from stable to not stable."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from orchestrator.answers._options import along_option, degraded_option, reduce_option, where_option
from orchestrator.base.errors import InputError, Problem
from orchestrator.base.query import Query, Say, hidden, option, silent
from orchestrator.base.words import count
from orchestrator.render.answer import Answer
from orchestrator.render.blocks import Block, Line, Table

if TYPE_CHECKING:
    from orchestrator.maps.edges import EdgeRule, Row
    from orchestrator.maps.grid_map import GridMap
    from orchestrator.maps.surface_map import SurfaceMap
    from orchestrator.maps.table import SweepTable


def _level(text: str) -> tuple[str, float]:
    """The metric and the level of METRIC=NUMBER."""
    metric, equals, number = text.partition("=")
    try:
        level = float(number)
    except ValueError:
        level = float("nan")
    if not equals or not abs(level) < float("inf"):
        remedy = "write e.g. --level edge_crossings=3"
        raise InputError(Problem("--level", text, "is not METRIC=NUMBER", remedy))
    return metric.strip(), level


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundaryQuery(Query["SweepTable"]):
    """Show where the map turns from stable to not stable, row by row, with brackets.

    On a grid an edge lies between two neighbouring cells; if cells are scattered, it is fitted, with its 95 % interval.
    For example `sweep boundary lr_warmup --across warmup`, or `sweep boundary lr_warmup --level edge_crossings=3` for
    where the median of a metric passes a level.
    """

    section: ClassVar[str] = "Boundary"
    says_origin: ClassVar[bool] = True

    along: str | None = along_option(
        "the axis along which the edge lies; by default a search's, or what moves stability most"
    )
    across: str | None = option(None, "the axis of the rows; the first other one by default", metavar="AXIS")
    where: Mapping[str, Any] = where_option()
    reduce: str = reduce_option()
    degraded: bool = degraded_option()
    level: tuple[str, float] | None = option(
        None,
        "where the median of a metric passes this level, in place of the share of stable seeds",
        metavar="METRIC=NUMBER",
        read=_level,
    )

    def ask(self, subject: SweepTable, say: Say = silent) -> Boundary:
        """Return the edges of each row."""
        if self.level is not None and self.degraded:
            message = "is about outcomes, which a level of a metric leaves aside"
            raise InputError(Problem("--degraded", "", message, "leave out --degraded, or --level"))
        return _boundary(self._map(subject), self.where)

    def _map(self, table: SweepTable) -> GridMap | SurfaceMap:
        from orchestrator.maps.cell_map import check_metric
        from orchestrator.maps.curve_metrics import measured
        from orchestrator.maps.edge_line import check_names
        from orchestrator.maps.edges import LevelRule, StableRule
        from orchestrator.maps.grid_map import GridMap
        from orchestrator.maps.stability_map import map_of

        rule: EdgeRule = StableRule(self.degraded)
        if self.level is not None:
            metric, level = self.level
            check_metric(table, metric, "--level")
            rule = LevelRule(metric, level, measured(table, [metric]))
        if table.is_grid:
            check_names({axis.name: axis for axis in table.axes}, {"--along": self.along, "--across": self.across}, {})
        stability = map_of(table, self.along, self.across, self.where, self.reduce, rule)
        return stability.steepest if isinstance(stability, GridMap) else stability


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary(Answer):
    """The edges along one axis, row by row: brackets of a grid, or a fit with its intervals."""

    sweep: str
    along: str
    is_fitted: bool
    metric: str | None = None
    level: float | None = None
    num_trials: int | None = None
    rows: list[dict[str, Any]] = field(default_factory=list)
    head: str = hidden()
    texts: tuple[tuple[str, str], ...] = hidden()

    def blocks(self) -> Iterator[Block]:
        """Yield what is shown, and a line for each row from the top of the map down."""
        yield Line(self.head)
        yield Table(("", ""), self.texts)


def _boundary(stability: GridMap | SurfaceMap, where: Mapping[str, Any]) -> Boundary:
    from orchestrator.answers._rows import named_rows
    from orchestrator.maps.edges import LevelRule
    from orchestrator.maps.surface_map import SurfaceMap

    rule = stability.rule
    metric, level = (rule.metric, rule.level) if isinstance(rule, LevelRule) else (None, None)
    if isinstance(stability, SurfaceMap) and level is None:
        level = stability.level
    return Boundary(
        sweep=stability.name,
        along=stability.along.name,
        is_fitted=stability.is_fitted,
        metric=metric,
        level=level,
        num_trials=stability.num_trials if stability.is_fitted else None,
        rows=[_row(row, stability) for row in stability.rows()],
        head=_head(stability, where),
        texts=tuple(named_rows(stability)),
    )


def _row(row: Row, stability: GridMap | SurfaceMap) -> dict[str, Any]:
    """Return a row as it is written."""
    from orchestrator.answers._rows import lr_labels
    from orchestrator.base.vocabulary import DEGRADED
    from orchestrator.maps.edges import LevelRule
    from orchestrator.maps.grid_map import GridMap

    if not isinstance(stability, GridMap):
        edges = [
            {"at": edge.at, "low": edge.low, "high": edge.high, "is_stable_below": edge.is_stable_below}
            for edge in row.edges
        ]
        return {"setting": row.setting, "stable_in_the_middle": row.p_stable, "edges": edges}
    is_level = isinstance(stability.rule, LevelRule)
    inner, outer = ("below", "above") if is_level else ("stable", "not_stable")
    return {
        "setting": row.setting,
        "kind": row.kind,
        "edges": [{"at": edge.at, inner: edge.stable, outer: edge.not_stable} for edge in row.edges],
        "not_known": row.not_known,
        **({} if is_level else {DEGRADED: row.degraded, **lr_labels(row, stability.cells)}),
    }


def _head(stability: GridMap | SurfaceMap, where: Mapping[str, Any]) -> str:
    """Say what the edge is."""
    from orchestrator.maps.edges import LevelRule, StableRule
    from orchestrator.maps.grid_map import GridMap

    name, along, rule = stability.name, stability.along.name, stability.rule
    if isinstance(stability, GridMap):
        note = f" ({stability.cells.note})" if stability.cells.note else ""
        if isinstance(rule, LevelRule):
            return f"{name}: where the median {rule.metric} passes {rule.level:g} along {along}{note}"
        counted = ", and degraded cells are over the edge" if stability.cells.rule.counts_degraded else ""
        return f"{name}: the edge along {along}{note}; a cell is stable when all its seeds are{counted}"
    shown = "".join(f", {axis} = {value}" for axis, value in where.items())
    degraded = " or degraded" if rule == StableRule(True) else ""
    are = f"have {rule.metric} below {rule.level:g}" if isinstance(rule, LevelRule) else f"are unstable{degraded}"
    return (
        f"{name}: the edge along {along}{shown}, where half of the trials {are}, with an interval of 95 %; a fit to "
        f"{count(stability.num_trials, 'trial')} in {count(stability.num_cells, 'cell')}"
    )

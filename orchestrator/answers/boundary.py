"""Where the map turns from stable to not stable."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from orchestrator.answers._options import along_option, degraded_option, reduce_option, where_option
from orchestrator.base.errors import InputError, Problem
from orchestrator.base.query import Query, Say, hidden, option, silent
from orchestrator.render.answer import Answer
from orchestrator.render.blocks import Block, Line, Table

if TYPE_CHECKING:
    from orchestrator.maps.cell_map import CellMap
    from orchestrator.maps.fitted import Fit
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

    along: str | None = along_option("the axis along which the edge lies; the first by default")
    across: str | None = option(None, "the axis of the rows; the second by default", metavar="AXIS")
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
        return self._on_grid(subject) if subject.is_grid else self._on_surface(subject)

    def _on_grid(self, table: SweepTable) -> Boundary:
        from orchestrator.maps.boundary import boundary, boundary_lines, lr_words
        from orchestrator.maps.cell_map import cell_map
        from orchestrator.maps.curve_metrics import measured
        from orchestrator.maps.edge_axes import check_names
        from orchestrator.maps.level_boundary import level_boundary, level_lines
        from orchestrator.maps.rule import StableRule

        axes = {axis.name: axis for axis in table.axes}
        check_names(axes, {"--along": self.along, "--across": self.across}, {})
        metric, level = self.level or ("final_loss", None)
        readings = measured(table, [metric]) if self.level else None
        stability = cell_map(
            table, self.along, self.across, metric, self.where, self.reduce, readings, StableRule(self.degraded)
        )
        setting_of = {y: {} if stability.y is None else {stability.y.name: y} for y in stability.y_values}
        shared: dict[str, Any] = {"sweep": stability.name, "along": stability.x.name, "is_fitted": False}
        if level is not None:
            rows: list[dict[str, Any]] = [
                {
                    "setting": setting_of[row.y],
                    "kind": row.kind,
                    "edges": [{"at": edge.at, "below": edge.below, "above": edge.above} for edge in row.edges],
                    "not_known": row.missing,
                }
                for row in level_boundary(stability, level)
            ]
            head = _where_it_passes(stability, level)
            return Boundary(
                **shared, metric=metric, level=level, rows=rows, texts=(head, *level_lines(stability, level))
            )
        rows = [
            {
                "setting": setting_of[row.y],
                "kind": row.kind,
                "edges": [{"at": e.at, "stable": e.stable, "not_stable": e.not_stable} for e in row.edges],
                "not_known": row.missing,
                **lr_words(stability, row.y),
            }
            for row in boundary(stability)
        ]
        return Boundary(**shared, rows=rows, texts=(_where_it_is(stability), *boundary_lines(stability)))

    def _on_surface(self, table: SweepTable) -> Boundary:
        from orchestrator.maps.fitted import fit, fitted_lines
        from orchestrator.maps.rule import StableRule

        name = table.name
        if self.level is not None:
            message = f"its cells are scattered, so no row shows where {self.level[0]} passes a level"
            remedy = "train a grid (num: on each axis); without --level a surface of P(stable) is fitted"
            raise InputError(Problem(name, "", message, remedy))
        fitted = fit(table, self.along, self.where, rule=StableRule(self.degraded))
        rows = [
            {
                "setting": row.setting,
                "stable_in_the_middle": row.stable,
                "edges": [
                    {"at": edge.at, "low": edge.low, "high": edge.high, "is_stable_below": edge.is_stable_below}
                    for edge in row.edges
                ],
            }
            for row in fitted.rows()
        ]
        return Boundary(
            sweep=name,
            along=fitted.along.name,
            is_fitted=True,
            level=fitted.level,
            num_trials=fitted.num_trials,
            rows=rows,
            texts=(_where_it_is_fitted(name, fitted, self.where), *fitted_lines(fitted)),
        )


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
    texts: tuple[str, ...] = hidden()

    def blocks(self) -> Iterator[Block]:
        """Yield what is shown, and a line for each row from the top of the map down."""
        head, *lines = self.texts
        yield Line(head)
        rows = (line.partition("  ") for line in lines)
        yield Table(("", ""), tuple((name, text.strip()) for name, _, text in rows))


def _note(stability: CellMap) -> str:
    return f" ({stability.note})" if stability.note else ""


def _where_it_is(stability: CellMap) -> str:
    counted = " and none is degraded" if stability.rule.counts_degraded else ""
    name, axis = stability.name, stability.x.name
    return f"{name}: the edge along {axis}{_note(stability)}; a cell is stable when all its seeds are{counted}"


def _where_it_passes(stability: CellMap, level: float) -> str:
    what = f"where the median {stability.metric} passes {level:g} along {stability.x.name}"
    return f"{stability.name}: {what}{_note(stability)}"


def _where_it_is_fitted(name: str, fitted: Fit, where: Mapping[str, Any]) -> str:
    shown = "".join(f", {axis} = {value}" for axis, value in where.items())
    return (
        f"{name}: the edge along {fitted.along.name}{shown}, where half of the trials are stable, with an interval of "
        f"95 %; a fit to {fitted.num_trials} trials in {fitted.num_cells} cells"
    )

"""The edge along one axis, as a line over another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.answers._options import along_option, by_option, degraded_option, where_option
from orchestrator.base.query import Query, Say, hidden, option, reported, silent
from orchestrator.base.space import format_value
from orchestrator.render.answer import Answer
from orchestrator.render.blocks import Block, Figure, Line, Table, picture_of

if TYPE_CHECKING:
    import pandas as pd

    from orchestrator.maps.edge_line import EdgeLines
    from orchestrator.maps.table import SweepTable


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeQuery(Query["SweepTable"]):
    """Draw the edge along one axis against another, with a line for each value of a third.

    On a grid bars show between which neighbours the edge lies. If cells are scattered it is fitted, and a band shows
    its 95 % interval. For example `sweep edge fit --along lr --across beta2 --output edge.png`.
    """

    along: str | None = along_option("the axis along which the edge lies; the first by default")
    across: str | None = option(
        None, "the axis that it is drawn against; by default the next numeric one", metavar="AXIS"
    )
    by: str | None = by_option("a line for each value of this axis; by default a further axis of at most 8 values")
    where: Mapping[str, Any] = where_option()
    degraded: bool = degraded_option()

    def ask(self, subject: SweepTable, say: Say = silent) -> EdgeAnswer:
        """Return the lines of the edge."""
        from orchestrator.maps.edge_line import edge_lines
        from orchestrator.maps.edges import StableRule

        found = edge_lines(subject, self.along, self.across, self.by, self.where, StableRule(self.degraded))
        return EdgeAnswer(found.name, found.along.name, found.across.name, found)


@dataclass(frozen=True, slots=True)
class EdgeAnswer(Answer):
    """The edge as lines over another axis."""

    sweep: str
    along: str
    across: str
    result: EdgeLines = hidden()

    @reported
    def is_fitted(self) -> bool:
        """Whether the edge is from a surface."""
        return self.result.is_fitted

    @reported
    def edges(self) -> list[dict[str, Any]]:
        """A row for each edge, and for each row of cells without one."""
        return [
            {key: None if value != value else value for key, value in row.items()}
            for row in self.frame().to_dict("records")
        ]

    def frame(self) -> pd.DataFrame:
        """Return the numbers of the edge."""
        from orchestrator.maps.edge_line import edge_table

        return edge_table(self.result)

    def blocks(self) -> Iterator[Block]:
        """Yield what is drawn, the edges as a table, and the figure."""
        notes = f" ({'; '.join(self.result.notes)})" if self.result.notes else ""
        yield Line(f"{self.sweep}: the edge along {self.along} against {self.across}{notes}")
        if not self.result.is_curve:
            table = self.frame()
            rows = tuple(tuple(map(_text, row)) for row in table.itertuples(index=False))
            yield Table(tuple(map(str, table.columns)), rows, indent=1)
        yield Figure(picture_of("edge_line:edge_picture", self.result), "the edge against another axis")


def _text(value: Any) -> str:
    if value is None or value != value:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else format_value(value)

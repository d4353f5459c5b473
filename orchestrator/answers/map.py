"""The stability map: outcomes over two axes, as a picture and as a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from orchestrator.answers._options import (
    by_option,
    degraded_option,
    metric_option,
    reduce_option,
    where_option,
    x_option,
    y_option,
)
from orchestrator.base.files import HEATMAP
from orchestrator.base.query import Query, Say, hidden, reported, silent
from orchestrator.render.answer import Answer
from orchestrator.render.blocks import Block, Drawing, Figure, Line, picture_of

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

    from orchestrator.maps.cell_map import CellMap
    from orchestrator.maps.stability_map import Mesh
    from orchestrator.maps.table import SweepTable


@dataclass(frozen=True, slots=True, kw_only=True)
class MapQuery(Query["SweepTable"]):
    """Draw the stability map: the fraction of stable seeds, and a metric in a second panel.

    Writes results/NAME/heatmap.png, or the file of --output; a .csv has a row for each cell. For example `sweep map
    lr_warmup --output map.svg`, or `sweep export heatmap lr_warmup`, which is the same.
    """

    panel: ClassVar[str] = "look"
    says_origin: ClassVar[bool] = True

    x: str | None = x_option()
    y: str | None = y_option()
    metric: str | None = metric_option(
        None,
        "second panel: final_loss, validation_loss, learned_share, onset_step, spike_score, ...; by default the score "
        "of the sweep, else final_loss",
    )
    where: Mapping[str, Any] = where_option()
    reduce: str = reduce_option()
    by: str | None = by_option("one map for each value of this axis")
    degraded: bool = degraded_option()

    def ask(self, subject: SweepTable, say: Say = silent) -> MapAnswer:
        """Return the map, or one for each value of an axis."""
        from orchestrator.maps.cell_map import cell_map, facet_maps, separate_maps
        from orchestrator.maps.curve_metrics import OF_TELEMETRY, measured
        from orchestrator.maps.edges import StableRule
        from orchestrator.maps.stability_map import surface_mesh

        wanted = dict.fromkeys([*filter(None, [self.metric]), *OF_TELEMETRY, *subject.printed_metrics])
        options: dict[str, Any] = {"x": self.x, "y": self.y, "metric": self.metric, "reduce": self.reduce}
        options |= {"rule": StableRule(self.degraded), "measured": measured(subject, wanted)}
        if self.by is None:
            maps = [cell_map(subject, where=self.where, **options)]
        else:
            maps = facet_maps(subject, self.by, self.where, **options)
        meshes = [surface_mesh(subject, each, self.where) for each in maps]
        is_apart = self.by is None and self.reduce == "worst"  # which is the default
        separate = separate_maps(subject, maps[0], self.where, **options) if is_apart else []
        return MapAnswer(maps[0].name, tuple(maps), tuple(meshes), tuple(separate), subject.ledger.path.parent)


@dataclass(frozen=True, slots=True)
class MapAnswer(Answer):
    """One map of a sweep, or one for each value of an axis; ``separate`` ones are drawn in place of the one."""

    sweep: str
    maps: tuple[CellMap, ...] = hidden()
    meshes: tuple[Mesh | None, ...] = hidden()
    separate: tuple[CellMap, ...] = hidden()
    folder: Path = hidden()

    @reported
    def cells(self) -> list[dict[str, Any]]:
        """A row for each cell."""
        return self.frame().to_dict("records")

    def frame(self) -> pd.DataFrame:
        """Return a row for each cell; of several maps the value of their axis comes first."""
        import pandas as pd

        from orchestrator.maps.tables import map_table

        tables = [map_table(stability) for stability in self.maps]
        for table, stability in zip(tables, self.maps, strict=True):
            for axis, value in stability.facet:
                table.insert(0, axis, value)
        return pd.concat(tables, ignore_index=True) if len(tables) > 1 else tables[0]

    def blocks(self) -> Iterator[Block]:
        """Yield the map as text if it fits, and as a figure."""
        from orchestrator.render.text_map import drawn_map

        first = self.maps[0]
        against = "" if first.y is None else f" against {first.y.name}"
        note = f" ({first.note})" if first.note else ""
        yield Line(f"{self.sweep}: the stability map over {first.x.name}{against}{note}")
        for stability in self.maps:
            yield from map(Line, map(" = ".join, stability.facet))
            if (drawing := drawn_map(stability)) is not None:
                yield Drawing(drawing)
        picture = picture_of("maps:heatmap", self.maps, self.meshes)
        if self.separate:
            picture = picture_of("small_maps:small_maps", self.separate)
        yield Figure(picture, "stability map", self.folder / HEATMAP)

"""What a refinement of the edge found, in one sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.maps.table import SweepTable


def edge_sentence(table: SweepTable, along: str, factor: float) -> str:
    """Say where the edge along an axis lies in the row of the setting to take, which setting that is, and what is next.

    Unless the edge is known within ``factor`` in each row, that is a further refinement. Raises InputError if there are
    too few trials for an edge.
    """
    from orchestrator.answers._rows import surface_row_text
    from orchestrator.maps.recommendation import recommend
    from orchestrator.maps.surface_map import setting_text, surface_map

    surface, chosen = surface_map(table, along), recommend(table).chosen
    rows = surface.rows()
    row = rows[len(rows) // 2] if chosen is None else surface.row(chosen.setting.without({along}))
    where = f" at {setting_text(row.setting, surface.axes)}" if row.setting else ""
    take = "no setting is far enough from it" if chosen is None else f"take {chosen.name}"
    edges = [edge for each in rows for edge in each.edges]
    is_known = all(
        edge.low is not None and edge.high is not None and surface.along.factor(edge.low, edge.high) <= factor
        for edge in edges
    )
    command = f"sweep recommend {table.name}" if is_known else f"sweep run {table.name} --refine"
    return f"the edge{where}: {surface_row_text(row, surface)}; {take}; next: `{command}`"

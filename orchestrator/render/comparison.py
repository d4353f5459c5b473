"""The picture of several sweeps: the map of each, and below it what differs from the first."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from orchestrator.maps.cell_map import CellMap
from orchestrator.maps.cells import CellSummary
from orchestrator.maps.comparison import ComparedMeshes
from orchestrator.maps.stability_map import Mesh
from orchestrator.render.labels import label_positions
from orchestrator.render.maps import FRACTION, Panel, add_colour_bar, cells_text, draw_panel, finish, panel_size
from orchestrator.render.panels import all_names, blocks, draw_edge, flat, name_above
from orchestrator.render.style import EDGE_LABEL, EDGE_LINE, picture

_ONE_ROW = 1.0  # inches
_FIRST_EDGE: dict[str, Any] = {"color": "black", "linewidth": 1.4, "linestyle": "dotted"}


@picture("map")
def comparison_picture(maps: Sequence[CellMap], meshes: ComparedMeshes | None = None) -> Figure:
    """Draw maps of several sweeps, and below each its difference from the first: of cells, or of surfaces.

    Scattered cells without ``meshes``, the fitted surfaces, are only points.
    """
    first, is_grid = maps[0], maps[0].is_grid
    width, height = panel_size(first)
    names = [name_above(stability.name, width) for stability in maps]
    panels = [FRACTION, _change_panel(first)] if is_grid or meshes is not None else [FRACTION]
    height = height if is_grid or first.y is not None else _ONE_ROW
    figure, rows = blocks(len(maps), len(panels), width, height, max(name.count("\n") for name in names))
    drawn, whole = flat(rows[0], len(maps)), [None] * len(maps) if meshes is None else meshes.whole
    for place, stability, name, mesh in zip(drawn, maps, names, whole, strict=True):
        draw_panel(place, stability, FRACTION, mesh)
        place.set_title(f"{name}\n{FRACTION.title}")
    for change, panels_below in zip(panels[1:], rows[1:], strict=True):
        below, *others = flat(panels_below, len(maps))
        below.axis("off")
        for i, place in enumerate(others, 1):
            if meshes is None:
                draw_panel(place, maps[i], change)
            else:
                _draw_change(place, maps[i], change, meshes.common[0], meshes.common[i])
            place.set_title(f"less that of {_shortened(first.name, width)}\n{change.title}")
        drawn += others
    for panel, blocks_of_panel in zip(panels, rows, strict=True):
        for side_by_side in blocks_of_panel:
            add_colour_bar(figure, panel, side_by_side)
    what, lines = f"{cells_text(maps[:1])} that they share", []
    if not is_grid:
        _align(drawn)
        what = "the trials of each" if meshes is None else "surfaces fitted to the trials"
    if meshes is not None:
        lines.append(Line2D([], [], label=f"{EDGE_LABEL} of {_shortened(first.name, width)}", **_FIRST_EDGE))
    note = f"; {first.note}" if first.note else ""
    finish(figure, f"{all_names([each.name for each in maps])}: {what}{note}", maps, meshes is not None, lines)
    return figure


def _change_panel(first: CellMap) -> Panel:
    def value(cell: CellSummary) -> float | None:
        other = first.cells.get((cell.x, cell.y))
        if other is None or other.fraction_stable is None or cell.fraction_stable is None:
            return None
        return 100 * (cell.fraction_stable - other.fraction_stable)

    def text(cell: CellSummary) -> str:
        found = value(cell)
        return "" if found is None else f"{found:+.0f}" if found else "0"

    return Panel("more stable (+) or less (-), points", matplotlib.colormaps["PRGn"], Normalize(-100, 100), value, text)


def _draw_change(axes: Axes, stability: CellMap, panel: Panel, first: Mesh, new: Mesh) -> None:
    """The change of P(stable) where both cover, and the edges of both."""
    extent = (new.x_X[0], new.x_X[-1], new.y_Y[0], new.y_Y[-1])
    axes.imshow(
        100 * (new.stable_YX - first.stable_YX), cmap=panel.colours, norm=panel.norm, extent=extent,
        origin="lower", aspect="auto", interpolation="bilinear", zorder=0,
    )  # fmt: skip
    draw_edge(axes, first, 0.0, _FIRST_EDGE)
    draw_edge(axes, new, 0.0, EDGE_LINE)
    label_positions(axes.xaxis, stability.x, stability.x_values)
    if stability.y is not None:
        label_positions(axes.yaxis, stability.y, stability.y_values)
    axes.grid(alpha=0.2)


def _align(places: Sequence[Axes]) -> None:
    """The same limits on all panels: a shift of the edge is seen between them."""
    limits = [(*place.get_xlim(), *place.get_ylim()) for place in places]
    left, right, bottom, top = zip(*limits, strict=True)
    for place in places:
        place.set_xlim(min(left), max(right))
        place.set_ylim(min(bottom), max(top))


def _shortened(name: str, width: float) -> str:
    """A name that fits above a panel of ``width`` inches."""
    most = int(11 * width)
    return textwrap.shorten(name, max(12, most), placeholder="...") if " " in name else name[:most]

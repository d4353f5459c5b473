"""Figures of sweeps whose cells are scattered: the points and the surface of each, and the change of the surface."""

from __future__ import annotations

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
from orchestrator.render.maps import FRACTION, Panel, add_colour_bar, draw_panel, finish, panel_size, shortened
from orchestrator.render.panels import all_names, blocks, draw_edge, flat, name_above
from orchestrator.render.style import DPI, EDGE_LABEL, EDGE_LINE, HATCH_WIDTH, saved

_ONE_ROW = 1.0  # inches
_FIRST_EDGE: dict[str, Any] = {"color": "black", "linewidth": 1.4, "linestyle": "dotted"}


def fitted_comparison_picture(maps: Sequence[CellMap], meshes: ComparedMeshes | None, file_format: str) -> bytes:
    """Maps of several sweeps with their surfaces, and below each how its surface differs from the first.

    Without ``meshes`` there are only points. Raises ValueError for an unknown format.
    """
    return saved(lambda: _draw(maps, meshes), file_format, DPI["map"], hatch_linewidth=HATCH_WIDTH)


def _draw(maps: Sequence[CellMap], meshes: ComparedMeshes | None) -> Figure:
    width, height = panel_size(maps[0])
    height = height if maps[0].y is not None else _ONE_ROW
    names = [name_above(stability.name, width) for stability in maps]
    num_rows = 1 if meshes is None else 2
    figure, rows = blocks(len(maps), num_rows, width, height, max(name.count("\n") for name in names))
    whole = [None] * len(maps) if meshes is None else meshes.whole
    drawn, lines = flat(rows[0], len(maps)), []
    for place, stability, name, mesh in zip(drawn, maps, names, whole, strict=True):
        draw_panel(place, stability, FRACTION, mesh)
        place.set_title(f"{name}\n{FRACTION.title}")
    if meshes is not None:
        below, *others = flat(rows[1], len(maps))
        below.axis("off")
        for place, stability, common in zip(others, maps[1:], meshes.common[1:], strict=True):
            _draw_change(place, stability, meshes.common[0], common)
            place.set_title(f"less that of {shortened(maps[0].name, width)}\n{_CHANGE.title}")
        drawn += others
        lines.append(Line2D([], [], label=f"{EDGE_LABEL} of {shortened(maps[0].name, width)}", **_FIRST_EDGE))
    for panel, panels in zip((FRACTION, _CHANGE), rows, strict=False):
        for side_by_side in panels:
            add_colour_bar(figure, panel, side_by_side)
    _align(drawn)
    what = "the trials of each" if meshes is None else "surfaces fitted to the trials"
    note = f"; {maps[0].note}" if maps[0].note else ""
    finish(figure, f"{all_names([each.name for each in maps])}: {what}{note}", maps, meshes is not None, lines)
    return figure


def _no_value(cell: CellSummary) -> float | None:
    return None


def _no_text(cell: CellSummary) -> str:
    return ""


_CHANGE = Panel(
    "more stable (+) or less (-), points", matplotlib.colormaps["PRGn"], Normalize(-100, 100), _no_value, _no_text
)


def _draw_change(axes: Axes, stability: CellMap, first: Mesh, new: Mesh) -> None:
    """The change of P(stable) where both cover, and the edges of both."""
    extent = (new.x_X[0], new.x_X[-1], new.y_Y[0], new.y_Y[-1])
    axes.imshow(
        100 * (new.stable_YX - first.stable_YX), cmap=_CHANGE.colours, norm=_CHANGE.norm, extent=extent,
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

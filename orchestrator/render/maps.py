"""Matplotlib figures: the heatmap of a stability map. Nothing is interpolated."""

from __future__ import annotations

import math
import textwrap
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.colors import Colormap, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import Formatter

from orchestrator.base.columns import FRACTION_TITLE, title
from orchestrator.base.space import Axis
from orchestrator.base.vocabulary import is_known
from orchestrator.maps.cell_map import CellMap
from orchestrator.maps.cells import CellSummary
from orchestrator.maps.stability_map import Mesh
from orchestrator.render.labels import (
    axis_place,
    distinct_numbers,
    fraction_shown,
    fraction_text,
    label_positions,
    label_ranks,
    legend_below,
    short_number,
    tick_texts,
    value_text,
)
from orchestrator.render.panels import BAND_LABEL, BAND_LINE, draw_surface
from orchestrator.render.states import STATES
from orchestrator.render.style import (
    BLANK,
    EDGE_LABEL,
    EDGE_LINE,
    HATCH,
    HATCH_COLOUR,
    LR_SIGNS,
    RISE_LABEL,
    TEXT_ROOM,
    fraction_colours,
    ink,
    is_clipped,
    picture,
    saved,
    value_colours,
    value_norm,
)

_SHORT_LABEL = 16  # characters
_CELL = (0.62, 0.5)  # inches
_AROUND, _LARGEST = (1.0, 0.6), 12.0  # inches beside the cells of a panel, and of the largest panel


@dataclass(frozen=True, slots=True)
class Panel:
    """One way to colour a map's cells and to write into them."""

    title: str
    colours: Colormap
    norm: Normalize
    value: Callable[[CellSummary], float | None]
    text: Callable[[CellSummary], str]
    has_edge: bool = False


FRACTION = Panel(FRACTION_TITLE, fraction_colours(), Normalize(0, 1), fraction_shown, fraction_text, has_edge=True)
_ARROWS = {"↑": r"\uparrow", "↓": r"\downarrow"}  # the signs of LR_SIGNS as markers


@picture("map")
def heatmap(maps: CellMap | Sequence[CellMap], meshes: Sequence[Mesh | None] = ()) -> Figure:
    """Draw the map: fraction of stable seeds, and a panel of the map's metric; facets in columns.

    ``meshes`` are the fitted surfaces of maps whose cells are scattered.
    """
    return map_figure([maps] if isinstance(maps, CellMap) else list(maps), meshes)


class ShownFigure(Figure):
    """A figure that a notebook shows where it ends a cell, without pyplot."""

    def _repr_png_(self) -> bytes:
        return saved(lambda: self, "png", "map")


def map_figure(facets: Sequence[CellMap], meshes: Sequence[Mesh | None] = ()) -> ShownFigure:
    """The figure of ``heatmap``."""
    meshes = meshes or [None] * len(facets)
    width, height = panel_size(facets[0])
    columns, rows = (2, 1) if len(facets) == 1 else (len(facets), 2)
    figure = ShownFigure(figsize=(columns * width + 1.6, rows * height + 1.7), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    what = facets[0].measure.title or title(facets[0].metric)
    clipped = " (colour clipped)" if is_clipped(facets) else ""
    panels = [
        FRACTION,
        Panel(what + clipped, value_colours(), value_norm(facets), attrgetter("value"), value_text),
    ]
    for i, panel in enumerate(panels):
        places = [grid[0, i]] if len(facets) == 1 else list(grid[i])
        for place, facet, mesh in zip(places, facets, meshes, strict=True):
            draw_panel(place, facet, panel, mesh)
            place.set_title("\n".join([*map(" = ".join, facet.facet), panel.title]))
        add_colour_bar(figure, panel, places)
    note = f"; {facets[0].note}" if facets[0].note else ""
    has_mesh = any(mesh is not None for mesh in meshes)
    finish(figure, f"{facets[0].name}: {cells_text(facets)}{note}", facets, has_mesh)
    return figure


def fraction_axes(axes: Axes, stability: CellMap) -> Axes:
    """The fraction of stable seeds, drawn into ``axes`` of the user's own figure."""
    draw_panel(axes, stability, FRACTION)
    axes.set_title(FRACTION.title)
    return axes


class _DistinctTicks(Formatter):
    def __call__(self, value: float, pos: int | None = None) -> str:
        return short_number(value)

    def format_ticks(self, values: Sequence[float]) -> list[str]:
        return distinct_numbers(values)


def add_colour_bar(figure: Figure, panel: Panel, places: list[Axes]) -> None:
    """The colour bar of a panel, next to the ``places`` that show it."""
    bar = figure.colorbar(
        matplotlib.cm.ScalarMappable(panel.norm, panel.colours), ax=places, fraction=0.05, pad=0.02,
        format=_DistinctTicks(),
    )  # fmt: skip
    bar.ax.minorticks_off()


def finish(
    figure: Figure, title: str, maps: Sequence[CellMap], has_mesh: bool = False, lines: Sequence[Line2D] = ()
) -> None:
    """The title of a figure and its legend, with further ``lines``."""
    figure.suptitle(textwrap.fill(title, max(30, int(13 * figure.get_figwidth()))), fontsize=11)
    legend_below(figure, [*outcome_legend(maps, has_mesh), *lines])


def cells_text(maps: Sequence[CellMap]) -> str:
    """How many cells there are, and of how many runs each."""
    cells = [cell for stability in maps for cell in stability.cells.values()]
    seeds = sorted({cell.num_seeds for cell in cells})
    count = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    return f"{len(cells)} cells of {count} {'run' if seeds == [1] else 'runs'}"


def panel_size(stability: CellMap) -> tuple[float, float]:
    """Width and height of one panel in inches."""
    if not stability.is_grid:
        return 4.6, 4.0
    columns, rows = len(stability.x_values), len(stability.y_values)
    wide, high = _whole_size(columns, rows)
    width = min(max(wide, 3.4), _LARGEST) + _room(stability.y, stability.y_values)
    return width, min(max(high, 1.4), _LARGEST) + _room(stability.x, stability.x_values)


def _whole_size(columns: int, rows: int) -> tuple[float, float]:
    """Width and height in inches at which numbers of the usual size fit into cells."""
    return _CELL[0] * columns + _AROUND[0], _CELL[1] * rows + _AROUND[1]


def _room(axis: Axis | None, values: Sequence[Any]) -> float:
    """The room in inches that long labels of an axis, such as interventions, take in addition to numbers.

    Along the columns they stand at 45 degrees.
    """
    labels = [] if axis is None else tick_texts(axis, values)
    return 0.075 * max([0, *(len(label) - _SHORT_LABEL for label in labels)])


def draw_panel(axes: Axes, stability: CellMap, panel: Panel, mesh: Mesh | None = None) -> None:
    """Draw one quantity of the map's cells on ``axes``; ``mesh`` is the surface behind scattered ones."""
    if not stability.is_grid:
        _draw_points(axes, stability, panel)
        if panel.has_edge and mesh is not None:
            draw_surface(axes, mesh, panel.colours)
    else:
        _draw_cells(axes, stability, panel)
        if panel.has_edge:
            draw_edges(axes, stability)


def _draw_cells(axes: Axes, stability: CellMap, panel: Panel) -> None:
    """One rectangle per cell, at its rank on each axis; every value is a tick label."""
    columns = {value: i for i, value in enumerate(stability.x_values)}
    rows = {value: i for i, value in enumerate(stability.y_values)}
    has_room = len(stability.cells) <= TEXT_ROOM
    size = 8 if max(_whole_size(len(columns), len(rows))) <= _LARGEST else 5
    squares: dict[bool, list[Rectangle]] = {True: [], False: []}  # by whether there is a result
    partly: list[Rectangle] = []  # drawn over the colour of the results so far
    colours, marks = [], defaultdict(list)
    for cell in stability.cells.values():
        value = panel.value(cell)
        column, row = columns[cell.x], rows[cell.y]
        colour = BLANK if value is None else panel.colours(panel.norm(value))
        look = STATES[cell.state]
        squares[look.is_painted].append(Rectangle((column - 0.5, row - 0.5), 1, 1))
        colours += [colour] if look.is_painted else []
        if look.is_painted and look.is_hatched:
            partly.append(Rectangle((column - 0.5, row - 0.5), 1, 1))
        inked = ink(colour)
        text = panel.text(cell) if has_room else ""
        if look.marker:
            marks[look.marker, inked].append((column, row + (0.2 if text else 0.0)))
        if text:
            below = 0.17 if look.marker else 0.0
            axes.text(column, row - below, text, ha="center", va="center", fontsize=size - 1, color=inked)
    there = {(cell.x, cell.y) for cell in stability.cells.values()}
    missing = [(columns[x], rows[y]) for x in columns for y in rows if (x, y) not in there]
    squares[False] += [Rectangle((column - 0.5, row - 0.5), 1, 1) for column, row in missing]
    # One collection per kind: otherwise a map of ten thousand cells would take minutes.
    axes.add_collection(_hatched(squares[False], "white"))
    axes.add_collection(PatchCollection(squares[True], facecolors=colours, edgecolors="white", linewidths=0.8))
    axes.add_collection(_hatched(partly, "none"))
    for (mark, inked), places in marks.items():
        axes.plot(*_transposed(places), **_mark(mark, inked), markersize=size - 2)
    axes.set_xlim(-0.5, len(columns) - 0.5)
    axes.set_ylim(-0.5, len(rows) - 0.5)
    _label_axes(axes, stability, label_ranks)


def draw_edges(axes: Axes, stability: CellMap) -> None:
    """A line between a cell over the edge and a neighbour that is not; none next to unknown cells."""
    is_over = {
        (column, row): stability.is_over_edge((x, y))
        for column, x in enumerate(stability.x_values)
        for row, y in enumerate(stability.y_values)
        if is_known(stability.state((x, y)))
    }
    x, y = [], []  # segments of one line, with a gap after each
    for (column, row), over in is_over.items():
        if is_over.get((column + 1, row), over) != over:
            x += [column + 0.5, column + 0.5, math.nan]
            y += [row - 0.5, row + 0.5, math.nan]
        if is_over.get((column, row + 1), over) != over:
            x += [column - 0.5, column + 0.5, math.nan]
            y += [row + 0.5, row + 0.5, math.nan]
    if x:
        axes.plot(x, y, **EDGE_LINE)


def _draw_points(axes: Axes, stability: CellMap, panel: Panel) -> None:
    """One point per sampled cell, at its place on each axis's scale."""
    places, colours, marks = [], [], defaultdict(list)
    for cell in stability.cells.values():
        value = panel.value(cell)
        x = axis_place(stability.x, cell.x, stability.x_values)
        y = 0.0 if stability.y is None else axis_place(stability.y, cell.y, stability.y_values)
        places.append((x, y))
        colours.append(BLANK if value is None else panel.colours(panel.norm(value)))
        if mark := STATES[cell.state].marker:
            marks[mark, ink(colours[-1])].append((x, y))
    axes.scatter(*_transposed(places), s=81, c=colours, edgecolors="black", zorder=2)
    for (mark, inked), marked in marks.items():
        axes.plot(*_transposed(marked), **_mark(mark, inked), markersize=5, zorder=3)
    _label_axes(axes, stability, label_positions)
    axes.margins(0.08)
    axes.grid(alpha=0.2)


def _label_axes(axes: Axes, stability: CellMap, label: Callable[[Any, Axis, Sequence[Any]], None]) -> None:
    label(axes.xaxis, stability.x, stability.x_values)
    if stability.y is None:
        axes.set_yticks([])
    else:
        label(axes.yaxis, stability.y, stability.y_values)


def _mark(mark: str, colour: str) -> dict[str, Any]:
    return {"marker": mark, "color": colour, "linestyle": "none", "fillstyle": "none"}


def _transposed(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def _hatched(squares: Sequence[Rectangle], colour: str) -> PatchCollection:
    """Cells with missing results."""
    return PatchCollection(squares, facecolors=colour, edgecolors=HATCH_COLOUR, hatch=HATCH, linewidths=0)


def outcome_legend(maps: Sequence[CellMap], has_mesh: bool = False) -> list[Any]:
    """Legend handles for the marks of the outcomes in ``maps``, and for the lines of fitted surfaces."""
    states = {cell.state for stability in maps for cell in stability.cells.values()}
    has_gaps = any(s.is_grid and len(s.cells) < len(s.x_values) * len(s.y_values) for s in maps)
    handles: list[Any] = [
        Line2D([], [], marker=look.marker, color="black", linestyle="none", fillstyle="none", label=look.label)
        for state, look in STATES.items()
        if state in states and look.marker
    ]
    if "stable" in states:
        handles.insert(0, Patch(facecolor=FRACTION.colours(1.0), label=STATES["stable"].label))
    if "not_run" in states or has_gaps:
        looks: dict[str, Any] = {"facecolor": BLANK, "edgecolor": HATCH_COLOUR, "hatch": HATCH}
        handles.append(Patch(**looks, label=STATES["not_run"].label))
    if any(cell.num_risen for s in maps for cell in s.cells.values() if len(s.cells) <= TEXT_ROOM):
        handles.append(Line2D([], [], marker=r"$\nearrow$", color="black", linestyle="none", label=RISE_LABEL))
    words = {cell.lr_health for s in maps for cell in s.cells.values() if len(s.cells) <= TEXT_ROOM}
    for word, (sign, label) in LR_SIGNS.items():
        if word in words:
            handles.append(Line2D([], [], marker=f"${_ARROWS[sign]}$", color="black", linestyle="none", label=label))
    is_grid = maps[0].is_grid
    sides = {s.is_over_edge(key) for s in maps for key, cell in s.cells.items() if is_known(cell.state)}
    if is_grid and len(sides) > 1:
        handles.append(Line2D([], [], label=EDGE_LABEL, **EDGE_LINE))
    if has_mesh:
        handles.append(Line2D([], [], label=f"{EDGE_LABEL}, fitted", **EDGE_LINE))
        handles.append(Line2D([], [], label=BAND_LABEL, **BAND_LINE))
    return handles

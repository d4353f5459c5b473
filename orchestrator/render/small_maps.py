"""Matplotlib figure: a small map for each combination of further axes, side by side on the same two axes."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from orchestrator.base.space import Axis
from orchestrator.maps.cell_map import CellMap
from orchestrator.render.labels import legend_below, scale_label, short_number, tick_labels
from orchestrator.render.maps import cells_text, draw_edges
from orchestrator.render.style import BLUE, EDGE_LABEL, EDGE_LINE, VERMILION, picture, value_colours

_MOST_COLUMNS, _MOST_TICKS = 6, 6
_CLIPPED = 0.9  # the quantile of the distances from the best at which the colours end
_NOT_RUN = "#e6e6e6"
_BEST: Mapping[str, Any] = {"marker": "*", "color": "white", "markeredgecolor": "black", "linestyle": "none"}
_LONG = 5  # characters of a value of a further axis


@picture("map")
def small_maps(maps: Sequence[CellMap]) -> Figure:
    """Draw how much worse each stable cell is than the best of its map, the cells over the edge, and the edge."""
    columns = _num_columns(maps)
    rows = math.ceil(len(maps) / columns)
    figure = Figure(figsize=(2.4 * columns + 1.4, 1.9 * rows + 1.5), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    places = list(grid.flat)
    behind = [_behind_best(stability) for stability in maps]
    values = [value for each in behind for value in each.values()]
    norm = Normalize(0, (float(np.quantile(values, _CLIPPED)) if values else 0.0) or 1.0, clip=True)
    for axes, stability, of_cell in zip(places, maps, behind, strict=False):
        _draw(axes, stability, of_cell, norm)
    for axes in places[len(maps) :]:
        axes.set_axis_off()
    first = maps[0]
    for axes in places[max(0, len(maps) - columns) : len(maps)]:  # the lowest of each column
        _label(axes.xaxis, first.x, first.x_values)
        axes.xaxis.set_tick_params(rotation=45)
    for axes in grid[:, 0]:
        _label(axes.yaxis, first.y, first.y_values)
    side = "below" if first.measure.maximize else "above"
    bar = figure.colorbar(ScalarMappable(norm, value_colours()), ax=places, fraction=0.05, pad=0.01, extend="max")
    bar.set_label(f"{first.measure.words} {side} the best of each map")
    note = f"; {first.note}" if first.note else ""
    title = f"{first.name}: {cells_text(maps)} in {len(maps)} maps{note}"
    figure.suptitle(textwrap.fill(title, int(13 * figure.get_figwidth())), fontsize=11)
    legend_below(figure, _legend(), most_columns=5)
    return figure


def _num_columns(maps: Sequence[CellMap]) -> int:
    """The maps of one value of the first axis in a row, if all have as many."""
    sizes = {len(list(group)) for _, group in groupby(maps, key=lambda each: each.facet[0])}
    (size, *others) = sizes
    return size if not others and 1 < size <= _MOST_COLUMNS else min(_MOST_COLUMNS, math.ceil(len(maps) ** 0.5))


def _behind_best(stability: CellMap) -> dict[tuple[Any, Any], float]:
    """How much worse than the best each cell is that is not over the edge."""
    costs = {
        key: stability.measure.cost(cell.value)
        for key, cell in stability.cells.items()
        if cell.value is not None and not stability.is_over_edge(key)
    }
    best = min(costs.values(), default=0.0)
    return {key: cost - best for key, cost in costs.items()}


def _draw(axes: Axes, stability: CellMap, behind: Mapping[tuple[Any, Any], float], norm: Normalize) -> None:
    """One picture of all cells, the best ones, and the edge."""
    colours, plain, over = value_colours(), to_rgb(BLUE), to_rgb(VERMILION)
    x_of, y_of = ({value: i for i, value in enumerate(each)} for each in (stability.x_values, stability.y_values))
    image_YX3 = np.full((len(y_of), len(x_of), 3), to_rgb(_NOT_RUN))
    for key, cell in stability.cells.items():
        if cell.num_finished:
            colour = over if stability.is_over_edge(key) else plain
            image_YX3[y_of[key[1]], x_of[key[0]]] = colours(norm(behind[key]))[:3] if key in behind else colour
    axes.imshow(image_YX3, origin="lower", aspect="auto", interpolation="nearest")
    draw_edges(axes, stability)
    if behind:
        x, y = min(behind, key=lambda key: behind[key])
        axes.plot(x_of[x], y_of[y], **_BEST, markersize=9)
    axes.set_title("  ".join(f"{name} {_short(value)}" for name, value in stability.facet), fontsize=8)
    axes.set(xticks=[], yticks=[])  # where they are not at the rim


def _short(value: str) -> str:
    """A long number in few digits."""
    try:
        return value if len(value) <= _LONG else short_number(float(value))
    except ValueError:
        return value


def _label(ticks: Any, axis: Axis | None, values: Sequence[Any]) -> None:
    if axis is not None:
        shown = range(0, len(values), math.ceil(len(values) / _MOST_TICKS))
        ticks.set_ticks(list(shown), tick_labels(axis, [values[i] for i in shown]), fontsize=7)
        ticks.set_label_text(scale_label(axis), fontsize=8)


def _legend() -> list[Any]:
    return [
        Line2D([], [], **_BEST, markersize=9, label="best"),
        Patch(facecolor=VERMILION, label="over the edge"),
        Line2D([], [], label=EDGE_LABEL, **EDGE_LINE),
        Patch(facecolor=_NOT_RUN, label="not run"),
    ]

"""The panels of several sweeps, side by side as far as a page is wide, and then in further blocks below."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import Colormap
from matplotlib.figure import Figure

from orchestrator.maps.stability_map import Mesh
from orchestrator.render.style import EDGE_LINE

_WIDEST = 16.0  # inches; two panels stand side by side however wide they are
_CHARACTERS = 11  # of a title, to the inch
_LINE = 0.18  # inches
_COLOURS, _AROUND = 1.6, 1.7  # inches beside the panels, and for the title and the legend of the figure
_MOST_NAMES = 4  # in the title of a figure
_HEADS = 0.45  # inches of the titles and labels of each block but the first


def blocks(
    num: int, rows: int, width: float, height: float, num_title_lines: int
) -> tuple[Figure, list[list[list[Axes]]]]:
    """A figure for ``num`` sweeps with ``rows`` panels each, of ``width`` x ``height`` inches, one above the other.

    Returned with it are, for each of ``rows``, lists of the panels that stand side by side. The last list may have more
    panels than sweeps, which stay empty and keep the colour bars aligned.
    """
    num_blocks = math.ceil(num / max(2, int(_WIDEST // width)))
    columns = math.ceil(num / num_blocks)
    high = height + _LINE * num_title_lines + (_HEADS if num_blocks > 1 else 0.0)
    size = (columns * width + _COLOURS, num_blocks * rows * high + _AROUND)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(num_blocks * rows, columns, squeeze=False)
    found = [[list(grid[block * rows + row]) for block in range(num_blocks)] for row in range(rows)]
    for panels in found:
        for place in panels[-1][num - (num_blocks - 1) * columns :]:
            place.axis("off")
    return figure, found


def flat(panels: Sequence[Sequence[Axes]], num: int) -> list[Axes]:
    """The panels of all ``num`` sweeps in their order."""
    return [place for side_by_side in panels for place in side_by_side][:num]


def all_names(names: Sequence[str]) -> str:
    """Names for the title of a figure, of many only the first: each panel has its own."""
    return ", ".join(names) if len(names) <= _MOST_NAMES else f"{names[0]} and {len(names) - 1} others"


def name_above(name: str, width: float) -> str:
    """A name above a panel of ``width`` inches: whole, in lines where it has words."""
    most = max(12, int(_CHARACTERS * width))
    return textwrap.fill(name, most, break_on_hyphens=False) if " " in name else name[:most]


BAND_LABEL = "95 % interval of the edge"
BAND_LINE: dict[str, Any] = {"color": "black", "linewidth": 0.9, "linestyle": "dashed"}
_FADED = 0.45  # opacity: the trials stand out from what is concluded from them


def draw_surface(axes: Axes, mesh: Mesh, colours: Colormap) -> None:
    """Draw P(stable) faded, the edge as a line, and the ends of its interval as dashed lines."""
    # The points are even on the axes' scales.
    extent = (mesh.x_X[0], mesh.x_X[-1], mesh.y_Y[0], mesh.y_Y[-1])
    axes.imshow(
        mesh.stable_YX, cmap=colours, vmin=0, vmax=1, alpha=_FADED, extent=extent, origin="lower", aspect="auto",
        interpolation="bilinear", zorder=0,
    )  # fmt: skip
    axes.use_sticky_edges = False  # an image would leave no margin, and cut points at its border
    axes.margins(0.04)
    for level, line in ((0.0, EDGE_LINE), (-1.0, BAND_LINE), (1.0, BAND_LINE)):
        draw_edge(axes, mesh, level, line)


def draw_edge(axes: Axes, mesh: Mesh, level: float, line: Mapping[str, Any]) -> None:
    """Draw the edge (level 0) or an end of its interval (-1, 1), unless the surface does not reach it."""
    if mesh.surely_YX.min() < level < mesh.surely_YX.max():  # matplotlib would warn of a level without a line
        axes.contour(
            mesh.x_X, mesh.y_Y, mesh.surely_YX, levels=[level], colors=line["color"], linewidths=line["linewidth"],
            linestyles=line.get("linestyle", "solid"), zorder=1,
        )  # fmt: skip

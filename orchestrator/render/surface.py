"""A fitted surface behind the points of a map: P(stable), the edge, and the band in which it lies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import Colormap

from orchestrator.maps.fitted import Mesh
from orchestrator.render.style import EDGE_LINE

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

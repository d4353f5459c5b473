"""The picture of an edge against another axis: brackets of a grid as bars, a fitted edge as a line in its interval."""

from __future__ import annotations

import itertools
import math
import textwrap
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from orchestrator.maps.edge_line import EdgeLine, EdgeLines, EdgePoint, linked
from orchestrator.render.labels import AxisScale, legend_below, plain
from orchestrator.render.panels import BAND_LABEL
from orchestrator.render.style import BLACK, DPI, GREY, SEED_COLOURS, VALUE_COLOURS, saved

_COLOURS = (*SEED_COLOURS, BLACK)
_MARKS = "osDPXhp*"
# Lines of a grid are shifted sideways: over a part of the smallest distance of neighbours across, and over a larger
# part where marks of this width, a part of the picture's, would cover each other.
_SPREAD, _WIDEST_SPREAD, _MARK_WIDTH = 0.6, 0.9, 0.016
_BAND = 0.2  # opacity of an interval
_PAD = 0.2  # beyond what is drawn, as a part of half the height; arrows lie in its middle
_LEAST_SHOWN = 0.25  # of the axis along, about the edges
_EVERY = 12  # places of a curve for one mark of a row without an edge
_THROUGHOUT = {"stable throughout": True, "not stable throughout": False}


@dataclass(frozen=True, slots=True)
class _Look:
    """How one line is drawn: how far it is shifted sideways, and where on a curve its first arrow is."""

    colour: Any
    mark: str
    shift: float
    first: int


@dataclass(frozen=True)
class _Canvas:
    """Where the values of both axes lie. ``is_stable_low`` is ``_is_stable_low``."""

    axes: Axes
    across: AxisScale
    along: AxisScale
    is_stable_low: bool
    limits: tuple[float, float]  # of what is shown of the axis along


def edge_picture(found: EdgeLines, file_format: str) -> bytes:
    """The edge over the axis across, with a colour and a mark for each line.

    The same ledger gives the same bytes. Raises ValueError for an unknown format.
    """
    return saved(lambda: _draw(found), file_format, DPI["map"])


def _draw(found: EdgeLines) -> Figure:
    figure = Figure(figsize=(7.2, 5.2), layout="constrained")
    is_low = _is_stable_low(found)
    across, along = AxisScale.of(found.across), AxisScale.of(found.along)
    canvas = _Canvas(figure.subplots(), across, along, is_low, _limits(found, along, is_low))
    for line, look in zip(found.lines, _looks(found, canvas.across), strict=True):
        if found.is_curve:
            _draw_curve(canvas, line, look, found)
        else:
            _draw_bars(canvas, line, look, found)
        _draw_throughout(canvas, line, look, found.is_curve)
    _finish_axes(canvas, found)
    title = "; ".join([f"{found.name}: edge along {found.along.name} against {found.across.name}", *found.notes])
    figure.suptitle(plain(textwrap.fill(title, 90)), fontsize=11)
    legend_below(figure, _legend(canvas, found))
    return figure


def _is_stable_low(found: EdgeLines) -> bool:
    """Whether most rows with one edge are stable below it; also where there is no such row."""
    rows = [row for line in found.lines for row in _rows(line)]
    kinds = [row[0].kind for row in rows if len(row) == 1]
    return kinds.count("stable below") >= kinds.count("stable above")


def _looks(found: EdgeLines, across: AxisScale) -> list[_Look]:
    """Colours and marks of the lines, and how far they are shifted sideways."""
    num, (low, high) = len(found.lines), across.ends
    step = min(_WIDEST_SPREAD * across.gap / num, _MARK_WIDTH * (high - low))
    step = 0.0 if found.is_curve else max(_SPREAD * across.gap / num, step)
    even = matplotlib.colormaps[VALUE_COLOURS]
    colours = _COLOURS[:num] if num <= len(_COLOURS) else [even(i / (num - 1)) for i in range(num)]
    return [
        _Look(colour, mark, step * (i - (num - 1) / 2), round(_EVERY * (i + 0.5) / num))
        for i, (colour, mark) in enumerate(zip(colours, itertools.cycle(_MARKS), strict=False))
    ]


def _rows(line: EdgeLine) -> list[list[EdgePoint]]:
    return [list(row) for _, row in itertools.groupby(line.points, key=lambda point: point.across)]


def _ends(along: AxisScale, point: EdgePoint, found: EdgeLines) -> tuple[float, float]:
    """The places of a bracket, or of an interval, which may reach the ends of the axis."""
    low, high = along.ends
    return (
        low if found.is_fitted and point.low is None else along.place(point.low),
        high if found.is_fitted and point.high is None else along.place(point.high),
    )


def _middle(along: AxisScale, point: EdgePoint, found: EdgeLines) -> float:
    """The place of an edge; the middle of its bracket or interval where it has none."""
    return along.place(point.at) if point.at is not None else sum(_ends(along, point, found)) / 2


def _branches(along: AxisScale, line: EdgeLine, found: EdgeLines) -> list[list[EdgePoint]]:
    """The edges of a line that continue each other, for each direction."""
    branches = []
    for is_below in (True, False):
        rows = [[point for point in row if point.is_stable_below == is_below] for row in _rows(line)]
        places = [[_middle(along, point, found) for point in row] for row in rows]
        branches += [[rows[at][place] for at, place in branch] for branch in linked(places)]
    return branches


def _draw_curve(canvas: _Canvas, line: EdgeLine, look: _Look, found: EdgeLines) -> None:
    """The fitted edge as a line with its interval as a band; only the band where there may be an edge."""
    for branch in _branches(canvas.along, line, found):
        across = [canvas.across.place(point.across) for point in branch]
        low, high = zip(*(_ends(canvas.along, point, found) for point in branch), strict=True)
        at = [math.nan if point.at is None else canvas.along.place(point.at) for point in branch]
        canvas.axes.fill_between(across, low, high, color=look.colour, alpha=_BAND, linewidth=0)
        style = "solid" if branch[0].is_stable_below == canvas.is_stable_low else "dashed"
        canvas.axes.plot(across, at, color=look.colour, linewidth=1.8, linestyle=style)


def _draw_bars(canvas: _Canvas, line: EdgeLine, look: _Look, found: EdgeLines) -> None:
    """Each edge as a point with its bracket or interval as a bar; thin lines from row to row on an axis of numbers."""
    for branch in _branches(canvas.along, line, found):
        across = [canvas.across.place(point.across) + look.shift for point in branch]
        middle = [_middle(canvas.along, point, found) for point in branch]
        ends = [_ends(canvas.along, point, found) for point in branch]
        is_usual = branch[0].is_stable_below == canvas.is_stable_low
        if canvas.across.is_numeric:
            style = "solid" if is_usual else "dashed"
            canvas.axes.plot(across, middle, color=look.colour, linewidth=0.8, alpha=0.6, linestyle=style)
        canvas.axes.vlines(across, *np.transpose(ends), color=look.colour, linewidth=1.6)
        known = [i for i, point in enumerate(branch) if not found.is_fitted or point.at is not None]
        canvas.axes.plot(
            [across[i] for i in known], [middle[i] for i in known], look.mark, color=look.colour, markersize=6,
            markerfacecolor=look.colour if is_usual else "white", linestyle="none",
        )  # fmt: skip


def _draw_throughout(canvas: _Canvas, line: EdgeLine, look: _Look, is_curve: bool) -> None:
    """An open arrow beyond that end of the axis where the edge of a row without one would lie."""
    points = line.points[look.first :: _EVERY] if is_curve else line.points
    for kind, is_stable in _THROUGHOUT.items():
        is_up = is_stable == canvas.is_stable_low
        across = [canvas.across.place(point.across) + look.shift for point in points if point.kind == kind]
        place = (canvas.along.ends[is_up] + canvas.limits[is_up]) / 2
        canvas.axes.plot(
            across, [place] * len(across), "^" if is_up else "v", color=look.colour, markersize=6,
            markerfacecolor="white", linestyle="none",
        )  # fmt: skip


def _limits(found: EdgeLines, along: AxisScale, is_stable_low: bool) -> tuple[float, float]:
    """The part of the axis along that is shown: about the edges, and up to the ends beyond which arrows are drawn."""
    points = [point for line in found.lines for point in line.points]
    shown = [place for point in points if point.is_stable_below is not None for place in _ends(along, point, found)]
    low, high = along.ends
    for kind, is_stable in _THROUGHOUT.items():
        if any(point.kind == kind for point in points):
            shown.append(high if is_stable == is_stable_low else low)
    shown = shown or [low, high]
    middle, half = (min(shown) + max(shown)) / 2, (max(shown) - min(shown)) / 2
    half = (1 + _PAD) * max(half, _LEAST_SHOWN * (high - low) / 2) or 0.5
    return middle - half, middle + half


def _finish_axes(canvas: _Canvas, found: EdgeLines) -> None:
    axes = canvas.axes
    low, high = canvas.across.ends
    room = 0.0 if found.is_curve else 0.6 * canvas.across.gap
    axes.set_xlim(low - room, high + room)
    axes.set_ylim(*canvas.limits)
    for end in canvas.along.ends:
        if canvas.limits[0] < end < canvas.limits[1]:
            axes.axhline(end, color=GREY, linewidth=0.8, linestyle=":", zorder=0)
    canvas.across.label(axes.xaxis, axes.get_xlim())
    side = "" if len(found.sides) != 1 else ", stable below" if canvas.is_stable_low else ", stable above"
    canvas.along.label(axes.yaxis, canvas.limits, f"edge along {{}}{side}")
    axes.grid(alpha=0.25)


def _legend(canvas: _Canvas, found: EdgeLines) -> list[Any]:
    """A handle for each line, and for each kind of mark that is drawn."""
    looks = zip(found.lines, _looks(found, canvas.across), strict=True)
    lines = [
        Line2D([], [], color=look.colour, marker="" if found.is_curve else look.mark, label=plain(line.label))
        for line, look in looks
        if found.facet is not None
    ]
    marks = [_interval_mark(found)] if found.sides else []
    if len(found.sides) > 1:
        words = "stable above the edge" if canvas.is_stable_low else "stable below the edge"
        marks.append(Line2D([], [], color=GREY, linestyle="dashed", label=words))
    kinds = {point.kind for line in found.lines for point in line.points}
    for kind, is_stable in _THROUGHOUT.items():
        if kind in kinds:
            sign = "^" if is_stable == canvas.is_stable_low else "v"
            marks.append(Line2D([], [], color=GREY, marker=sign, markerfacecolor="white", linestyle="none", label=kind))
    return [*lines, *marks]


def _interval_mark(found: EdgeLines) -> Any:
    """What a bar or a band stands for."""
    if found.is_curve:
        return Patch(color=GREY, alpha=2 * _BAND, linewidth=0, label=BAND_LABEL)
    label = BAND_LABEL if found.is_fitted else "between two neighbours, one stable and one not"
    return Line2D([], [], color=GREY, marker="|", markersize=10, linestyle="none", label=label)

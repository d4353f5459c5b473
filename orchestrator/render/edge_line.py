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

from orchestrator.maps.edge_line import EdgeLine, EdgeLines, kind_of_edge, linked
from orchestrator.maps.edges import Edge, Row
from orchestrator.render.labels import AxisScale, legend_below, plain
from orchestrator.render.panels import BAND_LABEL
from orchestrator.render.style import BLACK, GREY, SEED_COLOURS, VALUE_COLOURS, picture

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


@picture("map")
def edge_picture(found: EdgeLines) -> Figure:
    """Draw the edge over the axis across, with a colour and a mark for each line."""
    figure = Figure(figsize=(7.2, 5.2), layout="constrained")
    is_low = _is_stable_low(found)
    across, along = AxisScale.of(found.across), AxisScale.of(found.along)
    canvas = _Canvas(figure.subplots(), across, along, is_low, _limits(found, along, is_low))
    for line, look in zip(found.lines, _looks(found, canvas.across), strict=True):
        if found.is_curve:
            _draw_curve(canvas, line, look, found)
        else:
            _draw_bars(canvas, line, look, found)
        _draw_throughout(canvas, line, look, found)
    _finish_axes(canvas, found)
    title = "; ".join([f"{found.name}: edge along {found.along.name} against {found.across.name}", *found.notes])
    figure.suptitle(plain(textwrap.fill(title, 90)), fontsize=11)
    legend_below(figure, _legend(canvas, found))
    return figure


def _is_stable_low(found: EdgeLines) -> bool:
    """Whether most rows with one edge are stable below it; also where there is no such row."""
    kinds = [kind_of_edge(row.edges[0]) for line in found.lines for row in line.rows if len(row.edges) == 1]
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


def ends_of(along: AxisScale, edge: Edge) -> tuple[float, float]:
    """Return the places of a bracket, or of an interval, which may reach the ends of the axis."""
    low, high = along.ends
    is_fit = edge.basis == "fit"
    return (
        low if is_fit and edge.low is None else along.place(edge.low),
        high if is_fit and edge.high is None else along.place(edge.high),
    )


def _middle(along: AxisScale, edge: Edge) -> float:
    """The place of an edge, or the middle of its bracket or interval if it has none."""
    return along.place(edge.at) if edge.at is not None else sum(ends_of(along, edge)) / 2


def _branches(along: AxisScale, line: EdgeLine) -> list[list[tuple[Row, Edge]]]:
    """The edges of a line that continue each other, in each direction."""
    branches = []
    for is_below in (True, False):
        rows = [[edge for edge in row.edges if edge.is_stable_below == is_below] for row in line.rows]
        places = [[_middle(along, edge) for edge in edges] for edges in rows]
        branches += [[(line.rows[at], rows[at][place]) for at, place in branch] for branch in linked(places)]
    return branches


def _across(canvas: _Canvas, row: Row, found: EdgeLines) -> float:
    return canvas.across.place(row.setting[found.across.name])


def _draw_curve(canvas: _Canvas, line: EdgeLine, look: _Look, found: EdgeLines) -> None:
    """The fitted edge as a line with its interval as a band; only the band where there may be an edge."""
    for branch in _branches(canvas.along, line):
        across = [_across(canvas, row, found) for row, _ in branch]
        low, high = zip(*(ends_of(canvas.along, edge) for _, edge in branch), strict=True)
        at = [math.nan if edge.at is None else canvas.along.place(edge.at) for _, edge in branch]
        canvas.axes.fill_between(across, low, high, color=look.colour, alpha=_BAND, linewidth=0)
        style = "solid" if branch[0][1].is_stable_below == canvas.is_stable_low else "dashed"
        canvas.axes.plot(across, at, color=look.colour, linewidth=1.8, linestyle=style)


def _draw_bars(canvas: _Canvas, line: EdgeLine, look: _Look, found: EdgeLines) -> None:
    """Each edge as a point with its bracket or interval as a bar; thin lines from row to row on an axis of numbers."""
    for branch in _branches(canvas.along, line):
        across = [_across(canvas, row, found) + look.shift for row, _ in branch]
        middle = [_middle(canvas.along, edge) for _, edge in branch]
        ends = [ends_of(canvas.along, edge) for _, edge in branch]
        is_usual = branch[0][1].is_stable_below == canvas.is_stable_low
        if canvas.across.is_numeric:
            style = "solid" if is_usual else "dashed"
            canvas.axes.plot(across, middle, color=look.colour, linewidth=0.8, alpha=0.6, linestyle=style)
        canvas.axes.vlines(across, *np.transpose(ends), color=look.colour, linewidth=1.6)
        known = [i for i, (_, edge) in enumerate(branch) if edge.basis == "bracket" or edge.at is not None]
        canvas.axes.plot(
            [across[i] for i in known], [middle[i] for i in known], look.mark, color=look.colour, markersize=6,
            markerfacecolor=look.colour if is_usual else "white", linestyle="none",
        )  # fmt: skip


def _draw_throughout(canvas: _Canvas, line: EdgeLine, look: _Look, found: EdgeLines) -> None:
    """An open arrow beyond that end of the axis where the edge of a row without one would lie."""
    rows = line.rows[look.first :: _EVERY] if found.is_curve else line.rows
    for kind, is_stable in _THROUGHOUT.items():
        is_up = is_stable == canvas.is_stable_low
        across = [_across(canvas, row, found) + look.shift for row in rows if row.kind == kind]
        place = (canvas.along.ends[is_up] + canvas.limits[is_up]) / 2
        canvas.axes.plot(
            across, [place] * len(across), "^" if is_up else "v", color=look.colour, markersize=6,
            markerfacecolor="white", linestyle="none",
        )  # fmt: skip


def _limits(found: EdgeLines, along: AxisScale, is_stable_low: bool) -> tuple[float, float]:
    """The part of the axis along that is shown: about the edges, and up to the ends beyond which arrows are drawn."""
    shown = [place for line in found.lines for _, edge in line.edges for place in ends_of(along, edge)]
    kinds = _kinds(found)
    low, high = along.ends
    for kind, is_stable in _THROUGHOUT.items():
        if kind in kinds:
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
    kinds = _kinds(found)
    for kind, is_stable in _THROUGHOUT.items():
        if kind in kinds:
            sign = "^" if is_stable == canvas.is_stable_low else "v"
            marks.append(Line2D([], [], color=GREY, marker=sign, markerfacecolor="white", linestyle="none", label=kind))
    return [*lines, *marks]


def _kinds(found: EdgeLines) -> set[str]:
    return {row.kind for line in found.lines for row in line.rows}


def _interval_mark(found: EdgeLines) -> Any:
    """What a bar or a band stands for."""
    if found.is_curve:
        return Patch(color=GREY, alpha=2 * _BAND, linewidth=0, label=BAND_LABEL)
    label = BAND_LABEL if found.is_fitted else "between two neighbours, one stable and one not"
    return Line2D([], [], color=GREY, marker="|", markersize=10, linestyle="none", label=label)

"""The picture of a front: all cells by state, loss over what it is weighed against, and the front as a line."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from orchestrator.base.space import Axis
from orchestrator.maps.front import MARGIN, Front, FrontCell
from orchestrator.render.labels import AxisScale, legend_below, plain
from orchestrator.render.states import STATES
from orchestrator.render.style import BLUE, GREY, LOG_CURVES_FROM, PADDING, VERMILION, picture

_MOST_NAMED = 12  # settings of the front in the key
_PAD = 0.06  # beyond what is drawn, as a part of its width
_APART = 0.12  # width of the column of cells without a margin, and of that of open margins, as a part of the same
_CLOSE, _ROW = 0.03, 9  # numbers less apart than this part of both axes stand in rows, of so many points
_TOP = 0.1  # height of the row of cells without a loss
_KINDS = {
    "front": "on the front",
    "beaten": "stable, beaten by a setting of the front",
    "island": "stable, but cut off",
}


@dataclass(frozen=True)
class _Canvas:
    """Where losses and what they are weighed against lie: scales, and the places of what has no number."""

    axes: Axes
    across: AxisScale
    up: AxisScale
    missing: float  # the middle of the column without a margin
    is_open: float  # the middle of the column of open margins
    apart: float  # the width of either
    top: float  # the row without a loss, or with the last one before a divergence

    def place(self, cell: FrontCell, share: float) -> tuple[float, float]:
        """Where a cell lies; ``share``, in [0, 1], separates the cells without a number of their own."""
        y = self.up.place(cell.loss) if _has_loss(cell) else self.top
        if cell.against is None:
            return self.missing + self.apart * (share - 0.5), y
        return (self.is_open if math.isinf(cell.against) else self.across.place(cell.against)), y


def _has_loss(cell: FrontCell) -> bool:
    """Whether the loss of a cell says something: the last one before a divergence does not."""
    return cell.loss is not None and cell.state != "diverged"


@picture("map")
def front_picture(found: Front) -> Figure:
    """Draw all cells, and the front as a line."""
    figure = Figure(figsize=(7.2, 5.6), layout="constrained")
    canvas = _canvas(figure.subplots(), found)
    drawn = [cell for cell in found.cells if cell.against is not None or found.against == MARGIN]
    share = dict[int, float]()
    for has_loss in (True, False):
        apart = [cell for cell in drawn if cell.against is None and _has_loss(cell) == has_loss]
        share |= {id(cell): (i + 0.5) / len(apart) for i, cell in enumerate(apart)}
    for kind in sorted({(cell.kind, cell.state) for cell in drawn}):
        places = [canvas.place(cell, share.get(id(cell), 0.5)) for cell in drawn if (cell.kind, cell.state) == kind]
        canvas.axes.plot(*zip(*places, strict=True), linestyle="none", **_look(*kind))
    _draw_front(canvas, found)
    _finish_axes(canvas, found, drawn)
    detail = "" if found.along is None else f" along {found.along}"
    detail += "" if found.target is None else f", a training loss of {found.target:.4g}"
    title = f"{found.sweep}: {_words(found.metric)} against {_words(found.against)}{detail}"
    title += f"; {len(drawn)} of {len(found.cells)} cells"
    figure.suptitle(plain(textwrap.fill(title, 90)), fontsize=11)
    legend_below(figure, [*_names(found), *_legend(found, drawn)], most_columns=2)
    return figure


def _canvas(axes: Axes, found: Front) -> _Canvas:
    losses = [cell.loss for cell in found.cells if cell.loss is not None and _has_loss(cell)]
    others = [cell.against for cell in found.cells if cell.against is not None and math.isfinite(cell.against)]
    is_margin = found.against == MARGIN
    across = _scale(found.against, [1.0, *others] if is_margin else others, True if is_margin else None)
    up = _scale(found.metric, losses, None)
    low, high = across.ends
    apart = _APART * (high - low)
    top = up.ends[1] + _TOP * (up.ends[1] - up.ends[0])
    return _Canvas(axes, across, up, low - 1.2 * apart, high + 1.2 * apart, apart, top)


def _scale(name: str, values: Sequence[float], is_log: bool | None) -> AxisScale:
    """A scale that holds ``values``: logarithmic where they are far apart, unless ``is_log`` says which."""
    low, high = min(values, default=1.0), max(values, default=1.0)
    if is_log is None:
        is_log = low > 0 and high >= LOG_CURVES_FROM * low
    if low == high:
        low, high = (low, 2 * high) if is_log else (low - PADDING, high + PADDING)
    return AxisScale(Axis(_words(name), "log" if is_log else "linear", (), (low, high)))


def _look(kind: str, state: str) -> dict[str, Any]:
    """How cells of a kind and state are marked."""
    if kind == "front":
        return {"marker": "o", "color": BLUE, "markersize": 8, "zorder": 3}
    if kind == "island":
        return {"marker": "s", "color": BLUE, "markerfacecolor": "white", "markersize": 6, "zorder": 2.5}
    if kind == "beaten" or state == "stable":
        return {"marker": "o", "color": BLUE, "markerfacecolor": "white", "markersize": 6, "zorder": 2.5}
    colour = VERMILION if state in ("diverged", "spiked", "stalled") else GREY
    return {"marker": STATES[state].marker or ".", "color": colour, "markersize": 6, "zorder": 1}


def _draw_front(canvas: _Canvas, found: Front) -> None:
    """The best loss that a margin, or a number of steps, leaves: constant from one setting of the front to the next."""
    places = sorted(canvas.place(cell, 0.5) for cell in found.members)
    if places:
        style = "steps-pre" if found.is_high else "steps-post"
        canvas.axes.plot(*zip(*places, strict=True), color=BLUE, linewidth=1.4, drawstyle=style, zorder=2)
    (low, high), (bottom, top) = canvas.across.ends, canvas.up.ends
    before, rows = (-math.inf, -math.inf), 0  # where the number before is, and how many rows it is away from the line
    for number, cell in enumerate(found.members[:_MOST_NAMED], start=1):
        place = canvas.place(cell, 0.5)
        apart = abs(place[0] - before[0]) / (high - low), abs(place[1] - before[1]) / (top - bottom)
        rows = rows + 1 if max(apart) < _CLOSE else 0
        before = place
        offset = -11 - _ROW * rows if found.is_high else 5 + _ROW * rows
        canvas.axes.annotate(
            str(number), place, xytext=(6, offset), textcoords="offset points", color=BLUE, fontweight="bold"
        )


def _finish_axes(canvas: _Canvas, found: Front, drawn: Sequence[FrontCell]) -> None:
    axes, (low, high), (bottom, top) = canvas.axes, canvas.across.ends, canvas.up.ends
    extra = {}
    if any(cell.against is None for cell in drawn):
        extra[canvas.missing] = "no\nmargin"
        axes.axvline(low - 0.5 * canvas.apart, color=GREY, linewidth=0.8, linestyle=":")
    if any(cell.against is not None and math.isinf(cell.against) for cell in drawn):
        extra[canvas.is_open] = "open"
        axes.axvline(high + 0.5 * canvas.apart, color=GREY, linewidth=0.8, linestyle=":")
    pad = _PAD * (high - low)
    reach = [low - pad, high + pad, *(place + sign * 0.7 * canvas.apart for place in extra for sign in (-1, 1))]
    axes.set_xlim(min(reach), max(reach))
    canvas.across.label(axes.xaxis, (low, high), "{}, a factor" if found.against == MARGIN else "{}")
    _add_ticks(axes.xaxis, extra)
    is_over = not all(map(_has_loss, drawn))
    axes.set_ylim(bottom - _PAD * (top - bottom), (canvas.top if is_over else top) + _PAD * (top - bottom))
    canvas.up.label(axes.yaxis, (bottom, top), "median {}")
    if is_over:
        axes.axhline((canvas.top + top) / 2, color=GREY, linewidth=0.8, linestyle=":")
        _add_ticks(axes.yaxis, {canvas.top: "no loss"})
    axes.grid(alpha=0.25)


def _add_ticks(drawn: Any, extra: dict[float, str]) -> None:
    places = [*drawn.get_ticklocs(), *extra]
    drawn.set_ticks(places, [*(label.get_text() for label in drawn.get_ticklabels()), *extra.values()])


def _names(found: Front) -> Iterable[Line2D]:
    """The settings of the front by their numbers in the picture."""
    members = found.members
    for number, cell in enumerate(members[:_MOST_NAMED], start=1):
        yield Line2D([], [], linestyle="none", marker="o", color=BLUE, label=plain(f"{number}: {cell.name}"))
    if len(members) > _MOST_NAMED:
        label = f"... and {len(members) - _MOST_NAMED} more: see the table"
        yield Line2D([], [], linestyle="none", label=label)


def _legend(found: Front, drawn: Sequence[FrontCell]) -> Iterable[Line2D]:
    """A handle for each kind of mark that is drawn."""
    order = list(STATES)
    kinds = {(cell.kind, cell.state) for cell in drawn}
    for kind, state in sorted(
        kinds, key=lambda pair: (pair[0] not in _KINDS, pair[0] != "front", order.index(pair[1]))
    ):
        label = _KINDS.get(kind, f"stable, without {_words(found.against)}" if state == "stable" else "")
        yield Line2D([], [], linestyle="none", label=label or STATES[state].label, **_look(kind, state))


def _words(name: str) -> str:
    return name.replace("_", " ")

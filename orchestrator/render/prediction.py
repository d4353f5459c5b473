"""The picture of a prediction: edge and best rate over size, both logarithmic, with bands, target and backtest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from orchestrator.base.space import format_value
from orchestrator.maps.confirmation import BROKEN, TargetRun
from orchestrator.maps.edges import Interval
from orchestrator.maps.ladder import Size
from orchestrator.maps.lengths import STEPS
from orchestrator.maps.prediction import THEORIES, Point, Prediction
from orchestrator.render.labels import legend_below, plain
from orchestrator.render.style import BLACK, BLUE, GREY, ORANGE, VERMILION, picture

_BAND = 0.15  # opacity of an interval
_LIGHTLY = 0.35  # opacity of sizes whose other axes are not the target's
_ASIDE = 1.03  # factor by which the backtest stands beside its bracket
_MOST_TICKS = 8


@picture("map")
def prediction_picture(found: Prediction) -> Figure:
    """Draw the laws over one axis, with the target and the backtest."""
    figure = Figure(figsize=(7.2, 5.2), layout="constrained")
    axes = figure.subplots()
    axes.set_xscale("log")
    axes.set_yscale("log")
    furthest = found.ladder.values(found.axis)[-1] if found.edge is None else math.inf
    edges, best = ([p for p in curve if p.size <= furthest] for curve in (found.edge_curve, found.best_curve))
    _band(axes, edges, VERMILION, "edge, with its 95 % interval at a new size")
    _band(axes, best, BLUE, "best rate, likewise")
    if found.axis != STEPS:
        _draw_theories(axes, edges, found.ladder.values(found.axis)[-1])
    for size in found.ladder.at_each_length() if found.axis == STEPS else found.ladder.sizes:
        others = {name: value for name, value in found.target.items() if name != found.axis}
        _draw_size(axes, size, found.axis, is_elsewhere=not others.items() <= size.setting.items())
    target = found.target[found.axis]
    axes.axvline(target, color=GREY, linewidth=0.8, linestyle=":")
    if found.edge is not None:
        _bar(axes, target, found.edge, VERMILION, "D", "edge at the target")
    if found.confirmation is not None:
        _draw_runs(axes, target, found.confirmation.runs)
    if found.best_lr is not None:
        _bar(axes, target, found.best_lr, BLUE, "D", "predicted best rate at the target")
    if found.backtest is not None:
        largest = found.backtest.at[found.axis]
        _bar(axes, largest * _ASIDE, found.backtest.edge, ORANGE, "s", "backtest: this size from the others")
    values = [*found.ladder.values(found.axis), target]
    axes.set_xticks(values if len(values) <= _MOST_TICKS else [values[0], values[-2], target])
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    for ticks in (axes.xaxis, axes.yaxis):
        ticks.set_major_formatter(FuncFormatter(lambda value, _: format_value(float(f"{value:.3g}"))))
        ticks.set_minor_formatter(NullFormatter())
    axes.set_xlabel(plain(found.axis))
    axes.set_ylabel(plain(found.along))
    axes.grid(alpha=0.25)
    at = " ".join(f"{name}={format_value(value)}" for name, value in found.target.items())
    figure.suptitle(plain(f"{found.sweep}: {_title(found, at)}"), fontsize=11)
    handles: dict[str, Any] = {}
    for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
        handles.setdefault(label, handle)
    legend_below(figure, list(handles.values()), most_columns=2)
    return figure


def _title(found: Prediction, at: str) -> str:
    if found.is_void:
        return f"void: {at} is not as on the ladder"
    return (
        f"refused: the law fails at a trained size, {at}"
        if found.is_withheld
        else f"edge along {found.along}, predicted at {at}"
    )


def _band(axes: Axes, curve: Sequence[Point], colour: str, label: str) -> None:
    if not curve:
        return
    sizes = [point.size for point in curve]
    axes.plot(sizes, [point.at for point in curve], color=colour, linewidth=1.4, label=label)
    lows, highs = [point.low for point in curve], [point.high for point in curve]
    axes.fill_between(sizes, lows, highs, color=colour, alpha=_BAND, linewidth=0)


def _draw_theories(axes: Axes, curve: Sequence[Point], largest: float) -> None:
    """Faint lines with the slopes of the theories through the edge at the largest size that was trained."""
    if not curve:
        return
    at = min(curve, key=lambda point: abs(point.size - largest))
    ends = [curve[0].size, curve[-1].size]
    for theory, name in zip(THEORIES, ("0", "-1/2", "-1"), strict=True):
        edges = [at.at * (size / at.size) ** theory for size in ends]
        axes.plot(ends, edges, color=GREY, linewidth=0.7, linestyle="--", alpha=0.6, zorder=0)
        axes.annotate(
            f"slope {name}", (ends[0], edges[0]), (3, 2), textcoords="offset points", color=GREY, fontsize=7, ha="left"
        )


def _draw_size(axes: Axes, size: Size, axis: str, *, is_elsewhere: bool) -> None:
    """The bracket of a size, open where it leaves the axis, and its flat optimum; lightly where other axes differ."""
    place = float(size.setting[axis])
    alpha, where = (_LIGHTLY, ", for other values of the rest") if is_elsewhere else (1.0, "")
    if size.low is not None and size.high is not None:
        ends, label = [math.exp(size.low), math.exp(size.high)], f"bracket of the edge{where}"
        axes.plot([place, place], ends, color=VERMILION, linewidth=3, alpha=alpha, label=label)
    else:
        mark = "^" if size.high is None else "v"
        axes.plot(place, math.exp(size.edge_or_bound), color=VERMILION, marker=mark, alpha=alpha)
    if size.optimum is not None:
        ends, label = [math.exp(size.optimum.low), math.exp(size.optimum.high)], f"rates as good as the best{where}"
        axes.plot([place, place], ends, color=BLUE, linewidth=3, alpha=alpha, label=label)


def _draw_runs(axes: Axes, place: float, runs: Sequence[TargetRun]) -> None:
    """The runs at the target: whether each broke."""
    for broke, mark, label in ((False, "o", "run there, stable"), (True, "x", "run there, broke")):
        rates = [run.rate for run in runs if (run.outcome in BROKEN) == broke]
        if rates:
            axes.plot([place / _ASIDE] * len(rates), rates, mark, color=BLACK, markersize=5, label=label)


def _bar(axes: Axes, place: float, found: Interval, colour: str, mark: str, label: str) -> None:
    axes.errorbar(
        place,
        found.at,
        yerr=[[found.at - found.low], [found.high - found.at]],
        color=colour,
        marker=mark,
        capsize=4,
        linestyle="none",
        label=label,
    )

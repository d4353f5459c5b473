"""Matplotlib figures: the heatmap of a stability map. Nothing is interpolated."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from orchestrator.space import Axis, format_value
from orchestrator.stability import METRICS, MapCell, StabilityMap

FORMATS = ("png", "svg", "pdf", "csv")
# Marks tell the states apart without colour; colours are from Okabe and Ito's colour-blind safe set.
_MARKS: dict[str, tuple[str, str]] = {
    "diverged": ("x", "diverged (never came back, or not finite)"),
    "spiked": ("^", "spiked (left its trend and recovered)"),
    "stalled": ("_", "stalled (never learned)"),
    "errored": ("P", "errored (a fault, not a result)"),
}
_STABLE_COLOURS = LinearSegmentedColormap.from_list("stable", ["#D55E00", "#F6E8C3", "#0072B2"])
_NOT_RUN_HATCH = "////"
_LABEL_ROOM = 400  # write numbers into cells up to this many of them
_SAVE_OPTIONS: dict[str, dict[str, Any]] = {
    "png": {"dpi": 160, "metadata": {"Software": None}},
    "svg": {"metadata": {"Date": None}},
    "pdf": {"metadata": {"CreationDate": None}},
}


def heatmap(stability: StabilityMap, file_format: str) -> bytes:
    """The map as a picture: fraction of stable seeds beside a panel of the map's metric.

    The same ledger gives the same bytes. Raises ValueError for an unknown format.
    """
    return heatmaps(stability, [file_format])[file_format]


def heatmaps(stability: StabilityMap, file_formats: Sequence[str]) -> dict[str, bytes]:
    """The same picture in several formats, laid out once."""
    pictures = {}
    with matplotlib.rc_context({"svg.hashsalt": "sweep", "font.size": 9, "hatch.linewidth": 0.5}):
        figure = _draw(stability)
        for file_format in file_formats:
            if file_format not in _SAVE_OPTIONS:
                raise ValueError(f"format {file_format!r} is unknown: use one of {', '.join(_SAVE_OPTIONS)}")
            buffer = io.BytesIO()
            figure.savefig(buffer, format=file_format, **_SAVE_OPTIONS[file_format])
            figure.set_layout_engine("none")
            pictures[file_format] = buffer.getvalue()
    return pictures


def _draw(stability: StabilityMap) -> Figure:
    width, height = _panel_size(stability)
    figure = Figure(figsize=(2 * width + 1.6, height + 1.7), layout="constrained")
    left, right = figure.subplots(1, 2)
    stable_norm = Normalize(0, 1)
    value_norm = _value_norm(stability)
    draw_panel = _draw_points if stability.is_sampled else _draw_cells
    draw_panel(
        left, stability, [cell.fraction_stable for cell in stability.cells.values()], _STABLE_COLOURS, stable_norm, True
    )
    viridis = matplotlib.colormaps["viridis_r"]
    draw_panel(right, stability, [cell.value for cell in stability.cells.values()], viridis, value_norm, False)
    left.set_title("fraction of stable seeds")
    clipped = " (colour clipped)" if _is_clipped(stability) else ""
    right.set_title(METRICS[stability.metric] + clipped)
    for axes, norm, colours in ((left, stable_norm, _STABLE_COLOURS), (right, value_norm, viridis)):
        figure.colorbar(matplotlib.cm.ScalarMappable(norm, colours), ax=axes, fraction=0.05, pad=0.02)
    seeds = sorted({cell.num_seeds for cell in stability.cells.values()})
    count = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    runs = "run" if seeds == [1] else "runs"
    note = f"; {stability.note}" if stability.note else ""
    figure.suptitle(f"{stability.name}: {len(stability.cells)} cells of {count} {runs}{note}", fontsize=11)
    figure.legend(handles=_legend(stability), loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    return figure


def _panel_size(stability: StabilityMap) -> tuple[float, float]:
    if stability.is_sampled:
        return 4.6, 4.0
    columns, rows = len(stability.x_values), len(stability.y_values)
    return min(max(0.62 * columns + 1.0, 3.4), 12.0), min(max(0.5 * rows + 0.6, 1.4), 12.0)


def _finite_values(stability: StabilityMap) -> list[float]:
    return [cell.value for cell in stability.cells.values() if cell.value is not None]


def _colour_range(stability: StabilityMap) -> tuple[float, float]:
    """Range of colours: diverged cells must not flatten the differences that matter."""
    calm = [c.value for c in stability.cells.values() if c.value is not None and c.state != "diverged"]
    values = calm or _finite_values(stability) or [0.0, 1.0]
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _is_clipped(stability: StabilityMap) -> bool:
    low, high = _colour_range(stability)
    return any(not low <= value <= high for value in _finite_values(stability))


def _value_norm(stability: StabilityMap) -> Normalize:
    low, high = _colour_range(stability)
    if low > 0 and high / low > 30:
        return LogNorm(low, high, clip=True)
    return Normalize(low, high, clip=True)


def _draw_cells(
    axes: Axes,
    stability: StabilityMap,
    values: Sequence[float | None],
    colours: Any,
    norm: Normalize,
    is_fraction: bool,
) -> None:
    """One rectangle per cell, at its rank on each axis; every value is written at the axis."""
    columns = {value: i for i, value in enumerate(stability.x_values)}
    rows = {value: i for i, value in enumerate(stability.y_values)}
    has_room = len(stability.cells) <= _LABEL_ROOM
    size = 8 if len(columns) <= 12 and len(rows) <= 14 else 5
    for column in columns.values():
        for row in rows.values():
            axes.add_patch(_not_run(column - 0.5, row - 0.5))
    for cell, value in zip(stability.cells.values(), values, strict=True):
        column, row = columns[cell.x], rows[cell.y]
        colour = "white" if value is None else colours(norm(value))
        if cell.state != "not_run":
            axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor=colour, edgecolor="white", lw=0.8))
        ink = "black" if value is None else _ink(colour)
        text = _cell_text(cell, value, is_fraction) if has_room else ""
        is_marked = cell.state in _MARKS
        if is_marked:
            mark, _ = _MARKS[cell.state]
            offset = 0.2 if text else 0.0
            axes.plot(
                column, row + offset, marker=mark, color=ink, markersize=size - 2, linestyle="none", fillstyle="none"
            )
        axes.text(
            column, row - (0.17 if is_marked else 0.0), text, ha="center", va="center", fontsize=size - 1, color=ink
        )
    axes.set_xlim(-0.5, len(columns) - 0.5)
    axes.set_ylim(-0.5, len(rows) - 0.5)
    _label_ranks(axes.xaxis, stability.x, stability.x_values)
    if stability.y is None:
        axes.set_yticks([])
    else:
        _label_ranks(axes.yaxis, stability.y, stability.y_values)


def _draw_points(
    axes: Axes,
    stability: StabilityMap,
    values: Sequence[float | None],
    colours: Any,
    norm: Normalize,
    is_fraction: bool,
) -> None:
    """One point per sampled cell, where it lies on each axis's own scale."""
    for cell, value in zip(stability.cells.values(), values, strict=True):
        x = _place(stability.x, cell.x, stability.x_values)
        y = 0.0 if stability.y is None else _place(stability.y, cell.y, stability.y_values)
        colour = "white" if value is None else colours(norm(value))
        axes.plot(x, y, marker="o", color=colour, markeredgecolor="black", markersize=9, linestyle="none")
        if cell.state in _MARKS:
            mark, _ = _MARKS[cell.state]
            axes.plot(x, y, marker=mark, color=_ink(colour), markersize=5, linestyle="none", fillstyle="none")
    _label_positions(axes.xaxis, stability.x, stability.x_values)
    if stability.y is None:
        axes.set_yticks([])
    else:
        _label_positions(axes.yaxis, stability.y, stability.y_values)
    axes.margins(0.08)
    axes.grid(alpha=0.2)


def _not_run(x: float, y: float) -> Rectangle:
    return Rectangle((x, y), 1, 1, facecolor="white", edgecolor="#999999", hatch=_NOT_RUN_HATCH, lw=0)


def _ink(colour: Any) -> str:
    """Black or white, whichever reads better on ``colour``."""
    red, green, blue = matplotlib.colors.to_rgb(colour)
    return "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "white"


def _cell_text(cell: MapCell, value: float | None, is_fraction: bool) -> str:
    if is_fraction:
        return f"{cell.outcomes.get('stable', 0)}/{cell.num_finished}" if cell.num_finished else ""
    return "" if value is None else short_number(value)


def short_number(value: float) -> str:
    """Three significant digits at most, in few characters."""
    if value == 0 or 0.01 <= abs(value) < 1000:
        return f"{value:.3g}"
    exponent = math.floor(math.log10(abs(value)))
    return f"{value / 10**exponent:.2g}e{exponent}"


def scale_label(axis: Axis) -> str:
    """The axis's name with its scale."""
    scales = {"log": " (log scale)", "log1m": f" (even in log(1 - {axis.name}))", "linear": "", "values": ""}
    return axis.name + scales[axis.scale]


def tick_label(axis: Axis, value: Any) -> str:
    """A value as a person reads it on the axis: powers of ten on a log axis, 1 - 10^-4 near one."""
    if axis.scale == "log" and isinstance(value, int | float) and value > 0:
        exponent = math.log10(value)
        if math.isclose(exponent, round(exponent), abs_tol=1e-6):
            return f"$10^{{{round(exponent)}}}$"
        return short_number(value)
    if axis.scale == "log1m":
        digits = 2 if value < 0.9 else math.ceil(-math.log10(1 - value)) + 1
        return f"{value:.{digits}f}".rstrip("0")
    return format_value(value)


def _label_ranks(ticks: Any, axis: Axis, values: Sequence[Any]) -> None:
    every = max(1, math.ceil(len(values) / 24))
    shown = list(range(0, len(values), every))
    ticks.set_ticks(shown, [tick_label(axis, values[i]) for i in shown])
    _finish_label(ticks, axis, [tick_label(axis, values[i]) for i in shown])


def _place(axis: Axis, value: Any, values: Sequence[Any]) -> float:
    return axis.position(value) if axis.ends else float(list(values).index(value))


def _label_positions(ticks: Any, axis: Axis, values: Sequence[Any]) -> None:
    shown = [axis.at(unit) for unit in np.linspace(0, 1, 6)] if axis.ends else list(values)
    labels = [tick_label(axis, value) for value in shown]
    ticks.set_ticks([_place(axis, value, values) for value in shown], labels)
    _finish_label(ticks, axis, labels)


def _finish_label(ticks: Any, axis: Axis, labels: Sequence[str]) -> None:
    ticks.set_label_text(scale_label(axis))
    longest = max((len(label) for label in labels if not label.startswith("$")), default=0)
    if ticks.axis_name == "x" and longest * len(labels) > 45:
        ticks.set_tick_params(rotation=45)


def _legend(stability: StabilityMap) -> list[Any]:
    states = {cell.state for cell in stability.cells.values()}
    grid_has_gaps = not stability.is_sampled and len(stability.cells) < len(stability.x_values) * len(
        stability.y_values
    )
    handles: list[Any] = [
        Line2D([], [], marker=mark, color="black", linestyle="none", fillstyle="none", label=label)
        for state, (mark, label) in _MARKS.items()
        if state in states
    ]
    if "stable" in states:
        handles.insert(0, Patch(facecolor=_STABLE_COLOURS(1.0), label="no mark: all seeds stable"))
    if "not_run" in states or grid_has_gaps:
        handles.append(Patch(facecolor="white", edgecolor="#999999", hatch=_NOT_RUN_HATCH, label="not run"))
    return handles

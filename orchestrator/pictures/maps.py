"""Matplotlib figures: the heatmap of a stability map. Nothing is interpolated."""

from __future__ import annotations

import io
import math
import textwrap
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.colors import Colormap, LinearSegmentedColormap, LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import FuncFormatter

from orchestrator.detection.outcomes import is_known
from orchestrator.maps.axis_values import value_labels
from orchestrator.maps.stability import METRICS, MapCell, StabilityMap
from orchestrator.space import Axis

FORMATS = ("png", "svg", "pdf", "csv")
# Marks tell the states apart without colour; colours are from Okabe and Ito's colour-blind safe set.
_MARKS: dict[str, tuple[str, str]] = {
    "diverged": ("x", "diverged (never came back, or not finite)"),
    "spiked": ("^", "spiked (left its trend and recovered)"),
    "stalled": ("_", "stalled (never learned)"),
    "errored": ("P", "errored (a fault, not a result)"),
    "unknown": ("$?$", "unknown (some seeds have no result; numbers are of those that have)"),
}
_STABLE_COLOURS = LinearSegmentedColormap.from_list("stable", ["#D55E00", "#F6E8C3", "#0072B2"])
_MISSING_HATCH = "////"
_EDGE_LINE: dict[str, Any] = {"color": "black", "linewidth": 1.8, "solid_capstyle": "projecting"}
_TICK_DIGITS = {"log": 3, "log1m": 2}
_LABEL_ROOM = 400  # write numbers into cells up to this many of them
_SAVE_OPTIONS: dict[str, dict[str, Any]] = {
    "png": {"dpi": 160, "metadata": {"Software": None}},
    "svg": {"metadata": {"Date": None}},
    "pdf": {"metadata": {"CreationDate": None}},
}


@dataclass(frozen=True, slots=True)
class Panel:
    """One way to colour a map's cells and write into them."""

    title: str
    colours: Colormap
    norm: Normalize
    value: Callable[[MapCell], float | None]
    text: Callable[[MapCell], str]
    has_edge: bool = False


def heatmap(maps: StabilityMap | Sequence[StabilityMap], file_format: str) -> bytes:
    """The map as a picture: fraction of stable seeds beside a panel of the map's metric; facets in columns.

    The same ledger gives the same bytes. Raises ValueError for an unknown format.
    """
    facets = [maps] if isinstance(maps, StabilityMap) else list(maps)
    return saved(lambda: _draw(facets), file_format)


def comparison_picture(maps: Sequence[StabilityMap], file_format: str) -> bytes:
    """Maps of several sweeps over the same cells, and below each how it differs from the first."""
    return saved(lambda: _draw_comparison(maps), file_format)


def saved(draw: Callable[[], Figure], file_format: str) -> bytes:
    """What ``draw`` draws as a file, the same bytes each time. Raises ValueError for an unknown format."""
    if file_format not in _SAVE_OPTIONS:
        raise ValueError(f"format {file_format!r} is unknown: use one of {', '.join(_SAVE_OPTIONS)}")
    with matplotlib.rc_context({"svg.hashsalt": "sweep", "font.size": 9, "hatch.linewidth": 0.5}):
        buffer = io.BytesIO()
        draw().savefig(buffer, format=file_format, **_SAVE_OPTIONS[file_format])
    return buffer.getvalue()


def _draw(facets: Sequence[StabilityMap]) -> Figure:
    width, height = panel_size(facets[0])
    columns, rows = (2, 1) if len(facets) == 1 else (len(facets), 2)
    figure = Figure(figsize=(columns * width + 1.6, rows * height + 1.7), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    metric = facets[0].metric
    clipped = " (colour clipped)" if _is_clipped(facets) else ""
    panels = [
        _FRACTION,
        Panel(METRICS[metric] + clipped, matplotlib.colormaps["viridis_r"], _value_norm(facets), _value, _value_text),
    ]
    for i, panel in enumerate(panels):
        places = [grid[0, i]] if len(facets) == 1 else list(grid[i])
        for place, facet in zip(places, facets, strict=True):
            draw_panel(place, facet, panel)
            place.set_title(f"{' = '.join(facet.facet)}\n{panel.title}" if facet.facet else panel.title)
        _add_colour_bar(figure, panel, places)
    note = f"; {facets[0].note}" if facets[0].note else ""
    _finish(figure, f"{facets[0].name}: {_count(facets)}{note}", facets)
    return figure


def _draw_comparison(maps: Sequence[StabilityMap]) -> Figure:
    width, height = panel_size(maps[0])
    figure = Figure(figsize=(len(maps) * width + 1.6, 2 * height + 1.7), layout="constrained")
    grid = figure.subplots(2, len(maps), squeeze=False)
    first = maps[0]
    for place, stability in zip(grid[0], maps, strict=True):
        draw_panel(place, stability, _FRACTION)
        place.set_title(f"{_shortened(stability.name, width)}\n{_FRACTION.title}")
    grid[1, 0].axis("off")
    for place, stability in zip(grid[1, 1:], maps[1:], strict=True):
        difference = _difference_panel(first)
        draw_panel(place, stability, difference)
        place.set_title(f"less that of {_shortened(first.name, width)}\n{difference.title}")
    for i, panel in enumerate((_FRACTION, _difference_panel(first))):
        _add_colour_bar(figure, panel, list(grid[i]))
    names = ", ".join(stability.name for stability in maps)
    note = f"; {first.note}" if first.note else ""
    _finish(figure, f"{names}: {_count(maps[:1])} that they share{note}", maps)
    return figure


def _difference_panel(first: StabilityMap) -> Panel:
    def value(cell: MapCell) -> float | None:
        other = first.cells.get((cell.x, cell.y))
        if other is None or other.fraction_stable is None or cell.fraction_stable is None:
            return None
        return 100 * (cell.fraction_stable - other.fraction_stable)

    def text(cell: MapCell) -> str:
        found = value(cell)
        return "" if found is None else f"{found:+.0f}" if found else "0"

    return Panel("more stable (+) or less (-), points", matplotlib.colormaps["PRGn"], Normalize(-100, 100), value, text)


def _add_colour_bar(figure: Figure, panel: Panel, places: list[Axes]) -> None:
    bar = figure.colorbar(
        matplotlib.cm.ScalarMappable(panel.norm, panel.colours), ax=places, fraction=0.05, pad=0.02,
        format=FuncFormatter(lambda value, _: short_number(value)),
    )  # fmt: skip
    bar.ax.minorticks_off()


def _finish(figure: Figure, title: str, maps: Sequence[StabilityMap]) -> None:
    figure.suptitle(textwrap.fill(title, max(30, int(13 * figure.get_figwidth()))), fontsize=11)
    figure.legend(handles=outcome_legend(maps), loc="outside lower center", ncols=3, frameon=False, fontsize=8)


def _count(maps: Sequence[StabilityMap]) -> str:
    cells = [cell for stability in maps for cell in stability.cells.values()]
    seeds = sorted({cell.num_seeds for cell in cells})
    count = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    return f"{len(cells)} cells of {count} {'run' if seeds == [1] else 'runs'}"


def _shortened(name: str, width: float) -> str:
    return (
        textwrap.shorten(name, max(12, int(11 * width)), placeholder="...") if " " in name else name[: int(11 * width)]
    )


def _value(cell: MapCell) -> float | None:
    return cell.value


def _value_text(cell: MapCell) -> str:
    return "" if cell.value is None else short_number(cell.value)


def _fraction(cell: MapCell) -> float | None:
    return cell.fraction_stable


def _fraction_text(cell: MapCell) -> str:
    if not cell.num_finished:
        return ""
    share = f"{cell.outcomes.get('stable', 0)}/{cell.num_finished}"
    return share if cell.num_finished == cell.num_seeds else f"{share} of {cell.num_seeds}"


_FRACTION = Panel(
    "fraction of stable seeds", _STABLE_COLOURS, Normalize(0, 1), _fraction, _fraction_text, has_edge=True
)


def panel_size(stability: StabilityMap) -> tuple[float, float]:
    """Width and height of one panel in inches."""
    if stability.is_sampled:
        return 4.6, 4.0
    columns, rows = len(stability.x_values), len(stability.y_values)
    return min(max(0.62 * columns + 1.0, 3.4), 12.0), min(max(0.5 * rows + 0.6, 1.4), 12.0)


def _finite_values(maps: Sequence[StabilityMap]) -> list[float]:
    return [cell.value for stability in maps for cell in stability.cells.values() if cell.value is not None]


def _colour_range(maps: Sequence[StabilityMap]) -> tuple[float, float]:
    """Range of colours: diverged cells must not flatten the differences of the others, where these have any."""
    cells = [cell for stability in maps for cell in stability.cells.values()]
    calm = [cell.value for cell in cells if cell.value is not None and cell.state not in ("diverged", "unknown")]
    values = calm if len(set(calm)) > 1 else _finite_values(maps) or [0.0, 1.0]
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _is_clipped(maps: Sequence[StabilityMap]) -> bool:
    low, high = _colour_range(maps)
    return any(not low <= value <= high for value in _finite_values(maps))


def _value_norm(maps: Sequence[StabilityMap]) -> Normalize:
    low, high = _colour_range(maps)
    if low > 0 and high / low > 30:
        return LogNorm(low, high, clip=True)
    return Normalize(low, high, clip=True)


def draw_panel(axes: Axes, stability: StabilityMap, panel: Panel) -> None:
    """Draw one quantity of the map's cells on ``axes``."""
    if stability.is_sampled:
        _draw_points(axes, stability, panel)
    else:
        _draw_cells(axes, stability, panel)
        if panel.has_edge:
            _draw_edges(axes, stability)


def _draw_cells(axes: Axes, stability: StabilityMap, panel: Panel) -> None:
    """One rectangle per cell, at its rank on each axis; every value is written at the axis."""
    columns = {value: i for i, value in enumerate(stability.x_values)}
    rows = {value: i for i, value in enumerate(stability.y_values)}
    has_room = len(stability.cells) <= _LABEL_ROOM
    size = 8 if len(columns) <= 12 and len(rows) <= 14 else 5
    squares: dict[bool, list[Rectangle]] = {True: [], False: []}  # by whether there is a result
    colours, marks = [], defaultdict(list)
    for cell in stability.cells.values():
        value = panel.value(cell)
        column, row = columns[cell.x], rows[cell.y]
        colour = "white" if value is None else panel.colours(panel.norm(value))
        squares[cell.state != "not_run"].append(Rectangle((column - 0.5, row - 0.5), 1, 1))
        colours += [colour] if cell.state != "not_run" else []
        ink = "black" if value is None else _ink(colour)
        text = panel.text(cell) if has_room else ""
        is_marked = cell.state in _MARKS
        if is_marked:
            marks[_MARKS[cell.state][0], ink].append((column, row + (0.2 if text else 0.0)))
        if text:
            below = 0.17 if is_marked else 0.0
            axes.text(column, row - below, text, ha="center", va="center", fontsize=size - 1, color=ink)
    there = {(cell.x, cell.y) for cell in stability.cells.values()}
    missing = [(columns[x], rows[y]) for x in columns for y in rows if (x, y) not in there]
    squares[False] += [Rectangle((column - 0.5, row - 0.5), 1, 1) for column, row in missing]
    # One thing to draw for all of a kind: a map of ten thousand cells would take minutes otherwise.
    axes.add_collection(_hatched(squares[False], "white"))
    axes.add_collection(PatchCollection(squares[True], facecolors=colours, edgecolors="white", linewidths=0.8))
    unknown = [(columns[cell.x], rows[cell.y]) for cell in stability.cells.values() if cell.state == "unknown"]
    axes.add_collection(_hatched([Rectangle((column - 0.5, row - 0.5), 1, 1) for column, row in unknown], "none"))
    for (mark, ink), places in marks.items():
        look = {"marker": mark, "color": ink, "linestyle": "none", "fillstyle": "none"}
        axes.plot(*zip(*places, strict=True), **look, markersize=size - 2)
    axes.set_xlim(-0.5, len(columns) - 0.5)
    axes.set_ylim(-0.5, len(rows) - 0.5)
    _label_ranks(axes.xaxis, stability.x, stability.x_values)
    if stability.y is None:
        axes.set_yticks([])
    else:
        _label_ranks(axes.yaxis, stability.y, stability.y_values)


def _draw_edges(axes: Axes, stability: StabilityMap) -> None:
    """A line wherever a stable cell meets one that is not; nothing next to cells that are not known."""
    is_stable = {
        (column, row): stability.state((x, y)) == "stable"
        for column, x in enumerate(stability.x_values)
        for row, y in enumerate(stability.y_values)
        if is_known(stability.state((x, y)))
    }
    x, y = [], []  # pieces of one line, with a gap after each
    for (column, row), stable in is_stable.items():
        if is_stable.get((column + 1, row), stable) != stable:
            x += [column + 0.5, column + 0.5, math.nan]
            y += [row - 0.5, row + 0.5, math.nan]
        if is_stable.get((column, row + 1), stable) != stable:
            x += [column - 0.5, column + 0.5, math.nan]
            y += [row + 0.5, row + 0.5, math.nan]
    if x:
        axes.plot(x, y, **_EDGE_LINE)


def _draw_points(axes: Axes, stability: StabilityMap, panel: Panel) -> None:
    """One point per sampled cell, where it lies on each axis's own scale."""
    places, colours, marks = [], [], defaultdict(list)
    for cell in stability.cells.values():
        value = panel.value(cell)
        x = _place(stability.x, cell.x, stability.x_values)
        y = 0.0 if stability.y is None else _place(stability.y, cell.y, stability.y_values)
        places.append((x, y))
        colours.append("white" if value is None else panel.colours(panel.norm(value)))
        if cell.state in _MARKS:
            marks[_MARKS[cell.state][0], _ink(colours[-1])].append((x, y))
    axes.scatter(*zip(*places, strict=True), s=81, c=colours, edgecolors="black", zorder=2)
    for (mark, ink), marked in marks.items():
        look = {"marker": mark, "color": ink, "linestyle": "none", "fillstyle": "none"}
        axes.plot(*zip(*marked, strict=True), **look, markersize=5, zorder=3)
    _label_positions(axes.xaxis, stability.x, stability.x_values)
    if stability.y is None:
        axes.set_yticks([])
    else:
        _label_positions(axes.yaxis, stability.y, stability.y_values)
    axes.margins(0.08)
    axes.grid(alpha=0.2)


def _hatched(squares: Sequence[Rectangle], colour: str) -> PatchCollection:
    """Cells in which results are missing."""
    return PatchCollection(squares, facecolors=colour, edgecolors="#999999", hatch=_MISSING_HATCH, linewidths=0)


def _ink(colour: Any) -> str:
    """Black or white, whichever reads better on ``colour``."""
    red, green, blue = matplotlib.colors.to_rgb(colour)
    return "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "white"


def short_number(value: float) -> str:
    """Three significant digits at most, in few characters."""
    if value == 0 or 0.01 <= abs(value) < 1000:
        return f"{value:.3g}"
    exponent = math.floor(math.log10(abs(value)))
    return f"{value / 10**exponent:.2g}e{exponent}"


def scale_label(axis: Axis) -> str:
    """The axis's name with its scale."""
    scales = {"log": " (log scale)", "log1m": f" (log of 1 - {axis.name})", "linear": "", "values": ""}
    return axis.name + scales[axis.scale]


def tick_labels(axis: Axis, values: Sequence[Any]) -> list[str]:
    """Values as a person reads them on the axis, no two alike: powers of ten on a log axis, few digits elsewhere."""
    labels = value_labels(values, _TICK_DIGITS.get(axis.scale, 6))
    if axis.scale != "log":
        return labels
    return [_power_of_ten(value) or label for value, label in zip(values, labels, strict=True)]


def _power_of_ten(value: float) -> str:
    """``value`` as a power of ten in mathematical type; nothing where it is none."""
    exponent = math.log10(value)
    return f"$10^{{{round(exponent)}}}$" if math.isclose(exponent, round(exponent), abs_tol=1e-9) else ""


def _label_ranks(ticks: Any, axis: Axis, values: Sequence[Any]) -> None:
    every = max(1, math.ceil(len(values) / 24))
    labels = tick_labels(axis, values)[::every]
    ticks.set_ticks(list(range(0, len(values), every)), labels)
    _finish_label(ticks, axis, labels)


def _place(axis: Axis, value: Any, values: Sequence[Any]) -> float:
    return axis.position(value) if axis.ends else float(list(values).index(value))


def _label_positions(ticks: Any, axis: Axis, values: Sequence[Any]) -> None:
    shown = [axis.at(unit) for unit in np.linspace(0, 1, 6)] if axis.ends else list(values)
    labels = tick_labels(axis, shown)
    ticks.set_ticks([_place(axis, value, values) for value in shown], labels)
    _finish_label(ticks, axis, labels)


def _finish_label(ticks: Any, axis: Axis, labels: Sequence[str]) -> None:
    ticks.set_label_text(scale_label(axis))
    longest = max((len(label) for label in labels if not label.startswith("$")), default=0)
    if ticks.axis_name == "x" and longest * len(labels) > 45:
        ticks.set_tick_params(rotation=45)


def outcome_legend(maps: Sequence[StabilityMap]) -> list[Any]:
    """Handles that explain the marks of the outcomes in ``maps``."""
    states = {cell.state for stability in maps for cell in stability.cells.values()}
    has_gaps = any(not s.is_sampled and len(s.cells) < len(s.x_values) * len(s.y_values) for s in maps)
    handles: list[Any] = [
        Line2D([], [], marker=mark, color="black", linestyle="none", fillstyle="none", label=label)
        for state, (mark, label) in _MARKS.items()
        if state in states
    ]
    if "stable" in states:
        handles.insert(0, Patch(facecolor=_STABLE_COLOURS(1.0), label="no mark: all seeds stable"))
    if "not_run" in states or has_gaps:
        handles.append(Patch(facecolor="white", edgecolor="#999999", hatch=_MISSING_HATCH, label="not run"))
    is_grid = not maps[0].is_sampled
    if is_grid and "stable" in states and any(is_known(state) for state in states - {"stable"}):
        handles.append(Line2D([], [], label="edge of stability", **_EDGE_LINE))
    return handles

"""How states, curves and panels look on figures, page and terminal, and a figure as the bytes of a file."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, ParamSpec

import matplotlib
from matplotlib.colors import Colormap, LinearSegmentedColormap, LogNorm, Normalize, to_hex, to_rgb
from matplotlib.figure import Figure

from orchestrator.base.files import PICTURES
from orchestrator.base.vocabulary import OSCILLATING, TOO_SLOW
from orchestrator.maps.cell_map import CellMap
from orchestrator.maps.cells import CellSummary
from orchestrator.render.states import STATES

# Okabe and Ito's colours, which colour-blind readers can distinguish.
BLUE, VERMILION, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
SKY, ORANGE, YELLOW, BLACK = "#56B4E9", "#E69F00", "#F0E442", "#000000"
GREY, PALE, WHITE = "#999999", "#F6E8C3", "#ffffff"


# The colours of a panel from its lowest to its highest value; names are matplotlib's.
FRACTION_COLOURS = (VERMILION, PALE, BLUE)
VALUE_COLOURS = "viridis_r"
NUM_COLOURS = 256
LOG_COLOURS_FROM = 30.0  # ratio of the highest to the lowest value from which colours are logarithmic
PADDING = 0.5  # on either side of a range that is a single value
BLANK = WHITE  # a cell without a value
EDGE_LABEL = "edge of stability"
EDGE_LINE: Mapping[str, Any] = {"color": "black", "linewidth": 1.8, "solid_capstyle": "projecting"}
# After the fraction of a cell with a slow rise.
RISE_SIGN, RISE_LABEL = "↗", "a seed slowly gave up over a quarter of what it had learned"
# After the fraction of a cell whose learning rate is not right: a sign, and what it means.
LR_SIGNS: Mapping[str, tuple[str, str]] = {
    TOO_SLOW: ("↑", "too slow: a higher learning rate ends lower"),
    OSCILLATING: ("↓", "oscillating: a lower learning rate ends as low or lower"),
}
HATCH, HATCH_COLOUR = "////", GREY
TEXT_ROOM = 400  # largest number of cells for which numbers are written into them

# Curves of runs.
LINE, SECOND_LINE, EPISODE, LIMIT, BROKEN = BLUE, GREEN, ORANGE, VERMILION, BLACK
SEED_COLOURS = (BLUE, VERMILION, GREEN, PURPLE, SKY, ORANGE, "#8a8a8a")
SEED_DASHES = ("", "6 3", "2 2", "8 3 2 3")  # SVG dashes on the page; one pattern for each round of the colours
LOG_CURVES_FROM = 20.0  # ratio of the highest to the lowest value from which a curve's axis is logarithmic
MAX_POINTS = 4000  # of a drawn line; more are not visible

FONT_SIZE = 9


def fraction_colours() -> Colormap:
    """Colour map for fractions of stable seeds, from 0 to 1."""
    return LinearSegmentedColormap.from_list("stable", FRACTION_COLOURS, N=NUM_COLOURS)


def value_colours() -> Colormap:
    """Colour map for a metric, from its lowest to its highest value."""
    return matplotlib.colormaps[VALUE_COLOURS].resampled(NUM_COLOURS)


def colour_table(colours: Colormap) -> list[str]:
    """The colours as #rrggbb, from the lowest to the highest value."""
    return [to_hex(colours(i)) for i in range(colours.N)]


def ink(colour: Any) -> str:
    """Black or white, whichever reads better on ``colour``."""
    red, green, blue = to_rgb(colour)
    return "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "white"


def colour_range(maps: Sequence[CellMap]) -> tuple[float, float]:
    """Range of the colour scale: diverged cells must not flatten differences between the others, if there are any."""
    calm = [value for cell, value in _values(maps) if STATES[cell.state].sets_colours]
    values = calm if len(set(calm)) > 1 else [value for _, value in _values(maps)] or [0.0, 1.0]
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - PADDING, high + PADDING)


def is_clipped(maps: Sequence[CellMap]) -> bool:
    """Whether some value is outside the colour range."""
    low, high = colour_range(maps)
    return any(not low <= value <= high for _, value in _values(maps))


def value_norm(maps: Sequence[CellMap]) -> Normalize:
    """From a metric's value to its place on the colour scale, 0 to 1; values outside get the nearest end."""
    low, high = colour_range(maps)
    if low > 0 and high / low > LOG_COLOURS_FROM:
        return LogNorm(low, high, clip=True)
    return Normalize(low, high, clip=True)


def _values(maps: Sequence[CellMap]) -> Iterator[tuple[CellSummary, float]]:
    return ((cell, cell.value) for s in maps for cell in s.cells.values() if cell.value is not None)


# Metadata that would differ between two files of one picture: program version and date.
_WITHOUT = {"png": "Software", "svg": "Date", "pdf": "CreationDate"}
# Dots per inch of a png and settings of matplotlib, by kind of picture.
_KINDS: Mapping[str, tuple[int, Mapping[str, Any]]] = {"map": (160, {"hatch.linewidth": 0.5}), "curves": (120, {})}
_Shown = ParamSpec("_Shown")


class Picture(Generic[_Shown]):
    """A function that draws a ``figure``, and called with a format before what is shown returns it as a file."""

    def __init__(self, figure: Callable[_Shown, Figure], kind: str) -> None:
        self.figure, self._kind = figure, kind

    def __call__(self, file_format: str, *shown: _Shown.args, **named: _Shown.kwargs) -> bytes:
        """Return the same bytes for the same arguments. Raises ValueError for an unknown format."""
        return saved(lambda: self.figure(*shown, **named), file_format, self._kind)


def picture(kind: str) -> Callable[[Callable[_Shown, Figure]], Picture[_Shown]]:
    """Make a `Picture`, a map or curves, of the function that draws its figure."""
    return lambda figure: Picture(figure, kind)


def saved(draw: Callable[[], Figure], file_format: str, kind: str) -> bytes:
    """The figure of ``draw`` as png, svg or pdf, the same bytes each time; ``kind`` is map or curves.

    Raises ValueError for an unknown format.
    """
    if file_format not in PICTURES:
        raise ValueError(f"format {file_format!r} is unknown: use one of {', '.join(PICTURES)}")
    dpi, settings = _KINDS[kind]
    size: dict[str, Any] = {"dpi": dpi} if file_format == "png" else {}
    with matplotlib.rc_context({"svg.hashsalt": "sweep", "font.size": FONT_SIZE, **settings}):
        buffer = io.BytesIO()
        draw().savefig(buffer, format=file_format, metadata={_WITHOUT[file_format]: None}, **size)
    return buffer.getvalue()

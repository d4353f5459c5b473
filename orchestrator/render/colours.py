"""From values to colours: the colour range of a metric over the cells of maps, and readable ink on a colour."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import matplotlib
from matplotlib.colors import Colormap, LinearSegmentedColormap, LogNorm, Normalize, to_hex, to_rgb

from orchestrator.maps.stability import MapCell, StabilityMap
from orchestrator.render.style import (
    FRACTION_COLOURS,
    LOG_COLOURS_FROM,
    NUM_COLOURS,
    PADDING,
    STATES,
    VALUE_COLOURS,
)


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


def colour_range(maps: Sequence[StabilityMap]) -> tuple[float, float]:
    """Range of the colour scale: diverged cells must not flatten differences between the others, if there are any."""
    calm = [value for cell, value in _values(maps) if STATES[cell.state].sets_colours]
    values = calm if len(set(calm)) > 1 else [value for _, value in _values(maps)] or [0.0, 1.0]
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - PADDING, high + PADDING)


def is_clipped(maps: Sequence[StabilityMap]) -> bool:
    """Whether some value is outside the colour range."""
    low, high = colour_range(maps)
    return any(not low <= value <= high for _, value in _values(maps))


def value_norm(maps: Sequence[StabilityMap]) -> Normalize:
    """From a metric's value to its place on the colour scale, 0 to 1; values outside get the nearest end."""
    low, high = colour_range(maps)
    if low > 0 and high / low > LOG_COLOURS_FROM:
        return LogNorm(low, high, clip=True)
    return Normalize(low, high, clip=True)


def _values(maps: Sequence[StabilityMap]) -> Iterator[tuple[MapCell, float]]:
    return ((cell, cell.value) for s in maps for cell in s.cells.values() if cell.value is not None)

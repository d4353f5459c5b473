"""The panels of several sweeps, side by side as far as a page is wide, and then in further blocks below."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

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
    panels than sweeps, which stay empty and keep the colours beside them in line with those above.
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

"""The legend below the panels of a figure, in as many columns as its width has room for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

_FONT = 8  # points
# In inches: a letter of that size on average, rather too wide than too narrow, and what is beside a label.
_LETTER, _HANDLE = 0.066, 0.62


def legend_below(figure: Figure, handles: Sequence[Any], most_columns: int = 3) -> None:
    """Put the legend of ``handles`` below the panels of ``figure``; nothing without any."""
    if not handles:
        return
    labels = [str(handle.get_label()) for handle in handles]
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=num_columns(labels, figure.get_figwidth(), most_columns),
        frameon=False,
        fontsize=_FONT,
    )


def num_columns(labels: Sequence[str], width: float, most: int) -> int:
    """How many columns of ``labels``, at most ``most`` and at least one, fit into ``width`` inches."""
    return next((num for num in range(min(most, len(labels)), 1, -1) if _width(labels, num) <= width), 1)


def _width(labels: Sequence[str], num: int) -> float:
    """Of ``labels`` in ``num`` columns, filled from the first as matplotlib does: the first ones have one row more."""
    rows, longer = divmod(len(labels), num)
    sizes = [rows + 1] * longer + [rows] * (num - longer)
    starts = [sum(sizes[:i]) for i in range(num)]
    columns = [labels[start : start + size] for start, size in zip(starts, sizes, strict=True)]
    return sum(_HANDLE + _LETTER * max(map(len, column)) for column in columns)

"""Texts on figures: short numbers, readable ticks, and text that matplotlib shows unchanged."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from orchestrator.base.errors import printable
from orchestrator.base.space import Axis
from orchestrator.maps.axes import value_labels
from orchestrator.maps.cells import CellSummary
from orchestrator.render.style import LR_SIGNS, RISE_SIGN

_SHORT = 16  # characters of a label that may stand at an angle across its column
_TICK_DIGITS = {"log": 3, "log1m": 2}


def plain(text: str) -> str:
    """``text`` that matplotlib shows unchanged: no formulas, no characters missing from its font."""
    shown = "".join(c if c.isascii() else "?" for c in printable(text))
    return shown.replace("$", r"\$")


def short_number(value: float) -> str:
    """Three significant digits from 0.01 to 1000, else two and a power of ten."""
    rounded = float(f"{value:.3g}")
    if value == 0 or 0.01 <= abs(rounded) < 1000:
        return f"{rounded:g}"
    digits, exponent = f"{value:.1e}".split("e")
    return f"{digits.removesuffix('.0')}e{int(exponent)}"


def distinct_numbers(values: Sequence[float]) -> list[str]:
    """``short_number`` of each of ``values``, with more digits where different values would have the same text."""
    texts = [short_number(value) for value in values]
    for digits in range(4, 10):
        if len(set(texts)) == len(set(values)):
            break
        texts = [f"{value:.{digits}g}" for value in values]
    return texts


def fraction_text(cell: CellSummary) -> str:
    """Stable out of finished seeds, as 2/3, plus the number of all seeds if that is larger.

    Arrows mark a cell with a slow rise, and where its learning rate must go.
    """
    if not cell.num_finished:
        return ""
    share = f"{cell.num_stable}/{cell.num_finished}"
    arrow = (RISE_SIGN if cell.num_risen else "") + LR_SIGNS.get(cell.lr_health or "", ("", ""))[0]
    return (share if cell.num_finished == cell.num_seeds else f"{share} of {cell.num_seeds}") + arrow


def value_text(cell: CellSummary) -> str:
    """The value of the map's metric in few characters; empty without one."""
    return "" if cell.value is None else short_number(cell.value)


def scale_label(axis: Axis) -> str:
    """The axis's name with its scale."""
    scales = {"log": " (log scale)", "log1m": f" (log of 1 - {axis.name})", "linear": "", "values": ""}
    return axis.name + scales[axis.scale]


def tick_texts(axis: Axis, values: Sequence[Any]) -> list[str]:
    """Values of an axis in few digits, all different."""
    return value_labels(values, _TICK_DIGITS.get(axis.scale, 6))


def tick_labels(axis: Axis, values: Sequence[Any]) -> list[str]:
    """``tick_texts``, with powers of ten on a log axis in mathematical notation."""
    labels = tick_texts(axis, values)
    if axis.scale != "log":
        return labels
    return [_power_of_ten(value) or label for value, label in zip(values, labels, strict=True)]


def _power_of_ten(value: float | None) -> str:
    """``value`` as a power of ten in mathematical notation; empty if it is not one."""
    if value is None:
        return ""  # of a cell in which the axis does not exist
    exponent = math.log10(value)
    return f"$10^{{{round(exponent)}}}$" if math.isclose(exponent, round(exponent), abs_tol=1e-9) else ""


def label_ranks(ticks: Any, axis: Axis, values: Sequence[Any]) -> None:
    """Label an axis of a panel on which each of ``values`` is placed at its rank."""
    every = max(1, math.ceil(len(values) / 24))
    labels = tick_labels(axis, values)[::every]
    ticks.set_ticks(list(range(0, len(values), every)), labels)
    _finish_label(ticks, axis, labels)


def axis_place(axis: Axis, value: Any, values: Sequence[Any]) -> float:
    """The place of a value on the axis's scale; its rank in ``values`` where it has none there."""
    return axis.position(value) if axis.ends and value is not None else float(list(values).index(value))


def label_positions(ticks: Any, axis: Axis, values: Sequence[Any]) -> None:
    """Label an axis of a panel on which values are placed at their ``axis_place``."""
    shown = [axis.at(unit) for unit in np.linspace(0, 1, 6)] if axis.ends else list(values)
    labels = tick_labels(axis, shown)
    ticks.set_ticks([axis_place(axis, value, values) for value in shown], labels)
    _finish_label(ticks, axis, labels)


def _finish_label(ticks: Any, axis: Axis, labels: Sequence[str]) -> None:
    ticks.set_label_text(scale_label(axis))
    longest = max((len(label) for label in labels if not label.startswith("$")), default=0)
    if ticks.axis_name == "x" and longest * len(labels) > 45:
        ticks.set_tick_params(rotation=45)
        for label in ticks.get_ticklabels() if longest > _SHORT else ():
            label.set(horizontalalignment="right", rotation_mode="anchor")  # long ones end at their column


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

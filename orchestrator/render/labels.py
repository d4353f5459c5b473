"""Texts on figures: short numbers, ticks and scales of axes, legends, and text that matplotlib shows unchanged."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from matplotlib.axis import XAxis, YAxis
from matplotlib.figure import Figure
from matplotlib.textpath import TextPath
from matplotlib.ticker import FixedLocator, MaxNLocator

from orchestrator.base.errors import printable
from orchestrator.base.space import Axis, is_number, number_text, on_natural_scale
from orchestrator.base.vocabulary import DEGRADED
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


def fraction_shown(cell: CellSummary) -> float | None:
    """The fraction of stable seeds as a colour; None for a degraded cell, which is neither stable nor over the edge."""
    return None if cell.state == DEGRADED else cell.fraction_stable


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
_HANDLE = 0.62  # inches next to a label: its handle, and the gap to the next column


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
    return sum(_HANDLE + max(map(_length, column)) for column in columns)


@cache
def _length(label: str) -> float:
    """Inches of a label of a legend; a pixel font may be a few per cent wider than its outline."""
    return 1.05 * float(TextPath((0, 0), label, size=_FONT).get_extents().width) / 72


_MOST_TICKS = 12
_FEW_DECADES = 2  # with fewer whole ones on the axis 2 and 5 are labelled too
_DIGITS = 6
_LONG_LABELS = 60  # characters in one row below a picture


@dataclass(frozen=True)
class AxisScale:
    """Numbers lie at their places on the axis's scale, and none one step beyond the last; words lie at their ranks."""

    axis: Axis

    @classmethod
    def of(cls, axis: Axis) -> AxisScale:
        """The scale of ``axis``; for a list of numbers, the scale that its values suggest."""
        return cls(on_natural_scale(axis))

    @property
    def is_numeric(self) -> bool:
        """Whether the axis has a scale: its values are numbers, or numbers and none."""
        others = len(self.axis.values) - len(self._numbers)
        return self.axis.ends is not None or (bool(self._numbers) and others == self.axis.values.count(None))

    @property
    def ends(self) -> tuple[float, float]:
        """The lowest and the highest place."""
        places = [self.place(value) for value in (*(self.axis.ends or ()), *self.axis.values)]
        return min(places), max(places)

    @property
    def gap(self) -> float:
        """The smallest distance of neighbouring values; 1 without neighbours."""
        places = sorted(self.place(value) for value in self.axis.values)
        return min((b - a for a, b in itertools.pairwise(places)), default=1.0)

    def place(self, value: Any) -> float:
        """Where ``value`` lies."""
        if not self.is_numeric:
            return float(self.axis.values.index(value))
        if value is not None:
            return self.axis.position(value)
        last = [self.axis.position(number) for number in (*(self.axis.ends or ()), *self._numbers)]
        last = sorted(set(last))[-2:]
        return last[-1] + (last[-1] - last[0] if len(last) > 1 else 1.0)

    def label(self, drawn: XAxis | YAxis, limits: tuple[float, float], name: str = "{}") -> None:
        """Give a picture's axis ticks between the places ``limits``, and ``name`` with its own name for {}."""
        shown = max(limits[0], self.ends[0]), min(limits[1], self.ends[1])
        places, labels = self._ticks(*shown)
        if None in self.axis.values and self.is_numeric:
            places, labels = [*places, self.place(None)], [*labels, "none"]
        drawn.set_ticks(places, labels)
        drawn.set_minor_locator(FixedLocator(self._between(*shown)))
        drawn.set_label_text(name.format(plain(scale_label(self.axis))))
        if isinstance(drawn, XAxis) and sum(len(label) for label in labels if not label.startswith("$")) > _LONG_LABELS:
            drawn.set_tick_params(rotation=45)

    @property
    def _numbers(self) -> list[Any]:
        return [value for value in self.axis.values if is_number(value)]

    def _ticks(self, low: float, high: float) -> tuple[list[float], list[str]]:
        """Places and texts of ticks between two places; without the place of none on an axis of numbers."""
        if self.axis.ends is None:
            values = self._numbers if self.is_numeric else list(self.axis.values)
            values = values[:: math.ceil(len(values) / _MOST_TICKS)]
            return [self.place(value) for value in values], list(map(plain, tick_texts(self.axis, values)))
        if self.axis.scale not in ("log", "log1m"):
            places = [
                place
                for place in MaxNLocator(nbins=8, steps=[1, 2, 5, 10]).tick_values(low, high)
                if low <= place <= high
            ]
            return places, [f"{place:.{_DIGITS}g}" for place in places]
        decades = self._decades(low, high, (1,))
        if len(decades) <= _FEW_DECADES:
            shown = self._decades(low, high, (1, 2, 5))
            return shown, [number_text(self._value(place), _DIGITS) for place in shown]
        decades = decades[:: math.ceil(len(decades) / _MOST_TICKS)]
        values = [self._value(place) for place in decades]
        return decades, tick_labels(self.axis, values)

    def _between(self, low: float, high: float) -> list[float]:
        """The places of ticks without a label."""
        is_logarithmic = self.axis.ends is not None and self.axis.scale in ("log", "log1m")
        return self._decades(low, high, range(1, 10)) if is_logarithmic else []

    def _decades(self, low: float, high: float, digits: Sequence[int]) -> list[float]:
        """The places of ``digits`` times powers of ten (of 1 - value on log1m) from ``low`` to ``high``."""
        sign = -1 if self.axis.scale == "log1m" else 1
        tens = range(math.floor(low) - 1, math.ceil(high) + 2)
        places = sorted(ten + sign * math.log10(digit) for ten in tens for digit in digits)
        slack = 1e-9 * (high - low)
        return [place for place in places if low - slack <= place <= high + slack]

    def _value(self, place: float) -> float:
        """The number at ``place``, without the rounding error of a power."""
        number = float(f"{10.0 ** (-place if self.axis.scale == 'log1m' else place):.12g}")
        return float(f"{1 - number:.15g}") if self.axis.scale == "log1m" else number

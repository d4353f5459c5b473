"""An axis of numbers or words on a picture: places of its values, and ticks a reader can take values from."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axis import XAxis, YAxis
from matplotlib.ticker import FixedLocator, MaxNLocator

from orchestrator.base.space import Axis, is_number, number_text, on_natural_scale
from orchestrator.render.labels import plain, scale_label, tick_labels, tick_texts

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
        return self.axis.ends is not None or (bool(self._numbers) and len(self._numbers) + 1 >= len(self.axis.values))

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

"""The latest numbers of a run, in order and sorted: medians and quantiles without sorting at each step."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, field

_TO_DEVIATION = 1.4826  # from the median absolute deviation to the standard deviation of a normal distribution


@dataclass(slots=True)
class Window:
    """The last ``size`` numbers that were added."""

    size: int
    values: list[float] = field(default_factory=list)
    ordered: list[float] = field(default_factory=list)

    def add(self, value: float) -> None:
        """Append ``value``; the oldest number leaves a full window."""
        if len(self.values) == self.size:
            del self.ordered[bisect_left(self.ordered, self.values.pop(0))]
        self.values.append(value)
        insort(self.ordered, value)

    def reset(self, values: Sequence[float]) -> None:
        """Hold the last of ``values`` instead."""
        self.values = list(values[-self.size :])
        self.ordered = sorted(self.values)

    def median(self) -> float:
        """The median; the window must not be empty."""
        return middle(self.ordered)


def middle(ordered: Sequence[float]) -> float:
    """Median of sorted numbers."""
    size = len(ordered)
    if size % 2:
        return ordered[size // 2]
    below, above = ordered[size // 2 - 1], ordered[size // 2]
    return below if below == above else below / 2 + above / 2  # their sum may overflow


def deviation(ordered: Sequence[float]) -> float:
    """Robust standard deviation of sorted numbers: the scaled median absolute deviation."""
    center = middle(ordered)
    return _TO_DEVIATION * middle(sorted([abs(value - center) for value in ordered]))


def quantile(ordered: Sequence[float], share: float) -> float:
    """The number below which a ``share`` of sorted numbers lies."""
    return ordered[int(share * (len(ordered) - 1))]


def noise(values: Sequence[float], share: float) -> tuple[float, float]:
    """Robust deviation, and the quantile below which a ``share`` lies, of a series' noise alone, not of a slow rise.

    From the differences between successive numbers: their deviation is that of the noise times root two.
    """
    steps = sorted([abs(after - before) for before, after in itertools.pairwise(values)])
    if not steps:
        return 0.0, 0.0
    return _TO_DEVIATION * middle(steps) / math.sqrt(2), quantile(steps, share)

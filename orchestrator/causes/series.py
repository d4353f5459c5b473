"""Readings of a number over steps: a curve or a column of telemetry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

# Shapes: N readings.

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """Finite readings ``value_N`` at ascending ``step_N``. Queries return None without readings."""

    step_N: np.ndarray
    value_N: np.ndarray

    def __len__(self) -> int:
        return len(self.step_N)

    def between(self, first: float, end: float) -> Series:
        """The readings at steps from ``first`` up to, not including, ``end``."""
        kept_N = (self.step_N >= first) & (self.step_N < end)
        return Series(self.step_N[kept_N], self.value_N[kept_N])

    def last(self, number: int) -> Series:
        """The last ``number`` readings."""
        return Series(self.step_N[-number:], self.value_N[-number:])

    def at(self, step: int) -> float | None:
        """The last reading at ``step`` or before."""
        place = int(np.searchsorted(self.step_N, step, side="right"))
        return float(self.value_N[place - 1]) if place else None

    def median(self) -> float | None:
        """The median value."""
        return float(np.median(self.value_N)) if len(self) else None

    def smallest(self) -> float | None:
        """The smallest value."""
        return float(self.value_N.min()) if len(self) else None

    def largest(self) -> float | None:
        """The largest value."""
        return float(self.value_N.max()) if len(self) else None

    def share(self, holds: Callable[[np.ndarray], np.ndarray]) -> float | None:
        """The share of the values, 0 to 1, that satisfy ``holds``."""
        return float(holds(self.value_N).mean()) if len(self) else None

    def first(self, holds: Callable[[np.ndarray], np.ndarray]) -> int | None:
        """The first step whose value satisfies ``holds``."""
        steps = self.step_N[holds(self.value_N)]
        return int(steps[0]) if len(steps) else None

    def began(self, holds: Callable[[np.ndarray], np.ndarray]) -> int | None:
        """The first step of the last run of readings that satisfy ``holds``."""
        holds_N = holds(self.value_N)
        if not holds_N.any():
            return None
        last = int(np.flatnonzero(holds_N)[-1])
        others = np.flatnonzero(~holds_N[:last])
        return int(self.step_N[others[-1] + 1 if len(others) else 0])

    def smoothed(self, size: int) -> Series:
        """Running medians of ``size`` readings, each at its last step; shorter windows at the beginning."""
        if len(self) == 0:
            return self
        padded = np.concatenate([np.full(size - 1, np.nan), self.value_N])
        windows_NS = np.lib.stride_tricks.sliding_window_view(padded, size)
        return Series(self.step_N, np.nanmedian(windows_NS, axis=1))


def known(value: _Value | None) -> _Value:
    """``value``, which the caller knows not to be None."""
    assert value is not None
    return value


NOTHING = Series(np.zeros(0, dtype=np.int64), np.zeros(0))


def series(step_N: np.ndarray, value_N: np.ndarray) -> Series:
    """The finite values among readings at ``step_N``, (N,) each."""
    value_N = np.asarray(value_N, dtype=np.float64)
    is_finite_N = np.isfinite(value_N)
    return Series(np.asarray(step_N)[is_finite_N], value_N[is_finite_N])


def joined(a: Series, b: Series, combine: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Series:
    """``combine`` applied at the steps of both series."""
    steps_N, in_a, in_b = np.intersect1d(a.step_N, b.step_N, return_indices=True)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return series(steps_N, combine(a.value_N[in_a], b.value_N[in_b]))

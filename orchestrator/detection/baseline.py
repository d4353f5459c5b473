"""Robust statistics of the latest losses of K members, stored in ring buffers of W numbers each."""

from __future__ import annotations

import math

import numpy as np

# Shapes: K members, W losses of a window, R recent losses.

RECENT = 10  # losses in a level: enough to average out an odd batch, few enough to follow a fall
_MAD_TO_DEVIATION = 1.4826  # of a normal distribution
# The median absolute deviation collapses when noise has two levels. So a spike must also rise to twice the height of
# the baseline's upper tail; that is 3.3 deviations of normal noise and rarely decides.
_UPPER_TAIL, TAIL_FACTOR = 0.95, 2.0
_FALLING = 0.7  # a descent leaves less than this share of the deviation about the median as residuals from a line


def level(ring_KW: np.ndarray, num_K: np.ndarray, size: int = RECENT) -> np.ndarray:
    """Median of the last ``size`` of the ``num_K`` numbers written to each ring, (K,)."""
    last = num_K[:, None] - 1 - np.arange(size)
    values_KR = np.take_along_axis(ring_KW, last % ring_KW.shape[1], axis=1)
    ordered_KR = np.sort(np.where(last >= 0, values_KR, np.nan), axis=1)
    return _middle(ordered_KR, np.clip(num_K, 1, size))


def robust_trend(ring_KW: np.ndarray, num_K: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Level, robust deviation and height of the upper tail of the latest numbers in each ring, (K,) each.

    Where the numbers fall, deviation and tail are those of the residuals from a line through the medians of both
    halves, and the level is the median of the newer half: a steep descent must not count as noise. A rise is never
    treated as a trend.
    """
    width = ring_KW.shape[1]
    size_K = np.minimum(num_K, width)
    back = np.arange(width)  # 0 is the newest
    values_KW = np.take_along_axis(ring_KW, (num_K[:, None] - 1 - back) % width, axis=1)
    half_K = size_K // 2
    is_newer_KW = back < half_K[:, None]
    is_there_KW = back < size_K[:, None]
    newer_K = _middle(np.sort(np.where(is_newer_KW, values_KW, np.nan), axis=1), half_K)
    older_K = _middle(np.sort(np.where(is_there_KW & ~is_newer_KW, values_KW, np.nan), axis=1), size_K - half_K)
    slope_K = np.minimum(0.0, (newer_K - older_K) / (size_K / 2))
    line_KW = newer_K[:, None] + slope_K[:, None] * ((half_K[:, None] - 1) / 2 - back)
    _, *sloped = _spread(np.where(is_there_KW, values_KW - line_KW, np.nan), size_K)
    median_K, *flat = _spread(np.where(is_there_KW, values_KW, np.nan), size_K)
    falls_K = sloped[0] < _FALLING * flat[0]
    deviation_K, tail_K = np.where(falls_K, sloped, flat)
    return np.where(falls_K, newer_K, median_K), deviation_K, tail_K


def _spread(values_KW: np.ndarray, size_K: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Median, robust deviation and height of the upper tail above the median of each row's numbers, (K,) each."""
    ordered_KW = np.sort(values_KW, axis=1)  # NaN last
    middle_K = _middle(ordered_KW, size_K)
    spread_K = _middle(np.sort(np.abs(ordered_KW - middle_K[:, None]), axis=1), size_K)
    tail_K = ordered_KW[np.arange(len(ordered_KW)), (_UPPER_TAIL * (size_K - 1)).astype(np.int64)]
    return middle_K, _MAD_TO_DEVIATION * spread_K, tail_K - middle_K


def noise(ring_KW: np.ndarray, num_K: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Robust deviation and upper tail of the noise alone, (K,) each.

    From the differences between successive numbers, over root two: a slow rise is not noise.
    """
    width = ring_KW.shape[1]
    back = np.arange(width)
    values_KW = np.take_along_axis(ring_KW, (num_K[:, None] - 1 - back) % width, axis=1)
    steps_KW = np.abs(np.diff(values_KW, axis=1))
    size_K = np.minimum(num_K, width) - 1
    ordered_KW = np.sort(np.where(back[:-1] < size_K[:, None], steps_KW, np.nan), axis=1)
    tail_K = ordered_KW[np.arange(len(ordered_KW)), (_UPPER_TAIL * (size_K - 1)).astype(np.int64)]
    return _MAD_TO_DEVIATION * _middle(ordered_KW, size_K) / math.sqrt(2), tail_K


def _middle(ordered_KW: np.ndarray, size_K: np.ndarray) -> np.ndarray:
    """Median of the first ``size_K`` numbers of each ordered row, (K,)."""
    rows = np.arange(len(ordered_KW))
    return (ordered_KW[rows, (size_K - 1) // 2] + ordered_KW[rows, size_K // 2]) / 2

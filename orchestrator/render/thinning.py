"""Fewer points of a curve for display, without losing a peak."""

from __future__ import annotations

import numpy as np


def thinned(value_N: np.ndarray, max_points: int) -> np.ndarray:
    """Which points to draw, at most about ``max_points``: the lowest and the highest of each interval.

    Returns ascending indices. Non-finite points are dropped where there are too many points.
    """
    num = len(value_N)
    if num <= max_points:
        return np.arange(num)
    size = -(-num // max(1, max_points // 2))
    padded = np.full(-(-num // size) * size, np.nan)
    padded[:num] = value_N
    stretch_BS = padded.reshape(-1, size)
    is_finite_BS = np.isfinite(stretch_BS)
    start_B = np.arange(len(stretch_BS)) * size
    lowest_B = start_B + np.where(is_finite_BS, stretch_BS, np.inf).argmin(axis=1)
    highest_B = start_B + np.where(is_finite_BS, stretch_BS, -np.inf).argmax(axis=1)
    has_any_B = is_finite_BS.any(axis=1)
    return np.unique(np.concatenate([[0, num - 1], lowest_B[has_any_B], highest_B[has_any_B]]))

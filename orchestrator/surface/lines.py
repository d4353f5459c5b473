"""Where lines through a surface first fall below levels, by reading a few of their places.

Letters of shapes: S lines, L places of each, I intervals between places, N places that are read, V levels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

_STRIDE = 8  # of the first places that are read
_SLACK = 1.0  # above a level: an interval with less than this, or than its own change, may reach below it


def first_below(
    read: Callable[[np.ndarray, np.ndarray], np.ndarray], num_lines: int, num_places: int, levels: Sequence[float]
) -> np.ndarray:
    """Return the first place of each line whose value is below each of ``levels``, (V, S); ``num_places`` without one.

    ``read(line_N, place_N)`` returns the values at places, (N,). At first every eighth place is read, then those
    between two places where the value may fall below a level, halving the distance.
    """
    value_SL = np.full((num_lines, num_places), np.nan)
    stride = _STRIDE if num_places > 2 * _STRIDE and num_places % _STRIDE == 1 else 1
    line_N, place_N = map(np.ravel, np.indices((num_lines, -(-num_places // stride))))
    value_SL[line_N, place_N * stride] = read(line_N, place_N * stride)
    while stride > 1:
        left_SI, right_SI = value_SL[:, :-1:stride], value_SL[:, stride::stride]
        may_fall_SI = np.zeros(left_SI.shape, bool)
        for level in levels:
            may_fall_SI |= _may_fall(left_SI, right_SI, level)
        stride //= 2
        line_N, interval_N = np.nonzero(may_fall_SI)
        place_N = (2 * interval_N + 1) * stride
        value_SL[line_N, place_N] = read(line_N, place_N)
    return np.array([_first(value_SL < level) for level in levels])  # places that were not read are not below


def _may_fall(left_SI: np.ndarray, right_SI: np.ndarray, level: float) -> np.ndarray:
    """Return whether lines may fall below ``level`` for the first time within intervals; not if an end is unknown."""
    is_before_SI = np.arange(left_SI.shape[1]) < _first(left_SI < level)[:, None]
    lowest_SI = np.minimum(left_SI, right_SI)
    return is_before_SI & (lowest_SI - level < np.maximum(_SLACK, np.abs(left_SI - right_SI)))


def _first(is_so_SL: np.ndarray) -> np.ndarray:
    return np.where(is_so_SL.any(axis=1), is_so_SL.argmax(axis=1), is_so_SL.shape[1])

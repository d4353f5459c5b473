"""Whether an exponent changes over the sizes: a quadratic term, tested along one axis at a time.

Axes of arrays: R sizes (rows), D columns of a design, V values of an axis.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.stats import norm, t

from orchestrator.maps.edges import Interval
from orchestrator.maps.ladder import Ladder, Size, log_size

BENDS_FROM = 4  # values of an axis that can show a bend
_BRACKET_SDS = 12**0.5  # standard deviations that a bracket is wide, in which the edge may lie anywhere
_TAIL = 0.005


def edge_bends(ladder: Ladder) -> dict[str, Interval]:
    """Return, by axis, by how much the exponent of the edge changes for each doubling, with its 99 % interval.

    Sizes without a bracket are left out.
    """
    known = [size for size in ladder.sizes if size.low is not None and size.high is not None]
    brackets = [(size.low or 0.0, size.high or 0.0) for size in known]
    return _bends(ladder, known, [((low + high) / 2, (high - low) / _BRACKET_SDS) for low, high in brackets])


def best_bends(ladder: Ladder) -> dict[str, Interval]:
    """Return the same of the best rate, from the optima that lie on their axes."""
    inside = [(size, optimum) for size, optimum in ladder.optima() if not optimum.beyond]
    return _bends(ladder, [size for size, _ in inside], [(optimum.centre, optimum.spread) for _, optimum in inside])


def _bends(ladder: Ladder, sizes: Sequence[Size], places: Sequence[tuple[float, float]]) -> dict[str, Interval]:
    if ladder.lengths or not sizes:
        return {}
    size_RK = np.array([log_size(size.setting, ladder.names) for size in sizes])
    place_R, spread_R = np.array(places).T
    found = {}
    for axis, name in enumerate(ladder.names):
        others_RK = np.delete(size_RK, axis, axis=1)
        if (
            bend := _bend(size_RK[:, axis], others_RK[:, np.ptp(others_RK, axis=0) > 0], place_R, spread_R)
        ) is not None:
            found[name] = bend
    return found


def _bend(x_R: np.ndarray, others_RK: np.ndarray, place_R: np.ndarray, spread_R: np.ndarray) -> Interval | None:
    """Twice the quadratic term through the means at each value of an axis, what the other axes explain taken away.

    Values and not rows count: ten batches at one width are one width. The error is at least that of the places.
    """
    value_V, value_R = np.unique(x_R, return_inverse=True)
    design_RD = np.column_stack([np.ones(len(x_R)), x_R, x_R**2, others_RK - others_RK.mean(axis=0)])
    if (
        len(value_V) < BENDS_FROM
        or len(x_R) <= design_RD.shape[1]
        or np.linalg.matrix_rank(design_RD) < len(design_RD.T)
    ):
        return None
    weight_D = np.linalg.lstsq(design_RD, place_R)[0]
    own_R = place_R - design_RD[:, 3:] @ weight_D[3:]
    mean_V = np.array([own_R[value_R == i].mean() for i in range(len(value_V))])
    floor = math.sqrt(
        float(np.mean([np.mean(spread_R[value_R == i] ** 2) / (value_R == i).sum() for i in range(len(value_V))]))
    )
    curve_VD = np.vander(value_V - value_V.mean(), 3)
    inverse_DD = np.linalg.inv(curve_VD.T @ curve_VD)
    weight_D = inverse_DD @ curve_VD.T @ mean_V
    degrees = len(value_V) - 3
    left = math.sqrt(float(np.sum((mean_V - curve_VD @ weight_D) ** 2)) / degrees)
    error = math.sqrt(inverse_DD[0, 0]) * max(-t.ppf(_TAIL, degrees) * left, -norm.ppf(_TAIL) * floor)
    return Interval(*(2 * math.log(2) * (float(weight_D[0]) + side * error) for side in (0, -1, 1)))

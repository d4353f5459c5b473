"""The rates that are as good as the best one at a size: a flat optimum, and its fit where no two runs share a rate.

Axes of arrays: N runs, K size axes, P columns of the fit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

FLAT = 0.003  # rates whose loss exceeds the best by less than this share of it are as good as the best
_FEWEST_RUNS = 2  # stable, for each number that is fitted
_NEAREST = 0.6  # share of the runs, around the best rate, that the curve is fitted to: loss is steeper above
_REFITS = 2
_CLEAR = 2.0  # standard errors by which the loss is curved


@dataclass(frozen=True, slots=True)
class Optimum:
    """Logs of the rates between which the loss is as good as the best. ``beyond`` is +1 or -1 if it leaves the axis.

    ``rates`` and ``costs`` are the stable cells, by ascending log rate.
    """

    low: float
    high: float
    beyond: int
    rates: tuple[float, ...]
    costs: tuple[float, ...]

    @property
    def centre(self) -> float:
        """The middle of the region."""
        return (self.low + self.high) / 2

    @property
    def spread(self) -> float:
        """How uncertain the centre is: half of the region is about two deviations, and so is the grid's spacing."""
        spacing = (self.rates[-1] - self.rates[0]) / (len(self.rates) - 1)
        return max(self.high - self.low, spacing) / 4

    def regret(self, log_rate: float) -> float:
        """Return the loss that a rate leaves on the table, interpolated between stable cells."""
        return float(np.interp(log_rate, self.rates, self.costs)) - min(self.costs)


def fitted_optimum(rates: Sequence[float], costs: Sequence[float | None], place_NK: np.ndarray) -> Optimum | None:
    """Return the optimum of a parabola over log rate that is fitted to stable runs, those with a cost.

    ``place_NK`` is how far the log sizes of the runs are from the size of the optimum, where the loss differs, too.
    None where the loss is not curved, or its lowest place is not between the runs.
    """
    known_N = np.array([cost is not None and math.isfinite(cost) for cost in costs])
    rate_N = np.array(rates)[known_N]
    cost_N = np.array([cost for cost, is_known in zip(costs, known_N, strict=True) if is_known], float)
    place_NK = place_NK[known_N]
    place_NK = place_NK[:, np.ptp(place_NK, axis=0) > 0] if len(place_NK) else place_NK
    fewest = _FEWEST_RUNS * (3 + place_NK.shape[1])
    if len(set(rate_N)) < fewest:
        return None
    x_N = rate_N - rate_N.mean()
    design_NP = np.column_stack([np.ones(len(x_N)), x_N, x_N**2, place_NK])
    near_N, best = np.ones(len(x_N), bool), 0.0
    for refit in range(1 + _REFITS):
        if refit:
            distance_N = abs(x_N - best)
            near_N = distance_N <= np.sort(distance_N)[max(fewest, math.ceil(_NEAREST * len(x_N))) - 1]
        inverse_PP = np.linalg.pinv(design_NP[near_N].T @ design_NP[near_N])
        weight_P = inverse_PP @ design_NP[near_N].T @ cost_N[near_N]
        slope, bend = weight_P[1:3]
        if bend <= 0:
            return None
        best = -slope / (2 * bend)
    left_N = cost_N[near_N] - design_NP[near_N] @ weight_P
    noise = float(left_N @ left_N) / max(1, near_N.sum() - len(weight_P))
    gradient_P = np.zeros(len(weight_P))
    gradient_P[1:3] = -1 / (2 * bend), slope / (2 * bend**2)
    error = math.sqrt(noise * float(gradient_P @ inverse_PP @ gradient_P))
    lowest = float(weight_P[0] + slope * best / 2)
    if bend < _CLEAR * math.sqrt(noise * inverse_PP[2, 2]) or not x_N.min() < best < x_N.max():
        return None
    reach = math.hypot(math.sqrt(FLAT * abs(lowest) / bend), _CLEAR * error)
    grid = np.unique(x_N)
    curve = weight_P[0] + slope * grid + bend * grid**2
    low, high = (float(rate_N.mean() + best + side * reach) for side in (-1, 1))
    return Optimum(low, high, 0, tuple(map(float, rate_N.mean() + grid)), tuple(map(float, curve)))

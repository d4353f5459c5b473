"""A Weibull regression of times that may be censored: how each number of a cell stretches the time to its onset."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from orchestrator.base.intervals import Z_SCORE
from orchestrator.base.space import Axis, is_number, on_natural_scale
from orchestrator.maps.axes import value_label

# Shapes: N times, P covariates, Q = P + 2 parameters: an intercept, a weight of each covariate, the log of the shape.

# Deviations of a normal prior: of the weights, far too wide to matter unless an axis separates the runs with an onset
# from the others completely, which would send its weight to infinity; of log(shape), which would grow without a limit
# where all onsets are at one step.
_PRIOR_WEIGHT, _PRIOR_SHAPE = 100.0, 2.0
_LARGEST = 700.0  # whose exponential is still a number
# Places and weights (which sum to one) of a mean over the standard normal distribution.
_NORMAL = [
    (float(place), float(weight) / math.sqrt(2 * math.pi))
    for place, weight in zip(*np.polynomial.hermite_e.hermegauss(40), strict=True)
]


@dataclass(frozen=True, slots=True)
class WeibullFit:
    """log(time / ``unit``) = (weights . (1, x) + e) / shape, x a cell's standardised covariates, e a Gumbel minimum.

    ``parameter_Q`` are intercept and weights, and last log(shape); ``covariance_QQ`` is their covariance at the maximum
    of the likelihood. Below a shape of 1 runs fail less and less as they get older, above it more and more.
    """

    unit: float
    centre_P: np.ndarray
    spread_P: np.ndarray
    parameter_Q: np.ndarray
    covariance_QQ: np.ndarray

    @property
    def shape(self) -> float:
        """The shape of the distribution of times."""
        return math.exp(self.parameter_Q[-1])

    def survival(self, row_P: np.ndarray, after: float, until: float) -> tuple[float, float, float]:
        """P(no onset up to ``until``) of a run without one up to ``after`` (0 for a new run), with its 95 % interval.

        The log of the cumulative hazard is taken as normal around its estimate (delta method), and the probability is
        the mean over it: where little is known it is no certainty. ``after`` is less than ``until``.
        """
        x_P = np.concatenate([[1.0], (row_P - self.centre_P) / self.spread_P])
        k, log_until = self.shape, math.log(until / self.unit)
        # The hazard between both times, relative to that up to the later one, so that nothing overflows.
        log_ratio = math.log(after / until) if after > 0 else -math.inf
        before = math.exp(k * log_ratio)
        log_hazard = k * log_until - float(x_P @ self.parameter_Q[:-1]) + math.log1p(-before)
        of_shape = log_until - (before * log_ratio / (1 - before) if before else 0.0)
        gradient_Q = np.append(-x_P, k * of_shape)
        deviation = self._deviation(gradient_Q)
        mean = sum(weight * _survival(log_hazard + place * deviation) for place, weight in _NORMAL)
        low, high = (_survival(log_hazard + sign * Z_SCORE * deviation) for sign in (1, -1))
        return mean, low, high

    def factor(self, covariate: int, change: float) -> tuple[float, float, float]:
        """By what a ``change`` of a covariate multiplies the time to an onset, with its 95 % interval."""
        weight, k = self.parameter_Q[1 + covariate], self.shape
        slope = weight / k
        gradient_Q = np.zeros_like(self.parameter_Q)
        gradient_Q[1 + covariate], gradient_Q[-1] = 1 / k, -slope
        deviation = self._deviation(gradient_Q)
        size = change / self.spread_P[covariate]
        ends = sorted((slope + sign * Z_SCORE * deviation) * size for sign in (-1, 1))
        middle, low, high = (math.exp(min(each, _LARGEST)) for each in (slope * size, *ends))
        return middle, low, high

    def _deviation(self, gradient_Q: np.ndarray) -> float:
        """The standard deviation of what has this gradient in the parameters."""
        return math.sqrt(max(0.0, float(gradient_Q @ self.covariance_QQ @ gradient_Q)))


def _survival(log_hazard: float) -> float:
    return math.exp(-math.exp(min(log_hazard, _LARGEST)))


def fit_weibull(time_N: np.ndarray, has_onset_N: np.ndarray, row_NP: np.ndarray) -> WeibullFit:
    """The fit of greatest likelihood to ``time_N``, at which ``has_onset_N`` or else observation ended (censored).

    The accelerated failure time model of Kalbfleisch and Prentice, The Statistical Analysis of Failure Time Data
    (2002), section 3.2, in the parameters in which its log likelihood is concave: weights times shape. Needs at least
    one onset. The order of the rows does not matter.
    """
    from scipy.optimize import minimize

    centre_P, spread_P = row_NP.mean(axis=0), row_NP.std(axis=0)
    spread_P = np.where(spread_P > 0, spread_P, 1.0)
    unit = float(np.exp(np.log(time_N).mean()))
    x_NP = np.column_stack([np.ones(len(time_N)), (row_NP - centre_P) / spread_P])
    log_N, onset_N = np.log(time_N / unit), has_onset_N.astype(float)
    prior_Q = np.array([*[_PRIOR_WEIGHT**-2] * x_NP.shape[1], _PRIOR_SHAPE**-2])

    def residual(parameter_Q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        scaled_N = math.exp(min(parameter_Q[-1], _LARGEST)) * log_N
        return scaled_N, scaled_N - x_NP @ parameter_Q[:-1]

    def loss(parameter_Q: np.ndarray) -> float:
        _, z_N = residual(parameter_Q)
        with np.errstate(over="ignore"):
            hazard_N = np.exp(z_N)
        return float(hazard_N.sum() - onset_N @ (z_N + parameter_Q[-1]) + prior_Q @ parameter_Q**2 / 2)

    def gradient(parameter_Q: np.ndarray) -> np.ndarray:
        scaled_N, z_N = residual(parameter_Q)
        excess_N = np.exp(z_N) - onset_N
        return np.append(-x_NP.T @ excess_N, excess_N @ scaled_N - onset_N.sum()) + prior_Q * parameter_Q

    def hessian(parameter_Q: np.ndarray) -> np.ndarray:
        scaled_N, z_N = residual(parameter_Q)
        hazard_N = np.exp(z_N)
        slope_NQ = np.column_stack([-x_NP, scaled_N])
        found = (slope_NQ * hazard_N[:, None]).T @ slope_NQ + np.diag(prior_Q)
        found[-1, -1] += (hazard_N - onset_N) @ scaled_N
        return found

    start_Q = np.zeros(x_NP.shape[1] + 1)  # a constant hazard, equal in all cells
    start_Q[0] = math.log((time_N / unit).sum() / onset_N.sum())
    options: dict[str, Any] = {"gtol": 1e-8, "maxiter": 1000}
    found = minimize(loss, start_Q, jac=gradient, hess=hessian, method="trust-exact", options=options)
    return WeibullFit(unit, centre_P, spread_P, found.x, np.linalg.inv(hessian(found.x)))


@dataclass(frozen=True, slots=True)
class Covariate:
    """One number of each cell: its place on an axis, or with ``is_level`` 1 where the axis has the value ``level``.

    Values that are not numbers stand in the middle of the places of those that are.
    """

    axis: Axis
    level: Any = None
    is_level: bool = False

    def of(self, cell: Mapping[str, Any]) -> float:
        """The number of ``cell``."""
        value = cell[self.axis.name]
        if self.is_level:
            return float(value == self.level)
        low, high = self.ends
        places = self.axis.position(low), self.axis.position(high)
        return self.axis.position(value) if is_number(value) else sum(places) / 2

    @property
    def ends(self) -> tuple[Any, Any]:
        """The lowest and the highest number of the axis; of a level the value that it is compared with, and itself."""
        if self.is_level:
            return self.axis.values[0], self.level
        numbers = [value for value in self.axis.values if is_number(value)]
        return min(numbers), max(numbers)

    @property
    def change(self) -> str:
        """What the covariate compares, in words: ``lr from 0.001 to 1``, ``clip=none against 1``."""
        first, last = (value_label(self.axis, end) for end in self.ends)
        name = self.axis.name
        return f"{name}={last} against {first}" if self.is_level else f"{name} from {first} to {last}"


def covariates_of(axes: Sequence[Axis]) -> list[Covariate]:
    """The covariates of cells over ``axes``: a place for numbers, levels for words and none. One value gives none."""
    found: list[Covariate] = []
    for axis in map(on_natural_scale, axes):
        num_numbers = sum(is_number(value) for value in axis.values)
        others = [value for value in axis.values if not is_number(value)]
        found += [Covariate(axis)] if num_numbers >= 2 else []
        found += [Covariate(axis, value, is_level=True) for value in (others if num_numbers else others[1:])]
    return found


def design(covariates: Sequence[Covariate], cells: Sequence[Mapping[str, Any]]) -> np.ndarray:
    """The covariates of ``cells`` as an array of shape (cells, covariates)."""
    return np.array([[one.of(cell) for one in covariates] for cell in cells], float).reshape(len(cells), -1)

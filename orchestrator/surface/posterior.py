"""The posterior of a Gaussian process given counts of stable trials.

The latent values of the cells are ``mean + basis @ coefficient`` with independent standard normal coefficients: exact
if there is a coefficient for each cell, and the approximation by inducing points (Quinonero-Candela and Rasmussen, A
unifying view of sparse approximate Gaussian process regression, 2005, "deterministic training conditional") if there
are fewer. Laplace's approximation follows Rasmussen and Williams, Gaussian Processes for Machine Learning (2006),
section 3.4, for binomial counts and a prior mean. Between a stable cell and its unstable neighbour the likelihood of a
steep edge is flat, so the curvature at the mode says nothing, and the mode stays next to the cell that was tried last.
Expectation propagation matches the moments of each cell's outcomes, which know both sides. Minka, Expectation
propagation for approximate Bayesian inference (2001); Rasmussen and Williams, section 3.6; here all cells are updated
at once, with damping.

Letters of shapes: N cells, K coefficients, M points, Q points of a quadrature.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_solve, cholesky, solve_triangular
from scipy.special import expit

_MAX_STEPS = 60  # of Newton's method
_MAX_HALVINGS = 50
_TOLERANCE = 1e-8  # a gain in log density after which the mode is found
_MAX_ROUNDS = 40
_DAMPING = 0.7  # the part of a round's change that is made
_MOMENT_TOLERANCE = 0.01  # a change of a mean or a deviation, in deviations, after which the moments are matched
_REACH, _NUM_POINTS = 6.0, 301  # of the quadrature, in standard deviations about a cell's mean without its outcomes
_MIN_PRECISION = 1e-10  # of a precision
_CERTAIN = 25.0  # logits
_NO_PRECISION = 2e-10  # that changes the precision of no coefficient
_BLOCK = 16_384  # cells whose rows are computed at a time: of hundreds of thousands, each matrix would be a gigabyte


def blocks(num: int) -> Iterator[slice]:
    """Yield the places of ``num`` cells, part by part."""
    return (slice(start, start + _BLOCK) for start in range(0, max(num, 1), _BLOCK))


@dataclass(frozen=True, slots=True)
class Counts:
    """The numbers of stable trials and of all trials of each cell, (N,)."""

    stable_N: np.ndarray
    trials_N: np.ndarray

    def of(self, part: slice) -> Counts:
        """Return the counts of a part of the cells."""
        return Counts(self.stable_N[part], self.trials_N[part])

    def slope(self, latent_N: np.ndarray) -> np.ndarray:
        """Return the derivative of each log likelihood."""
        return self.stable_N - self.trials_N * expit(latent_N)

    def curvature(self, latent_N: np.ndarray) -> np.ndarray:
        """Return the negative second derivative of each log likelihood."""
        share_N = expit(latent_N)
        return self.trials_N * share_N * (1 - share_N)

    def log_likelihood(self, latent_N: np.ndarray) -> float:
        """Return the log likelihood of all cells, up to a constant."""
        return float(self.stable_N @ latent_N - self.trials_N @ np.logaddexp(0, latent_N))


@dataclass(frozen=True, slots=True)
class Mode:
    """The mode of the posterior: latent values (N,) and coefficients (K,); ``evidence`` approximates its integral."""

    latent_N: np.ndarray
    coefficient_K: np.ndarray
    evidence: float


@dataclass(frozen=True, slots=True)
class Normal:
    """A normal distribution of the coefficients: the mean (K,), and the Cholesky factor of the precision (K, K)."""

    coefficient_K: np.ndarray
    factor_KK: np.ndarray

    def variance(self, basis_NK: np.ndarray) -> np.ndarray:
        """Return the variance of latent values, (N,)."""
        variance_N = np.empty(len(basis_NK))
        for part in blocks(len(basis_NK)):
            whitened_KN = solve_triangular(self.factor_KK, basis_NK[part].T, lower=True, check_finite=False)
            variance_N[part] = np.einsum("ij,ij->j", whitened_KN, whitened_KN)
        return variance_N

    def explained(self) -> np.ndarray:
        """Return E, (K, K), where ``E.T @ E`` is the covariance of the coefficients that the counts explain."""
        precision_K, vectors_KK = np.linalg.eigh(self.factor_KK @ self.factor_KK.T)
        return np.sqrt(np.maximum(1 - 1 / precision_K, 0))[:, None] * vectors_KK.T


def find_mode(basis_NK: np.ndarray, mean_N: np.ndarray, counts: Counts, start_K: np.ndarray) -> Mode:
    """Find the mode by Newton's method from ``start_K``, halving steps that do not improve it.

    Whole steps diverge when the prior mean is steep. The log density is concave, so there is one mode.
    """

    def log_density(latent_N: np.ndarray, coefficient_K: np.ndarray) -> float:
        return counts.log_likelihood(latent_N) - 0.5 * float(coefficient_K @ coefficient_K)

    coefficient_K = start_K
    latent_N = mean_N + basis_NK @ coefficient_K
    density = log_density(latent_N, coefficient_K)
    for _ in range(_MAX_STEPS):
        factor_KK = precision_factor(basis_NK, counts.curvature(latent_N))
        slope_K = basis_NK.T @ counts.slope(latent_N) - coefficient_K
        step_K = cho_solve((factor_KK, True), slope_K, check_finite=False)
        latent_step_N = basis_NK @ step_K
        size, better = 1.0, -np.inf
        for _ in range(_MAX_HALVINGS):
            better = log_density(latent_N + size * latent_step_N, coefficient_K + size * step_K)
            if better >= density:
                break
            size /= 2
        if better < density + _TOLERANCE:
            return Mode(latent_N, coefficient_K, density - float(np.sum(np.log(np.diag(factor_KK)))))
        coefficient_K = coefficient_K + size * step_K
        latent_N = latent_N + size * latent_step_N
        density = better
    factor_KK = precision_factor(basis_NK, counts.curvature(latent_N))
    return Mode(latent_N, coefficient_K, density - float(np.sum(np.log(np.diag(factor_KK)))))


def evidence_gradient(
    mode: Mode,
    kernel_NN: np.ndarray,
    counts: Counts,
    changes: Sequence[tuple[np.ndarray, np.ndarray | None]],
) -> np.ndarray:
    """Differentiate the evidence for each change: derivatives of the kernel (N, N) and of the mean (N,), or None.

    There must be a coefficient for each cell. It includes the movement of the mode itself.
    """
    curvature_N, slope_N = counts.curvature(mode.latent_N), counts.slope(mode.latent_N)
    root_N = np.sqrt(curvature_N)
    system_NN = root_N[:, None] * kernel_NN * root_N
    system_NN.flat[:: len(root_N) + 1] += 1
    factor_NN = cholesky(system_NN, lower=True, check_finite=False, overwrite_a=True)
    whitened_NN = solve_triangular(factor_NN, np.diag(root_N), lower=True, check_finite=False)
    precision_NN = whitened_NN.T @ whitened_NN  # (K + 1 / W)^-1
    explained_NN = whitened_NN @ kernel_NN
    variance_N = np.diag(kernel_NN) - np.einsum("ij,ij->j", explained_NN, explained_NN)
    # Half the change of log det with the latent values, through the third derivative of the log likelihood.
    drag_N = -0.5 * variance_N * curvature_N * (1 - 2 * expit(mode.latent_N))
    gradient = []
    for change_NN, mean_change_N in changes:
        explicit = 0.5 * slope_N @ change_NN @ slope_N - 0.5 * np.sum(precision_NN * change_NN)
        moved_N = change_NN @ slope_N
        if mean_change_N is not None:
            explicit += slope_N @ mean_change_N
            moved_N = moved_N + mean_change_N
        moved_N = moved_N - kernel_NN @ (precision_NN @ moved_N)
        gradient.append(explicit + drag_N @ moved_N)
    return np.array(gradient)


def precision_factor(basis_NK: np.ndarray, precision_N: np.ndarray) -> np.ndarray:
    """Return the Cholesky factor of the precision of the coefficients given outcomes of ``precision_N``.

    Cells far from an edge have no precision, and are left out of the product.
    """
    system_KK = np.zeros((basis_NK.shape[1],) * 2)
    for part in blocks(len(basis_NK)):
        tells_N = precision_N[part] > _NO_PRECISION
        scaled_NK = np.sqrt(precision_N[part][tells_N])[:, None] * basis_NK[part][tells_N]
        system_KK += scaled_NK.T @ scaled_NK
    system_KK.flat[:: len(system_KK) + 1] += 1
    return cholesky(system_KK, lower=True, check_finite=False, overwrite_a=True)


def matched(mode: Mode, basis_NK: np.ndarray, mean_N: np.ndarray, counts: Counts) -> Normal:
    """Return the posterior that matches the moments of each cell's outcomes given all others.

    It starts from Laplace's ``mode``.
    """
    precision_N = np.maximum(counts.curvature(mode.latent_N), _MIN_PRECISION)
    shift_N = precision_N * (mode.latent_N - mean_N) + counts.slope(mode.latent_N)
    nodes_Q = np.linspace(-_REACH, _REACH, _NUM_POINTS)
    posterior = _given(basis_NK, precision_N, shift_N)
    latent_N = mean_N + basis_NK @ posterior.coefficient_K
    variance_N = np.maximum(posterior.variance(basis_NK), _MIN_PRECISION)
    for _ in range(_MAX_ROUNDS):
        cavity_precision_N = np.maximum(1 / variance_N - precision_N, _MIN_PRECISION)
        cavity_N = ((latent_N - mean_N) / variance_N - shift_N) / cavity_precision_N + mean_N
        tilted_N, tilted_variance_N = np.empty_like(cavity_N), np.empty_like(cavity_N)
        for part in blocks(len(basis_NK)):
            tilted_N[part], tilted_variance_N[part] = _tilted(
                cavity_N[part], 1 / np.sqrt(cavity_precision_N[part]), counts.of(part), nodes_Q
            )
        new_precision_N = np.maximum(1 / tilted_variance_N - cavity_precision_N, _MIN_PRECISION)
        new_shift_N = (tilted_N - mean_N) / tilted_variance_N - (cavity_N - mean_N) * cavity_precision_N
        precision_N = precision_N + _DAMPING * (new_precision_N - precision_N)
        shift_N = shift_N + _DAMPING * (new_shift_N - shift_N)
        posterior = _given(basis_NK, precision_N, shift_N)
        before_N, latent_N = latent_N, mean_N + basis_NK @ posterior.coefficient_K
        wider_N, variance_N = variance_N, np.maximum(posterior.variance(basis_NK), _MIN_PRECISION)
        # Of cells that lie evenly about an edge the means do not move while the deviations fall.
        is_still_N = np.abs(latent_N - before_N) < _MOMENT_TOLERANCE * np.sqrt(variance_N)
        if np.all(is_still_N & (np.abs(np.log(variance_N / wider_N)) < 2 * _MOMENT_TOLERANCE)):
            break
    return posterior


def _given(basis_NK: np.ndarray, precision_N: np.ndarray, shift_N: np.ndarray) -> Normal:
    """Return the posterior given normal outcomes, whose means times ``precision_N`` are ``shift_N``."""
    factor_KK = precision_factor(basis_NK, precision_N)
    return Normal(cho_solve((factor_KK, True), basis_NK.T @ shift_N, check_finite=False), factor_KK)


def _tilted(mean_N: np.ndarray, sd_N: np.ndarray, counts: Counts, nodes_Q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return means and variances of normal distributions times the likelihood of counts.

    Where all outcomes are what every node expects, the likelihood is one, and changes nothing.
    """
    all_stable_N, all_unstable_N = counts.stable_N == counts.trials_N, counts.stable_N == 0
    far_N = np.where(all_stable_N, mean_N, np.where(all_unstable_N, -mean_N, 0.0)) - _REACH * sd_N
    told_N = np.flatnonzero(far_N < _CERTAIN)
    stable_N, trials_N = counts.stable_N[told_N, None], counts.trials_N[told_N, None]
    latent_NQ = mean_N[told_N, None] + sd_N[told_N, None] * nodes_Q
    log_NQ = stable_N * latent_NQ - trials_N * np.logaddexp(0, latent_NQ)
    log_NQ -= 0.5 * nodes_Q**2
    weight_NQ = np.exp(log_NQ - log_NQ.max(axis=1, keepdims=True))
    weight_NQ /= weight_NQ.sum(axis=1, keepdims=True)
    first_N, second_N = np.zeros(len(mean_N)), np.ones(len(mean_N))
    first_N[told_N] = weight_NQ @ nodes_Q
    second_N[told_N] = weight_NQ @ nodes_Q**2 - first_N[told_N] ** 2
    return mean_N + sd_N * first_N, sd_N**2 * np.maximum(second_N, _MIN_PRECISION)

"""A Gaussian process seen through counts of stable trials: Laplace's approximation of its posterior.

Rasmussen and Williams, Gaussian Processes for Machine Learning (2006), algorithms 3.1, 3.2 and 5.1, for binomial counts
and a prior mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_solve, cholesky, solve_triangular
from scipy.special import expit

_MOST_STEPS = 60  # of Newton's method
_MOST_HALVINGS = 12
_CLOSE = 1e-8  # a gain in log density after which the mode is found


@dataclass(frozen=True, slots=True)
class Mode:
    """The mode of the posterior of the latent values of N cells, and what follows from it.

    ``weight_N`` solves ``latent = mean + kernel @ weight``; ``curvature_N`` is the negative second derivative of each
    log likelihood; ``factor_NN`` is the Cholesky factor of I + sqrt(W) K sqrt(W); ``evidence`` approximates the log
    marginal likelihood.
    """

    latent_N: np.ndarray
    weight_N: np.ndarray
    curvature_N: np.ndarray
    factor_NN: np.ndarray
    evidence: float

    def explained(self, cross_NM: np.ndarray) -> np.ndarray:
        """``explained(c)`` such that its products ``A.T @ B`` are the covariance that the counts have taken away."""
        scaled = np.sqrt(self.curvature_N)[:, None] * cross_NM
        return solve_triangular(self.factor_NN, scaled, lower=True, check_finite=False)


def find_mode(
    kernel_NN: np.ndarray, mean_N: np.ndarray, stable_N: np.ndarray, trials_N: np.ndarray, start_N: np.ndarray
) -> Mode:
    """The mode by Newton's method from the weights ``start_N``, halving steps that do not improve it.

    Beside a steep prior mean, whole steps diverge. The log density is concave, so there is one mode.
    """
    weight_N = start_N
    latent_N = mean_N + kernel_NN @ weight_N
    density = _log_density(latent_N, mean_N, weight_N, stable_N, trials_N)
    for _ in range(_MOST_STEPS):
        share_N = expit(latent_N)
        curvature_N = trials_N * share_N * (1 - share_N)
        root_N = np.sqrt(curvature_N)
        factor_NN = factor_of(kernel_NN, root_N)
        target_N = curvature_N * (latent_N - mean_N) + stable_N - trials_N * share_N
        solved_N = cho_solve((factor_NN, True), root_N * (kernel_NN @ target_N), check_finite=False)
        step_N = target_N - root_N * solved_N - weight_N
        latent_step_N = kernel_NN @ step_N
        size, better = 1.0, -np.inf
        for _ in range(_MOST_HALVINGS):
            better = _log_density(latent_N + size * latent_step_N, mean_N, weight_N + size * step_N, stable_N, trials_N)
            if better >= density:
                break
            size /= 2
        if better < density + _CLOSE:
            break
        weight_N = weight_N + size * step_N
        latent_N = latent_N + size * latent_step_N
        density = better
    share_N = expit(latent_N)
    curvature_N = trials_N * share_N * (1 - share_N)
    factor_NN = factor_of(kernel_NN, np.sqrt(curvature_N))
    evidence = density - float(np.sum(np.log(np.diag(factor_NN))))
    return Mode(latent_N, weight_N, curvature_N, factor_NN, evidence)


def evidence_gradient(
    mode: Mode,
    kernel_NN: np.ndarray,
    stable_N: np.ndarray,
    trials_N: np.ndarray,
    changes: Sequence[tuple[np.ndarray, np.ndarray | None]],
) -> np.ndarray:
    """The derivative of the evidence for each change: derivatives of the kernel (N, N) and of the mean (N,) or None.

    It includes the way that the mode itself moves.
    """
    root_N = np.sqrt(mode.curvature_N)
    whitened_NN = solve_triangular(mode.factor_NN, np.diag(root_N), lower=True, check_finite=False)
    precision_NN = whitened_NN.T @ whitened_NN  # (K + 1 / W)^-1
    explained_NN = mode.explained(kernel_NN)
    variance_N = np.diag(kernel_NN) - np.einsum("ij,ij->j", explained_NN, explained_NN)
    share_N = expit(mode.latent_N)
    slope_N = stable_N - trials_N * share_N
    # Half the change of log det with the latent values, through the third derivative of the log likelihood.
    drag_N = -0.5 * variance_N * mode.curvature_N * (1 - 2 * share_N)
    gradient = []
    for change_NN, mean_change_N in changes:
        explicit = 0.5 * mode.weight_N @ change_NN @ mode.weight_N - 0.5 * np.sum(precision_NN * change_NN)
        moved_N = change_NN @ slope_N
        if mean_change_N is not None:
            explicit += mode.weight_N @ mean_change_N
            moved_N = moved_N + mean_change_N
        moved_N = moved_N - kernel_NN @ (precision_NN @ moved_N)
        gradient.append(explicit + drag_N @ moved_N)
    return np.array(gradient)


def factor_of(kernel_NN: np.ndarray, root_N: np.ndarray) -> np.ndarray:
    """The Cholesky factor of I + R K R, where ``root_N`` is the diagonal of R."""
    system_NN = root_N[:, None] * kernel_NN * root_N
    system_NN.flat[:: len(root_N) + 1] += 1
    return cholesky(system_NN, lower=True, check_finite=False, overwrite_a=True)


def _log_density(
    latent_N: np.ndarray, mean_N: np.ndarray, weight_N: np.ndarray, stable_N: np.ndarray, trials_N: np.ndarray
) -> float:
    """The log of likelihood times prior, without its constants."""
    fit = stable_N @ latent_N - trials_N @ np.logaddexp(0, latent_N)
    return float(fit - 0.5 * weight_N @ (latent_N - mean_N))

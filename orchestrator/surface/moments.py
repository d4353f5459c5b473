"""A better Gaussian than Laplace's: expectation propagation matches the moments of each cell's outcomes.

Between a stable cell and its unstable neighbour the likelihood of a steep edge is flat, so the curvature at the mode
says nothing, and the mode stays beside the cell that was tried last. Moments know both sides. Minka, Expectation
propagation for approximate Bayesian inference (2001); Rasmussen and Williams (2006), section 3.6; here all cells are
updated at once, with damping.

Letters of shapes: N cells, Q points of a quadrature.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import cho_solve

from orchestrator.surface.laplace import Mode, factor_of

_MOST_ROUNDS = 40
_DAMPING = 0.7  # the part of a round's change that is made
_CLOSE = 0.01  # a change of a mean, in standard deviations, after which the moments are matched
_REACH, _NUM_POINTS = 6.0, 301  # of the quadrature, in standard deviations about a cell's mean without its outcomes
_LEAST = 1e-10  # of a precision


def matched(mode: Mode, kernel_NN: np.ndarray, mean_N: np.ndarray, stable_N: np.ndarray, trials_N: np.ndarray) -> Mode:
    """The posterior whose moments agree with those that each cell's outcomes have under all others.

    It starts from Laplace's, whose evidence it keeps. ``curvature_N`` are the precisions of the cells' outcomes.
    """
    precision_N = np.maximum(mode.curvature_N, _LEAST)
    shift_N = precision_N * (mode.latent_N - mean_N) + mode.weight_N
    nodes_Q = np.linspace(-_REACH, _REACH, _NUM_POINTS)
    latent_N, variance_N, state = _posterior(kernel_NN, mean_N, precision_N, shift_N)
    for _ in range(_MOST_ROUNDS):
        cavity_precision_N = np.maximum(1 / variance_N - precision_N, _LEAST)
        cavity_N = ((latent_N - mean_N) / variance_N - shift_N) / cavity_precision_N + mean_N
        tilted_N, tilted_variance_N = _tilted(cavity_N, 1 / np.sqrt(cavity_precision_N), stable_N, trials_N, nodes_Q)
        new_precision_N = np.maximum(1 / tilted_variance_N - cavity_precision_N, _LEAST)
        new_shift_N = (tilted_N - mean_N) / tilted_variance_N - (cavity_N - mean_N) * cavity_precision_N
        precision_N = precision_N + _DAMPING * (new_precision_N - precision_N)
        shift_N = shift_N + _DAMPING * (new_shift_N - shift_N)
        before_N = latent_N
        latent_N, variance_N, state = _posterior(kernel_NN, mean_N, precision_N, shift_N)
        if np.all(np.abs(latent_N - before_N) < _CLOSE * np.sqrt(variance_N)):
            break
    weight_N, factor_NN = state
    return Mode(latent_N, weight_N, precision_N, factor_NN, mode.evidence)


def _posterior(
    kernel_NN: np.ndarray, mean_N: np.ndarray, precision_N: np.ndarray, shift_N: np.ndarray
) -> tuple[np.ndarray, np.ndarray, tuple[np.ndarray, np.ndarray]]:
    """Means and variances of the cells, with the weights and the factor of a ``Mode``."""
    root_N = np.sqrt(precision_N)
    factor_NN = factor_of(kernel_NN, root_N)
    solved_N = cho_solve((factor_NN, True), root_N * (kernel_NN @ shift_N), check_finite=False)
    weight_N = shift_N - root_N * solved_N
    mode = Mode(mean_N, weight_N, precision_N, factor_NN, 0.0)
    explained_NN = mode.explained(kernel_NN)
    variance_N = np.diag(kernel_NN) - np.einsum("ij,ij->j", explained_NN, explained_NN)
    return mean_N + kernel_NN @ weight_N, np.maximum(variance_N, _LEAST), (weight_N, factor_NN)


def _tilted(
    mean_N: np.ndarray, sd_N: np.ndarray, stable_N: np.ndarray, trials_N: np.ndarray, nodes_Q: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Means and variances of normal distributions times the likelihood of counts."""
    latent_NQ = mean_N[:, None] + sd_N[:, None] * nodes_Q
    log_NQ = stable_N[:, None] * latent_NQ - trials_N[:, None] * np.logaddexp(0, latent_NQ) - 0.5 * nodes_Q**2
    weight_NQ = np.exp(log_NQ - log_NQ.max(axis=1, keepdims=True))
    weight_NQ /= weight_NQ.sum(axis=1, keepdims=True)
    first_N = weight_NQ @ nodes_Q
    second_N = weight_NQ @ nodes_Q**2 - first_N**2
    return mean_N + sd_N * first_N, sd_N**2 * np.maximum(second_N, _LEAST)

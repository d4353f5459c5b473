"""A Gaussian process over the unit cube: the prior of a surface of stability, and its posterior given counts of trials.

The latent values are logits of P(stable). Laplace's approximation follows Rasmussen and Williams, Gaussian Processes
for Machine Learning (2006), algorithms 3.1, 3.2 and 5.1, for binomial counts and a prior mean. Between a stable cell
and its unstable neighbour the likelihood of a steep edge is flat, so the curvature at the mode says nothing, and the
mode stays next to the cell that was tried last. Expectation propagation matches the moments of each cell's outcomes,
which know both sides. Minka, Expectation propagation for approximate Bayesian inference (2001); Rasmussen and Williams,
section 3.6; here all cells are updated at once, with damping.

Letters of shapes: N cells or points, M points, D columns of a point, Q points of a quadrature.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import cho_solve, cholesky, solve_triangular
from scipy.special import expit

_MIDDLE = 0.5
_CATEGORY_CORRELATION = 0.5  # of two categories at the same point
# The variance of a field's constant in units of the variance around it: for the position of an edge, and for a field
# without an axis along.
_EDGE_CONSTANT, _PLAIN_CONSTANT = 4.0, 0.25
_ROOT_FIVE = 5**0.5
_MAX_STEPS = 60  # of Newton's method
_MAX_HALVINGS = 12
_TOLERANCE = 1e-8  # a gain in log density after which the mode is found
_MAX_ROUNDS = 40
_DAMPING = 0.7  # the part of a round's change that is made
_MOMENT_TOLERANCE = 0.01  # a change of a mean, in standard deviations, after which the moments are matched
_REACH, _NUM_POINTS = 6.0, 301  # of the quadrature, in standard deviations about a cell's mean without its outcomes
_MIN_PRECISION = 1e-10  # of a precision


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of points: coordinates in [0, 1] of an axis, or indices of a category.

    ``along`` is the column along which training turns from stable to unstable, or back; None if there is none.
    """

    is_categorical: tuple[bool, ...]
    along: int | None = None

    @property
    def numeric(self) -> list[int]:
        """The columns that are coordinates."""
        return [i for i, is_category in enumerate(self.is_categorical) if not is_category]

    @property
    def categorical(self) -> list[int]:
        """The columns that are indices of categories."""
        return [i for i, is_category in enumerate(self.is_categorical) if is_category]

    def with_category(self) -> Layout:
        """Append a column of categories."""
        return replace(self, is_categorical=(*self.is_categorical, True))


@dataclass(frozen=True, slots=True)
class Shape:
    """How a field varies. ``lengths`` are correlation lengths of the numeric columns.

    With a column ``along``, the latent value is ``steepness`` (logits per axis) times the distance to an edge whose
    position varies with standard deviation ``spread`` over the other columns, plus a free field of standard deviation
    ``roughness`` (logits). Without it, ``steepness`` is 1, ``roughness`` 0, and ``spread`` is in logits.
    """

    lengths: tuple[float, ...]
    steepness: float
    spread: float
    roughness: float


@dataclass(frozen=True, slots=True)
class Field:
    """A Gaussian process over points. ``sign`` is -1 if stability falls along the axis, 1 if it rises."""

    layout: Layout
    shape: Shape
    sign: int

    def mean(self, points_ND: np.ndarray) -> np.ndarray:
        """Return the prior mean, (N,): zero in the middle of the axis ``along``."""
        if self.layout.along is None:
            return np.zeros(len(points_ND))
        return self.sign * self.shape.steepness * (points_ND[:, self.layout.along] - _MIDDLE)

    def variance(self) -> float:
        """Return the prior variance, which is the same at all points."""
        return self._edge_variance * (1 + self._constant) + self.shape.roughness**2

    def kernel(self, points_ND: np.ndarray, others_MD: np.ndarray) -> np.ndarray:
        """Return the prior covariance of points, (N, M)."""
        kin = self._category_correlation(points_ND, others_MD)
        squares = self._squares(points_ND, others_MD)
        edge, _ = _matern(_sum(squares, self._across, kin))
        kernel = self._edge_variance * (self._constant + edge)
        if self.layout.along is not None:
            rough, _ = _matern(_sum(squares, range(len(squares)), kin))
            kernel += self.shape.roughness**2 * rough
        return kernel * kin

    def kernel_with_derivatives(self, points_ND: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
        """Return the covariance of points with each other, and its derivative for each of ``logs``."""
        kin = self._category_correlation(points_ND, points_ND)
        squares = self._squares(points_ND, points_ND)
        edge, edge_fall = _matern(_sum(squares, self._across, kin))
        edge_kernel = self._edge_variance * (self._constant + edge) * kin
        falls = [np.zeros_like(kin) for _ in squares]
        for i in self._across:
            falls[i] += self._edge_variance * edge_fall * squares[i] * kin
        if self.layout.along is None:
            return edge_kernel, [*falls, 2 * edge_kernel]
        rough, rough_fall = _matern(_sum(squares, range(len(squares)), kin))
        rough_kernel = self.shape.roughness**2 * rough * kin
        for fall, square in zip(falls, squares, strict=True):
            fall += self.shape.roughness**2 * rough_fall * square * kin
        return edge_kernel + rough_kernel, [*falls, 2 * edge_kernel, 2 * edge_kernel, 2 * rough_kernel]

    def logs(self) -> np.ndarray:
        """Return the logarithms of lengths and spread and, with an axis along, of steepness and roughness."""
        shape = self.shape
        return np.log([*shape.lengths, shape.spread, *self._of_edge(shape.steepness, shape.roughness)])

    def with_logs(self, logs: np.ndarray) -> Field:
        """Return the field with other ``logs``."""
        num = len(self.shape.lengths)
        values = [float(value) for value in np.exp(logs)]
        steepness, roughness = values[num + 1 :] or (self.shape.steepness, self.shape.roughness)
        return replace(self, shape=Shape(tuple(values[:num]), steepness, values[num], roughness))

    @property
    def _edge_variance(self) -> float:
        return (self.shape.steepness * self.shape.spread) ** 2

    @property
    def _constant(self) -> float:
        return _PLAIN_CONSTANT if self.layout.along is None else _EDGE_CONSTANT

    @property
    def _across(self) -> list[int]:
        """The indices, among the numeric columns, of all but ``along``."""
        return [i for i, column in enumerate(self.layout.numeric) if column != self.layout.along]

    def _of_edge(self, *values: float) -> tuple[float, ...]:
        return values if self.layout.along is not None else ()

    def _squares(self, points_ND: np.ndarray, others_MD: np.ndarray) -> list[np.ndarray]:
        """Return squared distances in units of the lengths, (N, M) for each numeric column."""
        return [
            ((points_ND[:, column][:, None] - others_MD[:, column]) / length) ** 2
            for column, length in zip(self.layout.numeric, self.shape.lengths, strict=True)
        ]

    def _category_correlation(self, points_ND: np.ndarray, others_MD: np.ndarray) -> np.ndarray:
        """Return the correlation of points due to their categories, (N, M)."""
        kin = np.ones((len(points_ND), len(others_MD)))
        for column in self.layout.categorical:
            kin *= np.where(points_ND[:, column][:, None] == others_MD[:, column], 1.0, _CATEGORY_CORRELATION)
        return kin


def _sum(squares: list[np.ndarray], which: range | list[int], like: np.ndarray) -> np.ndarray:
    total = np.zeros_like(like)
    for i in which:
        total += squares[i]
    return total


def _matern(square: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the Matern correlation with nu = 5/2 at a squared distance in units of the lengths.

    The second array times the squared distance in one column is the derivative for the logarithm of its length.
    """
    distance = _ROOT_FIVE * np.sqrt(square)
    decay = np.exp(-distance)
    return (1 + distance + distance**2 / 3) * decay, (5 / 3) * (1 + distance) * decay


# --- the posterior ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Mode:
    """The mode of the posterior of the latent values of N cells, and what is derived from it.

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
        """Whiten covariances with the cells: products ``A.T @ B`` are the covariance that the counts explain."""
        scaled = np.sqrt(self.curvature_N)[:, None] * cross_NM
        return solve_triangular(self.factor_NN, scaled, lower=True, check_finite=False)


def find_mode(
    kernel_NN: np.ndarray, mean_N: np.ndarray, stable_N: np.ndarray, trials_N: np.ndarray, start_N: np.ndarray
) -> Mode:
    """Find the mode by Newton's method from the weights ``start_N``, halving steps that do not improve it.

    Whole steps diverge when the prior mean is steep. The log density is concave, so there is one mode.
    """
    weight_N = start_N
    latent_N = mean_N + kernel_NN @ weight_N
    density = _log_density(latent_N, mean_N, weight_N, stable_N, trials_N)
    for _ in range(_MAX_STEPS):
        share_N = expit(latent_N)
        curvature_N = trials_N * share_N * (1 - share_N)
        root_N = np.sqrt(curvature_N)
        factor_NN = factor_of(kernel_NN, root_N)
        target_N = curvature_N * (latent_N - mean_N) + stable_N - trials_N * share_N
        solved_N = cho_solve((factor_NN, True), root_N * (kernel_NN @ target_N), check_finite=False)
        step_N = target_N - root_N * solved_N - weight_N
        latent_step_N = kernel_NN @ step_N
        size, better = 1.0, -np.inf
        for _ in range(_MAX_HALVINGS):
            better = _log_density(latent_N + size * latent_step_N, mean_N, weight_N + size * step_N, stable_N, trials_N)
            if better >= density:
                break
            size /= 2
        if better < density + _TOLERANCE:
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
    """Differentiate the evidence for each change: derivatives of the kernel (N, N) and of the mean (N,), or None.

    It includes the movement of the mode itself.
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
    """Return the Cholesky factor of I + R K R, where ``root_N`` is the diagonal of R."""
    system_NN = root_N[:, None] * kernel_NN * root_N
    system_NN.flat[:: len(root_N) + 1] += 1
    return cholesky(system_NN, lower=True, check_finite=False, overwrite_a=True)


def _log_density(
    latent_N: np.ndarray, mean_N: np.ndarray, weight_N: np.ndarray, stable_N: np.ndarray, trials_N: np.ndarray
) -> float:
    """Return the log of likelihood times prior, up to a constant."""
    fit = stable_N @ latent_N - trials_N @ np.logaddexp(0, latent_N)
    return float(fit - 0.5 * weight_N @ (latent_N - mean_N))


def matched(mode: Mode, kernel_NN: np.ndarray, mean_N: np.ndarray, stable_N: np.ndarray, trials_N: np.ndarray) -> Mode:
    """Return the posterior that matches the moments of each cell's outcomes given all others.

    It starts from Laplace's ``mode``, whose evidence it keeps. ``curvature_N`` holds the precisions of the outcomes.
    """
    precision_N = np.maximum(mode.curvature_N, _MIN_PRECISION)
    shift_N = precision_N * (mode.latent_N - mean_N) + mode.weight_N
    nodes_Q = np.linspace(-_REACH, _REACH, _NUM_POINTS)
    latent_N, variance_N, state = _posterior(kernel_NN, mean_N, precision_N, shift_N)
    for _ in range(_MAX_ROUNDS):
        cavity_precision_N = np.maximum(1 / variance_N - precision_N, _MIN_PRECISION)
        cavity_N = ((latent_N - mean_N) / variance_N - shift_N) / cavity_precision_N + mean_N
        tilted_N, tilted_variance_N = _tilted(cavity_N, 1 / np.sqrt(cavity_precision_N), stable_N, trials_N, nodes_Q)
        new_precision_N = np.maximum(1 / tilted_variance_N - cavity_precision_N, _MIN_PRECISION)
        new_shift_N = (tilted_N - mean_N) / tilted_variance_N - (cavity_N - mean_N) * cavity_precision_N
        precision_N = precision_N + _DAMPING * (new_precision_N - precision_N)
        shift_N = shift_N + _DAMPING * (new_shift_N - shift_N)
        before_N = latent_N
        latent_N, variance_N, state = _posterior(kernel_NN, mean_N, precision_N, shift_N)
        if np.all(np.abs(latent_N - before_N) < _MOMENT_TOLERANCE * np.sqrt(variance_N)):
            break
    weight_N, factor_NN = state
    return Mode(latent_N, weight_N, precision_N, factor_NN, mode.evidence)


def _posterior(
    kernel_NN: np.ndarray, mean_N: np.ndarray, precision_N: np.ndarray, shift_N: np.ndarray
) -> tuple[np.ndarray, np.ndarray, tuple[np.ndarray, np.ndarray]]:
    """Return means and variances of the cells, with the weights and the factor of a ``Mode``."""
    root_N = np.sqrt(precision_N)
    factor_NN = factor_of(kernel_NN, root_N)
    solved_N = cho_solve((factor_NN, True), root_N * (kernel_NN @ shift_N), check_finite=False)
    weight_N = shift_N - root_N * solved_N
    mode = Mode(mean_N, weight_N, precision_N, factor_NN, 0.0)
    explained_NN = mode.explained(kernel_NN)
    variance_N = np.diag(kernel_NN) - np.einsum("ij,ij->j", explained_NN, explained_NN)
    return mean_N + kernel_NN @ weight_N, np.maximum(variance_N, _MIN_PRECISION), (weight_N, factor_NN)


def _tilted(
    mean_N: np.ndarray, sd_N: np.ndarray, stable_N: np.ndarray, trials_N: np.ndarray, nodes_Q: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return means and variances of normal distributions times the likelihood of counts."""
    latent_NQ = mean_N[:, None] + sd_N[:, None] * nodes_Q
    log_NQ = stable_N[:, None] * latent_NQ - trials_N[:, None] * np.logaddexp(0, latent_NQ) - 0.5 * nodes_Q**2
    weight_NQ = np.exp(log_NQ - log_NQ.max(axis=1, keepdims=True))
    weight_NQ /= weight_NQ.sum(axis=1, keepdims=True)
    first_N = weight_NQ @ nodes_Q
    second_N = weight_NQ @ nodes_Q**2 - first_N**2
    return mean_N + sd_N * first_N, sd_N**2 * np.maximum(second_N, _MIN_PRECISION)

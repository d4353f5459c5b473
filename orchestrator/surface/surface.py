"""A surface of P(stable) over the unit cube of one to four axes, fitted to the outcomes of scattered cells.

Letters of shapes: N known cells, M points, R rows, L points along a row, D columns of a point.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit, logit

from orchestrator.surface.gaussian import Field, Layout, Mode, Shape, evidence_gradient, find_mode, matched

CONFIDENCE = 1.96  # standard deviations around the mean that hold 95 % of a normal distribution
RESOLUTION = 1 / 32  # smallest distance along the axis that a fit resolves, as a fraction of the axis
_JITTER = 1e-6
_MAX_ITERATIONS = 15  # of the fit of the field's shape
# The prior of a field's shape: medians and standard deviations of logarithms.
_LENGTH, _LENGTH_SD = 0.35, 0.4
_POSITION_LENGTH, _POSITION_LENGTH_SD, _MIN_POSITION_LENGTH = 0.18, 0.9, 0.15
_SPREAD, _PLAIN_SPREAD, _SPREAD_SD = 0.25, 3.0, 0.3
_STEEPNESS, _STEEPNESS_SD = 1.3, 0.7  # logits for each step of the resolution
_MAX_STEEPNESS = 6.0  # nothing says how steep the edge between two neighbouring cells is
_ROUGHNESS, _ROUGHNESS_SD = 1.0, 0.5
_MIDDLE = 0.5  # of the axis
_SHARP = 3.0  # logits for each step of the resolution
_STRONG = 3.0  # of a difference in log evidence: twenty times as probable


@dataclass(frozen=True, slots=True)
class Latent:
    """The posterior of the logit of P(stable) at M points: means and standard deviations, (M,).

    ``Surface.covariance`` uses ``lifted_MD`` and ``explained_NM``.
    """

    mean_M: np.ndarray
    sd_M: np.ndarray
    lifted_MD: np.ndarray
    explained_NM: np.ndarray

    def probability(self) -> np.ndarray:
        """Return P(stable), averaged over the posterior of the latent value (MacKay's approximation), (M,)."""
        return expit(self.mean_M / np.sqrt(1 + math.pi / 8 * self.sd_M**2))

    def at(self, index_T: np.ndarray) -> Latent:
        """Select some of the points."""
        return Latent(self.mean_M[index_T], self.sd_M[index_T], self.lifted_MD[index_T], self.explained_NM[:, index_T])


@dataclass(frozen=True, slots=True)
class Crossing:
    """A crossing of the level in a row: its coordinate ``at`` in [0, 1] of the axis along, with a 95 % interval.

    An end is infinite if the interval reaches the end of the row. ``at`` is None if the mean does not cross the level
    but the row may: a crossing can be anywhere in the interval. ``rises`` means that stability rises along the axis.
    """

    at: float | None
    low: float
    high: float
    rises: bool


@dataclass(frozen=True, slots=True)
class _Fit:
    """A field with the cells that it was fitted to, and its mode."""

    field: Field
    points_ND: np.ndarray
    mode: Mode

    def latent(self, points_MD: np.ndarray) -> Latent:
        cross_NM = self.field.kernel(self.points_ND, points_MD)
        explained_NM = self.mode.explained(cross_NM)
        variance_M = self.field.variance() - np.einsum("ij,ij->j", explained_NM, explained_NM)
        mean_M = self.field.mean(points_MD) + cross_NM.T @ self.mode.weight_N
        return Latent(mean_M, np.sqrt(np.maximum(variance_M, _JITTER)), points_MD, explained_NM)


@dataclass(frozen=True, slots=True)
class Surface:
    """The posterior of a field given counts of stable trials.

    With an axis along, a first fit locates the edge roughly, and its position is one more coordinate of the second fit:
    then neighbouring rows whose edges lie far apart have little correlation, so an edge may jump. In a row next to a
    jump the first fit puts the edge halfway, and the second one closer to the truth. So the positions of the second fit
    are the coordinate of a third one, if the edge is sharp and the evidence for it strong; otherwise the third would
    follow the noise of the positions. ``_ahead`` are the fits that give positions, none if a row may have several
    edges.
    """

    layout: Layout
    _ahead: tuple[_Fit, ...]
    _last: _Fit

    @property
    def field(self) -> Field:
        """The fitted field; with an axis along, its last length belongs to the position of the edge."""
        return self._last.field

    @property
    def has_one_edge(self) -> bool:
        """Whether each row has one edge along the axis; if False, rows may have more."""
        return bool(self._ahead)

    @property
    def evidence(self) -> float:
        """The approximate logarithm of the marginal likelihood."""
        return self._last.mode.evidence

    def latent(self, points_MD: np.ndarray) -> Latent:
        """Return the posterior at points."""
        return self._last.latent(self._lifted(points_MD))

    def covariance(self, some: Latent, others: Latent) -> np.ndarray:
        """Return the posterior covariance of points with others, (M, M)."""
        prior = self.field.kernel(some.lifted_MD, others.lifted_MD)
        return prior - some.explained_NM.T @ others.explained_NM

    def crossings(self, rows_RD: np.ndarray, units_L: np.ndarray, level: float = 0.5) -> list[tuple[Crossing, ...]]:
        """Return the edges of each row, where P(stable) crosses ``level``, in order along the axis.

        ``rows_RD`` are points whose column along is ignored; the posterior is interpolated linearly between the
        ascending coordinates ``units_L``. Raises ValueError without an axis along.
        """
        if self.layout.along is None:
            raise ValueError("the surface has no axis along which an edge is looked for")
        points_MD = np.repeat(rows_RD, len(units_L), axis=0)
        points_MD[:, self.layout.along] = np.tile(units_L, len(rows_RD))
        latent = self.latent(points_MD)
        mean_RL = latent.mean_M.reshape(len(rows_RD), -1) - logit(level)
        sd_RL = latent.sd_M.reshape(len(rows_RD), -1)
        return [_crossings(units_L, mean_L, sd_L) for mean_L, sd_L in zip(mean_RL, sd_RL, strict=True)]

    def _lifted(self, points_MD: np.ndarray) -> np.ndarray:
        return _lifted(self._ahead, points_MD) if self._ahead else points_MD


def fit_surface(
    points_ND: np.ndarray,
    stable_N: np.ndarray,
    trials_N: np.ndarray,
    layout: Layout,
    resolution: float = RESOLUTION,
    has_one_edge: bool | None = None,
) -> Surface:
    """Fit the surface to ``stable_N`` stable trials of ``trials_N`` at each of N >= 0 points.

    ``resolution`` is the smallest distance along the axis that the fit resolves: no edge is assumed to be steeper.
    ``has_one_edge`` says whether each row along the axis has exactly one edge. If it is None, the evidence decides, and
    the cells must not have been chosen for lying at an edge.
    """
    num = len(layout.numeric)
    points_ND, of_point_N = np.unique(points_ND, axis=0, return_inverse=True)
    stable_N, trials_N = (np.bincount(of_point_N.ravel(), x_N, len(points_ND)) for x_N in (stable_N, trials_N))
    if layout.along is None or not has_one_edge:
        shape = Shape((_LENGTH,) * num, 1.0, _PLAIN_SPREAD, 0.0)
        plain = Field(replace(layout, along=None), shape, 0)
        any_edges = Surface(layout, (), _learned(plain, points_ND, stable_N, trials_N, math.inf))
        if layout.along is None or has_one_edge is False:
            return any_edges
    shape = Shape((_LENGTH,) * num, _STEEPNESS / resolution, _SPREAD, _ROUGHNESS)
    directions = [Field(layout, shape, sign) for sign in (-1, 1)]
    prior = max(directions, key=lambda field: _mode(field, points_ND, stable_N, trials_N).evidence)
    first = _fitted(prior, points_ND, stable_N, trials_N)
    shape = replace(shape, lengths=(*shape.lengths, _POSITION_LENGTH))
    field = Field(layout.with_edge_position(), shape, first.field.sign)
    second = _learned(field, _lifted((first,), points_ND), stable_N, trials_N, _MAX_STEEPNESS / resolution)
    if not has_one_edge and second.mode.evidence < any_edges.evidence:
        return any_edges
    if second.field.shape.steepness * resolution < _SHARP:
        return Surface(layout, (first,), second)
    third = _fitted(second.field, _lifted((first, second), points_ND), stable_N, trials_N)
    if third.mode.evidence - second.mode.evidence < _STRONG:
        return Surface(layout, (first,), second)
    return Surface(layout, (first, second), third)


def _mode(field: Field, points_ND: np.ndarray, stable_N: np.ndarray, trials_N: np.ndarray) -> Mode:
    kernel_NN, mean_N = _prior(field, points_ND)
    return find_mode(kernel_NN, mean_N, stable_N, trials_N, np.zeros(len(points_ND)))


def _fitted(field: Field, points_ND: np.ndarray, stable_N: np.ndarray, trials_N: np.ndarray) -> _Fit:
    mode = _mode(field, points_ND, stable_N, trials_N)
    return _Fit(field, points_ND, matched(mode, *_prior(field, points_ND), stable_N, trials_N))


def _prior(field: Field, points_ND: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the prior covariance of points and their mean."""
    return field.kernel(points_ND, points_ND) + _JITTER * np.eye(len(points_ND)), field.mean(points_ND)


def _learned(prior: Field, points_ND: np.ndarray, stable_N: np.ndarray, trials_N: np.ndarray, steepest: float) -> _Fit:
    """Fit the most probable shape of the field given the counts, by the gradient of the evidence."""
    medians = prior.logs()
    num = len(prior.shape.lengths)
    deviations = np.array([_LENGTH_SD] * num + [_SPREAD_SD, _STEEPNESS_SD, _ROUGHNESS_SD])[: len(medians)]
    if prior.layout.along is not None:
        deviations[num - 1] = _POSITION_LENGTH_SD
    lowest, highest = medians - 3 * deviations, medians + 3 * deviations
    if prior.layout.along is not None:
        highest[num + 1] = math.log(steepest)
        # With a shorter length, rows of a steep edge would be independent, and the evidence cannot exclude that.
        lowest[num - 1] = math.log(_MIN_POSITION_LENGTH)
    weight_N = np.zeros(len(points_ND))

    def loss(logs: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal weight_N
        field = prior.with_logs(logs)
        kernel_NN, derivatives = field.kernel_with_derivatives(points_ND)
        kernel_NN.flat[:: len(points_ND) + 1] += _JITTER
        mean_N = field.mean(points_ND)
        mode = find_mode(kernel_NN, mean_N, stable_N, trials_N, weight_N)
        weight_N = mode.weight_N
        changes = [(derivative, mean_N if i == num + 1 else None) for i, derivative in enumerate(derivatives)]
        gradient = evidence_gradient(mode, kernel_NN, stable_N, trials_N, changes)
        z = (logs - medians) / deviations
        return 0.5 * float(z @ z) - mode.evidence, z / deviations - gradient

    bounds = list(zip(lowest, highest, strict=True))
    fitted = minimize(loss, medians, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": _MAX_ITERATIONS})
    return _fitted(prior.with_logs(fitted.x), points_ND, stable_N, trials_N)


def _lifted(ahead: tuple[_Fit, ...], points_MD: np.ndarray) -> np.ndarray:
    """Append the position of the edge in each point's row, by each of the fits, given the one before."""
    along = ahead[0].field.layout.along
    rows_MD = np.column_stack([points_MD, np.full(len(points_MD), _MIDDLE)])
    rows_MD[:, along] = 0.0
    rows_RD, of_row_M = np.unique(rows_MD, axis=0, return_inverse=True)
    for fit in ahead:
        rows_RD[:, -1] = _edge_positions(fit, rows_RD[:, : len(fit.field.layout.is_categorical)], rows_RD[:, -1])
    return np.column_stack([points_MD, rows_RD[:, -1][of_row_M.ravel()]])


def _edge_positions(fit: _Fit, rows_RD: np.ndarray, start_R: np.ndarray) -> np.ndarray:
    """Return the position of each row's edge in a fit, (R,), by three Newton-like steps from ``start_R``."""
    field, position_R, rows_RD = fit.field, start_R, rows_RD.copy()
    for _ in range(3):
        rows_RD[:, field.layout.along] = position_R
        mean_R = field.mean(rows_RD) + field.kernel(fit.points_ND, rows_RD).T @ fit.mode.weight_N
        position_R = np.clip(position_R - mean_R / (field.sign * field.shape.steepness), -0.2, 1.2)
    return position_R


def _crossings(units_L: np.ndarray, mean_L: np.ndarray, sd_L: np.ndarray) -> tuple[Crossing, ...]:
    """Return the crossings of one row, whose latent values are relative to the level."""
    changes = np.flatnonzero((mean_L[:-1] > 0) != (mean_L[1:] > 0))
    crossings = []
    for i in changes:
        side = 1.0 if mean_L[i + 1] > 0 else -1.0
        sure_after_L = side * mean_L - CONFIDENCE * sd_L  # above zero: surely beyond this crossing
        sure_before_L = -side * mean_L - CONFIDENCE * sd_L
        crossings.append(
            Crossing(
                _between(units_L, mean_L, int(i)),
                -_first_sure(-units_L[i::-1], sure_before_L[i::-1], sure_before_L[i + 1], -units_L[i + 1]),
                _first_sure(units_L[i + 1 :], sure_after_L[i + 1 :], sure_after_L[i], units_L[i]),
                side > 0,
            )
        )
    return tuple(crossings) or _possible_crossing(units_L, mean_L, sd_L)


def _possible_crossing(units_L: np.ndarray, mean_L: np.ndarray, sd_L: np.ndarray) -> tuple[Crossing, ...]:
    """Return the part of a row without a crossing where there may be one, if any."""
    uncertain = np.flatnonzero(np.abs(mean_L) < CONFIDENCE * sd_L)
    if not len(uncertain):
        return ()
    first, last = uncertain[0], uncertain[-1]
    low = -math.inf if first == 0 else float(units_L[first - 1])
    high = math.inf if last == len(units_L) - 1 else float(units_L[last + 1])
    return (Crossing(None, low, high, bool(mean_L[last] > mean_L[first])),)


def _between(units_L: np.ndarray, values_L: np.ndarray, i: int) -> float:
    """Return where a line from value i to the next one is zero."""
    share = values_L[i] / (values_L[i] - values_L[i + 1])
    return float(units_L[i] + share * (units_L[i + 1] - units_L[i]))


def _first_sure(units: np.ndarray, sure: np.ndarray, before: float, unit_before: float) -> float:
    """Return where values, in the order given, first rise above zero; infinity if they do not."""
    above = np.flatnonzero(sure > 0)
    if not len(above):
        return math.inf
    i = above[0]
    unit, value = (unit_before, before) if i == 0 else (units[i - 1], sure[i - 1])
    if value >= 0:
        return float(unit)
    return float(unit + value / (value - sure[i]) * (units[i] - unit))

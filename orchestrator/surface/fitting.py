"""Fit a surface of P(stable) to the outcomes of scattered cells.

Letters of shapes: N known cells, D columns of a point, P fits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import minimize
from scipy.special import softmax

from orchestrator.surface.gaussian import Field, Layout, Mode, Shape, evidence_gradient, find_mode, matched
from orchestrator.surface.surface import JITTER, RESOLUTION, Fit, Jump, Surface

_MAX_ITERATIONS = 15  # of the fit of the field's shape
# The prior of a field's shape: medians and standard deviations of logarithms.
_LENGTH, _LENGTH_SD = 0.4, 0.6
_SPREAD, _PLAIN_SPREAD, _SPREAD_SD = 0.25, 3.0, 0.3
_STEEPNESS, _STEEPNESS_SD = 25.0, 1.3  # logits per axis
_MAX_STEEPNESS = 6.0  # logits per step of the resolution: nothing says how steep the edge between two cells is
_MIN_STEEPNESS = 2.0  # logits per axis
_ROUGHNESS, _ROUGHNESS_SD = 0.7, 0.5
_NUM_STEEPNESSES = 10
_LENGTH_STEPS = (-0.7, 0.0, 0.7)  # of the logarithms of the lengths across
_JUMP = 0.3  # the prior probability that the edge jumps somewhere
_MAX_GAPS = 64  # of an axis, that a jump may lie in
_LIKELY_PLACES = 6  # of a jump, that are tried with every steepness
_SCREENED = (20.0, 100.0)  # steepnesses by which these places are chosen
_NEGLIGIBLE = 0.004  # a weight


@dataclass(frozen=True, slots=True)
class _Cells:
    """The cells that a surface is fitted to."""

    points_ND: np.ndarray
    stable_N: np.ndarray
    trials_N: np.ndarray

    def lifted(self, jump: Jump) -> _Cells:
        return replace(self, points_ND=jump.lifted(self.points_ND))

    def prior(self, field: Field) -> tuple[np.ndarray, np.ndarray]:
        """Return the prior covariance of the cells and their mean."""
        kernel_NN = field.kernel(self.points_ND, self.points_ND)
        return kernel_NN + JITTER * np.eye(len(kernel_NN)), field.mean(self.points_ND)

    def mode(self, field: Field) -> Mode:
        return find_mode(*self.prior(field), self.stable_N, self.trials_N, np.zeros(len(self.points_ND)))

    def fit(self, field: Field, mode: Mode, jump: Jump | None = None) -> Fit:
        return Fit(field, self.points_ND, matched(mode, *self.prior(field), self.stable_N, self.trials_N), jump)


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A field that may be the true one, with the mode given the cells and the logarithm of its prior probability."""

    field: Field
    mode: Mode
    log_prior: float
    jump: Jump | None = None


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
    lengths = (_LENGTH,) * len(layout.numeric)
    points_ND, of_point_N = np.unique(points_ND, axis=0, return_inverse=True)
    stable_N, trials_N = (np.bincount(of_point_N.ravel(), x_N, len(points_ND)) for x_N in (stable_N, trials_N))
    cells = _Cells(points_ND, stable_N, trials_N)
    if layout.along is None or not has_one_edge:
        plain = _learned(
            Field(replace(layout, along=None), Shape(lengths, 1.0, _PLAIN_SPREAD, 0.0), 0), cells, math.inf
        )
        any_edges = Surface(layout, np.ones(1), (cells.fit(plain, cells.mode(plain)),))
        if layout.along is None or has_one_edge is False:
            return any_edges
    shape = Shape(lengths, _STEEPNESS, _SPREAD, _ROUGHNESS)
    prior = max((Field(layout, shape, sign) for sign in (-1, 1)), key=lambda field: cells.mode(field).evidence)
    candidates = [
        *_smooth(prior, cells, _MAX_STEEPNESS / resolution),
        *_jumping(prior, cells, _MAX_STEEPNESS / resolution),
    ]
    if not has_one_edge and max(one.mode.evidence for one in candidates) < any_edges.fits[0].mode.evidence:
        return any_edges
    weight_P = softmax([one.mode.evidence + one.log_prior for one in candidates])
    kept = np.flatnonzero(weight_P > _NEGLIGIBLE)
    fits = (candidates[i] for i in kept)
    return Surface(
        layout,
        weight_P[kept] / weight_P[kept].sum(),
        tuple((cells.lifted(one.jump) if one.jump else cells).fit(one.field, one.mode, one.jump) for one in fits),
    )


def _smooth(prior: Field, cells: _Cells, steepest: float) -> Iterator[_Candidate]:
    """Yield fields of edges without a jump: steepnesses and lengths across about the most probable lengths."""
    learned = _learned(prior, cells, steepest)
    is_across = np.array([column != prior.layout.along for column in prior.layout.numeric])
    steps = _LENGTH_STEPS if is_across.any() else (0.0,)
    for step in steps:
        lengths = np.array(learned.shape.lengths) * np.exp(step * is_across)
        for steepness in _steepnesses(steepest):
            shape = replace(learned.shape, lengths=tuple(lengths.tolist()), steepness=steepness)
            field = replace(learned, shape=shape)
            yield _Candidate(field, cells.mode(field), _log_prior(field, prior) + math.log((1 - _JUMP) / len(steps)))


def _jumping(prior: Field, cells: _Cells, steepest: float) -> Iterator[_Candidate]:
    """Yield fields of edges that jump, at the most probable places."""
    layout = prior.layout.with_category()
    places = [
        (Jump(column, float(place)), math.log(_JUMP * width / (len(prior.layout.numeric) - 1)))
        for column in prior.layout.numeric
        if column != prior.layout.along
        for place, width in _gaps(cells.points_ND[:, column])
    ]

    def candidate(jump: Jump, log_prior: float, steepness: float) -> _Candidate:
        field = replace(prior, shape=replace(prior.shape, steepness=steepness))
        jumping = replace(field, layout=layout)
        return _Candidate(jumping, cells.lifted(jump).mode(jumping), _log_prior(field, prior) + log_prior, jump)

    def screened(place: tuple[Jump, float]) -> float:
        tried = (candidate(*place, steepness) for steepness in _SCREENED if steepness <= steepest)
        return max((one.mode.evidence + one.log_prior for one in tried), default=0.0)

    for place in sorted(places, key=screened, reverse=True)[:_LIKELY_PLACES]:
        for steepness in _steepnesses(steepest):
            yield candidate(*place, steepness)


def _gaps(value_N: np.ndarray) -> list[tuple[float, float]]:
    """Return the middles and widths of gaps between neighbouring values, at most ``_MAX_GAPS``."""
    distinct = np.unique(value_N)
    if len(distinct) > _MAX_GAPS + 1:
        distinct = distinct[np.linspace(0, len(distinct) - 1, _MAX_GAPS + 1).astype(int)]
    return list(zip((distinct[1:] + distinct[:-1]) / 2, np.diff(distinct), strict=True))


def _steepnesses(steepest: float) -> list[float]:
    return np.geomspace(_MIN_STEEPNESS, steepest, _NUM_STEEPNESSES).tolist()


def _deviations(field: Field) -> np.ndarray:
    """Return the prior standard deviations of a field's ``logs``."""
    lengths = [_LENGTH_SD] * len(field.shape.lengths)
    return np.array([*lengths, _SPREAD_SD, _STEEPNESS_SD, _ROUGHNESS_SD])[: len(field.logs())]


def _log_prior(field: Field, prior: Field) -> float:
    z = (field.logs() - prior.logs()) / _deviations(prior)
    return -0.5 * float(z @ z)


def _learned(prior: Field, cells: _Cells, steepest: float) -> Field:
    """Return the field of the most probable shape given the counts, by the gradient of the evidence."""
    medians, deviations, steepness = prior.logs(), _deviations(prior), len(prior.shape.lengths) + 1
    lowest, highest = medians - 3 * deviations, medians + 3 * deviations
    if prior.layout.along is not None:
        highest[steepness] = math.log(steepest)
    weight_N = np.zeros(len(cells.points_ND))

    def loss(logs: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal weight_N
        field = prior.with_logs(logs)
        kernel_NN, derivatives = field.kernel_with_derivatives(cells.points_ND)
        kernel_NN.flat[:: len(kernel_NN) + 1] += JITTER
        mean_N = field.mean(cells.points_ND)
        mode = find_mode(kernel_NN, mean_N, cells.stable_N, cells.trials_N, weight_N)
        weight_N = mode.weight_N
        changes = [(derivative, mean_N if i == steepness else None) for i, derivative in enumerate(derivatives)]
        gradient = evidence_gradient(mode, kernel_NN, cells.stable_N, cells.trials_N, changes)
        z = (logs - medians) / deviations
        return 0.5 * float(z @ z) - mode.evidence, z / deviations - gradient

    bounds = list(zip(lowest, highest, strict=True))
    fitted = minimize(loss, medians, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": _MAX_ITERATIONS})
    return prior.with_logs(fitted.x)

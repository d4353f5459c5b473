"""A surface of P(stable) over the unit cube of one to four axes, fitted to the outcomes of scattered cells.

Letters of shapes: N known cells, M points, R rows, L places along a row, D columns of a point.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit, logit

from orchestrator.surface.kernel import Field, Layout, Shape
from orchestrator.surface.laplace import Mode, evidence_gradient, find_mode
from orchestrator.surface.moments import matched

CONFIDENCE = 1.96  # standard deviations about the mean that hold 95 % of a normal distribution
RESOLUTION = 1 / 32  # smallest distance along the searched axis that a fit resolves, as a part of the axis
_JITTER = 1e-6
_MOST_FITS = 15  # iterations of the search for the field's shape
# The prior of a field's shape: medians and standard deviations of logarithms.
_LENGTH, _LENGTH_SD = 0.35, 0.4
_PLACE_LENGTH, _PLACE_LENGTH_SD, _SHORTEST_PLACE_LENGTH = 0.18, 0.9, 0.15
_SPREAD, _PLAIN_SPREAD, _SPREAD_SD = 0.25, 3.0, 0.3
_STEEPNESS, _STEEPNESS_SD = 1.3, 0.7  # logits for each step of the resolution
_STEEPEST = 6.0  # where a stable cell has an unstable neighbour, nothing says how steep the edge is between them
_ROUGHNESS, _ROUGHNESS_SD = 1.0, 0.5
_MIDDLE = 0.5  # of the axis
_SHARP = 3.0  # logits for each step of the resolution
_STRONG = 3.0  # of a difference in log evidence: twenty times as probable


@dataclass(frozen=True, slots=True)
class Latent:
    """The posterior of the logit of P(stable) at M points: means and standard deviations, (M,).

    ``lifted_MD`` and ``explained_NM`` are what ``Surface.covariance`` needs of the points.
    """

    mean_M: np.ndarray
    sd_M: np.ndarray
    lifted_MD: np.ndarray
    explained_NM: np.ndarray

    def probability(self) -> np.ndarray:
        """P(stable), averaged over what the latent value may be (MacKay's approximation), (M,)."""
        return expit(self.mean_M / np.sqrt(1 + math.pi / 8 * self.sd_M**2))

    def at(self, index_T: np.ndarray) -> Latent:
        """The posterior at some of the points."""
        return Latent(self.mean_M[index_T], self.sd_M[index_T], self.lifted_MD[index_T], self.explained_NM[:, index_T])


@dataclass(frozen=True, slots=True)
class Crossing:
    """Where a row crosses the level: its place in [0, 1] of the axis along, and the ends of an interval of 95 %.

    An end is infinite where the interval reaches the end of the row. ``at`` is None where the mean does not cross the
    level but may: the whole interval is in doubt. ``rises`` says whether stability rises along the axis there.
    """

    at: float | None
    low: float
    high: float
    rises: bool


@dataclass(frozen=True, slots=True)
class _Fit:
    """A field, the cells it has seen, and its mode."""

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

    With an axis along, a first fit says about where the edge is, and its place is one more coordinate of the second:
    cells beside each other whose edges lie far apart tell little of each other, so an edge may jump. In a row beside a
    jump the first fit has it halfway, and the second closer to where it is: the places of the second are the coordinate
    of a third, if the edge is sharp and the evidence for that is strong. Otherwise it would follow the places' noise.
    ``_ahead`` are the fits that give the places; there are none where a row may have more than one edge.
    """

    layout: Layout
    _ahead: tuple[_Fit, ...]
    _last: _Fit

    @property
    def field(self) -> Field:
        """The field that was fitted; its last length is that of the edge's place, if there is an axis along."""
        return self._last.field

    @property
    def has_one_edge(self) -> bool:
        """Whether each row has one edge along the axis; rows may have more where it is False."""
        return bool(self._ahead)

    @property
    def evidence(self) -> float:
        """The logarithm of the marginal likelihood, approximately."""
        return self._last.mode.evidence

    def latent(self, points_MD: np.ndarray) -> Latent:
        """The posterior at points."""
        return self._last.latent(self._lifted(points_MD))

    def covariance(self, some: Latent, others: Latent) -> np.ndarray:
        """The posterior covariance of points with others, (M, M)."""
        prior = self.field.kernel(some.lifted_MD, others.lifted_MD)
        return prior - some.explained_NM.T @ others.explained_NM

    def crossings(self, rows_RD: np.ndarray, places_L: np.ndarray, level: float = 0.5) -> list[tuple[Crossing, ...]]:
        """The edges of each row, where P(stable) crosses ``level``, in order along the axis.

        ``rows_RD`` are points whose column along is ignored; ``places_L`` are ascending places between which the
        posterior is taken as linear. Raises ValueError without an axis along.
        """
        if self.layout.along is None:
            raise ValueError("the surface has no axis along which an edge is looked for")
        points_MD = np.repeat(rows_RD, len(places_L), axis=0)
        points_MD[:, self.layout.along] = np.tile(places_L, len(rows_RD))
        latent = self.latent(points_MD)
        mean_RL = latent.mean_M.reshape(len(rows_RD), -1) - logit(level)
        sd_RL = latent.sd_M.reshape(len(rows_RD), -1)
        return [_crossings(places_L, mean_L, sd_L) for mean_L, sd_L in zip(mean_RL, sd_RL, strict=True)]

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
    """The surface given ``stable_N`` stable ones of ``trials_N`` trials at each of N >= 0 points.

    ``resolution`` is the smallest distance along the axis that the fit resolves: no edge is assumed to be steeper.
    ``has_one_edge`` says whether each row along the axis has one edge, or may have more; None where the evidence of the
    cells decides, which must not have been chosen for lying at an edge.
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
    ways = [Field(layout, shape, sign) for sign in (-1, 1)]
    first = _fitted(
        max(ways, key=lambda way: _mode(way, points_ND, stable_N, trials_N).evidence), points_ND, stable_N, trials_N
    )
    shape = replace(shape, lengths=(*shape.lengths, _PLACE_LENGTH))
    field = Field(layout.with_place(), shape, first.field.sign)
    second = _learned(field, _lifted((first,), points_ND), stable_N, trials_N, _STEEPEST / resolution)
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
    """The covariance of points and their mean."""
    return field.kernel(points_ND, points_ND) + _JITTER * np.eye(len(points_ND)), field.mean(points_ND)


def _learned(prior: Field, points_ND: np.ndarray, stable_N: np.ndarray, trials_N: np.ndarray, steepest: float) -> _Fit:
    """The field of the shape that is most probable given the counts, by the gradient of the evidence."""
    medians = prior.logs()
    num = len(prior.shape.lengths)
    deviations = np.array([_LENGTH_SD] * num + [_SPREAD_SD, _STEEPNESS_SD, _ROUGHNESS_SD])[: len(medians)]
    if prior.layout.along is not None:
        deviations[num - 1] = _PLACE_LENGTH_SD
    lowest, highest = medians - 3 * deviations, medians + 3 * deviations
    if prior.layout.along is not None:
        highest[num + 1] = math.log(steepest)
        # With shorter ones, rows of a steep edge tell nothing of each other, and the evidence cannot exclude that.
        lowest[num - 1] = math.log(_SHORTEST_PLACE_LENGTH)
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
        off = (logs - medians) / deviations
        return 0.5 * float(off @ off) - mode.evidence, off / deviations - gradient

    bounds = list(zip(lowest, highest, strict=True))
    found = minimize(loss, medians, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": _MOST_FITS})
    return _fitted(prior.with_logs(found.x), points_ND, stable_N, trials_N)


def _lifted(ahead: tuple[_Fit, ...], points_MD: np.ndarray) -> np.ndarray:
    """Points and the place of the edge in their rows: by the first fit, and by each next one given that before it."""
    along = ahead[0].field.layout.along
    rows_MD = np.column_stack([points_MD, np.full(len(points_MD), _MIDDLE)])
    rows_MD[:, along] = 0.0
    rows_RD, of_row_M = np.unique(rows_MD, axis=0, return_inverse=True)
    for fit in ahead:
        rows_RD[:, -1] = _places(fit, rows_RD[:, : len(fit.field.layout.is_categorical)], rows_RD[:, -1])
    return np.column_stack([points_MD, rows_RD[:, -1][of_row_M.ravel()]])


def _places(fit: _Fit, rows_RD: np.ndarray, start_R: np.ndarray) -> np.ndarray:
    """Where a fit has the edge of each row, (R,): from ``start_R`` its steepness leads there in three steps."""
    field, place_R, rows_RD = fit.field, start_R, rows_RD.copy()
    for _ in range(3):
        rows_RD[:, field.layout.along] = place_R
        mean_R = field.mean(rows_RD) + field.kernel(fit.points_ND, rows_RD).T @ fit.mode.weight_N
        place_R = np.clip(place_R - mean_R / (field.sign * field.shape.steepness), -0.2, 1.2)
    return place_R


def _crossings(places_L: np.ndarray, mean_L: np.ndarray, sd_L: np.ndarray) -> tuple[Crossing, ...]:
    """The crossings of one row, whose latent values are relative to the level."""
    changes = np.flatnonzero((mean_L[:-1] > 0) != (mean_L[1:] > 0))
    found = []
    for i in changes:
        side = 1.0 if mean_L[i + 1] > 0 else -1.0
        sure_after_L = side * mean_L - CONFIDENCE * sd_L  # above zero: surely beyond this crossing
        sure_before_L = -side * mean_L - CONFIDENCE * sd_L
        found.append(
            Crossing(
                _between(places_L, mean_L, int(i)),
                -_first_sure(-places_L[i::-1], sure_before_L[i::-1], sure_before_L[i + 1], -places_L[i + 1]),
                _first_sure(places_L[i + 1 :], sure_after_L[i + 1 :], sure_after_L[i], places_L[i]),
                side > 0,
            )
        )
    return tuple(found) or _doubts(places_L, mean_L, sd_L)


def _doubts(places_L: np.ndarray, mean_L: np.ndarray, sd_L: np.ndarray) -> tuple[Crossing, ...]:
    """The stretch of a row without a crossing in which there may be one."""
    doubtful = np.flatnonzero(np.abs(mean_L) < CONFIDENCE * sd_L)
    if not len(doubtful):
        return ()
    first, last = doubtful[0], doubtful[-1]
    low = -math.inf if first == 0 else float(places_L[first - 1])
    high = math.inf if last == len(places_L) - 1 else float(places_L[last + 1])
    return (Crossing(None, low, high, bool(mean_L[last] > mean_L[first])),)


def _between(places_L: np.ndarray, values_L: np.ndarray, i: int) -> float:
    """Where a line from value i to the next is zero."""
    share = values_L[i] / (values_L[i] - values_L[i + 1])
    return float(places_L[i] + share * (places_L[i + 1] - places_L[i]))


def _first_sure(places: np.ndarray, sure: np.ndarray, before: float, place_before: float) -> float:
    """The first place, in the order given, from which on a value is above zero; infinite where there is none."""
    above = np.flatnonzero(sure > 0)
    if not len(above):
        return math.inf
    i = above[0]
    place, value = (place_before, before) if i == 0 else (places[i - 1], sure[i - 1])
    if value >= 0:
        return float(place)
    return float(place + value / (value - sure[i]) * (places[i] - place))

"""Fit a surface of P(stable) to the outcomes of scattered cells.

Letters of shapes: N known cells, K that express the others, D columns of a point, P fits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from typing import Generic, TypeVar

import numpy as np
from scipy.linalg import cholesky, solve_triangular
from scipy.optimize import minimize
from scipy.special import softmax

from orchestrator.surface.gaussian import Correlations, Field, Layout, Shape, one_thread
from orchestrator.surface.posterior import Counts, Mode, blocks, evidence_gradient, find_mode, matched
from orchestrator.surface.surface import JITTER, RESOLUTION, Fit, Jump, Surface

_MAX_ITERATIONS = 15  # of the fit of the field's shape
# The prior of a field's shape: medians and standard deviations of logarithms.
_LENGTH, _LENGTH_SD = 0.4, 0.6
_SPREAD, _PLAIN_SPREAD, _SPREAD_SD = 0.25, 3.0, 0.3
_STEEPNESS, _STEEPNESS_SD = 12.0, 1.3  # logits per axis; a steeper median covers wide transitions too seldom
_MAX_STEEPNESS = 6.0  # logits per step of the resolution: nothing says how steep the edge between two cells is
_MIN_STEEPNESS = 1.0  # logits per axis
_ROUGHNESS, _ROUGHNESS_SD = 0.7, 0.5
_NUM_STEEPNESSES = 11
_LENGTH_STEPS = (-0.7, 0.0, 0.7)  # of the logarithms of the lengths across
_JUMP = 0.3  # the prior probability that the edge jumps somewhere
_MAX_GAPS = 64  # of an axis, that a jump may lie in
_LIKELY_PLACES = 6  # of a jump, that are tried with every steepness
_SCREENED = (20.0, 100.0)  # steepnesses by which these places are chosen
_NEGLIGIBLE = 0.004  # a weight
_TIE = 1e-6  # of evidence: cells that are all unstable say nothing of the direction
_MOST_EXACT = 256  # cells by which the latent values of all are expressed
_HOPELESS = 12.0  # a logarithm of weights: less likely by a part of many cells than the likeliest
_MORE = 4  # times as many cells in each round of judging
_RELATIVE_JITTER = 1e-10  # of a variance

# Distinct points of cells, each with its stable and all judged trials.
Outcomes = tuple[tuple[tuple[float, ...], int, int], ...]


_T = TypeVar("_T")


class _Latest(Generic[_T]):
    """Keeps what was made last, which is often wanted again at once."""

    def __init__(self) -> None:
        self._key: Hashable = None
        self._value: _T | None = None

    def get(self, key: Hashable, make: Callable[[], _T]) -> _T:
        """Return what ``make`` made for this ``key``."""
        if self._value is None or key != self._key:
            self._value = None  # it may be large
            self._key, self._value = key, make()
        return self._value


@dataclass(frozen=True, slots=True)
class _Cells:
    """The cells that a surface is fitted to, N, and the K cells that express its latent values."""

    points_ND: np.ndarray
    counts: Counts
    points_KD: np.ndarray
    latest: _Latest[_Cells] = dataclass_field(default_factory=_Latest, init=False)  # lifted
    latest_own: _Latest[Correlations] = dataclass_field(default_factory=_Latest, init=False)
    latest_cross: _Latest[Correlations] = dataclass_field(default_factory=_Latest, init=False)

    @classmethod
    def of(cls, points_ND: np.ndarray, stable_N: np.ndarray, trials_N: np.ndarray) -> _Cells:
        """Add up the counts of equal points. Of many, ``_MOST_EXACT`` drawn at random express the others."""
        points_ND, of_point_N = np.unique(points_ND, axis=0, return_inverse=True)
        stable_N, trials_N = (np.bincount(of_point_N.ravel(), x_N, len(points_ND)) for x_N in (stable_N, trials_N))
        drawn = np.sort(np.random.default_rng(0).permutation(len(points_ND))[:_MOST_EXACT])
        return cls(points_ND, Counts(stable_N, trials_N), points_ND[drawn])

    def few(self) -> _Cells:
        """The cells that express the others, alone."""
        if len(self.points_KD) == len(self.points_ND):
            return self
        is_kept_N = (self.points_ND[:, None] == self.points_KD).all(axis=2).any(axis=1)
        return self._where(is_kept_N)

    def growing(self) -> Iterator[_Cells]:
        """Yield more and more cells, drawn at random: first ``_MORE`` times as many as ``few``, in the end all.

        A round with more than half of the cells costs what all cost, and is left out.
        """
        order = np.random.default_rng(1).permutation(len(self.points_ND))
        num = _MORE * len(self.points_KD)
        while 2 * num < len(self.points_ND):
            yield self._where(np.sort(order[:num]))
            num *= _MORE
        yield self

    def _where(self, kept_N: np.ndarray) -> _Cells:
        counts = Counts(self.counts.stable_N[kept_N], self.counts.trials_N[kept_N])
        return _Cells(self.points_ND[kept_N], counts, self.points_KD)

    def lifted(self, jump: Jump | None) -> _Cells:
        if jump is None:
            return self
        return self.latest.get(
            jump, lambda: _Cells(jump.lifted(self.points_ND), self.counts, jump.lifted(self.points_KD))
        )

    def prior(self, field: Field) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the basis of the latent values, their prior mean, and the factor that whitens the basis."""
        factor_KK = _factor(field.kernel_of(self._correlations(field, slice(None), self.points_KD)))
        if len(self.points_KD) == len(self.points_ND):
            return factor_KK, field.mean(self.points_ND), factor_KK
        basis_NK = np.empty((len(self.points_ND), len(self.points_KD)))
        for part in blocks(len(self.points_ND)):
            cross_KN = field.kernel_of(self._correlations(field, part, self.points_ND))
            basis_NK[part] = solve_triangular(factor_KK, cross_KN, lower=True, check_finite=False).T
        return basis_NK, field.mean(self.points_ND), factor_KK

    def _correlations(self, field: Field, part: slice, points_ND: np.ndarray) -> Correlations:
        """Return correlations of the K cells with a ``part`` of all; many fields in a row have the same."""
        latest = self.latest_own if points_ND is self.points_KD else self.latest_cross
        key = (field.layout, field.shape.lengths, part.start)
        return latest.get(key, lambda: field.correlations(self.points_KD, points_ND[part]))

    def mode(self, field: Field, start_K: np.ndarray | None = None) -> Mode:
        basis_NK, mean_N, _ = self.prior(field)
        return find_mode(basis_NK, mean_N, self.counts, np.zeros(basis_NK.shape[1]) if start_K is None else start_K)


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A field that may be the true one, with its mode given some cells and the logarithm of its prior probability."""

    field: Field
    mode: Mode
    log_prior: float
    jump: Jump | None = None

    @classmethod
    def among(
        cls, cells: _Cells, field: Field, log_prior: float, alike: dict[float, _Candidate], jump: Jump | None = None
    ) -> _Candidate:
        """The candidate given cells, kept by its steepness in ``alike``, whose modes are near each other."""
        steepness = field.shape.steepness
        nearest = min(alike, key=lambda other: abs(math.log(other / steepness)), default=None)
        start_K = None if nearest is None else alike[nearest].mode.coefficient_K
        alike[steepness] = cls(field, cells.lifted(jump).mode(field, start_K), log_prior, jump)
        return alike[steepness]

    @property
    def evidence(self) -> float:
        return self.mode.evidence

    @property
    def log_weight(self) -> float:
        return self.evidence + self.log_prior

    def given(self, cells: _Cells) -> _Candidate:
        """The candidate given other cells, whose values the same cells express."""
        return replace(self, mode=cells.lifted(self.jump).mode(self.field, self.mode.coefficient_K))

    def fit(self, cells: _Cells) -> Fit:
        return _fit(cells.lifted(self.jump), self.field, self.jump, self.mode.coefficient_K)


def _fit(lifted: _Cells, field: Field, jump: Jump | None, start_K: np.ndarray) -> Fit:
    """Fit a field to cells that are lifted by its jump; the search for its mode begins at ``start_K``."""
    basis_NK, mean_N, factor_KK = lifted.prior(field)
    mode = find_mode(basis_NK, mean_N, lifted.counts, start_K)
    posterior = matched(mode, basis_NK, mean_N, lifted.counts)
    whitening_KK = solve_triangular(factor_KK, np.eye(len(factor_KK)), lower=True, check_finite=False)
    weight_K = whitening_KK.T @ posterior.coefficient_K
    return Fit(field, lifted.points_KD, weight_K, posterior.explained() @ whitening_KK, jump)


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
    the cells must not have been chosen for lying at an edge. Which of the fits are likely is first judged by a few of
    many cells, then by more and more.
    """
    cells = _Cells.of(points_ND, stable_N, trials_N)
    with one_thread():
        return _fitted(cells, layout, resolution, has_one_edge)


def refitted(surface: Surface, points_ND: np.ndarray, stable_N: np.ndarray, trials_N: np.ndarray) -> Surface:
    """Fit the likeliest field of ``surface`` to other outcomes, without asking which fields these make likely."""
    cells, (best,) = _Cells.of(points_ND, stable_N, trials_N), surface.best.fits
    with one_thread():
        fit = _fit(cells.lifted(best.jump), best.field, best.jump, np.zeros(len(cells.points_KD)))
    return Surface(surface.layout, np.ones(1), (fit,))


def surface_of(outcomes: Outcomes, layout: Layout, resolution: float, has_one_edge: bool | None = None) -> Surface:
    """Return the fit to at least one cell; its arguments are hashable, so that a cache can keep it."""
    points_ND, stable_N, trials_N = map(np.array, zip(*outcomes, strict=True))
    return fit_surface(points_ND, stable_N.astype(float), trials_N.astype(float), layout, resolution, has_one_edge)


def _fitted(cells: _Cells, layout: Layout, resolution: float, has_one_edge: bool | None) -> Surface:
    lengths, few = (_LENGTH,) * len(layout.numeric), cells.few()
    if layout.along is None or not has_one_edge:
        prior = Field(replace(layout, along=None), Shape(lengths, 1.0, _PLAIN_SPREAD, 0.0), 0)
        learned = _learned(prior, few, math.inf)
        any_edges = _Candidate.among(few, learned, 0.0, {})
        if layout.along is None or has_one_edge is False:
            return Surface(layout, np.ones(1), (any_edges.fit(cells),))
    shape = Shape(lengths, _STEEPNESS, _SPREAD, _ROUGHNESS)
    falling, rising = (Field(layout, shape, sign) for sign in (-1, 1))
    prior = rising if few.mode(rising).evidence > few.mode(falling).evidence + _TIE else falling
    steepest = _MAX_STEEPNESS / resolution
    candidates = [*_smooth(prior, few, steepest), *_jumping(prior, few, steepest)]
    if not has_one_edge and max(one.evidence for one in candidates) < any_edges.evidence:
        return Surface(layout, np.ones(1), (any_edges.fit(cells),))
    if few is not cells:
        for more in cells.growing():
            least = max(one.log_weight for one in candidates) - _HOPELESS
            candidates = [one.given(more) for one in candidates if one.log_weight > least]
    weight_P = softmax([one.log_weight for one in candidates])
    kept = np.flatnonzero(weight_P > _NEGLIGIBLE)
    return Surface(layout, weight_P[kept] / weight_P[kept].sum(), tuple(candidates[i].fit(cells) for i in kept))


def _factor(kernel_KK: np.ndarray) -> np.ndarray:
    kernel_KK.flat[:: len(kernel_KK) + 1] += _jitter(kernel_KK)
    return cholesky(kernel_KK, lower=True, check_finite=False, overwrite_a=True)


def _jitter(kernel_KK: np.ndarray) -> float:
    """Return what is added to variances, so that rounding does not make them negative."""
    return JITTER + (_RELATIVE_JITTER * float(kernel_KK[0, 0]) if len(kernel_KK) else 0.0)


def _smooth(prior: Field, cells: _Cells, steepest: float) -> Iterator[_Candidate]:
    """Yield fields of edges without a jump: steepnesses and lengths across about the most probable lengths."""
    learned = _learned(prior, cells, steepest)
    is_across = np.array([column != prior.layout.along for column in prior.layout.numeric])
    steps = _LENGTH_STEPS if is_across.any() else (0.0,)
    alike: dict[float, _Candidate] = {}
    for step in steps:
        lengths = np.array(learned.shape.lengths) * np.exp(step * is_across)
        for steepness in _steepnesses(steepest):
            shape = replace(learned.shape, lengths=tuple(lengths.tolist()), steepness=steepness)
            field = replace(learned, shape=shape)
            log_prior = _log_prior(field, prior) + math.log((1 - _JUMP) / len(steps))
            yield _Candidate.among(cells, field, log_prior, alike)


def _jumping(prior: Field, cells: _Cells, steepest: float) -> Iterator[_Candidate]:
    """Yield fields of edges that jump, at the most probable places."""
    layout = prior.layout.with_category()
    places = [
        (Jump(column, float(place)), math.log(_JUMP * width / (len(prior.layout.numeric) - 1)))
        for column in prior.layout.numeric
        if column != prior.layout.along
        for place, width in _gaps(cells.points_ND[:, column])
    ]

    alike: dict[float, _Candidate] = {}

    def candidate(jump: Jump, log_prior: float, steepness: float) -> _Candidate:
        field = replace(prior, shape=replace(prior.shape, steepness=steepness))
        log_prior += _log_prior(field, prior)
        return _Candidate.among(cells, replace(field, layout=layout), log_prior, alike, jump)

    def screened(place: tuple[Jump, float]) -> float:
        tried = (candidate(*place, steepness) for steepness in _SCREENED if steepness <= steepest)
        return max((one.log_weight for one in tried), default=0.0)

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
    coefficient_K = np.zeros(len(cells.points_ND))

    def loss(logs: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal coefficient_K
        field = prior.with_logs(logs)
        kernel_NN, derivatives = field.kernel_with_derivatives(cells.points_ND)
        mean_N = field.mean(cells.points_ND)
        mode = find_mode(_factor(kernel_NN.copy()), mean_N, cells.counts, coefficient_K)
        coefficient_K = mode.coefficient_K
        changes = [(derivative, mean_N if i == steepness else None) for i, derivative in enumerate(derivatives)]
        gradient = evidence_gradient(mode, kernel_NN, cells.counts, changes)
        z = (logs - medians) / deviations
        return 0.5 * float(z @ z) - mode.evidence, z / deviations - gradient

    bounds = list(zip(lowest, highest, strict=True))
    fitted = minimize(loss, medians, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": _MAX_ITERATIONS})
    return prior.with_logs(fitted.x)

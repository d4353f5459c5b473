"""A law over sizes: log rate = constant + sum of exponents x log size + a random effect of each size.

Exponents may change with the sizes (bends, quadratic in log sizes) along axes where the target lies among the sizes.
Two axes that bend also bend together. Or one of them saturates, at a place that moves with the others; the evidence
weighs these forms.

Sizes that share values of some axes, as four batches at one width do, may share a part of the random effect: they are a
group. Otherwise many batches at two widths would count as many widths.

Time is a size, too: a run that left its trend at some step was stable to each earlier one. Its outcome at several steps
is one outcome, the interval between two of them, since the same run is no new evidence at each.

Axes of arrays: N runs, R sizes (rows), K size axes, G groups, B bends, D coefficients (the constant, the
exponents, bends, effects of groups), M points of a grid of log rates, J steps at which runs are judged, V distinct log
rates, H hypotheses, S draws from the posterior.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from scipy.special import log_expit, log_ndtr, logsumexp
from scipy.stats import halfnorm, norm

from orchestrator.maps.law_posterior import GRID_STEP, PROPOSALS, SEED, Posterior
from orchestrator.maps.saturation import Saturation, saturations
from orchestrator.maps.target import Target

# Priors, in natural logarithms. The theories of exponents are 0, -1/2 and -1; the mean is the one in the middle.
EXPONENT_MEAN, EXPONENT_SD = -0.5, 0.5
_CONSTANT_SD = 3.0
_BEND_SD = 0.1  # half of the change of an exponent over a factor of e in size
_TIME_BEND_SD = 0.05  # the same of the exponent of time, which one run after another shows
_TIME_NODES = 0.05  # spacing of the exponents of time that are tried
_BEND_NODES = np.array([-(3**0.5), 0.0, 3**0.5])  # Gauss and Hermite's places, and their shares
_BEND_SHARES = np.array([1 / 6, 2 / 3, 1 / 6])
_SCATTER_SCALE = 0.2  # of the random effect between sizes: half-normal
_WIDTH_MEDIAN, _WIDTH_SD = 0.1, 0.9  # of the transition from stable to unstable: log-normal
# Quantiles at which the two priors are evaluated, and the share of the prior that each stands for.
_QUANTILES = np.array([0.05, 0.2, 0.4, 0.6, 0.8, 0.925, 0.985])
_SHARES = np.array([0.1, 0.2, 0.2, 0.2, 0.175, 0.075, 0.05])
_NO_SCATTER = 1e-3  # of a law of one size, which is asked for that size only
_GRID_MARGIN = 4.0
_DRAWS = 4000
_SHARED = 0.5  # of the variance between sizes, where sizes make groups
_MOST_GROUPS = 12  # more are told apart well enough by single sizes
_UNLIKELY = 12.0  # log likelihood below the best one at which a hypothesis is not looked at
_LEAST_DROP = 1e-12  # of the edge between two steps, so that no outcome is impossible
_LOST = -600.0  # a log likelihood below it has no digits left once it is smoothed
LARGEST = 1e15  # size, and its inverse the smallest, so that no rate overflows


@dataclass(frozen=True, slots=True)
class Exponents:
    """The prior of the exponents: normal with these means and standard deviations, a small one for an assumption."""

    mean_K: np.ndarray
    sd_K: np.ndarray

    @classmethod
    def usual(cls, num: int) -> Exponents:
        """Return the prior of ``num`` axes about which nothing is assumed."""
        return cls(np.full(num, EXPONENT_MEAN), np.full(num, EXPONENT_SD))


@dataclass(frozen=True, slots=True)
class Law:
    """Draws from the posterior: coefficients, the scatter between sizes, and the width of the transition.

    ``origin_K`` are the log sizes at which the constant holds, ``bends`` the pairs of axes whose product counts. Of the
    ``saturations``, a draw has the one that ``saturation_S`` says, or none: -1.
    """

    origin_K: np.ndarray
    bends: tuple[tuple[int, int], ...]
    coefficient_SD: np.ndarray
    scatter_S: np.ndarray
    width_S: np.ndarray
    saturations: tuple[Saturation, ...]
    saturation_S: np.ndarray

    def at(self, size_K: np.ndarray, copies: int = 1) -> Target:
        """Return the edge at a new size, whose random effect nobody has seen: ``copies`` of it for each draw."""
        ahead_1K = size_K[None] - self.origin_K
        mean_S = self.coefficient_SD @ _features(ahead_1K, self.bends)[0]
        for saturation, has_S in self._saturating():
            mean_S[has_S] = self.coefficient_SD[has_S] @ _features(ahead_1K, self.bends, saturation)[0]
        mean_S = np.tile(mean_S, copies)
        scatter_S, width_S = np.tile(self.scatter_S, copies), np.tile(self.width_S, copies)
        return Target(mean_S + scatter_S * _standard_normals(len(mean_S)), width_S, np.ones(len(mean_S)))

    def interval(self, size_K: np.ndarray, level: float = 0.95) -> tuple[float, float, float]:
        """Return the median of the log rate at a new size, and the ends of its interval."""
        return self.at(size_K).interval(level)

    def exponent(self, axis: int, size_K: np.ndarray, level: float = 0.95) -> tuple[float, float, float]:
        """Return the median of an exponent at a size, and the ends of its interval."""
        tail = (1 - level) / 2
        ahead_K = size_K - self.origin_K
        bends = [(first == axis) * ahead_K[second] + (second == axis) * ahead_K[first] for first, second in self.bends]
        exponent_S = self.coefficient_SD @ np.array([0, *np.eye(len(size_K))[axis], *bends])
        for saturation, has_S in self._saturating():
            slope_K = np.eye(len(size_K))[axis]
            slope_K[saturation.axis] = saturation.across_K[axis] * (saturation.reached(ahead_K[None])[0] < 0)
            exponent_S[has_S] = self.coefficient_SD[has_S, : 1 + len(size_K)] @ np.array([0, *slope_K])
        at, low, high = np.quantile(exponent_S, [0.5, tail, 1 - tail])
        return float(at), float(low), float(high)

    def saturates_at(self, axis: int, size_K: np.ndarray, level: float = 0.95) -> tuple[float, float, float] | None:
        """Return the median and the interval of the log size at which an axis saturates, with the other sizes given.

        None unless a share ``level`` of the draws saturates along it, from a slope of one sign. The interval ends half
        way to the next places that were tried.
        """
        found = [(each, has_S) for each, has_S in self._saturating() if each.axis == axis]
        slope_S = np.concatenate([self.coefficient_SD[has_S, 1 + axis] for _, has_S in found] or [np.zeros(0)])
        if max((slope_S > 0).sum(), (slope_S < 0).sum()) < level * len(self.coefficient_SD):
            return None
        places = [size_K[axis] - (size_K - self.origin_K) @ each.across_K + each.place for each, _ in found]
        place_S = np.repeat(places, [has_S.sum() for _, has_S in found])
        tail, beyond = (1 - level) / 2, found[0][0].spacing / 2
        at, low, high = np.quantile(place_S, [0.5, tail, 1 - tail])
        return float(at), float(low - beyond), float(high + beyond)

    def _saturating(self) -> Iterator[tuple[Saturation, np.ndarray]]:
        """Yield each saturation that some draws have, and which."""
        for i in np.unique(self.saturation_S[self.saturation_S >= 0]):
            yield self.saturations[i], self.saturation_S == i


def fit_edges(
    size_NK: np.ndarray,
    log_rate_N: np.ndarray,
    unstable_N: np.ndarray,
    prior: Exponents | None = None,
    shared: Sequence[int] = (),
) -> Law:
    """Fit the law of the edge to single outcomes: a run is unstable with a logistic probability in log rate.

    A size without an edge on the axis says that its edge lies beyond (censored). Sizes with equal values of the axes
    ``shared`` are a group.
    """
    stable_N = (np.asarray(unstable_N) == 0).astype(int)
    return fit_edges_over_time(size_NK, log_rate_N, stable_N, None, prior, shared)


def fit_edges_over_time(
    size_NK: np.ndarray,
    log_rate_N: np.ndarray,
    num_stable_N: np.ndarray,
    log_step_J: np.ndarray | None,
    prior: Exponents | None = None,
    shared: Sequence[int] = (),
) -> Law:
    """Fit the law of the edge where steps are the last axis: ``num_stable_N`` of the J steps found a run stable.

    ``log_step_J`` ascend to what was trained, and ``size_NK`` has no column of steps; None without steps as a size. The
    edge goes as a power of steps, whose exponent may change, and a run meets it at one distance all its life.
    """
    num_axes = size_NK.shape[1]
    prior = prior or Exponents.usual(num_axes + (log_step_J is not None))
    size_RK, row_N = np.unique(np.column_stack([size_NK, np.zeros(len(size_NK))]), axis=0, return_inverse=True)
    size_RK = size_RK[:, :num_axes]
    grid_M = _grid(log_rate_N)
    num_steps = 1 if log_step_J is None else len(log_step_J)
    rate_V, place_N = np.unique(log_rate_N, return_inverse=True)
    count_RVJ = np.zeros((len(size_RK), len(rate_V), num_steps + 1))
    np.add.at(count_RVJ, (row_N.ravel(), place_N, num_stable_N), 1)
    hypotheses = []
    for width, share in zip(_WIDTH_MEDIAN * np.exp(_WIDTH_SD * norm.ppf(_QUANTILES)), _SHARES, strict=True):
        width = max(float(width), GRID_STEP)
        for coefficients, log_share, shift_J in _hypotheses_of_time(log_step_J, prior):
            distance_VMJ = (grid_M[:, None] + shift_J - rate_V[:, None, None]) / width
            log_VMJ = _log_p_of_last_stable(distance_VMJ)
            log_RM = np.einsum("rvj,vmj->rm", count_RVJ, log_VMJ)
            hypotheses.append(_Hypothesis(width, coefficients, log_share + float(np.log(share)), log_RM))
    reached = [each.log_share + float(each.log_RM.max(axis=1).sum()) for each in hypotheses]
    likely = [each for each, top in zip(hypotheses, reached, strict=True) if top > max(reached) - _UNLIKELY]
    of_sizes = Exponents(prior.mean_K[:num_axes], prior.sd_K[:num_axes])
    law = _fit(size_RK, grid_M, likely, of_sizes, shared, ())
    if log_step_J is None:
        return law
    origin_K = np.append(law.origin_K, log_step_J[-1])
    return replace(law, origin_K=origin_K, bends=(*law.bends, (num_axes, num_axes)))


def _hypotheses_of_time(
    log_step_J: np.ndarray | None, prior: Exponents
) -> Iterator[tuple[tuple[float, ...], float, np.ndarray]]:
    """Yield exponents of time with their bends, the log share of the prior, and how far the edge lies above the last.

    Without steps as a size there is one, which says nothing.
    """
    if log_step_J is None:
        yield (), 0.0, np.zeros(1)
        return
    mean, sd = prior.mean_K[-1], prior.sd_K[-1]
    exponents = mean + sd * np.linspace(-3, 3, 1 + 2 * round(3 * sd / _TIME_NODES))
    log_shares = -0.5 * ((exponents - mean) / sd) ** 2
    log_shares -= logsumexp(log_shares)
    ahead_J = log_step_J - log_step_J[-1]
    for exponent, log_share in zip(exponents, log_shares, strict=True):
        for bend, share in zip(_TIME_BEND_SD * _BEND_NODES, _BEND_SHARES, strict=True):
            shift_J = exponent * ahead_J + bend * ahead_J**2
            yield (float(exponent), float(bend)), float(log_share + np.log(share)), shift_J


def _log_p_of_last_stable(distance_VMJ: np.ndarray) -> np.ndarray:
    """Return the log of P(stable to j of the J steps and no more), j from 0 to J, along the last axis.

    ``distance_VMJ`` is how far the edge lies above the rate at each step, in widths of the transition.
    """
    left_VMJ = np.minimum.accumulate(distance_VMJ, axis=-1)
    log_stable_VMJ, log_lost_VMJ = log_expit(left_VMJ), log_expit(-left_VMJ)
    # expit(a) - expit(b) = expit(a) expit(-b) (1 - exp(b - a))
    drop_VMJ = np.maximum(-np.diff(left_VMJ, axis=-1), _LEAST_DROP)
    between_VMJ = log_stable_VMJ[..., :-1] + log_lost_VMJ[..., 1:] + np.log(-np.expm1(-drop_VMJ))
    return np.concatenate([log_lost_VMJ[..., :1], between_VMJ, log_stable_VMJ[..., -1:]], axis=-1)


def fit_centres(
    size_RK: np.ndarray,
    centre_R: np.ndarray,
    spread_R: np.ndarray,
    beyond_R: np.ndarray,
    prior: Exponents | None = None,
    shared: Sequence[int] = (),
    bent: Sequence[int] = (),
) -> Law:
    """Fit the law of a rate that is known up to a normal error ``spread_R``.

    Where ``beyond_R`` is +1 or -1 the rate is only known to be at least, or at most, the one given (censored). The
    exponents of the axes ``bent`` may change with size, or end where an axis saturates.
    """
    grid_M = _grid(centre_R)
    distance_RM = (grid_M - centre_R[:, None]) / spread_R[:, None]
    log_RM = np.where(beyond_R[:, None] == 0, -0.5 * distance_RM**2, log_ndtr(np.sign(beyond_R)[:, None] * distance_RM))
    prior = prior or Exponents.usual(size_RK.shape[1])
    return _fit(size_RK, grid_M, [_Hypothesis(1.0, (), 0.0, log_RM)], prior, shared, bent)


@dataclass(frozen=True, slots=True)
class _Hypothesis:
    """What is no coefficient of a size: the width of the transition and the coefficients of time.

    ``log_RM`` is the log likelihood of each row over its log rate.
    """

    width: float
    of_time: tuple[float, ...]
    log_share: float
    log_RM: np.ndarray


def prior_draw(size_RK: np.ndarray, draw: np.random.Generator) -> tuple[np.ndarray, float]:
    """Return log edges at some sizes by a law from the prior, and the width of its transition."""
    exponent_K = draw.normal(EXPONENT_MEAN, EXPONENT_SD, size_RK.shape[1])
    scatter = abs(draw.normal(0, _SCATTER_SCALE))
    edge_R = (size_RK - size_RK.mean(axis=0)) @ exponent_K + draw.normal(0, scatter, len(size_RK))
    return edge_R, float(np.exp(np.log(_WIDTH_MEDIAN) + _WIDTH_SD * draw.normal()))


def _fit(
    size_RK: np.ndarray,
    grid_M: np.ndarray,
    hypotheses: Sequence[_Hypothesis],
    prior: Exponents,
    shared: Sequence[int],
    bent: Sequence[int],
) -> Law:
    """Integrate over coefficients by importance sampling, for each scatter and each hypothesis.

    Without axes of sizes there is no scatter between them. Axes that may bend may saturate, too, which is a hypothesis
    for each place; then there are no others.
    """
    origin_K = size_RK.mean(axis=0)
    group_RG = _groups(size_RK[:, list(shared)])
    num_groups = group_RG.shape[1]
    bends = tuple(itertools.combinations_with_replacement(bent, 2))
    forms = tuple(saturations(size_RK - origin_K, bent))
    features_HRD = np.array([_features(size_RK - origin_K, bends, form) for form in (None, *forms)])
    design_HRD = np.concatenate([features_HRD, np.tile(group_RG, (len(features_HRD), 1, 1))], axis=2)
    bend_B = np.zeros(len(bends))
    mean_D = np.array([(grid_M[0] + grid_M[-1]) / 2, *prior.mean_K, *bend_B, *np.zeros(num_groups)])
    scatters, scatter_shares = halfnorm.ppf(_QUANTILES) * _SCATTER_SCALE, _SHARES
    if not size_RK.shape[1]:
        scatters, scatter_shares = np.array([_NO_SCATTER]), np.ones(1)
    own = 1 - _SHARED if num_groups else 1.0
    log_HRM = np.array([each.log_RM for each in hypotheses])
    top_HR1 = log_HRM.max(axis=2, keepdims=True)
    log_HRM -= top_HR1
    shape_HRM = np.exp(log_HRM)
    log_share_H = np.array([each.log_share for each in hypotheses])
    if forms:
        log_share_H = np.array([0.0, *np.full(len(forms), -np.log(len(forms)))])

    def posterior(scatter: float) -> Posterior:
        smooth_HRM = np.log(np.maximum(shape_HRM @ _kernel(grid_M, scatter * own**0.5), 1e-300))
        smooth_HRM = np.where(smooth_HRM < _LOST, log_HRM, smooth_HRM) + top_HR1
        sd_G = np.full(num_groups, scatter * _SHARED**0.5)
        precision_D = np.array([_CONSTANT_SD, *prior.sd_K, *(bend_B + _BEND_SD), *sd_G]) ** -2.0
        return Posterior(design_HRD, grid_M, smooth_HRM, mean_D, precision_D)

    mode_HD, kept_H = np.tile(mean_D, (len(log_share_H), 1)), np.arange(len(log_share_H))
    if forms:
        middle = posterior(scatters[len(scatters) // 2])
        mode_HD = middle.modes(mode_HD)
        evidence_H = logsumexp(middle.sample(mode_HD)[1], axis=1) + log_share_H
        kept_H = np.flatnonzero(evidence_H > evidence_H.max() - _UNLIKELY)
        mode_HD, log_share_H = mode_HD[kept_H], log_share_H[kept_H]
    samples, log_weights = [], []
    for scatter, share in zip(scatters, scatter_shares, strict=True):
        at_scatter = posterior(scatter).of(kept_H)
        mode_HD = at_scatter.modes(mode_HD)
        sample_HSD, log_weight_HS = at_scatter.sample(mode_HD)
        samples.append(sample_HSD)
        log_weights.append(log_weight_HS + log_share_H[:, None] + np.log(share))
    sample_SD = np.stack(samples, axis=1).reshape(-1, len(mean_D))
    log_weight_S = np.stack(log_weights, axis=1).ravel()
    weight_S = np.exp(log_weight_S - logsumexp(log_weight_S))
    chosen_S = np.searchsorted(np.cumsum(weight_S), (np.arange(_DRAWS) + 0.5) / _DRAWS * weight_S.sum())
    chosen_S = np.minimum(chosen_S, len(weight_S) - 1)
    place_S, scatter_S, _ = np.unravel_index(chosen_S, (len(kept_H), len(scatters), PROPOSALS))
    form_S, hypothesis_S = (kept_H[place_S], np.zeros_like(place_S)) if forms else (np.zeros_like(place_S), place_S)
    num_linear = 1 + size_RK.shape[1]
    of_time_S2 = np.array([each.of_time for each in hypotheses])[hypothesis_S]
    of_sizes_SD = sample_SD[chosen_S]
    return Law(
        origin_K,
        bends,
        np.column_stack(
            [
                of_sizes_SD[:, :num_linear],
                of_time_S2[:, :1],
                of_sizes_SD[:, num_linear : len(mean_D) - num_groups],
                of_time_S2[:, 1:],
            ]
        ),
        scatters[scatter_S],
        np.array([each.width for each in hypotheses])[hypothesis_S],
        forms,
        form_S - 1,
    )


def _features(
    size_RK: np.ndarray, bends: Sequence[tuple[int, int]], saturation: Saturation | None = None
) -> np.ndarray:
    """Return what the coefficients multiply: one, the log sizes, and unless an axis saturates their products."""
    products = [size_RK[:, i] * size_RK[:, j] for i, j in bends]
    if saturation is not None:
        reached_R = saturation.reached(size_RK)
        products = [np.zeros_like(reached_R) for _ in bends]
        size_RK = size_RK.copy()
        size_RK[:, saturation.axis] = reached_R
    return np.column_stack([np.ones(len(size_RK)), size_RK, *products])


def _groups(shared_RK: np.ndarray) -> np.ndarray:
    """Return which group each size is in, without columns where groups say nothing more than sizes."""
    if shared_RK.shape[1] == 0:
        return np.zeros((len(shared_RK), 0))
    groups, group_R = np.unique(shared_RK, axis=0, return_inverse=True)
    if len(groups) in (1, len(shared_RK)) or len(groups) > _MOST_GROUPS:
        return np.zeros((len(shared_RK), 0))
    return np.asarray(group_R.reshape(-1, 1) == np.arange(len(groups)), float)


def _grid(log_rate: np.ndarray) -> np.ndarray:
    low, high = float(log_rate.min()) - _GRID_MARGIN, float(log_rate.max()) + _GRID_MARGIN
    return low + GRID_STEP * np.arange(round((high - low) / GRID_STEP) + 1)


def _kernel(grid_M: np.ndarray, scatter: float) -> np.ndarray:
    """Smooths a function on the grid by a normal density. What it would take from beyond the grid is left out."""
    kernel_MM = np.exp(-0.5 * ((grid_M[:, None] - grid_M) / scatter) ** 2)
    return np.asarray(kernel_MM / kernel_MM.sum(axis=0))


@cache
def _standard_normals(num: int) -> np.ndarray:
    return np.random.default_rng(SEED).permutation(norm.ppf((np.arange(num) + 0.5) / num))

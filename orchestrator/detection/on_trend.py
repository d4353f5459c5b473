"""Losses on the trend of a run, judged many at a time: bit for bit what judging one after the other comes to.

Most losses of most runs neither leave their trend nor are high, and then little changes: the windows, the best level,
and how long ago the run was there. What they would change is computed as if all of them were such losses; those before
the first one that is not are taken.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from orchestrator.detection.config import StoppingConfig, falls_over_decades, rise_of
from orchestrator.detection.episodes import Episodes
from orchestrator.detection.noise import noise_ratio, noise_spread
from orchestrator.detection.trend import (
    DECADES,
    DECADES_RISE,
    LEAST_SHARE,
    LOCAL,
    MANY_DIGITS,
    RECENT,
    TINY,
    Progress,
    Trend,
    has_fallen_over_decades,
)
from orchestrator.detection.verdicts import LEARNED, RISEN_SHARE, Verdicts

# Shapes: N losses, M with those in a window before them.


class Run(NamedTuple):
    """What is known of one run."""

    trend: Trend
    progress: Progress
    episodes: Episodes
    verdicts: Verdicts


class _Levels(NamedTuple):
    """What was learned after each loss, (N,) each, and where the best level changes."""

    best_N: np.ndarray
    learned_N: np.ndarray
    late_N: np.ndarray
    half_way_N: np.ndarray
    changes: list[tuple[int, float]]


def may_stay(run: Run, num_seen: int) -> bool:
    """Return whether the next losses can be taken together: nothing is under way after ``num_seen`` losses."""
    return (
        run.episodes.current is None
        and not run.episodes.are_excursions_common
        and run.trend.is_full
        and run.progress.is_settled
        and run.verdicts.is_passive(num_seen)
    )


def take(run: Run, recent: list[float], loss_N: np.ndarray, step_N: np.ndarray, num_seen: int) -> int:
    """Take the losses before the first that leaves the trend or is high; return how many these are.

    The losses are finite and positive, ``recent`` are the last RECENT ones before them, of ``num_seen``.
    """
    trend, progress, episodes, verdicts = run
    window = trend.accepted.size
    accepted_M = np.concatenate([trend.accepted.values, loss_N])
    with np.errstate(all="ignore"):
        # The level before each loss, and after the last.
        local_N3 = _medians(accepted_M[window - LOCAL - 2 :], LOCAL)  # from two losses before
        level_N1 = np.minimum(local_N3[2:], _medians(accepted_M, window))
        levels = _levels(run, loss_N, _medians(accepted_M[window - RECENT + 1 :], RECENT))
        recent_N = _medians(np.concatenate([recent[1:], loss_N]), RECENT)
        is_low_N = (recent_N <= levels.half_way_N) & (recent_N <= progress.initial)
        is_high_N = ~(is_low_N | _have_nothing_to_lose(run, recent_N, levels.best_N))
        num = min(_first(is_high_N), _first_with_more_digits(trend, loss_N))
        residual_M = np.concatenate([trend.residuals, loss_N - level_N1[:-1]])
        num = _num_on_trend(run, accepted_M, residual_M, level_N1, levels.late_N, num)
        if not num:
            return 0
        for at, best in levels.changes:
            if at < num:
                progress.improve(best, accepted_M[at + 1 : at + 1 + window].tolist())
        episodes.falls.follow_all(accepted_M, local_N3, num, trend, progress, num_seen)
        trend.accept_all(accepted_M[num : num + window].tolist(), residual_M[num : num + window].tolist(), num)
        episodes.pass_over(num, num_seen + num)
        verdicts.pass_over(
            loss_N[:num], recent_N[:num], step_N[:num], levels.best_N[:num], levels.learned_N[:num],
            levels.half_way_N[:num], (~is_low_N & _have_risen(run, recent_N, levels.best_N))[:num],
        )  # fmt: skip
    return num


def _medians(values: np.ndarray, size: int) -> np.ndarray:
    """Return the median of each ``size`` successive numbers."""
    ordered = np.sort(sliding_window_view(values, size), axis=1)
    above = ordered[:, size // 2]
    if size % 2:
        return above
    below = ordered[:, size // 2 - 1]
    return np.where(below == above, below, below / 2 + above / 2)


def _levels(run: Run, loss_N: np.ndarray, level_N: np.ndarray) -> _Levels:
    """Return what was learned after each loss, at the ``level_N`` of the last accepted ones."""
    progress, verdicts = run.progress, run.verdicts
    best, changes = progress.best, []
    known = [(best, *progress.measured(best))]
    for at in np.flatnonzero((loss_N < best) & (level_N < best)).tolist():
        level = float(level_N[at])
        if loss_N[at] < best and level < best:
            best = level
            changes.append((at, best))
            known.append((best, *progress.measured(best)))
    rows = [(best, learned, late, verdicts.heights(best, low, learned, late)[2]) for best, low, learned, late in known]
    nums = np.diff([0, *(at for at, _ in changes), len(loss_N)])
    best_N, learned_N, late_N, half_way_N = np.repeat(np.array(rows), nums, axis=0).T
    return _Levels(best_N, learned_N, late_N, half_way_N, changes)


def _have_nothing_to_lose(run: Run, recent_N: np.ndarray, best_N: np.ndarray) -> np.ndarray:
    """Return where a run has learned too little to lose it, and is not far above its initial loss."""
    rules, initial = run.trend.rules, run.progress.initial
    has_learned_N = initial - np.minimum(best_N, initial) > LEARNED * abs(initial)
    is_near_N = recent_N <= initial + rules.lost_fraction * abs(initial)
    return ~has_learned_N & is_near_N & (best_N < np.inf) & (not falls_over_decades(rules))


def _have_risen(run: Run, recent_N: np.ndarray, best_N: np.ndarray) -> np.ndarray:
    """Return where a run has given up much of what it learned, as little as that may be."""
    start = run.progress.start
    share_N = np.where(best_N < start, (recent_N - best_N) / (start - best_N), 0.0)
    return (share_N > RISEN_SHARE) & (not run.verdicts.is_signed)


def _first(is_it_N: np.ndarray) -> int:
    """Return the index of the first true value, or the length."""
    at = int(is_it_N.argmax())
    return at if is_it_N[at] else len(is_it_N)


def _first_with_more_digits(trend: Trend, loss_N: np.ndarray) -> int:
    """Return the index of the first loss that is printed with more digits than all before, or the length."""
    if trend.digits >= MANY_DIGITS:
        return len(loss_N)
    scale = 10.0**trend.digits
    for at in np.flatnonzero(np.rint(loss_N * scale) / scale != loss_N).tolist():
        if round(float(loss_N[at]), trend.digits) != loss_N[at]:
            return at
    return len(loss_N)


def _num_on_trend(
    run: Run, accepted_M: np.ndarray, residual_M: np.ndarray, level_N1: np.ndarray, late_N: np.ndarray, most: int
) -> int:
    """Return how many of the first ``most`` losses come before one that leaves the trend.

    A loss below the smallest noticeable rise has not left it, however small the noise is: it is measured for others.
    """
    if not most:
        return 0
    trend, progress, rules = run.trend, run.progress, run.trend.rules
    window, level_N = trend.accepted.size, level_N1[:most]
    above_N = accepted_M[window : window + most] - level_N
    learned_N = np.append(progress.learned_late, late_N[: most - 1])
    least_N = np.maximum(_least_rises(level_N, learned_N, progress.top, rules), trend.least_noise())
    for at in np.flatnonzero(above_N > least_N).tolist():
        level, past = float(level_N[at]), slice(at, at + window)
        if has_fallen_over_decades(level, progress.top, rules):
            noise = noise_ratio(accepted_M[past].tolist(), rules) * level
        else:
            noise = noise_spread(residual_M[past].tolist(), rules)
        if above_N[at] > max(noise, least_N[at]):
            return at
    return most


def _least_rises(level_N: np.ndarray, learned_N: np.ndarray, top: float, rules: StoppingConfig) -> np.ndarray:
    """Return the smallest noticeable rises, as ``Trend.least_rise``."""
    share_N = np.full(len(level_N), rise_of(rules))
    if not falls_over_decades(rules):
        share_N[(level_N > 0) & (level_N < DECADES * top)] = DECADES_RISE
    return np.maximum(np.maximum(share_N * np.abs(level_N), LEAST_SHARE * learned_N), TINY)

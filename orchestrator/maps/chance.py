"""Whether two sweeps differ by more than their seeds: tests and intervals that take a seed as a whole."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import stdev
from typing import Any

import numpy as np

from orchestrator.base.intervals import CONFIDENCE, FEWEST_SEEDS
from orchestrator.base.space import Cell
from orchestrator.maps.edges import Interval

_MOST_PERMUTATIONS = 10_000  # all of them if they are no more


def tested(
    first: Mapping[int, float], new: Mapping[int, float], change: float, fits: float
) -> tuple[Interval | None, float | None, float | None, int, bool]:
    """The interval of a ``change``, its p-value, the least p that so many seeds can give, their number, if paired.

    A seed shifts all its trials together, so whole seeds are permuted: between the sweeps, or if they share seeds each
    seed's trials of one sweep for those of the other, which flips the sign of its change. What all seeds of a fit have
    in common is not permuted: the p-value is at least Student's with ``fits``, the standard error of both fits.
    """
    from scipy.stats import permutation_test, t

    shared = sorted(first.keys() & new.keys())
    data = [[new[seed] - first[seed] for seed in shared]] if shared else [[*new.values()], [*first.values()]]
    num, total = min(map(len, data)), sum(map(len, data))
    if num < 2:
        return None, None, None, num, bool(shared)
    kind = "samples" if shared else "independent"
    statistic: Any = np.mean if shared else lambda new, first, axis: np.mean(new, axis) - np.mean(first, axis)
    p_value = permutation_test(
        data, statistic, permutation_type=kind, vectorized=True, n_resamples=_MOST_PERMUTATIONS, rng=0
    ).pvalue
    error = math.hypot(fits, *(stdev(values) / len(values) ** 0.5 for values in data))
    freedom = total - len(data)
    if fits:
        p_value = max(p_value, 2 * t.sf(abs(change) / error, freedom))
    half = error * float(t.isf((1 - CONFIDENCE) / 2, freedom))
    interval = Interval(change, change - half, change + half) if num >= FEWEST_SEEDS and half else None
    least = 2.0 ** (1 - num) if shared else 2 / math.comb(total, num)
    return interval, float(p_value), least, num, bool(shared)


def by_seed(values: Mapping[tuple[Cell, int], float]) -> dict[int, float]:
    """The mean of the trials of each seed."""
    of_seed: dict[int, list[float]] = {}
    for (_, seed), value in values.items():
        of_seed.setdefault(seed, []).append(value)
    return {seed: sum(each) / len(each) for seed, each in of_seed.items()}

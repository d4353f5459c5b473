"""Confidence intervals of fractions and of means over seeds, and exact tests, of what answers show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist, mean, stdev

CONFIDENCE = 0.95
Z_SCORE = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)
FEWEST_SEEDS = 6  # that have an interval, and that can differ at 5 % if they are paired


def wilson(num_hits: float, num: float) -> tuple[float, float]:
    """Wilson's score interval of the share ``num_hits / num``, at ``CONFIDENCE``.

    ``num`` is at least 1; it need not be whole, as an effective number is not. The formula of E. B. Wilson, J. Am.
    Stat. Assoc. 22 (1927) 209. SciPy has it too, but its import takes more than a second at the end of every sweep.
    """
    share, squared = num_hits / num, Z_SCORE**2 / num
    middle = (share + squared / 2) / (1 + squared)
    half = math.sqrt(share * (1 - share) * squared + squared**2 / 4) / (1 + squared)
    # Rounding must not exclude the share itself.
    return max(0.0, min(share, middle - half)), min(1.0, max(share, middle + half))


def exact_interval(num_hits: int, num: int) -> tuple[float, float]:
    """The interval of Clopper and Pearson of the share ``num_hits / num``, at ``CONFIDENCE`` or above."""
    from scipy.special import betaincinv

    half = (1 - CONFIDENCE) / 2
    low = float(betaincinv(num_hits, num - num_hits + 1, half)) if num_hits else 0.0
    return low, float(betaincinv(num_hits + 1, num - num_hits, 1 - half)) if num_hits < num else 1.0


def fisher(num_hits: int, num: int, other_hits: int, other_num: int) -> float:
    """Fisher's exact p-value that a share of ``num_hits / num`` is higher than ``other_hits / other_num`` by chance."""
    all_hits = num_hits + other_hits
    more = range(num_hits, min(num, all_hits) + 1)
    ways = sum(math.comb(num, hits) * math.comb(other_num, all_hits - hits) for hits in more)
    return ways / math.comb(num + other_num, all_hits)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """The p-values corrected for their number (S. Holm, Scand. J. Stat. 6 (1979) 65); None stays."""
    known = sorted((p_value, i) for i, p_value in enumerate(p_values) if p_value is not None)
    corrected, highest = list(p_values), 0.0
    for rank, (p_value, i) in enumerate(known):
        corrected[i] = highest = max(highest, min(1.0, p_value * (len(known) - rank)))
    return corrected


def mean_interval(values: Sequence[float], deviation: float = 0.0) -> tuple[float, float] | None:
    """Student's interval of the mean of one number for each seed; None for too few, and if none differs.

    ``deviation`` is the standard error of what all seeds have in common.
    """
    if len(values) < FEWEST_SEEDS or max(values) == min(values):
        return None
    from scipy.special import stdtrit

    half = float(stdtrit(len(values) - 1, 0.5 + CONFIDENCE / 2)) * math.hypot(
        stdev(values) / len(values) ** 0.5, deviation
    )
    return mean(values) - half, mean(values) + half


def share_interval(counts: Sequence[tuple[int, int]]) -> tuple[float, float] | None:
    """The interval of a share of runs, as ``mean_interval``, from the (hits, runs) of each seed."""
    hits, num = map(sum, zip(*counts, strict=True))
    share, per_seed = hits / num, num / len(counts)
    ends = mean_interval([share + (of_seed - share * runs) / per_seed for of_seed, runs in counts])
    return None if ends is None else (max(0.0, ends[0]), min(1.0, ends[1]))

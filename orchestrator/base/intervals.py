"""Confidence intervals of what maps, audits and comparisons show: of fractions, and of medians."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

CONFIDENCE = 0.95
Z_SCORE = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)


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


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The narrowest interval between two of ``values`` that has their population's median at ``CONFIDENCE``.

    The k-th smallest and the k-th largest: the sign test turned round, for values that are independent and of any
    distribution. It is not narrower than it says and takes no random numbers. None for fewer than six values, whose
    whole range has the median less often.
    """
    from scipy.stats import binom

    rank = int(binom.ppf((1 - CONFIDENCE) / 2, len(values), 0.5)) if len(values) else 0
    if rank == 0:
        return None
    in_order = sorted(values)
    return in_order[rank - 1], in_order[-rank]

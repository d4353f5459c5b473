"""Confidence intervals of the fractions that maps, audits and comparisons show."""

from __future__ import annotations

import math
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

"""The edge at one size, as draws with weights: what a law says of it, and what runs there add.

Axes of arrays: S draws, N runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from scipy.special import expit, log_expit


@dataclass(frozen=True, slots=True)
class Target:
    """Draws of the log edge at a size and of the width of the transition there; weights need not add up to one."""

    log_edge_S: np.ndarray = field(repr=False)
    width_S: np.ndarray = field(repr=False)
    weight_S: np.ndarray = field(repr=False)

    def interval(self, level: float = 0.95) -> tuple[float, float, float]:
        """Return the median of the log edge, and the ends of its interval."""
        tail = (1 - level) / 2
        return self.quantile(0.5), self.quantile(tail), self.quantile(1 - tail)

    def quantile(self, share: float) -> float:
        """Return the log rate below which the edge lies with this probability."""
        return float(np.quantile(self.log_edge_S, share, weights=self.weight_S, method="inverted_cdf"))

    def p_stable(self, log_rate: float) -> float:
        """Return the probability that a run is stable at this rate."""
        return float(np.average(expit((self.log_edge_S - log_rate) / self.width_S), weights=self.weight_S))

    def p_stable_interval(self, log_rate: float, level: float = 0.95) -> tuple[float, float]:
        """Return the ends of its interval: how much of the doubt is about the edge, and not about one run."""
        tail = (1 - level) / 2
        share_S = expit((self.log_edge_S - log_rate) / self.width_S)
        low, high = np.quantile(share_S, [tail, 1 - tail], weights=self.weight_S, method="inverted_cdf")
        return float(low), float(high)

    def after(self, log_rates: Sequence[float], unstable: Sequence[bool]) -> Target:
        """Return the target once runs there ended: the law is the prior, their outcomes are the evidence."""
        sign_N = np.where(unstable, 1.0, -1.0)
        distance_NS = (np.array(log_rates)[:, None] - self.log_edge_S) / self.width_S
        log_likelihood_S = log_expit(sign_N[:, None] * distance_NS).sum(axis=0)
        return replace(self, weight_S=self.weight_S * np.exp(log_likelihood_S - log_likelihood_S.max()))

    def support(self) -> float:
        """Return the share of the draws that explain the outcomes about as well as the best."""
        return float(self.weight_S.mean() / self.weight_S.max())

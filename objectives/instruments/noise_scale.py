"""The gradient noise scale: how many sequences a batch needs before another one adds little.

A gradient of b sequences is the true one, G, and noise of covariance Sigma / b, so that E|g_b|^2 = |G|^2 +
tr(Sigma) / b. The squared norms of the gradients of m and of n > m sequences therefore give unbiased estimates

    |G|^2      = (n |g_n|^2 - m |g_m|^2) / (n - m)
    tr(Sigma)  = (|g_m|^2 - |g_n|^2) / (1 / m - 1 / n)

whose quotient B = tr(Sigma) / |G|^2 is the simple noise scale of McCandlish et al. (arXiv 1812.06162, appendix A.1). A
quotient of noisy numbers is biased: both are averaged over steps before it is taken. With micro-batches of m
sequences in a batch of n, |g_m|^2 is the mean over the micro-batches, and all of it costs a norm of each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

# Shapes: K members.

DECAY = 0.99  # of the averages, per step: they are of the last hundred


class NoiseScale:
    """Averages of K members; what is to be remembered of each is in ``memory``, (K,) each, and changed in place."""

    # Exponential averages of |G|^2 and tr(Sigma) that start at zero; the bias of both is one factor and divides out.
    MEMORY = ("squared_gradient", "gradient_variance")

    def __init__(self, memory: Mapping[str, torch.Tensor], decay: float = DECAY) -> None:
        self._squared_gradient_K, self._variance_K = (memory[name] for name in self.MEMORY)
        self._decay = decay

    def update(self, square_of_pieces_K: torch.Tensor, square_K: torch.Tensor, piece_size: int, size: int) -> None:
        """Take in a step: mean |g_m|^2 of the pieces of ``piece_size`` = m, and |g_n|^2 of all n = ``size`` > m.

        A member with a number that is not finite keeps its averages.
        """
        estimates = (
            (size * square_K - piece_size * square_of_pieces_K) / (size - piece_size),
            (square_of_pieces_K - square_K) / (1 / piece_size - 1 / size),
        )
        is_finite_K = torch.isfinite(estimates[0]) & torch.isfinite(estimates[1])
        for average_K, estimate_K in zip((self._squared_gradient_K, self._variance_K), estimates, strict=True):
            average_K.copy_(
                torch.where(is_finite_K, self._decay * average_K + (1 - self._decay) * estimate_K, average_K)
            )

    def estimate(self) -> torch.Tensor:
        """tr(Sigma) / |G|^2 in sequences, (K,); NaN where either average is not positive."""
        is_known_K = (self._squared_gradient_K > 0) & (self._variance_K > 0)
        return (self._variance_K / self._squared_gradient_K).masked_fill(~is_known_K, math.nan)

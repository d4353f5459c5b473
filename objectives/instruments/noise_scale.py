"""The gradient noise scale: the batch size in sequences beyond which another sequence adds little.

A gradient of b sequences is the true gradient G plus noise of covariance Sigma / b, so E|g_b|^2 = |G|^2 + tr(Sigma) /
b. The squared norms for m and for n > m sequences therefore give unbiased estimates

    |G|^2      = (n |g_n|^2 - m |g_m|^2) / (n - m)
    tr(Sigma)  = (|g_m|^2 - |g_n|^2) / (1 / m - 1 / n)

and B = tr(Sigma) / |G|^2 is the simple noise scale of McCandlish et al. (arXiv 1812.06162, appendix A.1). A quotient of
noisy numbers is biased, so both are averaged over steps first. With micro-batches of m sequences in a batch of n,
|g_m|^2 is the mean over the micro-batches; the cost is one norm for each. One micro-batch alone tells nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

# Shapes: K members.

DECAY = 0.99  # of the averages, per step: they cover about the last hundred


class NoiseScale:
    """Averages of K members; their state is in ``memory``, tensors of shape (K,), updated in place."""

    # Exponential averages of |G|^2 and tr(Sigma) that start at zero; both have the same bias, which cancels.
    MEMORY = ("squared_gradient", "gradient_variance")

    def __init__(self, memory: Mapping[str, torch.Tensor], decay: float = DECAY) -> None:
        self._squared_gradient_K, self._variance_K = (memory[name] for name in self.MEMORY)
        self._decay = decay

    def update(
        self, square_of_pieces_K: torch.Tensor, square_K: torch.Tensor, piece_size: int, num_pieces: Sequence[int]
    ) -> None:
        """Add one step: mean |g_m|^2 of each member's pieces of ``piece_size`` = m, and |g_n|^2 of all its n = p m.

        ``num_pieces`` has p of each member. One with a single piece, or with a non-finite number, keeps its averages.
        """
        sizes = [piece_size * num for num in num_pieces]
        size_K, rest_K, gap_K = (
            square_K.new_tensor(values)
            for values in (sizes, [n - piece_size for n in sizes], [1 / piece_size - 1 / n for n in sizes])
        )
        # Divided by zero where there is a single piece: not finite, so the averages are kept.
        estimates = (
            (size_K * square_K - piece_size * square_of_pieces_K) / rest_K,
            (square_of_pieces_K - square_K) / gap_K,
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

"""The gradient noise scale: the batch size in sequences beyond which another sequence adds little.

A gradient of b sequences is the true gradient G plus noise of covariance Sigma / b, so E|g_b|^2 = |G|^2 + tr(Sigma) /
b. The squared norms for m and for n > m sequences therefore give unbiased estimates

    |G|^2      = (n |g_n|^2 - m |g_m|^2) / (n - m)
    tr(Sigma)  = (|g_m|^2 - |g_n|^2) / (1 / m - 1 / n)

and B = tr(Sigma) / |G|^2 is the simple noise scale of McCandlish et al. (arXiv 1812.06162, appendix A.1). A quotient of
noisy numbers is biased, so both are averaged over steps first. With micro-batches of m sequences in a batch of n,
|g_m|^2 is the mean over the micro-batches; the cost is one norm per micro-batch. A single one gives no estimate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

# Shapes: K members.

DECAY = 0.99  # of the averages, per step: they cover about the last hundred steps


@dataclass(frozen=True, slots=True)
class BatchSizes:
    """The m sequences of a micro-batch and the n of a batch, as an estimate needs them, on the device."""

    piece: int  # m
    size_K: torch.Tensor  # n
    rest_K: torch.Tensor  # n - m
    gap_K: torch.Tensor  # 1 / m - 1 / n

    @classmethod
    def of(cls, piece: int, num_pieces: Sequence[int], like: torch.Tensor) -> BatchSizes:
        """Return the sizes for members with so many micro-batches each; ``like`` has the precision and the device."""
        sizes = [piece * num for num in num_pieces]
        return cls(
            piece,
            like.new_tensor(sizes),
            like.new_tensor([size - piece for size in sizes]),
            like.new_tensor([1 / piece - 1 / size for size in sizes]),
        )


class NoiseScale:
    """Averages of K members. Their state is in ``memory``, tensors of shape (K,) that are updated in place."""

    # Exponential averages of |G|^2 and tr(Sigma) that start at zero. Their common bias cancels.
    MEMORY = ("squared_gradient", "gradient_variance")

    def __init__(self, memory: Mapping[str, torch.Tensor], decay: float = DECAY) -> None:
        self._squared_gradient_K, self._variance_K = (memory[name] for name in self.MEMORY)
        self._decay = decay

    def update(self, square_of_pieces_K: torch.Tensor, square_K: torch.Tensor, sizes: BatchSizes) -> None:
        """Add a step: the mean |g_m|^2 over each member's micro-batches, and |g_n|^2 of its batch.

        A member with a single micro-batch, or with a non-finite number, keeps its averages.
        """
        # With a single micro-batch this divides by zero: not finite, so the averages are kept.
        estimates = (
            (sizes.size_K * square_K - sizes.piece * square_of_pieces_K) / sizes.rest_K,
            (square_of_pieces_K - square_K) / sizes.gap_K,
        )
        is_finite_K = torch.isfinite(estimates[0]) & torch.isfinite(estimates[1])
        for average_K, estimate_K in zip((self._squared_gradient_K, self._variance_K), estimates, strict=True):
            average_K.copy_(
                torch.where(is_finite_K, self._decay * average_K + (1 - self._decay) * estimate_K, average_K)
            )

    def estimate(self) -> torch.Tensor:
        """Return tr(Sigma) / |G|^2 in sequences, (K,); NaN unless both averages are positive."""
        is_known_K = (self._squared_gradient_K > 0) & (self._variance_K > 0)
        return (self._variance_K / self._squared_gradient_K).masked_fill(~is_known_K, math.nan)

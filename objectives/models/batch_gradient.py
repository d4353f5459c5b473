"""From micro-batches to the gradient of a batch: mean, noise scale, and loss scale in float16."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch

from objectives.base import GptConfig
from objectives.instruments.telemetry import norm_per_member

# Shapes: K members, A micro-batches per batch, B sequences, n parameters per member.

Differentiated = tuple[torch.Tensor, torch.Tensor]  # losses (K,) and gradients (K, n)
DECAY = 0.99  # of the averages, per step: they cover about the last hundred steps


class NoiseScale:
    """The gradient noise scale of K members: the batch size in sequences beyond which another sequence adds little.

    A gradient of b sequences is the true gradient G plus noise of covariance Sigma / b, so E|g_b|^2 = |G|^2 + tr(Sigma)
    / b. The squared norms for m and for n > m sequences therefore give unbiased estimates

        |G|^2      = (n |g_n|^2 - m |g_m|^2) / (n - m)
        tr(Sigma)  = (|g_m|^2 - |g_n|^2) / (1 / m - 1 / n)

    and B = tr(Sigma) / |G|^2 is the simple noise scale of McCandlish et al. (arXiv 1812.06162, appendix A.1). A
    quotient of noisy numbers is biased, so both are averaged over steps first. With micro-batches of m sequences in a
    batch of n, |g_m|^2 is the mean over the micro-batches; the cost is one norm per micro-batch. A single one gives no
    estimate.

    The averages are in ``memory``, tensors of shape (K,) that are updated in place.
    """

    # Exponential averages of |G|^2 and tr(Sigma) that start at zero. Their common bias cancels.
    MEMORY = ("squared_gradient", "gradient_variance")

    def __init__(
        self, memory: Mapping[str, torch.Tensor], piece: int, num_pieces: Sequence[int], decay: float = DECAY
    ) -> None:
        """Each member's batch has so many micro-batches of ``piece`` sequences."""
        self._squared_gradient_K, self._variance_K = (memory[name] for name in self.MEMORY)
        self._piece, self._decay = piece, decay
        sizes, tensor = [piece * num for num in num_pieces], self._variance_K.new_tensor
        self.size_K = tensor(sizes)
        self._rest_K = tensor([size - piece for size in sizes])
        self._gap_K = tensor([1 / piece - 1 / size for size in sizes])

    def update(self, square_of_pieces_K: torch.Tensor, square_K: torch.Tensor) -> None:
        """Add a step: the mean |g_m|^2 over each member's micro-batches, and |g_n|^2 of its batch.

        A member with a single micro-batch, or with a non-finite number, keeps its averages.
        """
        # With a single micro-batch this divides by zero: not finite, so the averages are kept.
        estimates = (
            (self.size_K * square_K - self._piece * square_of_pieces_K) / self._rest_K,
            (square_of_pieces_K - square_K) / self._gap_K,
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


class MicroBatches:
    """The micro-batches of K members, if a batch has more than one: their mean gradient, and the noise they reveal.

    With ``accumulate`` = A a batch consists of A micro-batches of m sequences, and a member with ``micro_batches`` = p
    trains on the first p. Each member thus has its own batch size, which may change during training; in a pack, all
    members compute as many micro-batches as any member uses. The noise scale B gives the gain ratio of AdaScale
    (Johnson et al., arXiv 2007.05105), by which a step may be longer with the mean of p micro-batches than with a
    single one:

        gain = (sigma^2 + |G|^2) / (sigma^2 / p + |G|^2) = (B / m + 1) / (B / (p m) + 1)

    Here sigma^2 is the variance of a micro-batch's gradient and B = m sigma^2 / |G|^2. The gain is between 1 and p.

    ``share_of_sequence`` is the weight of each sequence in a member's loss, (K, B); None if all members use all
    sequences.
    """

    MEMORY = NoiseScale.MEMORY

    def __init__(self, configs: Sequence[GptConfig], memory: Mapping[str, torch.Tensor], device: torch.device) -> None:
        self._num_of_batch = configs[0].accumulate
        self._size = configs[0].batch_size // configs[0].accumulate
        self._used = [config.num_micro_batches for config in configs]
        self._memory, self._device = memory, device
        self._set_used()

    def change(self, acting: Mapping[int, GptConfig]) -> None:
        """Take the new numbers of the members in ``acting``, by row."""
        used = list(self._used)
        for row, config in acting.items():
            used[row] = config.num_micro_batches
        if used != self._used:
            self._used = used
            self._set_used()

    def mean(self, differentiate: Callable[[int, int], Differentiated]) -> Differentiated:
        """Return each member's loss and gradient, averaged over its micro-batches; also updates the noise scale.

        ``differentiate(first, end)`` returns losses and gradients of the sequences [first, end).
        """
        losses, squares = [], []
        sum_Kn = torch.zeros(())
        for number in range(max(self._used)):
            loss_K, grad_Kn = differentiate(number * self._size, (number + 1) * self._size)
            is_unused_K = ~self._is_used_KA[:, number]
            if number >= min(self._used):
                grad_Kn.masked_fill_(is_unused_K[:, None], 0.0)
            losses.append(loss_K.masked_fill(is_unused_K, 0.0))
            squares.append(norm_per_member(grad_Kn).square())
            sum_Kn = sum_Kn.add_(grad_Kn) if number else grad_Kn
        mean_Kn = sum_Kn.div_(self._used_K[:, None])
        self._noise.update(self._mean(squares), norm_per_member(mean_Kn).square())
        return self._mean(losses), mean_Kn

    def noise_scale(self) -> torch.Tensor:
        """Return the gradient noise scale in sequences, (K,)."""
        return self._noise.estimate()

    def signals(self) -> dict[str, torch.Tensor]:
        """Return the noise scale over the batch in use, and AdaScale's gain; NaN without an estimate."""
        noise_K = self.noise_scale()
        over_batch_K = noise_K / self._noise.size_K
        return {"noise_scale": over_batch_K, "gain": (noise_K / self._size + 1) / (over_batch_K + 1)}

    def _mean(self, values: list[torch.Tensor]) -> torch.Tensor:
        """Average over the micro-batches in use. Sums have a full batch's length, so bits do not depend on others."""
        values = values + [torch.zeros_like(values[0])] * (self._num_of_batch - len(values))
        return torch.stack(values, dim=1).sum(1) / self._used_K

    def _set_used(self) -> None:
        """Move the numbers that follow from ``_used`` to the device. Called when they change, not at every step."""
        used_K, number_A = torch.tensor(self._used), torch.arange(self._num_of_batch)
        self._used_K = used_K.to(self._device, torch.float32)
        self._is_used_KA = (number_A < used_K[:, None]).to(self._device)
        self._noise = NoiseScale(self._memory, self._size, self._used)
        self.share_of_sequence: torch.Tensor | None = None
        if min(self._used) < self._num_of_batch:
            share_KA = self._is_used_KA / self._used_K[:, None] / self._size
            self.share_of_sequence = share_KA.repeat_interleave(self._size, dim=1)


class LossScaler:
    """Dynamic loss scaling (Micikevicius et al., arXiv 1710.03740), with one scale for each of K members.

    Float16 gradients underflow below 6e-8. The loss is therefore multiplied by a scale before the backward pass, and
    its gradient divided by the scale. Too large a scale makes the gradient overflow: that step is skipped and the scale
    halved. After ``loss_scale_growth`` consecutive steps without overflow it is doubled. This differs from
    ``torch.amp.GradScaler`` in two ways. The scale never falls below 1. A gradient that overflows at scale 1, or that
    belongs to a non-finite loss, is not skipped: no other scale would help.

    The scales are in ``memory``, tensors of shape (K,) that are updated in place.
    """

    # The scale, 0 for a new member, and the number of consecutive steps without overflow.
    MEMORY = ("loss_scale", "loss_scale_streak")

    def __init__(self, configs: Sequence[GptConfig], memory: Mapping[str, torch.Tensor]) -> None:
        """Give members without a scale the ``loss_scale`` of their config."""
        self.scale_K, self._streak_K = (memory[name] for name in self.MEMORY)
        first_K = self.scale_K.new_tensor([config.loss_scale for config in configs])
        self.scale_K.copy_(torch.where(self.scale_K == 0, first_K, self.scale_K))
        # The scale that the last gradient was computed with.
        self.used_K = self.scale_K.clone()
        # A micro-batch's loss counts for its share of the batch.
        self._num_pieces = configs[0].accumulate
        self._growth_K = self.scale_K.new_tensor([config.loss_scale_growth for config in configs])

    def scaled(self, loss_K: torch.Tensor) -> torch.Tensor:
        """Return the value to differentiate for the loss of a micro-batch, or of an undivided batch."""
        return loss_K / self._num_pieces * self.scale_K

    def unscale(self, grad_Kn: torch.Tensor) -> None:
        """Turn the gradient of the scaled loss into the gradient of the loss, in place."""
        grad_Kn.mul_((self._num_pieces / self.scale_K)[:, None])

    def update(self, loss_K: torch.Tensor, grad_Kn: torch.Tensor) -> torch.Tensor:
        """Update the scales from this step's unscaled gradient; return which members skip this step, bool (K,)."""
        self.used_K = self.scale_K.clone()
        has_overflowed_K = ~torch.isfinite(norm_per_member(grad_Kn))
        is_skipped_K = has_overflowed_K & torch.isfinite(loss_K) & (self.scale_K > 1)
        self._streak_K.add_(1).masked_fill_(has_overflowed_K, 0.0)
        doubled_K = self.scale_K * 2
        may_grow_K = (self._streak_K >= self._growth_K) & torch.isfinite(doubled_K)
        halved_K = (self.scale_K / 2).clamp(min=1.0)
        grown_K = torch.where(may_grow_K, doubled_K, self.scale_K)
        self._streak_K.masked_fill_(self._streak_K >= self._growth_K, 0.0)
        self.scale_K.copy_(torch.where(has_overflowed_K, halved_K, grown_K))
        return is_skipped_K

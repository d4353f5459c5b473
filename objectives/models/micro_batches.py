"""Micro-batches: how many of a batch's each member trains on, their mean gradient, and the noise that they reveal.

With ``accumulate`` = A a batch consists of A micro-batches of m sequences, and a member with ``micro_batches`` = p
trains on the first p. Each member thus has its own batch size, which may change during training; in a pack, all members
compute as many micro-batches as any member uses. The gradients of single micro-batches give the noise scale B
(objectives/instruments/noise_scale.py), and with it the gain ratio of AdaScale (Johnson et al., arXiv 2007.05105), by
which a step may be longer with the mean of p micro-batches than with a single one:

    gain = (sigma^2 + |G|^2) / (sigma^2 / p + |G|^2) = (B / m + 1) / (B / (p m) + 1)

Here sigma^2 is the variance of a micro-batch's gradient and B = m sigma^2 / |G|^2. The gain is between 1 and p.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from objectives.base import GptConfig
from objectives.instruments.noise_scale import BatchSizes, NoiseScale
from objectives.instruments.telemetry import norm_per_member

# Shapes: K members, A micro-batches per batch, B sequences, n parameters per member.

Differentiated = tuple[torch.Tensor, torch.Tensor]  # losses (K,) and gradients (K, n)


class MicroBatches:
    """The micro-batches of K members, if a batch has more than one.

    ``share_of_sequence`` is the weight of each sequence in a member's loss, (K, B); None if all members use all
    sequences.
    """

    MEMORY = NoiseScale.MEMORY

    def __init__(self, configs: Sequence[GptConfig], memory: Mapping[str, torch.Tensor], device: torch.device) -> None:
        self._num_of_batch = configs[0].accumulate
        self._size = configs[0].batch_size // configs[0].accumulate
        self._used = [config.num_micro_batches for config in configs]
        self._noise, self._device = NoiseScale(memory), device
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
        self._noise.update(self._mean(squares), norm_per_member(mean_Kn).square(), self._sizes)
        return self._mean(losses), mean_Kn

    def noise_scale(self) -> torch.Tensor:
        """Return the gradient noise scale in sequences, (K,)."""
        return self._noise.estimate()

    def signals(self) -> dict[str, torch.Tensor]:
        """Return the noise scale over the batch in use, and AdaScale's gain; NaN without an estimate."""
        noise_K = self.noise_scale()
        over_batch_K = noise_K / self._sizes.size_K
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
        self._sizes = BatchSizes.of(self._size, self._used, self._used_K)
        self.share_of_sequence: torch.Tensor | None = None
        if min(self._used) < self._num_of_batch:
            share_KA = self._is_used_KA / self._used_K[:, None] / self._size
            self.share_of_sequence = share_KA.repeat_interleave(self._size, dim=1)

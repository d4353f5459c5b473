"""The micro-batches of a batch: how many of them each member trains on, their mean, and what they tell about noise.

With ``accumulate`` = A a batch is A micro-batches of m sequences, and a member with ``micro_batches`` = p trains on the
first p of them. So its batch size is a number of its own, which may change in mid-run; in a pack all members compute as
many micro-batches as any of them uses. The gradients of single micro-batches give the noise scale B
(objectives/instruments/noise_scale.py), and with it the gain ratio of AdaScale (Johnson et al., arXiv 2007.05105): how
much longer a step may be with the mean of p micro-batches than with one of them,

    gain = (sigma^2 + |G|^2) / (sigma^2 / p + |G|^2) = (B / m + 1) / (B / (p m) + 1)

where sigma^2 is the variance of the gradient of one micro-batch and B = m sigma^2 / |G|^2. It is between 1 and p.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from objectives.base import GptConfig
from objectives.instruments.noise_scale import BatchSizes, NoiseScale
from objectives.instruments.telemetry import norm_per_member

# Shapes: K members, A micro-batches of a batch, B sequences, n parameters of one member.

Differentiated = tuple[torch.Tensor, torch.Tensor]  # losses (K,) and gradients (K, n)


class MicroBatches:
    """The micro-batches of K members whose batches have several.

    ``share_of_sequence`` is the weight of each sequence in a member's loss, (K, B); None where all use all of them.
    """

    MEMORY = NoiseScale.MEMORY

    def __init__(self, configs: Sequence[GptConfig], memory: Mapping[str, torch.Tensor], device: torch.device) -> None:
        self._num_of_batch = configs[0].accumulate
        self._size = configs[0].batch_size // configs[0].accumulate
        self._used = [config.num_micro_batches for config in configs]
        self._noise, self._device = NoiseScale(memory), device
        self._set_used()

    def change(self, acting: Mapping[int, GptConfig]) -> None:
        """Members, by row, whose numbers have changed."""
        used = list(self._used)
        for row, config in acting.items():
            used[row] = config.num_micro_batches
        if used != self._used:
            self._used = used
            self._set_used()

    def mean(self, differentiate: Callable[[int, int], Differentiated]) -> Differentiated:
        """Loss and gradient of each member's batch from those of the sequences [first, end); records the noise."""
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
        """The gradient noise scale in sequences, (K,)."""
        return self._noise.estimate()

    def signals(self) -> dict[str, torch.Tensor]:
        """The noise scale over the batch in use, and AdaScale's gain; NaN where there is no estimate."""
        noise_K = self.noise_scale()
        over_batch_K = noise_K / self._sizes.size_K
        return {"noise_scale": over_batch_K, "gain": (noise_K / self._size + 1) / (over_batch_K + 1)}

    def _mean(self, values: list[torch.Tensor]) -> torch.Tensor:
        """Over the micro-batches in use; those of a full batch are added up, so that bits do not depend on others."""
        values = values + [torch.zeros_like(values[0])] * (self._num_of_batch - len(values))
        return torch.stack(values, dim=1).sum(1) / self._used_K

    def _set_used(self) -> None:
        """Bring what follows from the numbers to the device, where they have changed: not at every step."""
        used_K, number_A = torch.tensor(self._used), torch.arange(self._num_of_batch)
        self._used_K = used_K.to(self._device, torch.float32)
        self._is_used_KA = (number_A < used_K[:, None]).to(self._device)
        self._sizes = BatchSizes.of(self._size, self._used, self._used_K)
        self.share_of_sequence: torch.Tensor | None = None
        if min(self._used) < self._num_of_batch:
            share_KA = self._is_used_KA / self._used_K[:, None] / self._size
            self.share_of_sequence = share_KA.repeat_interleave(self._size, dim=1)

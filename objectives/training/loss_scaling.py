"""Dynamic loss scaling (Micikevicius et al., arXiv 1710.03740), with one scale per member of a pack.

Float16 gradients underflow below 6e-8. The loss is therefore multiplied by a scale before the backward pass, and its
gradient divided by the scale. Too large a scale makes the gradient overflow: that step is skipped and the scale halved.
After ``loss_scale_growth`` consecutive steps without overflow it is doubled. This differs from ``torch.amp.GradScaler``
in two ways. The scale never falls below 1. A gradient that overflows at scale 1, or that belongs to a non-finite loss,
is not skipped: no other scale would help.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from objectives.base import GptConfig
from objectives.instruments.telemetry import norm_per_member

# Shapes: K members, n parameters per member.


class LossScaler:
    """Scales of K members. Their state is in ``memory``, tensors of shape (K,) that are updated in place."""

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

"""StableAdamW: AdamW with a shorter step if the second moment is too small (Wortsman et al., arXiv 2304.13013)."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from objectives.optimizers.rules.adamw import AdamW, second_age
from objectives.optimizers.rules.rule import Numbers, States
from objectives.stacking import Layout, alike

# Shapes: K members, n parameters per member, T weights.


class StableAdamW(AdamW):
    """AdamW with Adafactor's clipping of the update, separately for each weight:

        RMS_t = sqrt(mean(g^2 / max(vhat, eps^2))), with this step's g in vhat
        lr / max(1, RMS_t / stableadamw_clip) * mhat / (sqrt(vhat) + eps)

    Equal to ``pytorch_optimizer.StableAdamW``, which fixes the paper's threshold of 1. Without a threshold it is AdamW.
    Weight decay here is the optimizer's, by the full lr; there and in the paper it uses the reduced lr.
    """

    def state_sizes(self) -> Mapping[str, int]:
        """Both moments, and the last RMS_t of each weight."""
        return {**super().state_sizes(), "rms": len(self.layout.pieces)}

    def scalars(self, numbers: Numbers, lr_K: torch.Tensor, age_K: torch.Tensor) -> Numbers:
        """``correction`` is the bias correction of the second moment."""
        correction_K = 1 - alike(torch.pow, numbers["beta2"], second_age(numbers, age_K))
        return {
            **super().scalars(numbers, lr_K, age_K),
            "clip": numbers["stableadamw_clip"],
            "correction": correction_K,
            "floor": correction_K * numbers["eps"].square(),
        }

    def update(
        self, states: States, grad_Kn: torch.Tensor, params_Kn: torch.Tensor, scalars_K1: Numbers
    ) -> torch.Tensor:
        """Return the update in the memory of the gradient."""
        self.average(states, grad_Kn, scalars_K1)
        # g^2 / max(vhat, eps^2), up to the bias correction c: vhat = v / c. In single precision the lower bound may
        # round to zero, and columns without a gradient would be 0 / 0.
        floor_K1 = scalars_K1["floor"].clamp(min=torch.finfo(grad_Kn.dtype).tiny)
        ratio_Kn = grad_Kn.div_(torch.maximum(states["second_moment"], floor_K1))
        rms_KT = (_mean_of_weights(self.layout, ratio_Kn) * scalars_K1["correction"]).sqrt()
        states["rms"].copy_(rms_KT)
        update_Kn = self.quotient(states, grad_Kn, scalars_K1)
        self.layout.scale(update_Kn, 1 / _excess(rms_KT, scalars_K1["clip"]))
        return update_Kn

    def divisor(self, states: States, numbers: Numbers, age_K: torch.Tensor) -> torch.Tensor:
        """Return (sqrt(vhat) + eps) * max(1, RMS_t / stableadamw_clip)."""
        clip_K1 = numbers["stableadamw_clip"].to(states["rms"].dtype)[:, None]
        divisor_Kn = super().divisor(states, numbers, age_K)
        self.layout.scale(divisor_Kn, _excess(states["rms"], clip_K1))
        return divisor_Kn


def _mean_of_weights(layout: Layout, value_Kn: torch.Tensor) -> torch.Tensor:
    """Return the mean over each weight's columns, (K, T)."""
    return torch.stack([value_Kn[:, piece.start : piece.end].mean(1) for piece in layout.pieces], dim=1)


def _excess(rms_KT: torch.Tensor, clip_K1: torch.Tensor) -> torch.Tensor:
    """Return the factor by which each weight's step is too large, at least 1."""
    return (rms_KT / clip_K1).clamp(min=1.0)

"""SPAM: Adam that clips entries and resets its moments periodically (Huang et al., arXiv 2501.06842)."""

from __future__ import annotations

import math

import torch

from objectives.optimizers.rules.adamw import AdamW
from objectives.optimizers.rules.rule import Numbers, States
from objectives.stacking import alike

# Shapes: K members, n parameters per member.

_WARMUP_START = 0.01  # of the learning rate, at the step of a reset


class Spam(AdamW):
    """Adam with spike-aware clipping and momentum reset. At step t of a member:

        t mod spam_interval = 0:           m = v = 0
        t mod spam_interval >= spam_grace: entries with g^2 > spam_threshold * v become sign(g) sqrt(spam_threshold v),
                                           with v before this step
        w * lr * sqrt(1 - beta2^t) / (1 - beta1^t) * m / (sqrt(v) + eps)

    w = 1 - 0.99 (1 + cos(pi c / (spam_warmup + 1))) / 2 while c = t mod spam_interval < spam_warmup after a reset, else
    1. All this follows the authors' code, which does not reset t in the bias correction either: without the warmup, the
    first step after a reset would be (1 - beta1) / sqrt(1 - beta2) times Adam's first step. Clipping at the first step
    would clip to zero there and ever after, so spam_grace is 2 or more.

    Equal to ``pytorch_optimizer.SPAM`` with density 1 except for the warmup: its c is one step ahead of the authors'
    code. Both apply weight decay after the update; here the optimizer applies it before. The authors' eps is 1e-6, and
    their warmup 150 (50 in pytorch_optimizer).
    """

    def scalars(self, numbers: Numbers, lr_K: torch.Tensor, age_K: torch.Tensor) -> Numbers:
        """``memory`` is 0 at a reset, else 1. Without clipping, ``threshold`` is 0 and ``slack`` infinite."""
        beta1_K, beta2_K, threshold_K = numbers["beta1"], numbers["beta2"], numbers["spam_threshold"]
        since_reset_K = alike(torch.remainder, age_K, numbers["spam_interval"])
        clips_K = (since_reset_K >= numbers["spam_grace"]) & torch.isfinite(threshold_K)
        return {
            "first_weight": 1 - beta1_K,
            "second_weight": 1 - beta2_K,
            "eps": numbers["eps"],
            "memory": (since_reset_K > 0).to(torch.float64),
            "threshold": torch.where(clips_K, threshold_K, 0.0),
            "slack": torch.where(clips_K, 0.0, math.inf),
            "step_size": lr_K * _step_share(numbers, age_K) / (1 - alike(torch.pow, beta1_K, age_K)),
        }

    def update(
        self, states: States, grad_Kn: torch.Tensor, params_Kn: torch.Tensor, scalars_K1: Numbers
    ) -> torch.Tensor:
        """Return the update in the memory of the gradient."""
        first_Kn, second_Kn = states["first_moment"], states["second_moment"]
        first_Kn.mul_(scalars_K1["memory"])
        second_Kn.mul_(scalars_K1["memory"])
        bound_Kn = (second_Kn * scalars_K1["threshold"]).sqrt_().add_(scalars_K1["slack"])
        grad_Kn.clamp_(min=-bound_Kn, max=bound_Kn)
        return super().update(states, grad_Kn, params_Kn, scalars_K1)

    def divisor(self, states: States, numbers: Numbers, age_K: torch.Tensor) -> torch.Tensor:
        """Return (sqrt(v) + eps) / (w sqrt(1 - beta2^t))."""
        second_Kn = states["second_moment"]
        root_Kn = second_Kn.sqrt().add_(numbers["eps"].to(second_Kn.dtype)[:, None])
        return root_Kn.div_(_step_share(numbers, age_K).to(second_Kn.dtype)[:, None])


def _step_share(numbers: Numbers, age_K: torch.Tensor) -> torch.Tensor:
    """Return w sqrt(1 - beta2^t)."""
    interval_K, warmup_K = numbers["spam_interval"], numbers["spam_warmup"]
    since_reset_K = alike(torch.remainder, age_K, interval_K)
    falling_K = (1 + alike(torch.cos, math.pi * since_reset_K / (warmup_K + 1))) / 2
    is_warming_K = (age_K >= interval_K) & (since_reset_K < warmup_K)
    warmth_K = torch.where(is_warming_K, 1 - (1 - _WARMUP_START) * falling_K, 1.0)
    return warmth_K * (1 - alike(torch.pow, numbers["beta2"], age_K)).sqrt()

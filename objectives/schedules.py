"""Learning-rate schedules: a factor on the peak learning rate, per member and per step."""

from __future__ import annotations

import math

import torch

from objectives.rounding import alike

# Shapes: K members.


def schedule_factor(
    kind: str, step_K: torch.Tensor, warmup_K: torch.Tensor, steps: int, final_fraction: float
) -> torch.Tensor:
    """Factor on the peak learning rate at each member's step (0, 1, ... steps - 1), shape (K,), float64.

    Warmup is linear and its last step reaches the peak: step t of a warmup of w has (t + 1) / w.
    Afterwards the factor is constant, or falls along a line or half a cosine so that it would be
    ``final_fraction`` at ``steps``.

    Raises ValueError for an unknown kind.
    """
    step_K, warmup_K = step_K.to(torch.float64), warmup_K.to(torch.float64)
    rising_K = (step_K + 1) / warmup_K.clamp(min=1)
    progress_K = ((step_K - warmup_K) / (steps - warmup_K).clamp(min=1)).clamp(0, 1)
    if kind == "constant":
        falling_K = torch.ones_like(progress_K)
    elif kind == "linear":
        falling_K = 1 - (1 - final_fraction) * progress_K
    elif kind == "cosine":
        falling_K = final_fraction + (1 - final_fraction) * 0.5 * (1 + alike(torch.cos, math.pi * progress_K))
    else:
        raise ValueError(f"schedule {kind!r} is unknown: use constant, linear or cosine")
    return torch.where(step_K < warmup_K, rising_K, falling_K)

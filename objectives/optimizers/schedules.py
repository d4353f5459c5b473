"""Learning-rate schedules: a factor on the peak learning rate, per member and step."""

from __future__ import annotations

import math

import torch

from objectives.base import TrainingConfig
from objectives.stacking import alike

# Shapes: K members.

_NO_LENGTH = 1e-9  # steps; replaces 0 as a divisor


def schedule_factor(structure: TrainingConfig, step_K: torch.Tensor, warmup_K: torch.Tensor) -> torch.Tensor:
    """Return the factor on the peak learning rate at each member's step (0, 1, ... steps - 1), (K,), float64.

    ``structure`` has the structural fields: ``schedule``, ``steps``, ``final_lr_fraction`` and so on. A warmup of w
    steps reaches the peak at its last step: step t has (t + 1) / w, or along half a cosine (1 - cos(pi (t + 1) / w)) /
    2. Afterwards the factor is constant, or falls to the final fraction f, which it would reach at ``steps``. With p
    the completed share of the steps after the warmup:

      linear      1 - (1 - f) p
      cosine      f + (1 - f) (1 + cos(pi p)) / 2                   (Loshchilov & Hutter, arXiv 1608.03983)
      polynomial  f + (1 - f) (1 - p)^power                         (f = 0 is ``torch.optim.lr_scheduler.PolynomialLR``)
      wsd         1, and linear during the last ``decay_share`` of all steps, which never begins within the warmup
                  (warmup, stable, decay: Hu et al., arXiv 2404.06395; a linear decay: Haegele et al., arXiv 2405.18392)
    """
    step_K, warmup_K = step_K.to(torch.float64), warmup_K.to(torch.float64)
    return torch.where(step_K < warmup_K, _rising(structure, step_K, warmup_K), _falling(structure, step_K, warmup_K))


def _rising(structure: TrainingConfig, step_K: torch.Tensor, warmup_K: torch.Tensor) -> torch.Tensor:
    progress_K = (step_K + 1) / warmup_K.clamp(min=1)
    if structure.warmup_shape == "linear":
        return progress_K
    return 0.5 * (1 - alike(torch.cos, math.pi * progress_K))


def _falling(structure: TrainingConfig, step_K: torch.Tensor, warmup_K: torch.Tensor) -> torch.Tensor:
    final = structure.final_lr_fraction
    if structure.schedule == "constant":
        return torch.ones_like(warmup_K)
    begin_K = warmup_K
    if structure.schedule == "wsd":
        begin_K = warmup_K.clamp(min=(1 - structure.decay_share) * structure.steps)
    progress_K = ((step_K - begin_K) / (structure.steps - begin_K).clamp(min=_NO_LENGTH)).clamp(0, 1)
    if structure.schedule == "cosine":
        return final + (1 - final) * 0.5 * (1 + alike(torch.cos, math.pi * progress_K))
    if structure.schedule == "polynomial":
        power_K = torch.full_like(progress_K, structure.schedule_power)
        return final + (1 - final) * alike(torch.pow, 1 - progress_K, power_K)
    return 1 - (1 - final) * progress_K

"""AdaBelief: Adam that divides by the gradient's deviation from its expectation (Zhuang et al., arXiv 2010.07468)."""

from __future__ import annotations

import torch

from objectives.optimizers.rules.adamw import AdamW
from objectives.optimizers.rules.rule import Numbers, States
from objectives.stacking import alike

# Shapes: K members, n parameters per member.


class AdaBelief(AdamW):
    """Adam with the second moment s of g - m:

        s = beta2 s + (1 - beta2) (g - m)^2 + eps
        lr * mhat / (sqrt(s / (1 - beta2^t)) + eps)

    As in the paper, eps is added twice, and the eps added to s accumulates to eps / (1 - beta2). So it is a separate
    field, ``adabelief_eps``, with the authors' default. Equal to ``pytorch_optimizer.AdaBelief``.
    """

    def scalars(self, numbers: Numbers, lr_K: torch.Tensor, age_K: torch.Tensor) -> Numbers:
        """Move the root of the bias correction out of the divisor, as in AdamW."""
        beta1_K, beta2_K, eps_K = numbers["beta1"], numbers["beta2"], numbers["adabelief_eps"]
        root_K = (1 - alike(torch.pow, beta2_K, age_K)).sqrt()
        return {
            "first_weight": 1 - beta1_K,
            "second_weight": 1 - beta2_K,
            "inner_eps": eps_K,
            "eps": eps_K * root_K,
            "step_size": lr_K * root_K / (1 - alike(torch.pow, beta1_K, age_K)),
        }

    def average(self, states: States, grad_Kn: torch.Tensor, scalars_K1: Numbers) -> None:
        """Add the gradient to m, and its deviation from m to s."""
        states["first_moment"].lerp_(grad_Kn, scalars_K1["first_weight"])
        surprise_Kn = grad_Kn.sub_(states["first_moment"]).square_()
        states["second_moment"].lerp_(surprise_Kn, scalars_K1["second_weight"]).add_(scalars_K1["inner_eps"])

    def divisor(self, states: States, numbers: Numbers, age_K: torch.Tensor) -> torch.Tensor:
        """Return sqrt(s / (1 - beta2^t)) + eps."""
        second_Kn = self.second_moment(states, numbers, age_K)
        return second_Kn.sqrt().add_(numbers["adabelief_eps"].to(second_Kn.dtype)[:, None])

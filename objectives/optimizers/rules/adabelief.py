"""AdaBelief: Adam that divides by the gradient's deviation from its expectation (Zhuang et al., arXiv 2010.07468)."""

from __future__ import annotations

import torch

from objectives.optimizers.rules.adamw import AdamW
from objectives.optimizers.rules.rule import Numbers, States

# Shapes: K members, n parameters per member.


class AdaBelief(AdamW):
    """Adam with the second moment s of g - m:

        s = beta2 s + (1 - beta2) (g - m)^2 + eps
        lr * mhat / (sqrt(s / (1 - beta2^t)) + eps)

    As in the paper, eps is added twice, and the eps added to s accumulates to eps / (1 - beta2). So it is a separate
    field, ``adabelief_eps``, with the authors' default. Equal to ``pytorch_optimizer.AdaBelief``.
    """

    def scalars(self, numbers: Numbers, lr_K: torch.Tensor, age_K: torch.Tensor) -> Numbers:
        """Return AdamW's scalars, and the eps that is added to s."""
        eps_K = numbers["adabelief_eps"]
        return {**super().scalars({**numbers, "eps": eps_K}, lr_K, age_K), "inner_eps": eps_K}

    def average(self, states: States, grad_Kn: torch.Tensor, scalars_K1: Numbers) -> None:
        """Add the gradient to m, and its deviation from m to s."""
        states["first_moment"].lerp_(grad_Kn, scalars_K1["first_weight"])
        surprise_Kn = grad_Kn.sub_(states["first_moment"]).square_()
        states["second_moment"].lerp_(surprise_Kn, scalars_K1["second_weight"]).add_(scalars_K1["inner_eps"])

    def divisor(self, states: States, numbers: Numbers, age_K: torch.Tensor) -> torch.Tensor:
        """Return sqrt(s / (1 - beta2^t)) + eps."""
        return super().divisor(states, {**numbers, "eps": numbers["adabelief_eps"]}, age_K)

"""Lion: the sign of an interpolated momentum (Chen et al., arXiv 2302.06675)."""

from __future__ import annotations

import torch

from objectives.optimizers.rules.adamw import debiased
from objectives.optimizers.rules.rule import Numbers, States, UpdateRule

# Shapes: K members, n parameters per member.


class Lion(UpdateRule):
    """Move every coordinate by +-lr, or not at all if the sign is zero:

        lr * sign(beta1 m + (1 - beta1) g), then m = beta2 m + (1 - beta2) g

    beta1 is for the step and beta2 for the memory; the authors' 0.9 and 0.99 go with an lr at most a tenth of AdamW's.
    Equal to ``pytorch_optimizer.Lion``. It has no diagonal divisor.
    """

    def scalars(self, numbers: Numbers, lr_K: torch.Tensor, age_K: torch.Tensor) -> Numbers:
        """Weights of the gradient in the step and in the memory."""
        return {"step_weight": 1 - numbers["beta1"], "memory_weight": 1 - numbers["beta2"], "lr": lr_K}

    def update(
        self, states: States, grad_Kn: torch.Tensor, params_Kn: torch.Tensor, scalars_K1: Numbers
    ) -> torch.Tensor:
        """Return lr, 0 or -lr."""
        first_Kn = states["first_moment"]
        update_Kn = torch.lerp(first_Kn, grad_Kn, scalars_K1["step_weight"]).sign_().mul_(scalars_K1["lr"])
        first_Kn.lerp_(grad_Kn, scalars_K1["memory_weight"])
        return update_Kn

    def first_moment(self, states: States, numbers: Numbers, age_K: torch.Tensor) -> torch.Tensor:
        """Return m / (1 - beta2^t). The step uses only its sign, so it needs no correction."""
        return debiased(states["first_moment"], numbers["beta2"], age_K)

"""SGD with momentum, as an average of the gradients: ``torch.optim.SGD`` with momentum = dampening = beta1."""

from __future__ import annotations

import torch

from objectives.optimizers.rules.rule import Numbers, States, UpdateRule


class Sgd(UpdateRule):
    """lr * m, with m the gradients averaged with decay beta1."""

    def scalars(self, numbers: Numbers, lr_K: torch.Tensor, age_K: torch.Tensor) -> Numbers:
        """The average starts as the first gradient."""
        return {"weight": torch.where(age_K == 1, 1.0, 1 - numbers["beta1"]), "lr": lr_K}

    def update(
        self, states: States, grad_Kn: torch.Tensor, params_Kn: torch.Tensor, scalars_K1: Numbers
    ) -> torch.Tensor:
        """Return lr * m."""
        return states["first_moment"].lerp_(grad_Kn, scalars_K1["weight"]) * scalars_K1["lr"]

    def divisor(self, states: States, numbers: Numbers, age_K: torch.Tensor) -> torch.Tensor:
        """Return ones: SGD does not divide."""
        return torch.ones_like(states["first_moment"])

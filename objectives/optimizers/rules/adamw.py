"""AdamW: decoupled Adam (Loshchilov & Hutter, arXiv 1711.05101), as in ``torch.optim.AdamW``."""

from __future__ import annotations

import torch

from objectives.optimizers.rules.rule import Numbers, States, UpdateRule
from objectives.stacking import alike


class AdamW(UpdateRule):
    """Bias-corrected moments, with eps added after the root."""

    moments = ("first_moment", "second_moment")
    is_debiased = True

    def scalars(self, numbers: Numbers, lr_K: torch.Tensor, age_K: torch.Tensor) -> Numbers:
        """Move the root of v's bias correction out of the divisor, which saves a pass:

        m / (sqrt(v) / root + eps) = root * m / (sqrt(v) + root * eps).
        """
        beta1_K, beta2_K = numbers["beta1"], numbers["beta2"]
        root_K = (1 - alike(torch.pow, beta2_K, second_age(numbers, age_K))).sqrt()
        return {
            "first_weight": 1 - beta1_K,
            "second_weight": second_weight(numbers),
            "eps": numbers["eps"] * root_K,
            "step_size": lr_K * root_K / (1 - alike(torch.pow, beta1_K, age_K)),
        }

    def update(
        self, states: States, grad_Kn: torch.Tensor, params_Kn: torch.Tensor, scalars_K1: Numbers
    ) -> torch.Tensor:
        """Return lr * m / (sqrt(v) + eps) in the memory of the gradient."""
        self.average(states, grad_Kn, scalars_K1)
        return self.quotient(states, grad_Kn, scalars_K1)

    def average(self, states: States, grad_Kn: torch.Tensor, scalars_K1: Numbers) -> None:
        """Add the gradient to both moments; it then holds its square."""
        states["first_moment"].lerp_(grad_Kn, scalars_K1["first_weight"])
        states["second_moment"].lerp_(grad_Kn.square_(), scalars_K1["second_weight"])

    def quotient(self, states: States, out_Kn: torch.Tensor, scalars_K1: Numbers) -> torch.Tensor:
        """Return the scaled quotient of the moments in ``out_Kn``."""
        denominator_Kn = self.denominator(states, out_Kn, scalars_K1)
        return torch.div(states["first_moment"], denominator_Kn, out=out_Kn).mul_(scalars_K1["step_size"])

    def denominator(self, states: States, out_Kn: torch.Tensor, scalars_K1: Numbers) -> torch.Tensor:
        """Return sqrt(v) + eps in ``out_Kn``."""
        return torch.sqrt(states["second_moment"], out=out_Kn).add_(scalars_K1["eps"])

    def divisor(self, states: States, numbers: Numbers, age_K: torch.Tensor) -> torch.Tensor:
        """Return sqrt(v) + eps with v bias-corrected."""
        second_Kn = self.second_moment(states, numbers, age_K)
        eps = numbers["eps"].to(second_Kn.dtype)
        return second_Kn.sqrt().add_(eps if eps.dim() == 2 else eps[:, None])

    def second_moment(self, states: States, numbers: Numbers, age_K: torch.Tensor) -> torch.Tensor:
        """Return v / (1 - beta2^t)."""
        return debiased(states["second_moment"], numbers["beta2"], second_age(numbers, age_K))

    def first_moment(self, states: States, numbers: Numbers, age_K: torch.Tensor) -> torch.Tensor:
        """Return m / (1 - beta1^t)."""
        return debiased(states["first_moment"], numbers["beta1"], age_K)


def second_age(numbers: Numbers, age_K: torch.Tensor) -> torch.Tensor:
    """Return how many gradients the second moment has seen: fewer than ``age_K`` if it stands still."""
    return age_K if "still_age" not in numbers else torch.minimum(age_K, numbers["still_age"])


def second_weight(numbers: Numbers) -> torch.Tensor:
    """Return the weight of this step's square in the second moment, zero if that stands still."""
    weight_K = 1 - numbers["beta2"]
    return weight_K if "still_age" not in numbers else weight_K.masked_fill(numbers["still_age"].isfinite(), 0.0)


def debiased(moment_Kn: torch.Tensor, beta_K: torch.Tensor, age_K: torch.Tensor) -> torch.Tensor:
    """Correct a moving average that started at zero for its bias: moment / (1 - beta^t)."""
    return moment_Kn / (1 - alike(torch.pow, beta_K, age_K)).to(moment_Kn.dtype)[:, None]

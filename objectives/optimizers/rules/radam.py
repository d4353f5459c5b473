"""RAdam: Adam that divides only once its second moment is reliable (Liu et al., arXiv 1908.03265)."""

from __future__ import annotations

import torch

from objectives.optimizers.rules.adamw import AdamW
from objectives.optimizers.rules.rule import Numbers, States
from objectives.stacking import alike

# Shapes: K members, n parameters per member.


class RAdam(AdamW):
    """AdamW times a rectification r_t, or plain averaged momentum while r_t is undefined.

    With rho = 2 / (1 - beta2) - 1 and rho_t = rho - 2 t beta2^t / (1 - beta2^t), the length of the simple average that
    is equivalent to the second moment:

        rho_t > radam_threshold:  lr * mhat * r_t * sqrt(1 - beta2^t) / (sqrt(v) + eps)
        otherwise:                lr * mhat
        r_t^2 = (rho_t - 4) (rho_t - 2) rho / ((rho - 4) (rho - 2) rho_t)

    Equal to ``torch.optim.RAdam``, which documents a threshold of 5 and adds eps to the uncorrected root of v; the
    paper's threshold is 4. At beta2 <= 0.6 it never divides.
    """

    def scalars(self, numbers: Numbers, lr_K: torch.Tensor, age_K: torch.Tensor) -> Numbers:
        """``rectified`` is 1 for members that divide at this step, else 0."""
        beta1_K, beta2_K = numbers["beta1"], numbers["beta2"]
        is_rectified_K, factor_K = _rectification(numbers, age_K)
        return {
            "first_weight": 1 - beta1_K,
            "second_weight": 1 - beta2_K,
            "eps": numbers["eps"],
            "rectified": is_rectified_K.to(torch.float64),
            "step_size": lr_K * factor_K / (1 - alike(torch.pow, beta1_K, age_K)),
        }

    def denominator(self, states: States, out_Kn: torch.Tensor, scalars_K1: Numbers) -> torch.Tensor:
        """Return AdamW's denominator, or 1 without division."""
        return super().denominator(states, out_Kn, scalars_K1).masked_fill_(scalars_K1["rectified"] == 0, 1.0)

    def divisor(self, states: States, numbers: Numbers, age_K: torch.Tensor) -> torch.Tensor:
        """Return (sqrt(v) + eps) / (r_t sqrt(1 - beta2^t)), or 1."""
        second_Kn = states["second_moment"]
        is_rectified_K, factor_K = _rectification(numbers, age_K)
        root_Kn = second_Kn.sqrt().add_(numbers["eps"].to(second_Kn.dtype)[:, None])
        return (root_Kn / factor_K.to(second_Kn.dtype)[:, None]).masked_fill_(~is_rectified_K[:, None], 1.0)


def _rectification(numbers: Numbers, age_K: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return whether each member divides by the root of v, and r_t sqrt(1 - beta2^t) if it does, else 1."""
    power_K = alike(torch.pow, numbers["beta2"], age_K)
    longest_K = 2 / (1 - numbers["beta2"]) - 1
    length_K = longest_K - 2 * age_K * power_K / (1 - power_K)
    is_rectified_K = length_K > numbers["radam_threshold"]
    squared_K = (length_K - 4) * (length_K - 2) * longest_K / ((longest_K - 4) * (longest_K - 2) * length_K)
    return is_rectified_K, torch.where(is_rectified_K, (squared_K * (1 - power_K)).sqrt(), 1.0)

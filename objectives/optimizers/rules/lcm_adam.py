"""LCMAdam: Adam on gradients that are weighted by their variance, at a learning rate that goes up and down."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from objectives.optimizers.rules.adamw import AdamW
from objectives.optimizers.rules.rule import Numbers, States
from objectives.stacking import Piece

# Shapes: K members, n parameters per member, s parameters of one weight.

_RATE = "rate"


class LcmAdam(AdamW):
    """AdamW on g' in place of g, times a factor r on the learning rate.

    This is a reading of the text of Algorithms 17(5):185 and is not claimed to equal the paper's optimizer: its
    formulas exist as images only, and the code that is public leaves this step out. Within each weight

        g' = c |g| / |c|,   c = g min(|v - m^2|, 1)

    with the moments before this step, without bias correction; g itself where c is zero, as at the first step. With t
    the completed steps, r follows the target by at most ``lcm_adam_change`` a step, and begins at it:

        target = 1 - (1 - lcm_adam_least) frac(t / lcm_adam_period)

    So r falls linearly from 1 to ``lcm_adam_least`` in each period, and then returns. In the paper the rates are 0.005
    and 0.001, the change is at most 0.001, and a period 1.1 epochs.
    """

    def state_sizes(self) -> Mapping[str, int]:
        """Return the moments, and the factor on the learning rate."""
        return {**super().state_sizes(), _RATE: 1}

    def scalars(self, numbers: Numbers, lr_K: torch.Tensor, age_K: torch.Tensor) -> Numbers:
        """Return AdamW's numbers, the target of the factor, and its largest change."""
        part_K = ((age_K - 1) / numbers["lcm_adam_period"]).frac()
        target_K = 1 - (1 - numbers["lcm_adam_least"]) * part_K
        change_K = torch.where(age_K > 1, numbers["lcm_adam_change"], torch.inf)
        return {**super().scalars(numbers, lr_K, age_K), "target": target_K, "change": change_K}

    def update(
        self, states: States, grad_Kn: torch.Tensor, params_Kn: torch.Tensor, scalars_K1: Numbers
    ) -> torch.Tensor:
        """Return r lr m / (sqrt(v) + eps) in the memory of the gradient."""
        rate_K1, change_K1 = states[_RATE], scalars_K1["change"]
        rate_K1.add_((scalars_K1["target"] - rate_K1).clamp(-change_K1, change_K1))
        for piece in self.layout.pieces:
            self._weigh(piece, states, grad_Kn)
        return super().update(states, grad_Kn, params_Kn, scalars_K1).mul_(rate_K1)

    def _weigh(self, piece: Piece, states: States, grad_Kn: torch.Tensor) -> None:
        """Replace the gradient of one weight by g', in place."""
        grad_Ks, first_Ks, second_Ks = (
            value_Kn[:, piece.start : piece.end]
            for value_Kn in (grad_Kn, states["first_moment"], states["second_moment"])
        )
        factor_Ks = (second_Ks - first_Ks.square()).abs_().clamp_(max=1)
        # A factor of all entries cancels: relative to the largest, squares of small ones are not lost.
        largest_K1 = factor_Ks.amax(1, keepdim=True)
        factor_Ks = torch.where(largest_K1 > 0, factor_Ks / largest_K1, 1.0)
        weighed_Ks = grad_Ks * factor_Ks
        norm_K1, weighed_K1 = (
            torch.linalg.vector_norm(value_Ks, dim=1, keepdim=True) for value_Ks in (grad_Ks, weighed_Ks)
        )
        grad_Ks.copy_(torch.where(weighed_K1 > 0, weighed_Ks * (norm_K1 / weighed_K1), grad_Ks))

    def divisor(self, states: States, numbers: Numbers, age_K: torch.Tensor) -> torch.Tensor:
        """Return (sqrt(v) + eps) / r with v bias-corrected."""
        return super().divisor(states, numbers, age_K) / states[_RATE]

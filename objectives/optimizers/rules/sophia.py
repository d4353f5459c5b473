"""Sophia: momentum over the Hessian's diagonal, clipped (Liu et al., arXiv 2305.14342)."""

from __future__ import annotations

from typing import cast

import torch

from objectives.optimizers.facts.packed import SophiaFields
from objectives.optimizers.rules.rule import Numbers, States, UpdateRule
from objectives.stacking import alike

# Shapes: K members, R of them with a new Hessian, n parameters per member.


class Sophia(UpdateRule):
    """Sophia-H, with Hutchinson's estimate of the Hessian's diagonal every ``sophia_interval`` steps of a member:

        h = beta2 h + (1 - beta2) u (H u), u normal, at steps 1, 1 + sophia_interval, ...
        m = beta1 m + (1 - beta1) g
        lr * clip(m / max(h, sophia_eps), -sophia_clip, sophia_clip)

    The paper writes clip(m / max(gamma h, eps), -1, 1): the same with sophia_clip = gamma, an lr that is 1 / gamma of
    this one and eps / gamma. It uses gamma 0.01, beta1 0.96 and beta2 0.99. Neither average is bias-corrected.
    ``beta2_half_life`` applies to h, counted over all tokens. Equal to ``pytorch_optimizer.SophiaH`` with the same
    estimates.
    """

    moments = ("first_moment", "hessian")
    needs_hessian = True

    @property
    def _interval(self) -> int:
        return cast(SophiaFields, self.structure).sophia_interval

    def hessian_is_due(self, num_steps: int) -> bool:
        """Return True at a member's first step, and then every ``sophia_interval``."""
        return num_steps % self._interval == 0

    def take_hessian(self, states: States, rows: torch.Tensor, hessian_Rn: torch.Tensor, numbers: Numbers) -> None:
        """Average the estimates into the Hessian state of ``rows``."""
        # A half-life counts steps (by their tokens), and there are several between two estimates.
        has_half_life_K = torch.isfinite(numbers["beta2_half_life"])
        decay_K = alike(torch.pow, numbers["beta2"], torch.where(has_half_life_K, self._interval, 1.0))
        known_Rn, weight_R1 = states["hessian"][rows], (1 - decay_K[rows]).to(hessian_Rn.dtype)[:, None]
        is_sound_R1 = torch.isfinite(hessian_Rn).all(1, keepdim=True)
        states["hessian"][rows] = torch.where(is_sound_R1, known_Rn.lerp(hessian_Rn, weight_R1), known_Rn)

    def scalars(self, numbers: Numbers, lr_K: torch.Tensor, age_K: torch.Tensor) -> Numbers:
        """Return the scalars without beta2, which is for ``take_hessian``."""
        return {
            "first_weight": 1 - numbers["beta1"],
            "clip": numbers["sophia_clip"],
            "eps": numbers["sophia_eps"],
            "lr": lr_K,
        }

    def update(
        self, states: States, grad_Kn: torch.Tensor, params_Kn: torch.Tensor, scalars_K1: Numbers
    ) -> torch.Tensor:
        """Return the update in the memory of the gradient."""
        first_Kn, clip_K1 = states["first_moment"], scalars_K1["clip"]
        first_Kn.lerp_(grad_Kn, scalars_K1["first_weight"])
        denominator_Kn = torch.maximum(states["hessian"], scalars_K1["eps"], out=grad_Kn)
        step_Kn = torch.div(first_Kn, denominator_Kn, out=grad_Kn)
        return step_Kn.clamp_(min=-clip_K1, max=clip_K1).mul_(scalars_K1["lr"])

    def divisor(self, states: States, numbers: Numbers, age_K: torch.Tensor) -> torch.Tensor:
        """Return max(h, sophia_eps), or |m| / sophia_clip if clipping acts."""
        dtype = states["hessian"].dtype
        clip_K1, eps_K1 = numbers["sophia_clip"].to(dtype)[:, None], numbers["sophia_eps"].to(dtype)[:, None]
        return torch.maximum(torch.maximum(states["hessian"], eps_K1), states["first_moment"].abs() / clip_K1)

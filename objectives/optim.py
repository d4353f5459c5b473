"""Packed optimizers: one fused pass over flat (K, n) buffers, every hyperparameter a (K,) tensor.

All parameters of member k are row k of one (K, n) tensor, so clipping, masking and the update are a
few elementwise operations whatever the number of layers or members, with no host synchronisation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from objectives.base import TrainingConfig
from objectives.schedules import schedule_factor
from objectives.telemetry import norm_per_member

# Shapes: K members, n parameters of one member.

_NUMBERS = ("lr", "warmup", "beta1", "beta2", "eps", "weight_decay", "clip")


class PackedOptimizer:
    """AdamW or SGD for K members with a linear warmup, a schedule and global-norm clipping each.

    ``adamw`` is the decoupled Adam of Loshchilov & Hutter (arXiv 1711.05101) as in
    ``torch.optim.AdamW``: bias-corrected moments, eps added after the root. ``sgd`` follows an
    average of the gradients, as ``torch.optim.SGD`` with momentum = dampening = beta1.
    Clipping is that of ``torch.nn.utils.clip_grad_norm_``, per member.
    """

    def __init__(self, params_Kn: torch.Tensor, configs: Sequence[TrainingConfig]) -> None:
        first = configs[0]
        self.kind, self.schedule = first.optimizer, first.schedule
        self.steps, self.final_lr_fraction = first.steps, first.final_lr_fraction
        self.params_Kn = params_Kn
        # Hyperparameters are kept in double precision: 1 - 0.9999 in single precision would already
        # be off by 6e-4. They are rounded only where they meet the parameters.
        device = params_Kn.device
        self.numbers: dict[str, torch.Tensor] = {
            name: torch.tensor(
                [float("inf") if (value := getattr(c, name)) is None else value for c in configs],
                dtype=torch.float64,
                device=device,
            )
            for name in _NUMBERS
        }
        self.alive_K = torch.ones(len(configs), dtype=torch.bool, device=device)
        self.first_moment_Kn = torch.zeros_like(params_Kn)
        self.second_moment_Kn = torch.zeros_like(params_Kn) if self.kind == "adamw" else None
        self.num_updates = 0

    def step(self, loss_K: torch.Tensor, grad_Kn: torch.Tensor) -> dict[str, torch.Tensor]:
        """One update in place; returns the step's metrics, shape (K,) each.

        A member whose loss or gradient norm is not finite is masked from this very update on: its
        parameters stay, and from the next step on its metrics are NaN.
        """
        dtype = self.params_Kn.dtype
        number = self.numbers
        was_alive_K = self.alive_K
        grad_norm_K = norm_per_member(grad_Kn)
        self.alive_K = was_alive_K & torch.isfinite(loss_K) & torch.isfinite(grad_norm_K)

        clip_factor_K = (number["clip"].to(dtype) / (grad_norm_K + 1e-6)).clamp(max=1.0)
        # where, not a product: 0 * nan would be nan.
        grad_Kn = torch.where(self.alive_K[:, None], grad_Kn * clip_factor_K[:, None], 0.0)

        factor_K = schedule_factor(
            self.schedule, self.num_updates, number["warmup"], self.steps, self.final_lr_fraction
        )
        lr_K = number["lr"] * factor_K
        applied_lr_K = torch.where(self.alive_K, lr_K, 0.0)
        self.num_updates += 1
        if self.kind == "adamw":
            update_Kn = self._adamw_update(grad_Kn, applied_lr_K)
        else:
            update_Kn = self._sgd_update(grad_Kn, applied_lr_K)
        decay_Kn = (1 - applied_lr_K * number["weight_decay"]).to(dtype)[:, None]
        self.params_Kn.mul_(decay_Kn).sub_(update_Kn)

        nan = torch.full((), float("nan"), dtype=dtype, device=loss_K.device)
        metrics = {
            "loss": loss_K,
            "grad_norm": grad_norm_K,
            "update_norm": norm_per_member(update_Kn),
            "lr": lr_K.to(dtype),
        }
        return {name: torch.where(was_alive_K, value, nan) for name, value in metrics.items()}

    def _adamw_update(self, grad_Kn: torch.Tensor, lr_K: torch.Tensor) -> torch.Tensor:
        dtype = grad_Kn.dtype
        beta1_K, beta2_K = self.numbers["beta1"], self.numbers["beta2"]

        def row(value_K: torch.Tensor) -> torch.Tensor:
            return value_K.to(dtype)[:, None]

        self.first_moment_Kn.lerp_(grad_Kn, row(1 - beta1_K))
        self.second_moment_Kn.mul_(row(beta2_K)).add_(grad_Kn.square() * row(1 - beta2_K))
        correction1_K = 1 - beta1_K**self.num_updates
        correction2_K = 1 - beta2_K**self.num_updates
        denominator_Kn = self.second_moment_Kn.sqrt().div_(row(correction2_K.sqrt()))
        denominator_Kn.add_(row(self.numbers["eps"]))
        return (self.first_moment_Kn / denominator_Kn).mul_(row(lr_K / correction1_K))

    def _sgd_update(self, grad_Kn: torch.Tensor, lr_K: torch.Tensor) -> torch.Tensor:
        dtype = grad_Kn.dtype
        if self.num_updates == 1:
            self.first_moment_Kn.copy_(grad_Kn)
        else:
            self.first_moment_Kn.lerp_(grad_Kn, (1 - self.numbers["beta1"]).to(dtype)[:, None])
        return self.first_moment_Kn * lr_K.to(dtype)[:, None]

    def keep(self, index: torch.Tensor, params_Kn: torch.Tensor) -> None:
        """Keep the members at ``index`` only; ``params_Kn`` is their new parameter buffer."""
        self.params_Kn = params_Kn
        self.numbers = {name: value[index] for name, value in self.numbers.items()}
        self.alive_K = self.alive_K[index]
        self.first_moment_Kn = self.first_moment_Kn[index].contiguous()
        if self.second_moment_Kn is not None:
            self.second_moment_Kn = self.second_moment_Kn[index].contiguous()

    def state_dict(self) -> dict[str, Any]:
        """Moments, mask and the number of updates; the hyperparameters come from the configs."""
        state = {
            "num_updates": self.num_updates,
            "alive": self.alive_K.clone(),
            "first_moment": self.first_moment_Kn.clone(),
        }
        if self.second_moment_Kn is not None:
            state["second_moment"] = self.second_moment_Kn.clone()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from ``state_dict`` of an optimizer with the same members."""
        self.num_updates = state["num_updates"]
        self.alive_K = state["alive"].clone()
        self.first_moment_Kn.copy_(state["first_moment"])
        if self.second_moment_Kn is not None:
            self.second_moment_Kn.copy_(state["second_moment"])

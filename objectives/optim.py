"""Packed optimizers: one fused pass over flat (K, n) buffers, every hyperparameter a (K,) tensor.

All parameters of member k are row k of one (K, n) tensor, so clipping, masking and the update are a
few elementwise operations whatever the number of layers or members, with no host synchronisation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from objectives.base import TrainingConfig
from objectives.compiling import Compiled
from objectives.rounding import alike
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

    def __init__(self, params_Kn: torch.Tensor, configs: Sequence[TrainingConfig], *, compiled: bool) -> None:
        first = configs[0]
        self.kind, self.schedule = first.optimizer, first.schedule
        self.steps, self.final_lr_fraction = first.steps, first.final_lr_fraction
        self.params_Kn = params_Kn
        self._read_numbers(configs)
        device = params_Kn.device
        self.alive_K = torch.ones(len(configs), dtype=torch.bool, device=device)
        # Updates that each member has behind it; a member may join a pack that has begun.
        self.age_K = torch.zeros(len(configs), dtype=torch.float64, device=device)
        self.first_moment_Kn = torch.zeros_like(params_Kn)
        self.second_moment_Kn = torch.zeros_like(params_Kn) if self.kind == "adamw" else None
        update = _adamw if self.kind == "adamw" else _sgd
        self._update = Compiled(update) if compiled else update
        # Reading a flag costs nothing on a CPU, where it saves passes over memory that would change nothing.
        self._may_look = device.type == "cpu" and not compiled

    def _read_numbers(self, configs: Sequence[TrainingConfig]) -> None:
        # Hyperparameters are kept in double precision: 1 - 0.9999 in single precision would already
        # be off by 6e-4. They are rounded only where they meet the parameters.
        self.numbers: dict[str, torch.Tensor] = {
            name: torch.tensor(
                [float("inf") if (value := getattr(c, name)) is None else value for c in configs],
                dtype=torch.float64,
                device=self.params_Kn.device,
            )
            for name in _NUMBERS
        }

    def step(self, loss_K: torch.Tensor, grad_Kn: torch.Tensor) -> dict[str, torch.Tensor]:
        """One update in place, which overwrites ``grad_Kn``; the step's metrics, shape (K,) each.

        A member whose loss or gradient norm is not finite is masked from this very update on: its
        parameters stay, and from the next step on its metrics are NaN.
        """
        dtype, number = self.params_Kn.dtype, self.numbers
        was_alive_K = self.alive_K
        lr_K = number["lr"] * schedule_factor(
            self.schedule, self.age_K, number["warmup"], self.steps, self.final_lr_fraction
        )
        self.age_K = self.age_K + 1

        def row(value_K: torch.Tensor) -> torch.Tensor:
            return value_K.to(dtype)[:, None]

        beta1_K, beta2_K = number["beta1"], number["beta2"]
        decay_K1, clip_K = row(1 - lr_K * number["weight_decay"]), number["clip"].to(dtype)
        common = (self.params_Kn, self.first_moment_Kn, grad_Kn, loss_K, was_alive_K, clip_K, decay_K1, self._may_look)
        if self.kind == "adamw":
            # The root of the bias correction of v is moved out of the divisor, which saves a pass:
            # m / (sqrt(v) / root + eps) = root * m / (sqrt(v) + root * eps).
            root_K = (1 - alike(torch.pow, beta2_K, self.age_K)).sqrt()
            step_size_K = lr_K * root_K / (1 - alike(torch.pow, beta1_K, self.age_K))
            self.alive_K, grad_norm_K, update_norm_K = self._update(
                *common,
                self.second_moment_Kn,
                row(1 - beta1_K),
                row(1 - beta2_K),
                row(number["eps"] * root_K),
                row(step_size_K),
            )
        else:
            # The first gradient is taken whole.
            weight_K1 = row(torch.where(self.age_K == 1, 1.0, 1 - beta1_K))
            self.alive_K, grad_norm_K, update_norm_K = self._update(*common, weight_K1, row(lr_K))
        metrics = {"loss": loss_K, "grad_norm": grad_norm_K, "update_norm": update_norm_K, "lr": lr_K.to(dtype)}
        return {name: value.masked_fill(~was_alive_K, float("nan")) for name, value in metrics.items()}

    def arrange(self, rows: torch.Tensor, params_Kn: torch.Tensor, configs: Sequence[TrainingConfig]) -> None:
        """Go on with members that continue ``rows`` of the old pack, -1 for a fresh one.

        ``params_Kn`` is their parameter buffer, ``configs`` their numbers.
        """
        fresh_K = rows < 0
        source = rows.clamp(min=0)
        self.params_Kn = params_Kn
        self._read_numbers(configs)
        self.alive_K = self.alive_K[source] | fresh_K
        self.age_K = self.age_K[source].masked_fill(fresh_K, 0.0)
        self.first_moment_Kn = self.first_moment_Kn[source].masked_fill(fresh_K[:, None], 0.0)
        if self.second_moment_Kn is not None:
            self.second_moment_Kn = self.second_moment_Kn[source].masked_fill(fresh_K[:, None], 0.0)

    def state_dict(self) -> dict[str, Any]:
        """Moments, mask and ages; the hyperparameters come from the configs."""
        state = {
            "age": self.age_K.clone(),
            "alive": self.alive_K.clone(),
            "first_moment": self.first_moment_Kn.clone(),
        }
        if self.second_moment_Kn is not None:
            state["second_moment"] = self.second_moment_Kn.clone()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from ``state_dict`` of an optimizer with the same members."""
        self.age_K, self.alive_K = state["age"].clone(), state["alive"].clone()
        self.first_moment_Kn.copy_(state["first_moment"])
        if self.second_moment_Kn is not None:
            self.second_moment_Kn.copy_(state["second_moment"])


def _clipped(
    grad_Kn: torch.Tensor, loss_K: torch.Tensor, alive_K: torch.Tensor, clip_K: torch.Tensor, may_look: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Who is alive after this step's loss and gradient, the gradient's norms, and what the update may use."""
    norm_K = norm_per_member(grad_Kn)
    alive_K = alive_K & torch.isfinite(loss_K) & torch.isfinite(norm_K)
    factor_K = (clip_K / (norm_K + 1e-6)).clamp(max=1.0)
    if not (may_look and bool((factor_K == 1).all())):
        grad_Kn.mul_(factor_K[:, None])
    return alive_K, norm_K, _masked(grad_Kn, alive_K, may_look)


def _masked(values_Kn: torch.Tensor, alive_K: torch.Tensor, may_look: bool) -> torch.Tensor:
    """``values_Kn`` with nothing in the rows of members that are not alive, in place."""
    if may_look and bool(alive_K.all()):
        return values_Kn
    # A masked fill, not a product: 0 * nan would be nan.
    return values_Kn.masked_fill_(~alive_K[:, None], 0.0)


def _adamw(
    params_Kn: torch.Tensor,
    first_Kn: torch.Tensor,
    grad_Kn: torch.Tensor,
    loss_K: torch.Tensor,
    alive_K: torch.Tensor,
    clip_K: torch.Tensor,
    decay_K1: torch.Tensor,
    may_look: bool,
    second_Kn: torch.Tensor,
    first_weight_K1: torch.Tensor,
    second_weight_K1: torch.Tensor,
    eps_K1: torch.Tensor,
    step_size_K1: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    alive_K, norm_K, grad_Kn = _clipped(grad_Kn, loss_K, alive_K, clip_K, may_look)
    first_Kn.lerp_(grad_Kn, first_weight_K1)
    second_Kn.lerp_(grad_Kn.square_(), second_weight_K1)
    denominator_Kn = torch.sqrt(second_Kn, out=grad_Kn).add_(eps_K1)
    update_Kn = torch.div(first_Kn, denominator_Kn, out=grad_Kn).mul_(step_size_K1)
    return alive_K, norm_K, _apply(params_Kn, update_Kn, alive_K, decay_K1, may_look)


def _sgd(
    params_Kn: torch.Tensor,
    first_Kn: torch.Tensor,
    grad_Kn: torch.Tensor,
    loss_K: torch.Tensor,
    alive_K: torch.Tensor,
    clip_K: torch.Tensor,
    decay_K1: torch.Tensor,
    may_look: bool,
    first_weight_K1: torch.Tensor,
    lr_K1: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    alive_K, norm_K, grad_Kn = _clipped(grad_Kn, loss_K, alive_K, clip_K, may_look)
    first_Kn.lerp_(grad_Kn, first_weight_K1)
    return alive_K, norm_K, _apply(params_Kn, first_Kn * lr_K1, alive_K, decay_K1, may_look)


def _apply(
    params_Kn: torch.Tensor, update_Kn: torch.Tensor, alive_K: torch.Tensor, decay_K1: torch.Tensor, may_look: bool
) -> torch.Tensor:
    """Move the members that are alive, in place; the size of each update, (K,)."""
    update_Kn = _masked(update_Kn, alive_K, may_look)
    decay_K1 = decay_K1.masked_fill(~alive_K[:, None], 1.0)
    if not (may_look and bool((decay_K1 == 1).all())):
        params_Kn.mul_(decay_K1)
    params_Kn.sub_(update_Kn)
    return norm_per_member(update_Kn)

"""Packed optimizers: one fused pass over flat (K, n) buffers, every hyperparameter a (K,) tensor.

All parameters of member k are row k of one (K, n) tensor, so clipping, masking and the update are a
few elementwise operations whatever the number of layers or members, with no host synchronisation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from objectives.base import TrainingConfig
from objectives.compiling import Compiled
from objectives.layout import Layout
from objectives.schedules import schedule_factor
from objectives.telemetry import norm_per_member
from objectives.update_rules import RULES
from objectives.update_rules.rule import Numbers, States, UpdateRule

# Shapes: K members, R of them that are observed, n parameters of one member.

_COMMON_FIELDS = ("lr", "warmup", "weight_decay", "clip")


@dataclass(frozen=True, slots=True)
class Observed:
    """What one step did to the members in ``rows``, (R, n) each: for telemetry.

    The gradient is that of the loss, before clipping; the update has the learning rate and no weight decay.
    """

    rows: torch.Tensor
    params_Rn: torch.Tensor
    grad_Rn: torch.Tensor
    update_Rn: torch.Tensor
    clip_factor_R: torch.Tensor


class PackedOptimizer:
    """An update rule for K members with a warmup, a schedule and global-norm clipping each.

    Weight decay is decoupled and scaled by the learning rate. Clipping is that of
    ``torch.nn.utils.clip_grad_norm_``, per member.
    """

    def __init__(
        self, params_Kn: torch.Tensor, configs: Sequence[TrainingConfig], layout: Layout, *, compiled: bool
    ) -> None:
        first = configs[0]
        self.rule: UpdateRule = RULES[first.optimizer](first, layout)
        self.layout, self.schedule = layout, first.schedule
        self.steps, self.final_lr_fraction = first.steps, first.final_lr_fraction
        self.params_Kn = params_Kn
        self._read_numbers(configs)
        device = params_Kn.device
        self.alive_K = torch.ones(len(configs), dtype=torch.bool, device=device)
        # Updates that each member has behind it; a member may join a pack that has begun.
        self.age_K = torch.zeros(len(configs), dtype=torch.float64, device=device)
        self.states: States = {
            name: params_Kn.new_zeros(len(configs), size) for name, size in self.rule.state_sizes().items()
        }
        self._advance = Compiled(_advance) if compiled else _advance
        # Reading a flag costs nothing on a CPU, where it saves passes over memory that would change nothing.
        self._may_look = device.type == "cpu" and not compiled
        self.lr_K = self.numbers["lr"]

    def _read_numbers(self, configs: Sequence[TrainingConfig]) -> None:
        # Hyperparameters are kept in double precision: 1 - 0.9999 in single precision would already
        # be off by 6e-4. They are rounded only where they meet the parameters.
        self.numbers: dict[str, torch.Tensor] = {
            name: torch.tensor(
                [float("inf") if (value := getattr(c, name)) is None else value for c in configs],
                dtype=torch.float64,
                device=self.params_Kn.device,
            )
            for name in (*_COMMON_FIELDS, *self.rule.fields)
        }

    def step(self, loss_K: torch.Tensor, grad_Kn: torch.Tensor) -> dict[str, torch.Tensor]:
        """One update in place, which overwrites ``grad_Kn``; the step's metrics, shape (K,) each.

        A member whose loss or gradient norm is not finite is masked from this very update on: its
        parameters stay, and from the next step on its metrics are NaN.
        """
        return self._step(loss_K, grad_Kn)[0]

    def observed_step(
        self, loss_K: torch.Tensor, grad_Kn: torch.Tensor, rows: torch.Tensor
    ) -> tuple[dict[str, torch.Tensor], Observed]:
        """A ``step``, and what it did to the members in ``rows``."""
        params_Rn, grad_Rn = self.params_Kn[rows], grad_Kn[rows]
        metrics, update_Kn = self._step(loss_K, grad_Kn)
        norm_R = metrics["grad_norm"][rows]
        factor_R = _clip_factor(norm_R, self.numbers["clip"][rows].to(norm_R.dtype))
        return metrics, Observed(rows, params_Rn, grad_Rn, update_Kn[rows], factor_R)

    def _step(self, loss_K: torch.Tensor, grad_Kn: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        dtype, number = self.params_Kn.dtype, self.numbers
        was_alive_K = self.alive_K
        self.lr_K = lr_K = number["lr"] * schedule_factor(
            self.schedule, self.age_K, number["warmup"], self.steps, self.final_lr_fraction
        )
        self.age_K = self.age_K + 1

        def row(value_K: torch.Tensor) -> torch.Tensor:
            return value_K.to(dtype)[:, None]

        scalars_K1 = {name: row(value_K) for name, value_K in self.rule.scalars(number, lr_K, self.age_K).items()}
        self.alive_K, grad_norm_K, update_norm_K, update_Kn = self._advance(
            self.rule,
            self.states,
            self.params_Kn,
            grad_Kn,
            loss_K,
            was_alive_K,
            number["clip"].to(dtype),
            row(1 - lr_K * number["weight_decay"]),
            scalars_K1,
            self._may_look,
        )
        metrics = {"loss": loss_K, "grad_norm": grad_norm_K, "update_norm": update_norm_K, "lr": lr_K.to(dtype)}
        return {name: value.masked_fill(~was_alive_K, float("nan")) for name, value in metrics.items()}, update_Kn

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
        self.lr_K = self.lr_K[source]
        self.states = {name: state[source].masked_fill(fresh_K[:, None], 0.0) for name, state in self.states.items()}

    def state_dict(self) -> dict[str, Any]:
        """Moments, mask and ages; the hyperparameters come from the configs."""
        states = {name: state.clone() for name, state in self.states.items()}
        return {"age": self.age_K.clone(), "alive": self.alive_K.clone(), "states": states}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from ``state_dict`` of an optimizer with the same members."""
        self.age_K, self.alive_K = state["age"].clone(), state["alive"].clone()
        for name, value in state["states"].items():
            self.states[name].copy_(value)

    def of_rows(self, rows: torch.Tensor) -> tuple[States, Numbers, torch.Tensor]:
        """States, numbers and ages of the members in ``rows``: what the questions to a rule are asked with."""
        states = {name: state[rows] for name, state in self.states.items()}
        return states, {name: value[rows] for name, value in self.numbers.items()}, self.age_K[rows]


def _advance(
    rule: UpdateRule,
    states: States,
    params_Kn: torch.Tensor,
    grad_Kn: torch.Tensor,
    loss_K: torch.Tensor,
    alive_K: torch.Tensor,
    clip_K: torch.Tensor,
    decay_K1: torch.Tensor,
    scalars_K1: Numbers,
    may_look: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Clip, mask, update and decay in place: who is alive, norms of gradient and update, the update itself."""
    norm_K = norm_per_member(grad_Kn)
    alive_K = alive_K & torch.isfinite(loss_K) & torch.isfinite(norm_K)
    factor_K = _clip_factor(norm_K, clip_K)
    if not (may_look and bool((factor_K == 1).all())):
        grad_Kn.mul_(factor_K[:, None])
    update_Kn = rule.update(states, _masked(grad_Kn, alive_K, may_look), params_Kn, scalars_K1)
    update_Kn = _masked(update_Kn, alive_K, may_look)
    decay_K1 = decay_K1.masked_fill(~alive_K[:, None], 1.0)
    if not (may_look and bool((decay_K1 == 1).all())):
        params_Kn.mul_(decay_K1)
    params_Kn.sub_(update_Kn)
    return alive_K, norm_K, norm_per_member(update_Kn), update_Kn


def _clip_factor(norm_K: torch.Tensor, clip_K: torch.Tensor) -> torch.Tensor:
    """What clipping to ``clip_K`` multiplies gradients of these norms by."""
    return (clip_K / (norm_K + 1e-6)).clamp(max=1.0)


def _masked(values_Kn: torch.Tensor, alive_K: torch.Tensor, may_look: bool) -> torch.Tensor:
    """``values_Kn`` with nothing in the rows of members that are not alive, in place."""
    if may_look and bool(alive_K.all()):
        return values_Kn
    # A masked fill, not a product: 0 * nan would be nan.
    return values_Kn.masked_fill_(~alive_K[:, None], 0.0)

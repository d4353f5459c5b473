"""The way from gradients to parameters in one step of a packed optimizer, which may be compiled."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from objectives.optimizers.clipping import Clipping
from objectives.optimizers.rules.rule import Numbers, States, UpdateRule
from objectives.optimizers.second_moment import SecondMomentStart
from objectives.stacking import Layout

# Shapes: K members, n parameters per member, T weights.


@dataclass(frozen=True)
class Stages:
    """The stages between a gradient and the parameters."""

    layout: Layout
    clipping: Clipping
    start: SecondMomentStart
    rule: UpdateRule
    # Whether reading a flag is cheaper than a useless pass over memory.
    may_look: bool


@dataclass(frozen=True)
class StepNumbers:
    """The hyperparameters of one step for each stage; None for a stage that is off for all members."""

    clip: Numbers
    coupled_decay_K1: torch.Tensor | None  # (K, n) if it differs by weight
    start_K1: Numbers
    rule_K1: Numbers
    lr_factor_KT: torch.Tensor | None
    kept_K1: torch.Tensor | None  # factor of weight decay on the parameters, (K, T) if it differs by weight


def advance(
    stages: Stages,
    numbers: StepNumbers,
    states: States,
    params_Kn: torch.Tensor,
    grad_Kn: torch.Tensor,
    loss_K: torch.Tensor,
    alive_K: torch.Tensor,
    held_K: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Do one step in place; return the mask, both norms, the update, and the share that clipping left."""
    may_look = stages.may_look
    norm_K = stages.rule.norms(grad_Kn)
    is_sound_K = torch.isfinite(norm_K)
    if held_K is not None:
        is_sound_K = is_sound_K | held_K
    alive_K = alive_K & torch.isfinite(loss_K) & is_sound_K
    updated_K = alive_K if held_K is None else alive_K & ~held_K
    held_rows, before = _of_the_held(states, held_K, may_look)

    clip_factor_K = stages.clipping.clip(states, numbers.clip, grad_Kn, norm_K, updated_K, may_look)
    if numbers.coupled_decay_K1 is not None:
        grad_Kn.add_(params_Kn * numbers.coupled_decay_K1)
    grad_Kn = _masked(grad_Kn, updated_K, may_look)
    stages.start.learn(states, grad_Kn, numbers.start_K1, may_look)
    update_Kn = stages.rule.update(states, grad_Kn, params_Kn, numbers.rule_K1)
    if numbers.lr_factor_KT is not None:
        stages.layout.scale(update_Kn, numbers.lr_factor_KT)
    update_Kn = _masked(update_Kn, updated_K, may_look)
    if numbers.kept_K1 is not None:
        kept_K1 = numbers.kept_K1.masked_fill(~updated_K[:, None], 1.0)
        if kept_K1.shape[1] > 1:
            stages.layout.scale(params_Kn, kept_K1)
        elif not (may_look and bool((kept_K1 == 1).all())):
            params_Kn.mul_(kept_K1)
    params_Kn.sub_(update_Kn)
    for name, state in before.items():
        assert held_K is not None  # without it, `before` is empty
        states[name][held_rows] = torch.where(held_K[held_rows][:, None], state, states[name][held_rows])
    return alive_K, norm_K, stages.rule.norms(update_Kn), update_Kn, clip_factor_K


def _of_the_held(states: States, held_K: torch.Tensor | None, may_look: bool) -> tuple[torch.Tensor | slice, States]:
    """Return the rows with held members, or all rows if checking costs more, and the states to restore."""
    if held_K is None or (may_look and not bool(held_K.any())):
        return slice(None), {}
    rows = held_K.nonzero()[:, 0] if may_look else slice(None)
    return rows, {name: state[rows].clone() for name, state in states.items()}


def _masked(values_Kn: torch.Tensor, kept_K: torch.Tensor, may_look: bool) -> torch.Tensor:
    """Put zeros into the rows of members that are not in ``kept_K``, in place."""
    if may_look and bool(kept_K.all()):
        return values_Kn
    # Filled, not multiplied: 0 * nan is nan.
    return values_Kn.masked_fill_(~kept_K[:, None], 0.0)

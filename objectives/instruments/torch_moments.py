"""The moments of one parameter in an optimizer of torch, or in one that uses torch's names for its state.

Adam and its relatives have ``exp_avg`` and ``exp_avg_sq``, RMSprop ``square_avg``, and SGD ``momentum_buffer``. For
other optimizers moments and curvature are unknown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Moments:
    """What is known about one parameter after a step, in the parameter's shape; None for what is unknown.

    The step is lr * ``step_factor`` * m / ``divisor``, with m the averaged gradient ``first``. ``curvature_factor`` is
    the effect of averaging on curvature, as in ``momentum_factor``. Both moments are debiased. ``eps`` is NaN without
    one.
    """

    first: torch.Tensor | None = None
    second: torch.Tensor | None = None
    divisor: torch.Tensor | None = None
    curvature_factor: float = 1.0
    step_factor: float = 1.0
    eps: float = math.nan


def moments_of(optimizer: torch.optim.Optimizer, parameter: torch.Tensor, group: Mapping[str, Any]) -> Moments:
    """Return the moments of ``parameter``, which is in ``group``, after a step."""
    state = optimizer.state.get(parameter, {})
    if "exp_avg_sq" in state:
        return _of_adam(state, group)
    if "square_avg" in state:
        return _of_rmsprop(state, group)
    if isinstance(optimizer, torch.optim.SGD):
        return _of_sgd(state, group, parameter)
    return Moments()


def _of_adam(state: Mapping[str, Any], group: Mapping[str, Any]) -> Moments:
    """Return m / (1 - beta1^t) over sqrt(v / (1 - beta2^t)) + eps; with amsgrad, v is its maximum."""
    (beta1, beta2), eps, age = group["betas"], float(group["eps"]), float(state["step"])
    second = state.get("max_exp_avg_sq", state["exp_avg_sq"]) / (1 - float(beta2) ** age)
    left = 1 - float(beta1) ** age
    return Moments(
        first=state["exp_avg"] / left,
        second=second,
        divisor=second.sqrt() + eps,
        curvature_factor=(1 - float(beta1)) / (1 + float(beta1)) / left,
        eps=eps,
    )


def _of_rmsprop(state: Mapping[str, Any], group: Mapping[str, Any]) -> Moments:
    """Return the gradient, or its running sum, over sqrt(v) + eps. v is not debiased; if centred, it is a variance."""
    second, momentum, eps = state["square_avg"], float(group["momentum"]), float(group["eps"])
    if "grad_avg" in state:
        second = (second - state["grad_avg"].square()).clamp(min=0.0)
    # The running sum is over steps that are already divided, so the averaged gradient is unknown.
    return Moments(
        second=second,
        divisor=second.sqrt() + eps,
        curvature_factor=(1 - momentum) / (1 + momentum),
        step_factor=1 / (1 - momentum),
        eps=eps,
    )


def _of_sgd(state: Mapping[str, Any], group: Mapping[str, Any], parameter: torch.Tensor) -> Moments:
    """Return the average (1 - momentum) / (1 - dampening) * b of torch's sum b = momentum b + (1 - dampening) g.

    Nesterov's step is treated as plain momentum.
    """
    momentum, buffer = float(group["momentum"]), state.get("momentum_buffer")
    factor = (1 - float(group["dampening"])) / (1 - momentum) if momentum else 1.0
    return Moments(
        first=None if buffer is None else buffer / factor,
        divisor=torch.ones_like(parameter),
        curvature_factor=(1 - momentum) / (1 + momentum),
        step_factor=factor,
    )

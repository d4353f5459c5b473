"""The moments that an optimizer of torch, or one that keeps its state by torch's names, has of one parameter.

``exp_avg`` and ``exp_avg_sq`` are those of Adam and its relatives, ``square_avg`` that of RMSprop, ``momentum_buffer``
that of SGD. Of an optimizer that keeps none of them nothing is known, and its curvature cannot be told.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Moments:
    """What is known of one parameter after a step, in the parameter's shape; None of what is not kept.

    The step is lr * ``step_factor`` * m / ``divisor``, with m the averaged gradient ``first``; ``curvature_factor`` is
    what the averaging does to the curvature, as in ``momentum_factor``. Both moments are debiased. ``eps`` is NaN
    without one.
    """

    first: torch.Tensor | None = None
    second: torch.Tensor | None = None
    divisor: torch.Tensor | None = None
    curvature_factor: float = 1.0
    step_factor: float = 1.0
    eps: float = math.nan


def moments_of(optimizer: torch.optim.Optimizer, parameter: torch.Tensor, group: Mapping[str, Any]) -> Moments:
    """The moments of ``parameter``, which is in ``group``, after a step."""
    state = optimizer.state.get(parameter, {})
    if "exp_avg_sq" in state:
        return _of_adam(state, group)
    if "square_avg" in state:
        return _of_rmsprop(state, group)
    if isinstance(optimizer, torch.optim.SGD):
        return _of_sgd(state, group, parameter)
    return Moments()


def _of_adam(state: Mapping[str, Any], group: Mapping[str, Any]) -> Moments:
    """m / (1 - beta1^t) over sqrt(v / (1 - beta2^t)) + eps; v is its highest where the optimizer keeps that."""
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
    """The gradient, or its running sum, over sqrt(v) + eps; v is not debiased, and less its mean squared if centred."""
    second, momentum, eps = state["square_avg"], float(group["momentum"]), float(group["eps"])
    if "grad_avg" in state:
        second = (second - state["grad_avg"].square()).clamp(min=0.0)
    # The running sum is of steps that are divided already: of its average nothing can be read.
    return Moments(
        second=second,
        divisor=second.sqrt() + eps,
        curvature_factor=(1 - momentum) / (1 + momentum),
        step_factor=1 / (1 - momentum),
        eps=eps,
    )


def _of_sgd(state: Mapping[str, Any], group: Mapping[str, Any], parameter: torch.Tensor) -> Moments:
    """torch sums gradients, b = momentum b + (1 - dampening) g: an average times (1 - dampening) / (1 - momentum).

    Nesterov's step is read as one without it.
    """
    momentum, buffer = float(group["momentum"]), state.get("momentum_buffer")
    factor = (1 - float(group["dampening"])) / (1 - momentum) if momentum else 1.0
    return Moments(
        first=None if buffer is None else buffer / factor,
        divisor=torch.ones_like(parameter),
        curvature_factor=(1 - momentum) / (1 + momentum),
        step_factor=factor,
    )

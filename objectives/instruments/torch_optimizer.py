"""Telemetry of a user's own training loop: any module, any optimizer with torch's interface.

The optimizer's hooks read each step before and after it. Moments are read from an optimizer of torch, or one that uses
torch's names for its state: Adam and its relatives have ``exp_avg`` and ``exp_avg_sq``, RMSprop ``square_avg``, and SGD
``momentum_buffer``. For other optimizers moments and curvature are unknown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from objectives.instruments.curvature import Graph, measure_curvature
from objectives.instruments.native_sums import StepValues
from objectives.instruments.telemetry import group_readings
from objectives.instruments.update_line import (
    Closure,
    are_flattened,
    critical_step,
    local,
    random_streams_of,
    untouched,
)
from objectives.stacking import Layout, rows_of_blocks

# Shapes: one member, n parameters zero-padded to whole blocks, with a leading axis of 1 for the members.

Reading = dict[str, float]


class OptimizerReadings:
    """Read ``module`` every ``every`` steps of ``optimizer``, and its curvature every ``curvature`` steps, if not None.

    ``closure()`` returns the loss of a sample batch for the curvature, a tensor with one element, and must not call
    ``backward``; None for no curvature. It is measured by ``products`` Hessian-vector products, or by forward passes if
    that is 0: then all processes of a training must read, and of sharded parameters the curvature alone is read. Steps
    count from ``first_step``. ``take`` returns the last reading, once. Reading leaves training as it is: parameters,
    gradients, buffers and random streams are the same with and without it. ``close`` ends it.

    Raises ValueError for parameters that the optimizer lacks, or that are sharded and cannot be read.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        closure: Closure | None,
        every: int,
        curvature: int | None,
        products: int = 4,
        first_step: int = 0,
    ) -> None:
        self._module, self._optimizer, self._closure = module, optimizer, closure
        self._every, self._curvature, self._products = every, curvature, products
        self._group_of = {id(p): group for group in optimizer.param_groups for p in group["params"]}
        self._parameters = {name: p for name, p in module.named_parameters() if id(p) in self._group_of}
        if not self._parameters:
            raise ValueError("the optimizer has none of the module's parameters: give the module that it trains")
        if are_flattened(self._parameters.values()):
            raise ValueError("parameters in FullyShardedDataParallel cannot be read: use fully_shard (FSDP2)")
        self._is_sharded = any(hasattr(p, "full_tensor") for p in self._parameters.values())
        if self._is_sharded and (products or closure is None):
            raise ValueError("the parameters are sharded: of these only the curvature by forward passes is read")
        self._layout = Layout({name: tuple(p.shape) for name, p in self._parameters.items()})
        self._step = first_step
        self._reading: tuple[int, Reading] | None = None
        self._warm_Rn: torch.Tensor | None = None
        self._critical_rate = 0.0  # at the last measurement by forward passes; 0 if unknown
        self._before: list[torch.Tensor] | None = None
        self._gradient_Rn: torch.Tensor | None = None
        self._hooks = [
            optimizer.register_step_pre_hook(lambda _, args, kwargs: self._before_step(_closure_of(args, kwargs))),
            optimizer.register_step_post_hook(lambda *_: self._after_step()),
        ]

    def take(self) -> tuple[int, Reading] | None:
        """Return the step and numbers of the reading since the last call, or None."""
        reading, self._reading = self._reading, None
        return reading

    def close(self) -> None:
        """Stop reading."""
        for hook in self._hooks:
            hook.remove()

    @property
    def _is_curved(self) -> bool:
        return self._closure is not None and self._curvature is not None and self._step % self._curvature == 0

    @torch.no_grad()
    def _before_step(self, own_closure: object) -> None:
        if (self._is_sharded or self._step % self._every) and not self._is_curved:
            return
        self._before = [local(p).clone() for p in self._parameters.values()]
        if own_closure is None:  # else the step itself computes the gradient
            self._gradient_Rn = self._gradient()

    @torch.no_grad()
    def _after_step(self) -> None:
        if self._before is not None:
            readings: dict[str, Any] = {} if self._is_sharded else self._of_groups(self._before)
            if self._is_curved:
                readings |= self._measured(self._before) if self._products else self._critical(self._before)
            self._reading = (self._step, {name: float(value) for name, value in readings.items()})
            self._before = self._gradient_Rn = None
        self._step += 1

    def _gradient(self) -> torch.Tensor | None:
        if self._is_sharded:
            return None
        return _row([torch.zeros_like(p) if p.grad is None else p.grad for p in self._parameters.values()])

    def _of_groups(self, before: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        before_Rn, moments = _row(before), self._all_moments()
        gradient_Rn = self._gradient() if self._gradient_Rn is None else self._gradient_Rn
        assert gradient_Rn is not None, "the parameters are whole"
        first_Rn, second_Rn = (_row_or_none([getattr(m, which) for m in moments]) for which in ("first", "second"))
        values = StepValues(
            gradient_Rn,
            before_Rn - _row(list(self._parameters.values())),
            before_Rn,
            first_Rn,
            second_Rn,
            torch.tensor([moments[0].eps], dtype=torch.float64, device=before_Rn.device),
        )
        return group_readings(self._layout, values)

    def _critical(self, before: Sequence[torch.Tensor]) -> dict[str, float]:
        """Return the curvature along this step's update, measured by forward passes."""
        assert self._closure is not None
        parameters = list(self._parameters.values())
        rate = max(float(self._group_of[id(p)].get("lr", 1.0)) for p in parameters)
        if rate <= 0:
            return {}
        start = self._critical_rate / rate
        step = critical_step(self._module, [local(p) for p in parameters], before, self._closure, start)
        self._critical_rate = 0.0 if math.isnan(step) else step * rate
        return {"lambda_crit": 2 / (step * rate), "curvature_threshold": 2 / rate}

    def _measured(self, before: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the curvature at the parameters before this step, with the divisor of its update."""
        assert self._closure is not None
        moments, parameters = self._all_moments(), list(self._parameters.values())
        rates = [float(self._group_of[id(p)]["lr"]) * m.step_factor for p, m in zip(parameters, moments, strict=True)]
        rate = max(rates)
        divisor_Rn = _row_or_none([m.divisor for m in moments], padding=1.0)
        if divisor_Rn is None or rate <= 0:
            return {}
        share_RT = torch.tensor([rates], dtype=torch.float64, device=divisor_Rn.device) / rate
        divisor_Rn = divisor_Rn / self._layout.spread(share_RT.to(divisor_Rn.dtype))
        if self._warm_Rn is None:
            self._warm_Rn = torch.zeros_like(divisor_Rn)
        with untouched(self._module, parameters), random_streams_of(parameters), torch.enable_grad():
            torch._foreach_copy_([p.detach() for p in parameters], list(before))
            graph = Graph(self._closure, parameters)
            factor_R = torch.tensor([moments[0].curvature_factor], dtype=torch.float64, device=divisor_Rn.device)
            result = measure_curvature(graph, divisor_Rn, factor_R, self._warm_Rn, self._products)
        self._warm_Rn = result.warm_Rn
        return {
            "lambda_grad": result.lambda_grad_R,
            "lambda_max": result.lambda_max_R,
            "curvature_threshold": torch.tensor([2 / rate], dtype=torch.float64),
        }

    def _all_moments(self) -> list[Moments]:
        return [moments_of(self._optimizer, p, self._group_of[id(p)]) for p in self._parameters.values()]


def _closure_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> object:
    """Return the closure that a step was given, or None; ``args`` begin with the optimizer."""
    return kwargs.get("closure", args[1] if len(args) > 1 else None)


def _row(values: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the values of every parameter as one row, (1, n), detached."""
    return rows_of_blocks(value.detach()[None] for value in values)


def _row_or_none(values: Sequence[torch.Tensor | None], padding: float = 0.0) -> torch.Tensor | None:
    """Return moments as one row, with ``padding`` in the padded columns, or None if a parameter lacks its moment."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    row_Rn = _row(known)
    row_Rn[:, sum(value.numel() for value in known) :] = padding
    return row_Rn


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

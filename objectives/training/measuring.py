"""Curvature of members of a pack at one step, for telemetry and for control."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch

from objectives.instruments.critical_step import critical_steps
from objectives.instruments.curvature import Curvature, Hessian, momentum_factor, weights_of
from objectives.instruments.native_sums import StepValues
from objectives.optimizers.packed_optimizer import Observed, PackedOptimizer, Rows
from objectives.stacking import Layout, continued, index_on

# Shapes: K members, R observed ones, C with curvature, n parameters per member.

_VECTORS, _RATES = "warm", "critical_lr"
_HESSIAN_PURPOSE = 12  # of the random stream, among a seed's streams


class Pack(Protocol):
    """The part of a pack that is read here."""

    optimizer: PackedOptimizer

    @property
    def weight_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shapes of one member's weights, by name."""

    def losses_of(self, weights: dict[str, torch.Tensor], rows: torch.Tensor) -> torch.Tensor:
        """Return the loss on this step's data for the members ``rows``."""

    def hessian_of(self, params_Rn: torch.Tensor, rows: torch.Tensor) -> Hessian:
        """Return the Hessian of the loss on this step's data for the members ``rows``, at these parameters."""


def curvature_of(
    pack: Pack, rows: torch.Tensor, params_Cn: torch.Tensor, warm_Cn: torch.Tensor, num_products: int
) -> tuple[Curvature, torch.Tensor] | None:
    """Return the curvature at ``params_Cn``, the parameters of ``rows`` before this update, and 2 / lr, (C,).

    ``rows`` ascend. Call it after the update, whose preconditioner it uses. None if that is not diagonal.
    """
    optimizer = pack.optimizer
    chosen: Rows = slice(None) if len(rows) == len(optimizer.params_Kn) else rows  # all states need no copy
    divisor_Cn = optimizer.divisor(chosen)
    if divisor_Cn is None:
        return None
    age_C = optimizer.age_K[chosen]
    beta1_C = optimizer.numbers["beta1"][chosen] if "beta1" in optimizer.numbers else torch.zeros_like(age_C)
    factor_C = momentum_factor(beta1_C, age_C, debiased=optimizer.rule.is_debiased)
    curvature = pack.hessian_of(params_Cn, rows).curvature(divisor_Cn, factor_C, warm_Cn, num_products)
    return curvature, 2 / optimizer.lr_K[chosen]


def step_values(optimizer: PackedOptimizer, rows: Rows, observed: Observed) -> StepValues:
    """Return what a step did to the members ``rows``, with their moments, for telemetry."""
    (states, numbers, age_R), rule = optimizer.of_rows(rows), optimizer.rule
    missing_R = torch.full((len(observed.params_Rn),), math.nan, device=observed.params_Rn.device)
    return StepValues(
        observed.grad_Rn,
        observed.update_Rn,
        observed.params_Rn,
        rule.first_moment(states, numbers, age_R),
        rule.second_moment(states, numbers, age_R),
        numbers.get("eps", missing_R),
    )


class TrainingPack(Pack, Protocol):
    """A pack before a step, as an estimate of its Hessian reads it."""

    layout: Layout

    @property
    def completed_steps(self) -> list[int]:
        """Completed steps of each member."""

    def draw(self, sample: Callable[[torch.Generator], torch.Tensor], purpose: int = 1) -> torch.Tensor:
        """Return random numbers of each member."""


def estimate_hessian(pack: TrainingPack) -> None:
    """Estimate the Hessian's diagonal for the members that are due, if the optimizer needs it (Sophia)."""
    rule, params_Kn = pack.optimizer.rule, pack.optimizer.params_Kn
    if not rule.needs_hessian:
        return
    due = [k for k, age in enumerate(pack.completed_steps) if rule.hessian_is_due(age)]
    if not due:
        return
    index, size = index_on(params_Kn.device, tuple(due)), pack.layout.size
    direction_Kn = pack.draw(
        lambda generator: torch.randn(size, generator=generator, dtype=params_Kn.dtype), _HESSIAN_PURPOSE
    )
    direction_Rn, hessian = direction_Kn[index], pack.hessian_of(params_Kn[index], index)
    pack.optimizer.take_hessian(index, direction_Rn * hessian.hessian_product(direction_Rn))


class CurvatureReadings:
    """Readings of the curvature, each measurement beginning from the results of the last one."""

    def __init__(self) -> None:
        # Per member, zeros for one without a measurement: vectors of ``measure_curvature``, and critical steps in
        # units of the learning rate. Empty before the first measurement.
        self._start: dict[str, torch.Tensor] = {}

    def read(
        self, pack: Pack, rows: Sequence[int], curved: Sequence[int], params_Rn: torch.Tensor, num_products: int
    ) -> dict[str, torch.Tensor]:
        """Return readings of ``rows``, (R,) each, NaN except in ``curved``; empty if the curvature is unknown.

        ``params_Rn`` as in ``curvature_of``. Without Hessian-vector products it is measured by forward passes.
        """
        device, positions = params_Rn.device, [r for r, row in enumerate(rows) if row in curved]
        position_C = index_on(device, tuple(positions))
        row_C = index_on(device, tuple(rows[r] for r in positions))
        measure = self._by_products if num_products else self._by_forwards
        values = measure(pack, row_C, params_Rn[position_C], num_products)
        nan_R = torch.full((len(rows),), math.nan, dtype=torch.float64, device=params_Rn.device)
        return {name: nan_R.index_copy(0, position_C, value_C.double()) for name, value_C in values.items()}

    def _by_products(
        self, pack: Pack, chosen: torch.Tensor, params_Cn: torch.Tensor, num_products: int
    ) -> dict[str, torch.Tensor]:
        """Empty without a diagonal preconditioner."""
        warm_Kn = self._start.setdefault(_VECTORS, torch.zeros_like(pack.optimizer.params_Kn))
        measured = curvature_of(pack, chosen, params_Cn, warm_Kn[chosen], num_products)
        if measured is None:
            return {}
        result, threshold_C = measured
        warm_Kn[chosen] = result.warm_Rn
        return {
            "lambda_grad": result.lambda_grad_R,
            "lambda_max": result.lambda_max_R,
            "curvature_threshold": threshold_C,
        }

    def _by_forwards(
        self, pack: Pack, chosen: torch.Tensor, params_Cn: torch.Tensor, num_products: int
    ) -> dict[str, torch.Tensor]:
        rate_C = pack.optimizer.lr_K[chosen]
        critical_K = self._start.setdefault(_RATES, torch.zeros_like(pack.optimizer.lr_K))
        step_C = steps_of_update(pack, chosen, params_Cn, (critical_K[chosen] / rate_C).nan_to_num(posinf=0.0))
        critical_K[chosen] = (step_C * rate_C).nan_to_num()
        return {"lambda_crit": 2 / (step_C * rate_C), "curvature_threshold": 2 / rate_C}

    def arrange(self, rows: torch.Tensor) -> None:
        """Rearrange to members that continue ``rows``, -1 for a new one."""
        self._start = {name: continued(value_K, rows) for name, value_K in self._start.items()}

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return what the next measurements begin from."""
        return {name: value_K.clone() for name, value_K in self._start.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state that holds a ``state_dict``."""
        self._start = {name: state[name].clone() for name in (_VECTORS, _RATES) if name in state}


@torch.no_grad()
def steps_of_update(pack: Pack, rows: torch.Tensor, params_Cn: torch.Tensor, start_C: torch.Tensor) -> torch.Tensor:
    """Return how many times its last update raises each member's loss, (C,); arguments as in ``critical_steps``."""
    update_Cn = pack.optimizer.params_Kn[rows] - params_Cn

    def losses(step_C: torch.Tensor) -> torch.Tensor:
        moved_Cn = params_Cn + step_C.to(params_Cn.dtype)[:, None] * update_Cn
        return pack.losses_of(weights_of(moved_Cn, pack.weight_shapes), rows)

    return critical_steps(losses, start_C)

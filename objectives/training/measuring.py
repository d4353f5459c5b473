"""Curvature of members of a pack at one step, for telemetry and for control."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Protocol

import torch

from objectives.instruments.curvature import Curvature, GradientGraph, measure_curvature, momentum_factor
from objectives.optimizers.packed_optimizer import PackedOptimizer

# Shapes: K members, R observed ones, C with curvature, n parameters per member.

Weights = Mapping[str, torch.Tensor]


class Pack(Protocol):
    """The part of a pack that is read here."""

    optimizer: PackedOptimizer

    @property
    def weight_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shapes of one member's weights, by name."""

    def losses_of(self, weights: dict[str, torch.Tensor], rows: torch.Tensor) -> torch.Tensor:
        """Return the loss on this step's data for the members ``rows``."""


def curvature_of(
    pack: Pack, rows: torch.Tensor, params_Cn: torch.Tensor, warm_Cn: torch.Tensor, num_products: int
) -> tuple[Curvature, torch.Tensor] | None:
    """Return the curvature at ``params_Cn``, the parameters of ``rows`` before this update, and 2 / lr, (C,).

    Call it after the update, whose preconditioner it uses. None if the preconditioner is not diagonal.
    """
    divisor_Cn = pack.optimizer.divisor(rows)
    if divisor_Cn is None:
        return None
    _, numbers, age_C = pack.optimizer.of_rows(rows)
    graph = GradientGraph(lambda weights: pack.losses_of(weights, rows), params_Cn, pack.weight_shapes)
    beta1_C = numbers.get("beta1", torch.zeros_like(age_C))
    factor_C = momentum_factor(beta1_C, age_C, debiased=pack.optimizer.rule.is_debiased)
    curvature = measure_curvature(graph, divisor_Cn, factor_C, warm_Cn, num_products)
    return curvature, 2 / pack.optimizer.lr_K[rows]


def curvature_readings(
    pack: Pack,
    rows: Sequence[int],
    curved: Sequence[int],
    params_Rn: torch.Tensor,
    warm_Kn: torch.Tensor,
    num_products: int,
) -> dict[str, torch.Tensor]:
    """Return readings of ``rows``, (R,) each, NaN except in ``curved``; empty without a diagonal preconditioner.

    ``params_Rn`` as in ``curvature_of``. ``warm_Kn`` has the start vectors of the measurement, and is updated in place.
    """
    is_curved_R = torch.tensor([row in curved for row in rows], device=warm_Kn.device)
    chosen = torch.tensor(rows, device=warm_Kn.device)[is_curved_R]
    measured = curvature_of(pack, chosen, params_Rn[is_curved_R], warm_Kn[chosen], num_products)
    if measured is None:
        return {}
    result, threshold_C = measured
    warm_Kn[chosen] = result.warm_Rn
    values = {
        "lambda_grad": result.lambda_grad_R,
        "lambda_max": result.lambda_max_R,
        "curvature_threshold": threshold_C,
    }
    nan_R = torch.full((len(rows),), math.nan, dtype=torch.float64, device=warm_Kn.device)
    return {name: nan_R.masked_scatter(is_curved_R, value.to(torch.float64)) for name, value in values.items()}

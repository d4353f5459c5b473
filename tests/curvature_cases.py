"""Trainers and quadratic forms whose curvature is measured."""

import torch

from objectives.instruments.curvature import Curvature, GradientGraph, Losses, measure_curvature, momentum_factor
from objectives.training.packed import PackedTrainer

# Shapes: R members, n parameters of one member and zeros that fill its last block.


def shapes_of(trainer: PackedTrainer) -> dict[str, tuple[int, ...]]:
    """Of one member's weights, in the order of their columns."""
    return {name: tuple(weight.shape[1:]) for name, weight in trainer.weights.items()}


def losses_of(trainer: PackedTrainer) -> Losses:
    """The trainer's losses on the data of this step as a function of the weights."""
    own, step = trainer.weights, trainer.num_steps

    def losses(weights: dict[str, torch.Tensor]) -> torch.Tensor:
        now = trainer.num_steps
        trainer.weights, trainer.num_steps = weights, step
        try:
            return trainer.losses()
        finally:
            trainer.weights, trainer.num_steps = own, now

    return losses


def graph_of(trainer: PackedTrainer, dtype: torch.dtype | None = None) -> GradientGraph:
    """At the parameters and on the data of this step; the trainer may go on."""
    params_Rn = trainer.optimizer.params_Kn.to(dtype, copy=True)
    return GradientGraph(losses_of(trainer), params_Rn, shapes_of(trainer))


def divisor_of(trainer: PackedTrainer) -> torch.Tensor:
    """What the last update was divided by."""
    optimizer = trainer.optimizer
    divisor_Rn = optimizer.rule.divisor(*optimizer.of_rows(torch.arange(trainer.num_members)))
    return torch.ones_like(optimizer.params_Kn) if divisor_Rn is None else divisor_Rn


def factor_of(trainer: PackedTrainer) -> torch.Tensor:
    """The factor of the momentum at the last update."""
    optimizer = trainer.optimizer
    debiased = trainer.structure.optimizer == "adamw"
    return momentum_factor(optimizer.numbers["beta1"], optimizer.age_K, debiased=debiased)


def measured_step(
    trainer: PackedTrainer, warm_Rn: torch.Tensor, num_products: int
) -> tuple[dict[str, torch.Tensor], Curvature]:
    """One step, and the curvature that its update met: gradient from before it, preconditioner of the update."""
    graph = graph_of(trainer)
    metrics = trainer.step()
    return metrics, measure_curvature(graph, divisor_of(trainer), factor_of(trainer), warm_Rn, num_products)


def quadratic_forms(matrix_Rnn: torch.Tensor, params_Rn: torch.Tensor) -> GradientGraph:
    """Members whose loss is x.(A x) / 2."""

    def losses(weights: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.einsum("rn,rnm,rm->r", weights["x"], matrix_Rnn, weights["x"]) / 2

    size = params_Rn.shape[1]
    return GradientGraph(losses, torch.nn.functional.pad(params_Rn, (0, -size % 32)), {"x": (size,)})

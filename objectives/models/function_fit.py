"""A small tanh network fitted to sin x + sin 4x: a toy problem whose map over beta2 and eps is known.

Full batch by default and in double precision, as in the study of Adam's loss spikes by Bai et al. (arXiv 2506.04805).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from objectives.base import ExecutionPlan, FunctionFitConfig
from objectives.stacking import index_on, seeded_generator
from objectives.training.packed import WEIGHT_PURPOSE, PackedTrainer, Weights

# Shapes: K members, N points, W hidden units.


class FunctionFitTrainer(PackedTrainer[FunctionFitConfig]):
    """One hidden layer of tanh units; mean squared error on evenly spaced points of [-pi, pi]."""

    def __init__(
        self, configs: Sequence[FunctionFitConfig], seeds: Sequence[int], device: str, plan: ExecutionPlan
    ) -> None:
        super().__init__(configs, seeds, device, plan)
        self._x_N = torch.linspace(
            -math.pi, math.pi, self.structure.num_points, dtype=torch.float64, device=self.device
        )
        self._y_N = torch.sin(self._x_N) + torch.sin(4 * self._x_N)

    def initial_weights(self, seed: int) -> Weights:
        """Uniform in +-1/sqrt(fan in) for weights and biases, as in torch.nn.Linear."""
        width, generator = self.structure.width, seeded_generator(seed, WEIGHT_PURPOSE)

        def uniform(*size: int, fan_in: int) -> torch.Tensor:
            unit = torch.rand(size, generator=generator, dtype=torch.float64)
            return (2 * unit - 1) / math.sqrt(fan_in)

        return {
            "in_weight": uniform(width, fan_in=1),
            "in_bias": uniform(width, fan_in=1),
            "out_weight": uniform(width, 1, fan_in=width),
            "out_bias": uniform(1, fan_in=width),
        }

    def group_of(self, name: str) -> str:
        """Return the layer of a weight, input or output."""
        return "input" if name.startswith("in_") else "output"

    def losses(self) -> torch.Tensor:
        """Return the mean squared error of each member, shape (K,)."""
        if self.structure.batch_size is None:
            return self._squared_error(self._x_N.expand(self.num_members, -1), self._y_N)
        num_points, size = self.structure.num_points, (self.structure.batch_size,)
        index_KN = self.draw(lambda generator: torch.randint(num_points, size, generator=generator))
        return self._squared_error(self._x_N[index_KN], self._y_N[index_KN])

    @torch.no_grad()
    def validate(self, rows: Sequence[int]) -> torch.Tensor:
        """Return the mean squared error at the midpoints between training points, for the members in ``rows``."""
        between_N = (self._x_N[1:] + self._x_N[:-1]) / 2
        target_N = torch.sin(between_N) + torch.sin(4 * between_N)
        return self._squared_error(between_N.expand(self.num_members, -1), target_N)[index_on(self.device, tuple(rows))]

    def _squared_error(self, x_KN: torch.Tensor, y_KN: torch.Tensor) -> torch.Tensor:
        weights = self.weights
        if len(x_KN) == 1:
            # A single member would use another matmul kernel, with other bits, so it is duplicated. The whole member
            # is duplicated, not the product alone, so that second derivatives also sum in the same order.
            weights = {name: weight.expand(2, *weight.shape[1:]) for name, weight in weights.items()}
        hidden_KNW = torch.tanh(x_KN[..., None] * weights["in_weight"][:, None] + weights["in_bias"][:, None])
        out_KN = torch.bmm(hidden_KNW, weights["out_weight"]).squeeze(-1) + weights["out_bias"]
        return (out_KN - y_KN).square().mean(1)[: len(x_KN)]


start = FunctionFitTrainer  # called by Objective.start

"""The loss curvature * |x|^2 / 2: an analytic objective whose stability edge is ground truth.

With the preconditioner held still (eps far above the gradients, so that the update is
m / eps), averaged momentum beta1 is stable exactly while
lr / eps < 2 (1 + beta1) / ((1 - beta1) curvature)   (Cohen et al., arXiv 2207.14484; for sgd, eps = 1).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from objectives.base import QuadraticConfig, Way
from objectives.packed import PackedTrainer, hyperparameter, seeded_generator
from objectives.rounding import rows_of_blocks

# Shapes: K members, n coordinates.

_WEIGHT_PURPOSE, _NOISE_PURPOSE = 0, 1


def start(configs: Sequence[QuadraticConfig], seeds: Sequence[int], device: str, way: Way) -> QuadraticTrainer:
    """Begin training a pack of quadratics."""
    return QuadraticTrainer(configs, seeds, device, way)


class QuadraticTrainer(PackedTrainer):
    """Double precision; gradient noise falls with the square root of the batch size."""

    def __init__(self, configs: Sequence[QuadraticConfig], seeds: Sequence[int], device: str, way: Way) -> None:
        self.shape = configs[0]

        def initial_weights(seed: int) -> dict[str, torch.Tensor]:
            generator = seeded_generator(seed, _WEIGHT_PURPOSE)
            x = torch.randn(self.shape.dimension, generator=generator, dtype=torch.float64)
            return {"x": x / x.norm()}

        super().__init__(configs, seeds, device, way, initial_weights)
        self.members_changed()

    def losses(self) -> torch.Tensor:
        """Exact loss of each member, shape (K,)."""
        return self._curvature_K * self.weights["x"].square().sum(1) / 2

    def gradient_noise(self, grad_Kn: torch.Tensor) -> torch.Tensor:
        """Add this step's noise, a function of seed and step, to every member that has some."""
        if not self._is_noisy:
            return grad_Kn
        by_cohort = [
            torch.randn(
                self.shape.dimension, generator=seeded_generator(seed, _NOISE_PURPOSE, step), dtype=torch.float64
            )
            for seed, step in self.cohorts()
        ]
        noise_Kn = torch.stack(by_cohort).to(self.device)[self.cohort_of_member_K]
        return grad_Kn + rows_of_blocks([noise_Kn * self._noise_K[:, None]])

    def members_changed(self) -> None:
        """Read the numbers of those who are (still) there."""
        self._curvature_K = hyperparameter(self.configs, "curvature", self.device, torch.float64)
        noise_K = hyperparameter(self.configs, "noise", self.device, torch.float64)
        self._noise_K = noise_K / math.sqrt(self.shape.batch_size)
        self._is_noisy = any(config.noise > 0 for config in self.configs)

"""The loss curvature * |x|^power / power: an analytic objective with a known stability edge.

With power 2, the default, and a fixed preconditioner (eps far above the gradients, so that the update is m / eps),
averaged momentum beta1 is stable exactly while lr / eps < 2 (1 + beta1) / ((1 - beta1) curvature)   (Cohen et al.,
arXiv 2207.14484; for sgd, eps = 1). With a larger power the curvature grows with the distance from the minimum; there
too it is known when Adam spikes (Tang, Chen and Liu, arXiv 2609.18314).
"""

from __future__ import annotations

import math

import torch

from objectives.base import QuadraticConfig
from objectives.stacking import alike, rows_of_blocks, seeded_generator
from objectives.training.packed import WEIGHT_PURPOSE, PackedTrainer, Weights

# Shapes: K members, n coordinates.


class QuadraticTrainer(PackedTrainer[QuadraticConfig]):
    """Double precision; gradient noise falls with the square root of the batch size."""

    def initial_weights(self, seed: int) -> Weights:
        """Return a point at distance 1 from the minimum, in a random direction."""
        generator = seeded_generator(seed, WEIGHT_PURPOSE)
        x = torch.randn(self.structure.dimension, generator=generator, dtype=torch.float64)
        return {"x": x / x.norm()}

    def losses(self) -> torch.Tensor:
        """Return the exact loss of each member, shape (K,)."""
        square_K, power = self.weights["x"].square().sum(1), self.structure.power
        if power == 2:
            return self._curvature_K * square_K / 2
        # At the minimum the second derivative of the power alone is infinite, times zero. Clamped, it is zero.
        above_zero_K = square_K.clamp(min=torch.finfo(square_K.dtype).tiny)
        return self._curvature_K * alike(lambda value: value ** (power / 2), above_zero_K) / power

    def gradient_noise(self, grad_Kn: torch.Tensor) -> torch.Tensor:
        """Add this step's noise, a function of seed and step, to every member with noise."""
        if not self._is_noisy:
            return grad_Kn
        size = self.structure.dimension
        noise_Kn = self.draw(lambda generator: torch.randn(size, generator=generator, dtype=torch.float64))
        return grad_Kn + rows_of_blocks([noise_Kn * self._noise_K[:, None]])

    def members_changed(self) -> None:
        """Read the hyperparameters of the current members."""
        self._curvature_K = self.field("curvature")
        self._noise_K = self.field("noise") / math.sqrt(self.structure.batch_size)
        self._is_noisy = any(config.noise > 0 for config in self.configs)


start = QuadraticTrainer  # called by Objective.start

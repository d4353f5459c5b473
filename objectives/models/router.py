"""Scores of experts that grow with their use: a router on its own, with a known threshold of collapse.

A token chooses expert i with probability p = softmax(beta s), and the scores follow (arXiv 2605.29121)

    s <- (1 - lr b) s,    s_i <- s_i + lr a p_i

which is sgd with the step lr on the potential b |s|^2 / 2 - (a / beta) log(mean(exp(beta s))). With two experts the
balance p = 1/2 is stable while a < 2 b / beta. Above it the difference d of the scores solves
a tanh(beta d / 2) = b d, and the difference of the shares, the imbalance, is tanh(beta d / 2).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from objectives.base import RouterConfig
from objectives.instruments.router_loads import load_readings, router_gini
from objectives.optimizers.packed_optimizer import Rows
from objectives.stacking import in_blocks, rows_of_blocks, seeded_generator
from objectives.training.packed import WEIGHT_PURPOSE, PackedTrainer, Weights

# Shapes: K members, R observed ones, E experts, B tokens.

# The mean of the scores moves no token, and no expert's share depends on it. It starts this far from its end, so that
# nearly all of the loss is what the mean has yet to go, as the loss of a model hardly depends on its router's balance.
_FIRST_MEAN = -10.0


class RouterTrainer(PackedTrainer[RouterConfig]):
    """Double precision. The loss is the potential plus a^2 / (2 b), which is never negative and falls at any balance.

    With ``batch_size`` the shares in the gradient are counts of sampled tokens; the loss stays the potential.
    """

    def initial_weights(self, seed: int) -> Weights:
        """Return scores of standard deviation 1; ``own_weights`` scales them."""
        generator = seeded_generator(seed, WEIGHT_PURPOSE)
        return {"s": torch.randn(self.structure.experts, generator=generator, dtype=torch.float64)}

    def own_weights(self, drawn: Weights, config: RouterConfig) -> Weights:
        """Return the drawn scores times the member's ``spread``, around a low mean."""
        return {"s": _FIRST_MEAN + drawn["s"] * config.spread}

    def losses(self) -> torch.Tensor:
        """Return the loss of each member, shape (K,)."""
        s_KE = self.weights["s"]
        raised_KE, largest_K = self._raised(s_KE, self._beta_K)
        mean_K = raised_KE.sum(1) / s_KE.shape[1]
        log_mean_K = in_blocks(torch.log, mean_K) + largest_K
        a_K, b_K = self._a_K, self._b_K
        return b_K * s_KE.square().sum(1) / 2 - a_K / self._beta_K * log_mean_K + a_K.square() / (2 * b_K)

    def losses_and_gradient(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return loss and gradient, and keep this step's shares."""
        self._share_KE = self._shares(slice(None))
        return super().losses_and_gradient()

    def gradient_noise(self, grad_Kn: torch.Tensor) -> torch.Tensor:
        """Replace shares by counts of this step's tokens, a function of seed and step, if tokens are sampled."""
        size = self.structure.batch_size
        if size is None:
            return grad_Kn
        token_KB = self.draw(lambda generator: torch.rand(size, generator=generator, dtype=torch.float64))
        # A token chooses the first expert up to whom the shares add up to more than its number.
        bound_KE = self._share_KE.cumsum(1)[:, :-1]
        expert_KB = (token_KB[:, :, None] >= bound_KE[:, None]).sum(2)
        counted_KE = torch.nn.functional.one_hot(expert_KB, self.structure.experts).sum(1) / size
        noise_KE = self._a_K[:, None] * (self._share_KE - counted_KE)
        return grad_Kn + rows_of_blocks([noise_KE])

    def own_readings(self, rows: Rows) -> dict[str, torch.Tensor]:
        """Return what the shares of experts are like before the step, and their ``imbalance``."""
        share_RE = self._shares(rows)
        return {**load_readings(share_RE), "imbalance": share_RE.amax(1) - share_RE.amin(1)}

    def signals(self) -> dict[str, torch.Tensor]:
        """Return the Gini coefficient of the shares before the step."""
        return {"router_gini": router_gini(self._share_KE)}

    def members_changed(self) -> None:
        """Read the numbers of the current members."""
        self._a_K, self._b_K, self._beta_K = self.field("a"), self.field("b"), self.field("beta")

    def numbers_changed(self, acting: Mapping[int, RouterConfig]) -> None:
        """Take numbers that interventions or rules have changed."""
        for row, config in acting.items():
            self._a_K[row], self._b_K[row], self._beta_K[row] = config.a, config.b, config.beta

    def _shares(self, rows: Rows) -> torch.Tensor:
        """Return the share of the tokens that each expert is expected to get, (R, E)."""
        raised_RE, _ = self._raised(self.weights["s"].detach()[rows], self._beta_K[rows])
        return raised_RE / raised_RE.sum(1, keepdim=True)

    @staticmethod
    def _raised(s_KE: torch.Tensor, beta_K: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return exp(beta s - largest), (K, E), and the largest beta s, (K,)."""
        logit_KE = beta_K[:, None] * s_KE
        largest_K = logit_KE.detach().amax(1)
        return in_blocks(torch.exp, logit_KE - largest_K[:, None]), largest_K


start = RouterTrainer  # called by Objective.start

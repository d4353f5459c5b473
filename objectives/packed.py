"""The training loop that the built-in objectives share: one stacked model, one flat buffer."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from objectives.base import TrainingConfig
from objectives.optim import PackedOptimizer

# Shapes: K members, n parameters of one member.

Weights = dict[str, torch.Tensor]


class PackedTrainer(ABC):
    """A pack of K members whose parameters are rows of one (K, n) buffer.

    A subclass gives ``losses``: the loss of each member, shape (K,), a differentiable function of
    ``self.weights`` (name -> tensor of shape (K, ...), views into the buffer) that mixes no members.
    """

    def __init__(
        self,
        configs: Sequence[TrainingConfig],
        seeds: Sequence[int],
        device: str,
        initial_weights: Callable[[int], Weights],
    ) -> None:
        """``initial_weights(seed)`` makes one member's weights; equal seeds start from equal weights."""
        self.configs, self.seeds = list(configs), list(seeds)
        self.device = torch.device(device)
        self.num_steps = 0
        weights_by_seed = {seed: initial_weights(seed) for seed in dict.fromkeys(seeds)}
        first = weights_by_seed[self.seeds[0]]
        self._shapes = {name: tuple(weight.shape) for name, weight in first.items()}
        rows = {
            seed: torch.cat([weight.reshape(-1) for weight in weights.values()])
            for seed, weights in weights_by_seed.items()
        }
        self._bind(torch.stack([rows[seed] for seed in self.seeds]).to(self.device))
        self.optimizer = PackedOptimizer(self._params_Kn, self.configs)

    @property
    def num_members(self) -> int:
        """How many members are still in the pack."""
        return len(self.seeds)

    @abstractmethod
    def losses(self) -> torch.Tensor:
        """Loss of each member on this step's data, shape (K,)."""

    def gradient_noise(self, grad_Kn: torch.Tensor) -> torch.Tensor:
        """The gradient that the optimizer sees; a place for noise, nothing by default."""
        return grad_Kn

    def step(self) -> dict[str, torch.Tensor]:
        """Train one step; metrics of shape (K,), still on the device."""
        loss_K = self.losses()
        # Members do not mix, so the gradient of the sum holds each member's own gradient.
        grads = torch.autograd.grad(loss_K.sum(), list(self.weights.values()))
        grad_Kn = torch.cat([grad.reshape(self.num_members, -1) for grad in grads], dim=1)
        metrics = self.optimizer.step(loss_K.detach(), self.gradient_noise(grad_Kn))
        self.num_steps += 1
        return metrics

    def keep(self, index: Sequence[int]) -> None:
        """Drop all members but those at ``index`` and shrink the tensors."""
        kept = torch.as_tensor(list(index), dtype=torch.long, device=self.device)
        self.configs = [self.configs[i] for i in index]
        self.seeds = [self.seeds[i] for i in index]
        self._bind(self._params_Kn[kept].clone())
        self.optimizer.keep(kept, self._params_Kn)
        self.members_changed()

    def members_changed(self) -> None:  # noqa: B027 - optional for subclasses
        """Called after ``keep``, for subclasses with tensors of their own along the members."""

    def validate(self) -> torch.Tensor:
        """Held-out loss of each member, shape (K,); NaN without held-out data."""
        return torch.full((self.num_members,), math.nan)

    def describe(self) -> Mapping[str, str]:
        """Facts about the data that the configuration does not hold."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Parameters, optimizer and step; data and noise are functions of seed and step."""
        return {
            "num_steps": self.num_steps,
            "params": self._params_Kn.clone(),
            "optimizer": self.optimizer.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from ``state_dict`` of a pack with the same members."""
        self.num_steps = state["num_steps"]
        self._params_Kn.copy_(state["params"])
        self.optimizer.load_state_dict(state["optimizer"])

    def close(self) -> None:  # noqa: B027 - optional for subclasses
        """Nothing to release beyond memory."""

    def _bind(self, params_Kn: torch.Tensor) -> None:
        """Make ``weights`` differentiable leaves that share memory with the flat buffer."""
        self._params_Kn = params_Kn
        self.weights: Weights = {}
        offset = 0
        for name, shape in self._shapes.items():
            size = math.prod(shape)
            view = params_Kn[:, offset : offset + size].view(-1, *shape)
            self.weights[name] = view.detach().requires_grad_()
            offset += size


def hyperparameter(
    configs: Sequence[TrainingConfig], name: str, device: torch.device, dtype: torch.dtype
) -> torch.Tensor:
    """The field ``name`` of every config as a tensor of shape (K,)."""
    return torch.tensor([getattr(config, name) for config in configs], dtype=dtype, device=device)


def seeded_generator(*numbers: int) -> torch.Generator:
    """A CPU generator that is a pure function of ``numbers``, e.g. (seed, purpose, step).

    A stream that is a function of seed and step needs no state to resume and does not depend on who
    shares the pack or on the device.
    """
    mixed = 0
    for number in numbers:
        # The finaliser of splitmix64 spreads neighbouring numbers over all bits.
        mixed = (mixed + number + 0x9E3779B97F4A7C15) % 2**64
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) % 2**64
        mixed ^= mixed >> 31
    return torch.Generator().manual_seed(mixed % 2**63)

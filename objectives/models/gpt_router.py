"""The routers of a pack: the numbers in force, the biases of ``balance: loss_free``, and their telemetry."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch

from objectives.base import GptConfig
from objectives.fields import third_of_depth
from objectives.instruments.router_loads import dead_experts, load_readings, router_gini
from objectives.models.gpt_experts import Routing, loads, log_z, probability
from objectives.models.gpt_knobs import Knobs
from objectives.optimizers.holder import Holder
from objectives.optimizers.packed_optimizer import Rows
from objectives.stacking import in_blocks, index_on

# Shapes: K members, R observed ones, L layers, B sequences, T positions, N = B * T, E experts, J of them for a token.

_BIAS, _CHOICES = "router_bias", "router_choices"
_NUM_THIRDS = 3
_PROBE = 2, 128  # sequences and positions of held-out text whose experts are remembered
# Readings whose worst layer has the smallest number.
_LOWEST = ("router_entropy",)

Draw = Callable[[Callable[[torch.Generator], torch.Tensor]], torch.Tensor]


class Routers:
    """The routers of K members; ``memory`` has their biases and the experts of the last reading.

    After a step the bias of an expert rises by ``balance_step`` if it got less than the mean load of the batch, and
    falls by as much if it got more (Wang et al., arXiv 2408.15664). A member that was not updated keeps its biases, and
    a router that is frozen the biases of its layer.
    """

    def __init__(self, configs: Sequence[GptConfig], memory: Mapping[str, torch.Tensor], device: torch.device) -> None:
        self._configs, self._memory, self._device = list(configs), memory, device
        self._structure = configs[0]
        self._load_KLE = torch.zeros(())  # of the batch so far
        self._set_numbers()

    @staticmethod
    def memory_shapes(structure: GptConfig) -> Mapping[str, tuple[int, ...]]:
        """Return the shapes of one member's memory. A choice is the number of an expert, from 1, or 0 for none yet."""
        if not structure.experts:
            return {}
        num_sequences, num_positions = probe_size(structure)
        choices = structure.depth, num_sequences * num_positions * structure.top_k
        return {_BIAS: (structure.depth, structure.experts), _CHOICES: choices}

    def change(self, acting: Mapping[int, GptConfig]) -> None:
        """Take the new numbers of the members in ``acting``, by row."""
        for row, config in acting.items():
            self._configs[row] = config
        self._set_numbers()

    def knobs(self, knobs: Knobs, draw: Draw) -> Knobs:
        """Return ``knobs`` with the routers' knobs; ``draw`` samples for each member by its seed and step."""
        structure, noise = self._structure, None
        if self._noise_K is not None:
            size = structure.batch_size, structure.depth, structure.context, structure.experts
            noise = draw(lambda generator: torch.randn(size, generator=generator))
        return replace(
            self.of_validation(knobs),
            balance_weight_K=self._weight_K,
            router_z_loss_K=self._z_loss_K,
            router_noise_K=self._noise_K,
            router_draw_KBLTE=noise,
            capacity_K=self._capacity_K,
        )

    def of_validation(self, knobs: Knobs) -> Knobs:
        """Return ``knobs`` with the biases of this moment, if any member has some."""
        return knobs if self._step_K is None else replace(knobs, router_bias_KLE=self._memory[_BIAS].clone())

    def count(self, load_KLE: torch.Tensor, share_KB: torch.Tensor | None, first: int) -> None:
        """Add the loads of a part of the batch that begins with the sequence ``first``, for the members that use it."""
        if share_KB is not None:
            load_KLE = load_KLE * (share_KB[:, first] > 0)[:, None, None]
        self._load_KLE = load_KLE + self._load_KLE if first else load_KLE.clone()

    def update(self, acting_K: torch.Tensor, holder: Holder) -> None:
        """Change the biases of the members in ``acting_K`` by the loads of the batch; a frozen router keeps its own."""
        if self._step_K is None:
            return
        bias_KLE, load_KLE = self._memory[_BIAS], self._load_KLE.double()
        towards_KLE = (load_KLE.mean(2, keepdim=True) - load_KLE).sign()
        step_KL = torch.where(acting_K, self._step_K, 0.0)[:, None].repeat(1, self._structure.depth)
        for layer in range(self._structure.depth):
            if frozen := holder.freezing(f"{layer}.router"):
                step_KL[index_on(self._device, tuple(frozen)), layer] = 0.0
        bias_KLE.add_((step_KL[..., None] * towards_KLE).to(bias_KLE.dtype))

    def signals(self) -> dict[str, torch.Tensor]:
        """Return how uneven the loads of the batch are in the worst layer, (K,) each."""
        share_KLE = _shares(self._load_KLE)
        return {"router_gini": router_gini(share_KLE).amax(1), "router_dead": dead_experts(share_KLE).amax(1)}

    def readings(
        self, routings: Sequence[Routing], probed: Sequence[Routing], routers: Sequence[torch.Tensor], rows: Rows
    ) -> dict[str, torch.Tensor]:
        """Return the readings of ``rows``, of the worst layer of all and of each third of the depth, (R,) each.

        Where a third may have several layers, each layer has its own by number, as ``router_gini/0``.
        ``routings`` are of the batch, ``probed`` of the held-out text, ``routers`` the layers' weights (R, D, E).
        """
        of_layer_LR = {
            **{name: value_RL.T for name, value_RL in load_readings(_shares(loads(routings))).items()},
            "router_entropy": torch.stack([_entropy(routing) for routing in routings]),
            "router_similarity": torch.stack([_similarity(router) for router in routers]),
            "router_zsquared": torch.stack([log_z(routing.logits_KNE).square().mean(1) for routing in routings]),
            "router_changed": self._changed(probed, rows).T,
        }
        depth = self._structure.depth
        thirds = [third_of_depth(layer, depth) for layer in range(depth)]
        found = {}
        for name, value_LR in of_layer_LR.items():
            worst = torch.amin if name in _LOWEST else torch.amax
            found[name] = worst(value_LR, 0)
            for third in dict.fromkeys(thirds):
                layers = index_on(value_LR.device, tuple(layer for layer, its in enumerate(thirds) if its == third))
                found[f"{name}/{third}"] = worst(value_LR[layers], 0)
            if depth > _NUM_THIRDS:
                found |= {f"{name}/{layer}": value_R for layer, value_R in enumerate(value_LR.unbind(0))}
        return found

    def _changed(self, probed: Sequence[Routing], rows: Rows) -> torch.Tensor:
        """Return the share of tokens whose experts have changed since the last reading, (R, L); NaN at the first."""
        chosen_RLP = torch.stack([routing.chosen_KNJ.sort(-1).values.flatten(1) for routing in probed], dim=1) + 1
        memory = self._memory[_CHOICES]
        before_RLP = memory[rows].to(chosen_RLP.dtype)
        memory[rows] = chosen_RLP.to(memory.dtype)
        is_changed_RLP = (before_RLP != chosen_RLP).unflatten(2, (-1, self._structure.top_k)).any(3)
        is_first_RL = before_RLP[:, :, 0] == 0
        return is_changed_RLP.double().mean(2).masked_fill(is_first_RL, math.nan)

    def _set_numbers(self) -> None:
        """Move the numbers of the members to the device. Called when they change, not at every step."""
        self._weight_K = self._numbers([config.aux_weight for config in self._configs], 0.0)
        self._z_loss_K = self._numbers([config.router_z_loss for config in self._configs], 0.0)
        self._noise_K = self._numbers([config.router_noise for config in self._configs], 0.0)
        self._step_K = self._numbers([config.bias_step for config in self._configs], 0.0)
        limits = [math.inf if config.capacity is None else config.capacity for config in self._configs]
        self._capacity_K = self._numbers(limits, math.inf)

    def _numbers(self, values: Sequence[float], neutral: float) -> torch.Tensor | None:
        if all(value == neutral for value in values):
            return None
        return torch.tensor(values, dtype=torch.float64, device=self._device)


def probe_size(structure: GptConfig) -> tuple[int, int]:
    """Return how many sequences and positions of held-out text are remembered."""
    return min(structure.batch_size, _PROBE[0]), min(structure.context, _PROBE[1])


def _shares(load_RLE: torch.Tensor) -> torch.Tensor:
    """Return the loads over their sum, in double precision."""
    return load_RLE.double() / load_RLE.double().sum(-1, keepdim=True)


def _entropy(routing: Routing) -> torch.Tensor:
    """Return the mean entropy of a token's probabilities, divided by log E, (R,)."""
    share_RNE = probability(routing)
    terms_RNE = share_RNE * in_blocks(torch.log, share_RNE.clamp(min=torch.finfo(share_RNE.dtype).tiny))
    return -terms_RNE.sum(2).mean(1) / math.log(share_RNE.shape[2])


def _similarity(router_RDE: torch.Tensor) -> torch.Tensor:
    """Return the mean cosine between the weights of two experts in a router, (R,)."""
    E = router_RDE.shape[2]
    row_RED = router_RDE.transpose(1, 2).double()
    unit_RED = row_RED / torch.linalg.vector_norm(row_RED, dim=2, keepdim=True)
    # The square of a sum of unit vectors has E ones, and each cosine twice.
    total_R = functools.reduce(torch.add, unit_RED.unbind(1)).square().sum(1)
    return (total_R - E) / (E * (E - 1))

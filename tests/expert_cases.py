"""A mixture of experts as a user would write it for one run, token by token."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from objectives.base import GptConfig
from objectives.stacking import seeded_generator

# Shapes: B sequences, T positions, N = B * T, D width, E experts.

SHAPE = {"steps": 40, "width": 12, "heads": 3, "context": 8, "batch_size": 2, "depth": 2, "lr": 1e-2, "experts": 5}
# Members that differ in all that routers may; the first has every neutral value.
MEMBERS = (
    {},
    {"balance": "aux", "balance_weight": 0.3},
    {"balance": "loss_free", "balance_step": 0.05, "capacity": 0.8},
    {"router_z_loss": 0.1, "capacity": 0.5, "router_init": 20.0},
    {"balance": "aux", "router_noise": 0.7, "router_z_loss": 0.02, "capacity": 1.2, "z_loss": 0.1, "dropout": 0.2},
    {"balance": "loss_free", "balance_weight": 0.2, "balance_step": 0.3},
    {"context_start": 4, "context_steps": 100, "router_lr": 3.0},
)
SEEDS = (0, 1, 0, 1, 2, 0, 1)
MODELS = (
    {},
    {"top_k": 2},
    {"gate": "sigmoid"},
    {"top_k": 2, "gate": "sigmoid", "shared_experts": 1},
    {"top_k": 3, "shared_experts": 2, "mlp": "swiglu", "bias": True, "norm": "rms"},
    {"top_k": 2, "recompute": True, "position": "rope", "kv_heads": 1, "norm_place": "post"},
)


class PlainMixture(nn.Module):
    """The experts of one layer, which compute the tokens that they are sent and no others.

    ``bias_E`` and ``noise_NE`` are set before a pass; ``count_E``, ``imbalance`` and ``z_loss`` are of the last one.
    """

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        D, hidden, num_experts = config.width, config.mlp_width, config.experts + config.shared_experts
        self.config = config
        self.router = nn.Parameter(torch.empty(D, config.experts))
        sizes = {"mlp_in": (D, hidden), "mlp_out": (hidden, D)}
        sizes |= {"mlp_gate": (D, hidden)} if config.mlp == "swiglu" else {}
        for name, (num_inputs, num_outputs) in sizes.items():
            self.register_parameter(name, nn.Parameter(torch.empty(num_experts, num_inputs, num_outputs)))
            if config.bias:
                self.register_parameter(f"{name}_bias", nn.Parameter(torch.empty(num_experts * num_outputs)))
        self.bias_E, self.noise_NE = torch.zeros(config.experts), None

    def expert(self, number: int, x_D: torch.Tensor) -> torch.Tensor:
        def linear(x: torch.Tensor, name: str) -> torch.Tensor:
            offset = None
            if self.config.bias:
                offset = getattr(self, f"{name}_bias").chunk(self.config.experts + self.config.shared_experts)[number]
            return F.linear(x, getattr(self, name)[number].T, offset)

        hidden = linear(x_D, "mlp_in")
        hidden = F.silu(linear(x_D, "mlp_gate")) * hidden if self.config.mlp == "swiglu" else F.gelu(hidden)
        return linear(hidden, "mlp_out")

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        x_ND, config, E = x_BTD.flatten(0, 1), self.config, self.config.experts
        N, logits = len(x_ND), x_ND @ self.router
        if self.noise_NE is not None:
            logits = logits + config.router_noise * self.noise_NE.to(logits)
        score = torch.softmax(logits, 1) if config.gate == "softmax" else torch.sigmoid(logits)
        order = (score.detach() + self.bias_E).argsort(dim=1, descending=True)[:, : config.top_k].tolist()
        room = [math.inf if config.capacity is None else math.ceil(config.capacity * N * config.top_k / E)] * E
        out = [torch.zeros_like(x_D) for x_D in x_ND]
        for n, x_D in enumerate(x_ND):
            for shared in range(E, E + config.shared_experts):
                out[n] = out[n] + self.expert(shared, x_D)
        for choice in range(config.top_k):
            for n, x_D in enumerate(x_ND):
                number = order[n][choice]
                room[number] -= 1
                if room[number] >= 0:
                    gate = score[n, number] / (score[n, order[n]].sum() if config.top_k > 1 else 1)
                    out[n] = out[n] + gate * self.expert(number, x_D)
        self.count_E = torch.tensor([sum(number in chosen for chosen in order) for number in range(E)])
        share_E = self.count_E.to(score) / (N * config.top_k)
        self.imbalance = E * (share_E * (score / score.sum(1, keepdim=True)).mean(0)).sum()
        self.z_loss = torch.logsumexp(logits, 1).square().mean()
        return torch.stack(out).view(x_BTD.shape)

    def added_loss(self) -> torch.Tensor:
        """What the last pass adds to the loss."""
        config, weight = self.config, self.config.balance_weight
        if weight is None:
            weight = 0.01 if config.balance == "aux" else 0.0
        return weight * self.imbalance + config.router_z_loss * self.z_loss


def plain_noise(config: GptConfig, seed: int, step: int, layer: int) -> torch.Tensor:
    """The noise of one layer at a step, (N, E)."""
    size = config.batch_size, config.depth, config.context, config.experts
    return torch.randn(size, generator=seeded_generator(seed, 13, step))[:, layer].flatten(0, 1)

"""The transformer that a user would write for one run, with every knob: what members of a pack are checked against."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from expert_cases import PlainMixture
from pack_cases import trainer_of
from torch import nn

from objectives.base import ExecutionPlan, GptConfig, RowSpec
from objectives.models.gpt import GptTrainer
from objectives.stacking import seeded_generator

# Shapes: B sequences, T positions, S = T + 1 bytes, D width, H heads, C channels of a head.

NUM_BYTES = 256
# Members that differ in everything that members may; the first has every neutral value.
KNOBS = (
    {},
    {"z_loss": 0.1, "residual_scale": 0.5, "residual_depth": "inverse_sqrt"},
    {"dropout": 0.3, "init_deviation": 0.05},
    {"context_start": 3, "context_steps": 100},
    {"z_loss": 0.01, "residual_scale": 2.0, "residual_depth": "inverse", "dropout": 0.1, "context_start": 4,
     "context_steps": 20},
)  # fmt: skip
SEEDS = (0, 1, 0, 1, 2)
# Models other than GPT-2's, each knob alone and many together.
LLAMA = {"norm": "rms", "position": "rope", "mlp": "swiglu", "kv_heads": 1}
DENSE = (
    {"position": "rope"},
    {"position": "rope", "rope_theta": 20.0, "qk_norm": True},
    {"position": None},
    {"mlp": "swiglu"},
    {"kv_heads": 1},
    {"tie_embeddings": True},
    {"bias": True},
    {"bias": True, "norm": "rms", "mlp": "swiglu"},
    {"bias": True, "norm_place": "post", "qk_norm": True},
    {"embedding_scale": 3.0, "tie_embeddings": True},
    {"logit_softcap": 0.7},
    {"attention_softcap": 0.05},
    {"parametrisation": "mup", "base_width": 4},
    {"parametrisation": "completep", "base_width": 24, "base_depth": 3, "attention_softcap": 0.05},
    LLAMA,
    LLAMA | {"logit_softcap": 0.7, "attention_softcap": 0.5, "tie_embeddings": True, "qk_norm": True,
             "norm_place": "output", "embedding_scale": 2.0, "recompute": True, "bias": True},
)  # fmt: skip
INITS = ("gpt2", "fan_in", "he", "xavier")


COMPILED_SHAPE = {"steps": 10, "width": 12, "heads": 3, "context": 10, "batch_size": 4}
METRICS = ("loss", "grad_norm", "update_norm", "lr")


class PlainBlock(nn.Module):
    """One transformer block; ``factors`` are what its two sublayers' outputs are multiplied by."""

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        D, self.config = config.width, config
        C, kv_heads = D // config.heads, config.kv_heads or config.heads

        def norm(size: int) -> nn.Module:
            has_bias = config.bias and size == D
            return nn.LayerNorm(size, bias=has_bias) if config.norm == "layer" else nn.RMSNorm(size, eps=1e-5)

        if config.norm is None:
            self.attention_norm, self.mlp_norm = nn.Identity(), nn.Identity()
        else:
            self.attention_norm, self.mlp_norm = norm(D), norm(D)
        self.qkv = nn.Linear(D, D + 2 * kv_heads * C, bias=config.bias)
        self.attention_out = nn.Linear(D, D, bias=config.bias)
        hidden = 4 * D if config.mlp == "gelu" else 4 * round(2 * D / 3)
        if config.experts:
            self.mixture = PlainMixture(config)
        else:
            if config.mlp == "swiglu":
                self.mlp_gate = nn.Linear(D, hidden, bias=config.bias)
            self.mlp_in, self.mlp_out = nn.Linear(D, hidden, bias=config.bias), nn.Linear(hidden, D, bias=config.bias)
        self.sizes = [D, kv_heads * C, kv_heads * C]
        if config.qk_norm:
            self.q_norm, self.k_norm = norm(C), norm(C)

    def attended(self, x_BTD: torch.Tensor) -> torch.Tensor:
        (B, T, D), C = x_BTD.shape, x_BTD.shape[-1] // self.config.heads
        q, k, v = (z.view(B, T, -1, C).transpose(1, 2) for z in self.qkv(x_BTD).split(self.sizes, dim=-1))
        if self.config.qk_norm:
            q, k = self.q_norm(q).to(v.dtype), self.k_norm(k).to(v.dtype)
        if self.config.position == "rope":
            q, k = plain_rope(q, self.config.rope_theta), plain_rope(k, self.config.rope_theta)
        shared_by = [head * k.shape[1] // self.config.heads for head in range(self.config.heads)]
        k, v = k[:, shared_by], v[:, shared_by]
        is_standard = self.config.parametrisation == "standard"
        scores = q @ k.transpose(-1, -2) / (math.sqrt(q.shape[-1]) if is_standard else q.shape[-1])
        self.scores = scores.detach()
        if (cap := self.config.attention_softcap) is not None:
            scores = cap * torch.tanh(scores / cap)
        later_TT = torch.ones(T, T, dtype=torch.bool).triu(1)
        mixed = scores.masked_fill(later_TT, -math.inf).softmax(-1) @ v
        return self.attention_out(mixed.transpose(1, 2).reshape(B, T, D))

    def mlp(self, x_BTD: torch.Tensor) -> torch.Tensor:
        if self.config.experts:
            return self.mixture(x_BTD)
        if self.config.mlp == "swiglu":
            gate_BTF = self.mlp_gate(x_BTD)
            return self.mlp_out(gate_BTF * torch.sigmoid(gate_BTF) * self.mlp_in(x_BTD))
        return self.mlp_out(F.gelu(self.mlp_in(x_BTD)))

    def forward(self, x_BTD: torch.Tensor, factors: tuple[torch.Tensor | float, torch.Tensor | float]) -> torch.Tensor:
        sublayers = (self.attended, self.attention_norm), (self.mlp, self.mlp_norm)
        for (sublayer, norm), factor in zip(sublayers, factors, strict=True):
            if self.config.norm_place == "pre":
                x_BTD = x_BTD + factor * sublayer(norm(x_BTD))
            elif self.config.norm_place == "post":
                x_BTD = norm(x_BTD + factor * sublayer(x_BTD))
            else:
                x_BTD = x_BTD + factor * norm(sublayer(x_BTD).to(x_BTD.dtype))
        return x_BTD


class PlainGpt(nn.Module):
    """A transformer with every knob of the model."""

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(NUM_BYTES, config.width)
        if config.position == "learned":
            self.position = nn.Parameter(torch.empty(config.context, config.width))
        self.blocks = nn.ModuleList(PlainBlock(config) for _ in range(config.depth))
        if config.norm is None or config.norm_place == "post":
            self.final_norm = nn.Identity()
        else:
            is_layer = config.norm == "layer"
            self.final_norm = (
                nn.LayerNorm(config.width, bias=config.bias) if is_layer else nn.RMSNorm(config.width, eps=1e-5)
            )
        if not config.tie_embeddings:
            self.head = nn.Linear(config.width, NUM_BYTES, bias=False)

    def logits(self, inputs_BT: torch.Tensor, factors_BTD: list) -> torch.Tensor:
        x_BTD = self.embedding(inputs_BT) * self.config.embedding_scale
        if self.config.position == "learned":
            x_BTD = x_BTD + self.position[: inputs_BT.shape[1]]
        for layer, block in enumerate(self.blocks):
            x_BTD = block(x_BTD, (factors_BTD[2 * layer], factors_BTD[2 * layer + 1]))
        x_BTD = self.final_norm(x_BTD)
        if self.config.parametrisation != "standard":
            x_BTD = x_BTD * (self.config.base_width / self.config.width)
        logits_BTV = F.linear(x_BTD, self.embedding.weight) if self.config.tie_embeddings else self.head(x_BTD)
        cap = self.config.logit_softcap
        return logits_BTV if cap is None else cap * torch.tanh(logits_BTV.to(self.embedding.weight.dtype) / cap)

    def forward(self, tokens_BS: torch.Tensor, step: int = 0, keys: list[int] | None = None) -> torch.Tensor:
        """The loss of a batch; ``keys`` of its sequences for dropout in training."""
        config, inputs_BT = self.config, tokens_BS[:, :-1]
        (B, T), D = inputs_BT.shape, config.width
        scale = config.residual_scale
        if config.residual_depth is not None:
            scale /= config.depth if config.residual_depth == "inverse" else math.sqrt(2 * config.depth)
        if config.parametrisation == "completep":
            scale *= config.base_depth / config.depth
        factors = [torch.full((B, T, D), scale, dtype=torch.float64) for _ in range(2 * config.depth)]
        if keys is not None and config.dropout:
            for branch, factor in enumerate(factors):
                factor.mul_(plain_mask(keys, branch, T * D, config.dropout).view(B, T, D) / (1 - config.dropout))
        factors = [factor.to(self.embedding.weight.dtype) for factor in factors]
        length = plain_context(config, step) if keys is not None else T
        # Each block of context is a sequence of its own.
        logits_BTV = torch.cat(
            [
                self.logits(inputs_BT[:, i : i + length], [factor[:, i : i + length] for factor in factors])
                for i in range(0, T, length)
            ],
            dim=1,
        ).to(self.embedding.weight.dtype)
        loss = F.cross_entropy(logits_BTV.flatten(0, 1), tokens_BS[:, 1:].flatten())
        if keys is None:
            return loss
        return loss + config.z_loss * logits_BTV.exp().sum(-1).log().square().mean()

    @torch.no_grad()
    def take(self, weights: dict[str, torch.Tensor]) -> PlainGpt:
        """The weights of one member; nn.Linear keeps its matrix transposed."""
        for name, parameter in self.named_parameters():
            weight = weights[name_in_pack(name)]
            parameter.copy_(weight.T if is_transposed(name) else weight)
        return self

    def gradients(self) -> dict[str, torch.Tensor]:
        """As a member has them, by their name there."""
        return {
            name_in_pack(name): parameter.grad.T if is_transposed(name) else parameter.grad
            for name, parameter in self.named_parameters()
        }


def plain_context(config: GptConfig, step: int) -> int:
    """Length of the blocks at a step."""
    if config.context_start is None:
        return config.context
    missing = config.context - config.context_start
    return config.context_start + int(missing * min(step / config.context_steps, 1))


def plain_rope(z_BHTC: torch.Tensor, theta: float) -> torch.Tensor:
    """Channels i and i + C / 2 as one complex number, turned by its position."""
    T, C = z_BHTC.shape[-2:]
    angle_Tc = torch.tensor([[t * theta ** (-2 * i / C) for i in range(C // 2)] for t in range(T)], dtype=torch.float64)
    real = z_BHTC.dtype if z_BHTC.dtype == torch.float64 else torch.float32
    z = torch.complex(*z_BHTC.to(real).chunk(2, dim=-1)) * torch.polar(torch.ones_like(angle_Tc), angle_Tc)
    return torch.cat([z.real, z.imag], dim=-1).to(z_BHTC.dtype)


def name_in_pack(name: str) -> str:
    """blocks.0.qkv.weight is 0.qkv, and blocks.0.qkv.bias is 0.qkv_bias."""
    return name.removeprefix("blocks.").removesuffix(".weight").replace(".bias", "_bias").replace("mixture.", "")


def is_transposed(name: str) -> bool:
    """Whether it is a matrix of nn.Linear."""
    if "mixture" in name or "norm" in name:
        return False
    return not name.startswith(("embedding", "position")) and not name.endswith("bias")


def plain_model(trainer: GptTrainer, member: int, dtype: torch.dtype = torch.float32) -> PlainGpt:
    """A member's weights as they are now, in a model of their own."""
    weights = {name: weight[member].detach() for name, weight in trainer.weights.items()}
    return PlainGpt(trainer.configs[member]).to(dtype).take(weights)


# The hash of a mask, in Python's integers.


def plain_hash(number: int) -> int:
    """32 bits from 32 bits."""
    for _ in range(2):
        number = (((number >> 16) ^ number) * 0x45D9F3B) % 2**32
    return (number >> 16) ^ number


def plain_keys(seed: int, step: int, num_sequences: int) -> list[int]:
    """A key for each sequence of a step's batch."""
    key = seeded_generator(seed, 10, step).initial_seed() % 2**32
    return [plain_hash(plain_hash(sequence + 1) ^ key) | 1 for sequence in range(num_sequences)]


def plain_mask(keys: list[int], branch: int, num_numbers: int, share: float) -> torch.Tensor:
    """1 for what is kept of each sequence, 0 for what is dropped."""
    places = [plain_hash(branch * num_numbers + i + 1) // 2 | 1 for i in range(num_numbers)]
    rows = [[place * key % 2**32 >= share * 2**32 for place in places] for key in keys]
    return torch.tensor(rows, dtype=torch.float64)


def short_text(tmp_path: Path) -> tuple[str]:
    """A file to train on, as a configuration names it."""
    path = tmp_path / "text.txt"
    path.write_text("".join(f"line {i}: the {i % 7}th of {i % 11}\n" for i in range(2000)))
    return (str(path),)


def assert_compiled_is_eager(text, knobs: Sequence[Mapping] = ({}, {}, {}), **fields) -> None:
    """Five steps, then another pack of the same size: a fork, one that goes on and a fresh start."""
    shared = {"text": text, "weight_decay": 0.1, **COMPILED_SHAPE, **fields}
    configs = [GptConfig(**shared, **own, lr=lr) for lr, own in zip((1e-2, 3e-2, 1e-1), knobs, strict=True)]
    compiled, eager = (
        trainer_of("gpt", configs, (0, 1, 0), ExecutionPlan(3, compiled=is_compiled)) for is_compiled in (True, False)
    )
    places = [RowSpec(configs[2], 0, 2), RowSpec(configs[0], 0, 2), RowSpec(configs[1], 5, None)]
    for step in range(10):
        if step == 5:
            compiled.arrange(places)
            eager.arrange(places)
        found, expected = compiled.step(), eager.step()
        for name in METRICS:
            torch.testing.assert_close(found[name], expected[name], rtol=2e-5, atol=1e-9, msg=f"{name} at step {step}")
    rows = [0, 1, 2]
    torch.testing.assert_close(compiled.validate(rows), eager.validate(rows), rtol=2e-5, atol=0)
    for part in (compiled._differentiate, compiled.optimizer._advance):
        assert part._compiled is not None

"""The trainer that a user would write without sweep: one transformer, torch.optim, one loop.

The same mathematics as objectives/models/gpt.py from the same initial weights on the same batches, so that
its losses can be checked against those of a pack.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import nn

from objectives.base import GptConfig
from objectives.models.data import BatchStream, load_corpus
from objectives.models.gpt_model import initial_weights

# Shapes: B sequences, T positions, D width, H heads, C channels of a head.

NUM_BYTES = 256


@dataclass(frozen=True, slots=True)
class Style:
    """How the plain trainer is set up; ``default`` is torch.optim.AdamW without any flag."""

    optimizer: Literal["default", "foreach", "fused"]
    is_compiled: bool = False
    compile_mode: str | None = None


def norm_of(config: GptConfig) -> nn.Module:
    """A norm over the width, with a gain and no offset."""
    if config.norm is None:
        raise ValueError("the plain transformer has norms")
    return nn.LayerNorm(config.width, bias=False) if config.norm == "layer" else nn.RMSNorm(config.width, eps=1e-5)


class Block(nn.Module):
    """One pre-norm transformer block, with GELU or SwiGLU."""

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        self.heads, width = config.heads, config.width
        self.attention_norm = norm_of(config)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.attention_out = nn.Linear(width, width, bias=False)
        self.mlp_norm = norm_of(config)
        self.mlp_gate = nn.Linear(width, config.mlp_width, bias=False) if config.mlp == "swiglu" else None
        self.mlp_in = nn.Linear(width, config.mlp_width, bias=False)
        self.mlp_out = nn.Linear(config.mlp_width, width, bias=False)

    def forward(self, x_BTD: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor] | None) -> torch.Tensor:
        """The residual stream after this block; ``turn`` is the cosine and the sine of rotated positions."""
        B, T, D = x_BTD.shape
        qkv = self.qkv(self.attention_norm(x_BTD)).view(B, T, 3, self.heads, D // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        if turn is not None:
            q, k = rotated(q, *turn), rotated(k, *turn)
        mixed_BHTC = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x_BTD = x_BTD + self.attention_out(mixed_BHTC.transpose(1, 2).reshape(B, T, D))
        normed_BTD = self.mlp_norm(x_BTD)
        hidden = self.mlp_in(normed_BTD)
        hidden = F.gelu(hidden) if self.mlp_gate is None else F.silu(self.mlp_gate(normed_BTD)) * hidden
        return x_BTD + self.mlp_out(hidden)


def rotated(z_BHTC: torch.Tensor, cosine_TC: torch.Tensor, sine_TC: torch.Tensor) -> torch.Tensor:
    """Queries or keys whose pairs of channels are turned by their position, as in Llama."""
    first, second = z_BHTC.chunk(2, dim=-1)
    return z_BHTC * cosine_TC + torch.cat([-second, first], dim=-1) * sine_TC


class PlainGpt(nn.Module):
    """Pre-norm transformer without biases and with an untied head: that of the preset small or llama."""

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        if config.qk_norm:
            raise ValueError("the plain transformer has no layer norm on queries and keys")
        if config.position is None:
            raise ValueError("the plain transformer has positions")
        self.embedding = nn.Embedding(NUM_BYTES, config.width)
        self.is_turned = config.position == "rope"
        if self.is_turned:
            C = config.width // config.heads
            rate_C = config.rope_theta ** -(torch.arange(0, C, 2, dtype=torch.float64) / C).repeat(2)
            angle_TC = torch.arange(config.context)[:, None] * rate_C
            self.register_buffer("cosine", angle_TC.cos().float(), persistent=False)
            self.register_buffer("sine", angle_TC.sin().float(), persistent=False)
        else:
            self.position = nn.Parameter(torch.empty(config.context, config.width))
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.depth))
        self.final_norm = norm_of(config)
        self.head = nn.Linear(config.width, NUM_BYTES, bias=False)

    def forward(self, tokens_BS: torch.Tensor) -> torch.Tensor:
        """Mean next-byte cross-entropy of sequences of S = T + 1 bytes."""
        x_BTD = self.embedding(tokens_BS[:, :-1])
        x_BTD, turn = (x_BTD, (self.cosine, self.sine)) if self.is_turned else (x_BTD + self.position, None)
        for block in self.blocks:
            x_BTD = block(x_BTD, turn)
        logits = self.head(self.final_norm(x_BTD))
        return F.cross_entropy(logits.reshape(-1, NUM_BYTES), tokens_BS[:, 1:].reshape(-1))

    @torch.no_grad()
    def start_from(self, config: GptConfig, seed: int) -> None:
        """Use the initial weights of a pack's member with this seed."""
        weights = initial_weights(config, seed)
        self.embedding.weight.copy_(weights["embedding"])
        if not self.is_turned:
            self.position.copy_(weights["position"])
        self.final_norm.weight.copy_(weights["final_norm"])
        self.head.weight.copy_(weights["head"].T)
        for layer, block in enumerate(self.blocks):
            for name, module in block.named_children():
                # nn.Linear stores its matrix transposed; a norm's gain has one axis and is its own transpose.
                weight = weights[f"{layer}.{name}"]
                module.weight.copy_(weight.T if weight.ndim == 2 else weight)


_KNOWN = {
    "lr", "warmup", "beta1", "beta2", "eps", "weight_decay", "clip", "batch_size", "depth", "width", "heads", "context",
    "precision", "text", "validation_batches", "qk_norm", "norm", "position", "rope_theta", "mlp",
}  # fmt: skip


class PlainTrainer:
    """One trial: a model, torch.optim.AdamW, a linear warmup, clipping, a loss read at every step."""

    def __init__(self, config: GptConfig, seed: int, style: Style, device: str) -> None:
        known = GptConfig(steps=config.steps, **config.model_dump(include=_KNOWN))
        if config != known or config.precision == "float16":
            unknown = sorted(name for name, value in config if value != getattr(known, name)) or ["float16"]
            raise ValueError(f"the plain trainer knows AdamW with a linear warmup only, not {', '.join(unknown)}")
        self.config, self.seed, self.device = config, seed, torch.device(device)
        if self.device.type != "cpu":
            torch.set_float32_matmul_precision("high" if config.precision == "tf32" else "highest")
        model = PlainGpt(config)
        model.start_from(config, seed)
        self.model = model.to(self.device)
        self._losses = torch.compile(self.model, mode=style.compile_mode) if style.is_compiled else self.model
        flags = {} if style.optimizer == "default" else {style.optimizer: True}
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=config.lr,
            betas=(config.beta1, config.beta2),
            eps=config.eps,
            weight_decay=config.weight_decay,
            **flags,
        )
        self.batches = BatchStream(load_corpus(config.text), config.batch_size, config.context, self.device)
        # An infinite threshold leaves the gradient unchanged and still returns its norm.
        self.clip = math.inf if config.clip is None else config.clip
        self.num_steps = 0
        self.grad_norm: torch.Tensor | None = None

    def step(self) -> float:
        """Train one step; returns its loss."""
        # Setting the learning rate directly is cheaper than a scheduler object.
        factor = min(1.0, (self.num_steps + 1) / max(1, self.config.warmup))
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.lr * factor
        tokens_BS = self.batches.batch([(self.seed, self.num_steps)])[0]
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.config.precision == "bfloat16"):
            loss = self._losses(tokens_BS)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.grad_norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        self.num_steps += 1
        return loss.item()


def losses(config: GptConfig, seed: int, style: Style, device: str) -> Iterator[float]:
    """Losses of one trial until it has all its steps or is no longer finite."""
    trainer = PlainTrainer(config, seed, style, device)
    for _ in range(config.steps):
        loss = trainer.step()
        yield loss
        if not math.isfinite(loss):
            return

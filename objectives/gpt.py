"""The built-in proxy: a byte-level decoder-only transformer, K of them as one stacked model."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F

from objectives.base import GptConfig
from objectives.data import BatchStream, held_out_batches, load_corpus
from objectives.packed import PackedTrainer, Weights, seeded_generator

# Shapes: K members, B sequences, T bytes of context, D width, H heads, C channels of a head, V bytes.

_NUM_BYTES = 256
_WEIGHT_PURPOSE = 0


def start(configs: Sequence[GptConfig], seeds: Sequence[int], device: str) -> GptTrainer:
    """Begin training a pack of transformers."""
    return GptTrainer(configs, seeds, device)


class GptTrainer(PackedTrainer):
    """Pre-norm transformer with learned positions, GELU, no biases and an untied head."""

    def __init__(self, configs: Sequence[GptConfig], seeds: Sequence[int], device: str) -> None:
        self.shape = configs[0]
        super().__init__(configs, seeds, device, functools.partial(initial_weights, self.shape))
        self.corpus = load_corpus(self.shape.text)
        self.batches = BatchStream(self.corpus, self.seeds, self.shape.batch_size, self.shape.context, self.device)

    def losses(self) -> torch.Tensor:
        """Mean next-byte cross-entropy of each member, shape (K,), in nats."""
        return self._cross_entropy(self.batches.batch(self.num_steps))

    @torch.no_grad()
    def validate(self) -> torch.Tensor:
        """Mean next-byte cross-entropy on held-out text, shape (K,), in nats."""
        shape = self.shape
        batches = held_out_batches(self.corpus, shape.validation_batches, shape.batch_size, shape.context)
        losses = [
            self._cross_entropy(tokens_BT.to(self.device).expand(self.num_members, -1, -1)) for tokens_BT in batches
        ]
        return torch.stack(losses).mean(0)

    def describe(self) -> Mapping[str, str]:
        """Which text was trained on."""
        return {
            "text": self.corpus.source,
            "text_sha256": self.corpus.sha256,
            "text_bytes": str(len(self.corpus.training) + len(self.corpus.held_out)),
        }

    def members_changed(self) -> None:
        """Serve batches to those who are left."""
        self.batches.set_members(self.seeds)

    def _cross_entropy(self, tokens_KBT: torch.Tensor) -> torch.Tensor:
        logits_KNV = self._logits(tokens_KBT[..., :-1])
        targets = tokens_KBT[..., 1:].reshape(-1)
        losses = F.cross_entropy(logits_KNV.reshape(-1, _NUM_BYTES), targets, reduction="none")
        return losses.view(logits_KNV.shape[0], -1).mean(1)

    def _logits(self, tokens_KBT: torch.Tensor) -> torch.Tensor:
        """Logits of the next byte, (K, B * T, V)."""
        weights, (K, B, T) = self.weights, tokens_KBT.shape
        D, H = self.shape.width, self.shape.heads
        member_K11 = torch.arange(K, device=tokens_KBT.device)[:, None, None]
        embedding = weights["embedding"].reshape(K * _NUM_BYTES, D)
        x_KBTD = F.embedding(tokens_KBT + member_K11 * _NUM_BYTES, embedding)
        x_KND = (x_KBTD + weights["position"][:, None, :T]).view(K, B * T, D)
        for layer in range(self.shape.depth):
            # Members fold into the batch of one fused attention; heads split the channels.
            qkv = torch.bmm(self._norm(x_KND, f"{layer}.attention_norm"), weights[f"{layer}.qkv"])
            q, k, v = qkv.view(K * B, T, 3, H, D // H).permute(2, 0, 3, 1, 4)
            if self.shape.qk_norm:
                q, k = (self._head_norm(z, f"{layer}.{name}_norm", K) for z, name in ((q, "q"), (k, "k")))
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            mixed_KND = mixed.transpose(1, 2).reshape(K, B * T, D)
            x_KND = x_KND + torch.bmm(mixed_KND, weights[f"{layer}.attention_out"])
            hidden = F.gelu(torch.bmm(self._norm(x_KND, f"{layer}.mlp_norm"), weights[f"{layer}.mlp_in"]))
            x_KND = x_KND + torch.bmm(hidden, weights[f"{layer}.mlp_out"])
        return torch.bmm(self._norm(x_KND, "final_norm"), weights["head"])

    def _norm(self, x_KND: torch.Tensor, name: str) -> torch.Tensor:
        return F.layer_norm(x_KND, x_KND.shape[-1:]) * self.weights[name][:, None]

    def _head_norm(self, z: torch.Tensor, name: str, K: int) -> torch.Tensor:
        """Layer norm over the channels of each head; z is (K * B, H, T, C), the gain (K, C)."""
        normed = F.layer_norm(z, z.shape[-1:]).view(K, -1, *z.shape[1:])
        return (normed * self.weights[name][:, None, None, None]).view(z.shape)


def initial_weights(shape: GptConfig, seed: int) -> Weights:
    """One member's weights: normal with deviation 0.02, residual outputs 0.02 / sqrt(2 depth)."""
    D, generator = shape.width, seeded_generator(seed, _WEIGHT_PURPOSE)

    def normal(*size: int, deviation: float = 0.02) -> torch.Tensor:
        return torch.randn(size, generator=generator) * deviation

    residual = 0.02 / math.sqrt(2 * shape.depth)
    weights = {"embedding": normal(_NUM_BYTES, D), "position": normal(shape.context, D)}
    for layer in range(shape.depth):
        weights[f"{layer}.attention_norm"] = torch.ones(D)
        weights[f"{layer}.qkv"] = normal(D, 3 * D)
        if shape.qk_norm:
            weights[f"{layer}.q_norm"] = torch.ones(D // shape.heads)
            weights[f"{layer}.k_norm"] = torch.ones(D // shape.heads)
        weights[f"{layer}.attention_out"] = normal(D, D, deviation=residual)
        weights[f"{layer}.mlp_norm"] = torch.ones(D)
        weights[f"{layer}.mlp_in"] = normal(D, 4 * D)
        weights[f"{layer}.mlp_out"] = normal(4 * D, D, deviation=residual)
    weights["final_norm"] = torch.ones(D)
    weights["head"] = normal(D, _NUM_BYTES)
    return weights

"""The built-in proxy: a byte-level decoder-only transformer, K of them as one stacked model."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F

from objectives.base import GptConfig, Way
from objectives.compiling import Compiled
from objectives.data import BatchStream, held_out_batches, load_corpus
from objectives.gpt_gradient import losses_and_gradient
from objectives.packed import WEIGHT_PURPOSE, PackedTrainer, Weights, seeded_generator

# Shapes: K members, B sequences, T bytes of context, D width, H heads, C channels of a head, V bytes.

_NUM_BYTES = 256


def start(configs: Sequence[GptConfig], seeds: Sequence[int], device: str, way: Way) -> GptTrainer:
    """Begin training a pack of transformers."""
    return GptTrainer(configs, seeds, device, way)


class GptTrainer(PackedTrainer):
    """Pre-norm transformer with learned positions, GELU, no biases and an untied head."""

    def __init__(self, configs: Sequence[GptConfig], seeds: Sequence[int], device: str, way: Way) -> None:
        super().__init__(configs, seeds, device, way)
        self.corpus = load_corpus(self.shape.text)
        self.batches = BatchStream(self.corpus, self.shape.batch_size, self.shape.context, self.device)
        is_on_cpu = self.device.type == "cpu"
        if not is_on_cpu:
            torch.set_float32_matmul_precision("high" if self.shape.precision == "tf32" else "highest")
        # Both passes by hand are made for a CPU; a GPU has fused attention, and autocast needs autograd.
        self._by_hand = is_on_cpu and self.shape.precision != "bfloat16"
        self._differentiate = losses_and_gradient
        self._cross_entropy = functools.partial(cross_entropy, self.shape)
        if way.compiled and self._by_hand:
            self._differentiate = Compiled(losses_and_gradient)
        elif way.compiled:
            # Launching a kernel costs a GPU more than running it at these sizes: record them as a graph.
            mode = None if is_on_cpu else "reduce-overhead"
            self._cross_entropy = Compiled(self._cross_entropy, mode=mode)

    def initial_weights(self, seed: int) -> Weights:
        """One member's weights."""
        return initial_weights(self.shape, seed)

    def losses(self) -> torch.Tensor:
        """Mean next-byte cross-entropy of each member, shape (K,), in nats."""
        return self._cross_entropy(self.weights, self._tokens())

    def losses_and_gradient(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Loss of each member, (K,), and its gradient, (K, n), on this step's data."""
        if not self._by_hand:
            return super().losses_and_gradient()
        weights = {name: weight.detach() for name, weight in self.weights.items()}
        with torch.no_grad():
            return self._differentiate(weights, self._tokens(), self.shape, self.way.kernels)

    @torch.no_grad()
    def validate(self, rows: Sequence[int]) -> torch.Tensor:
        """Mean next-byte cross-entropy on held-out text of the members in ``rows``, in nats."""
        shape, index = self.shape, torch.tensor(rows, device=self.device)
        weights = {name: weight[index] for name, weight in self.weights.items()}
        batches = held_out_batches(self.corpus, shape.validation_batches, shape.batch_size, shape.context)
        tokens = (tokens_BS.to(self.device).expand(len(rows), -1, -1) for tokens_BS in batches)
        return torch.stack([cross_entropy(shape, weights, tokens_KBS) for tokens_KBS in tokens]).mean(0)

    def describe(self) -> Mapping[str, str]:
        """Which text was trained on, and why nothing is compiled where it should be."""
        tried = (self._differentiate, self._cross_entropy)
        failures = [function.failure for function in tried if isinstance(function, Compiled) and function.failure]
        return {
            **({"compilation": failures[0]} if failures else {}),
            "text": self.corpus.source,
            "text_sha256": self.corpus.sha256,
            "text_bytes": str(len(self.corpus.training) + len(self.corpus.held_out)),
        }

    def _tokens(self) -> torch.Tensor:
        """This step's bytes of each member, (K, B, T + 1)."""
        return self.batches.batch(self.cohorts())[self.cohort_of_member_K]


def cross_entropy(shape: GptConfig, weights: Weights, tokens_KBS: torch.Tensor) -> torch.Tensor:
    """Mean next-byte cross-entropy of each member, shape (K,), in nats; S = T + 1 bytes a sequence."""
    device = tokens_KBS.device.type
    with torch.autocast(device, torch.bfloat16, enabled=shape.precision == "bfloat16"):
        logits_KNV = _logits(shape, weights, tokens_KBS[..., :-1]).to(weights["head"].dtype)
    targets = tokens_KBS[..., 1:].reshape(-1)
    losses = F.cross_entropy(logits_KNV.reshape(-1, _NUM_BYTES), targets, reduction="none")
    return losses.view(logits_KNV.shape[0], -1).mean(1)


def _logits(shape: GptConfig, weights: Weights, tokens_KBT: torch.Tensor) -> torch.Tensor:
    """Logits of the next byte, (K, B * T, V)."""
    (K, B, T), D, H = tokens_KBT.shape, shape.width, shape.heads
    member_K11 = torch.arange(K, device=tokens_KBT.device)[:, None, None]
    embedding = weights["embedding"].reshape(K * _NUM_BYTES, D)
    x_KBTD = F.embedding(tokens_KBT + member_K11 * _NUM_BYTES, embedding)
    x_KND = (x_KBTD + weights["position"][:, None, :T]).view(K, B * T, D)

    def norm(x_KND: torch.Tensor, name: str) -> torch.Tensor:
        return F.layer_norm(x_KND, x_KND.shape[-1:]) * weights[name][:, None]

    for layer in range(shape.depth):
        # Members fold into the batch of one fused attention; heads split the channels.
        qkv = torch.bmm(norm(x_KND, f"{layer}.attention_norm"), weights[f"{layer}.qkv"])
        q, k, v = qkv.view(K * B, T, 3, H, D // H).permute(2, 0, 3, 1, 4)
        if shape.qk_norm:
            q, k = (_head_norm(z, weights[f"{layer}.{name}_norm"]) for z, name in ((q, "q"), (k, "k")))
            q, k = q.to(v.dtype), k.to(v.dtype)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        mixed_KND = mixed.transpose(1, 2).reshape(K, B * T, D)
        x_KND = x_KND + torch.bmm(mixed_KND, weights[f"{layer}.attention_out"])
        hidden = F.gelu(torch.bmm(norm(x_KND, f"{layer}.mlp_norm"), weights[f"{layer}.mlp_in"]))
        x_KND = x_KND + torch.bmm(hidden, weights[f"{layer}.mlp_out"])
    return torch.bmm(norm(x_KND, "final_norm"), weights["head"])


def _head_norm(z: torch.Tensor, gain_KC: torch.Tensor) -> torch.Tensor:
    """Layer norm over the channels of each head; z is (K * B, H, T, C)."""
    normed = F.layer_norm(z, z.shape[-1:]).reshape(len(gain_KC), -1, *z.shape[1:])
    return (normed * gain_KC[:, None, None, None]).view(z.shape)


def initial_weights(shape: GptConfig, seed: int) -> Weights:
    """One member's weights: normal with deviation 0.02, residual outputs 0.02 / sqrt(2 depth)."""
    D, generator = shape.width, seeded_generator(seed, WEIGHT_PURPOSE)

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

"""The transformer as one stacked, differentiable model: initial weights of K members, and from weights to losses.

A sublayer f adds to the residual stream. ``norm_place`` pre: x + f(norm(x)). post: norm(x + f(x)), with no final norm
after the last block (Vaswani et al., arXiv 1706.03762). output: x + norm(f(x)) (OLMo 2, arXiv 2501.00656). Without a
``norm``: x + f(x), and no final norm. The added term is first multiplied by
``objectives.models.gpt_knobs.branch_factor``.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from objectives.base import GptConfig
from objectives.fields import third_of_depth
from objectives.models.gpt_experts import Routing, loads, mixture, with_router_losses
from objectives.models.gpt_knobs import (
    NEUTRAL,
    Knobs,
    block_positions,
    branch_factor,
    may_attend,
    mean_of_tokens,
    with_z_loss,
)
from objectives.models.gpt_parts import AUTOCAST, Rotation, grouped_heads, rotated, rotation, softcapped
from objectives.stacking import autocast_product, in_blocks, seeded_generator
from objectives.training.packed import WEIGHT_PURPOSE, Weights

# Shapes: K members, B sequences, T bytes of context, N = B * T, D width, H heads, C channels per head, V bytes.

NUM_BYTES = 256
_DEVIATION = 0.02  # of initial matrices, as in GPT-2
NORM_EPS = 1e-5  # of both norms; torch's default for layer norm

Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]


def group_of(name: str) -> str:
    """Return the layer group of the weight ``name``: embedding, attention, mlp, router, norm or head."""
    part = name.split(".")[-1].removesuffix("_bias")
    if part in ("embedding", "position"):
        return "embedding"
    if part.endswith("norm"):
        return "norm"
    return "mlp" if part.startswith("mlp") else part if part in ("head", "router") else "attention"


def depth_of(name: str, depth: int) -> str | None:
    """Return the third of the depth with the middle of the block of the weight ``name``, or None outside blocks."""
    block = name.split(".")[0]
    if not block.isdigit():
        return None
    return third_of_depth(int(block), depth)


def cross_entropy(
    structure: GptConfig, weights: Weights, tokens_KBS: torch.Tensor, knobs: Knobs = NEUTRAL
) -> torch.Tensor:
    """Return the losses that ``forward`` trains on, (K,)."""
    return forward(structure, weights, tokens_KBS, knobs).trained_K


class Forward(NamedTuple):
    """What a forward pass gives: losses in nats, (K,) each, and the ``loads`` of experts, (K, L, E), if there are any.

    ``shown_K`` is without the losses that even out the loads of routers: these say nothing of the text, and trials that
    weigh them differently could not be compared.
    """

    trained_K: torch.Tensor
    shown_K: torch.Tensor
    load_KLE: torch.Tensor | None


def forward(structure: GptConfig, weights: Weights, tokens_KBS: torch.Tensor, knobs: Knobs = NEUTRAL) -> Forward:
    """Return each member's mean next-byte cross-entropy, plus what is added to it; S = T + 1 bytes per sequence."""
    dtype, device = AUTOCAST.get(structure.precision), tokens_KBS.device.type
    with contextlib.nullcontext() if dtype is None else torch.autocast(device, dtype):
        logits_KNV, routings = _logits(structure, weights, tokens_KBS[..., :-1], knobs, _attention_of(structure))
        logits_KNV = logits_KNV.to(weights["embedding"].dtype)
    if structure.logit_softcap is not None:
        logits_KNV = softcapped(logits_KNV, structure.logit_softcap)
    targets = tokens_KBS[..., 1:].reshape(-1)
    losses = F.cross_entropy(logits_KNV.reshape(-1, NUM_BYTES), targets, reduction="none")
    share_KB = knobs.sequence_share_KB
    loss_K = mean_of_tokens(losses.view(logits_KNV.shape[0], -1), share_KB)
    if knobs.z_loss_K is not None:
        loss_K = with_z_loss(loss_K, logits_KNV.logsumexp(-1), knobs.z_loss_K.to(loss_K.dtype), share_KB)
    if not routings:
        return Forward(loss_K, loss_K, None)
    return Forward(with_router_losses(loss_K, routings, knobs), loss_K, loads(routings))


@torch.no_grad()
def byte_losses(structure: GptConfig, weights: Weights, tokens_KBS: torch.Tensor) -> torch.Tensor:
    """Return the cross-entropy of every byte but the first of each sequence, (K, B, T), without a softcap."""
    logits_KNV, _ = _logits(structure, weights, tokens_KBS[..., :-1], NEUTRAL, _attention_of(structure))
    targets_KBT = tokens_KBS[..., 1:]
    losses = F.cross_entropy(logits_KNV.reshape(-1, NUM_BYTES), targets_KBT.reshape(-1), reduction="none")
    return losses.view(targets_KBT.shape)


@torch.no_grad()
def routings_of(
    structure: GptConfig, weights: Weights, tokens_KBS: torch.Tensor, knobs: Knobs = NEUTRAL
) -> list[Routing]:
    """Return the routing of every layer on these sequences, without autocast; empty for a model without experts."""
    return _logits(structure, weights, tokens_KBS[..., :-1], knobs, _attention_of(structure))[1]


@torch.no_grad()
def forward_readings(
    structure: GptConfig, weights: Weights, tokens_KBS: torch.Tensor, knobs: Knobs = NEUTRAL
) -> dict[str, torch.Tensor]:
    """Return ``attention_logit`` and ``log_z`` of each member on these sequences, (K,) each, without autocast.

    ``attention_logit`` is the largest scaled |q.k| between a position and one it attends to, over all layers and heads,
    before a softcap. ``log_z`` is the mean of |log Z| over the logits. Wortsman et al. (arXiv 2309.14322): runs
    whose attention logits exceed 1e4 diverge, and logits far from log Z = 0 precede a late divergence.
    """
    logits_KNV, largest_LKH = _observed(structure, weights, tokens_KBS, knobs)
    if structure.logit_softcap is not None:
        logits_KNV = softcapped(logits_KNV, structure.logit_softcap)
    return {
        "attention_logit": largest_LKH.amax((0, 2)),
        "log_z": logits_KNV.logsumexp(-1).abs().mean(1),
    }


@torch.no_grad()
def attention_logits(
    structure: GptConfig, weights: Weights, tokens_KBS: torch.Tensor, knobs: Knobs = NEUTRAL
) -> torch.Tensor:
    """Return the largest scaled |q.k| of every head on these sequences, before a softcap, (L, K, H) for L layers."""
    return _observed(structure, weights, tokens_KBS, knobs)[1]


def _observed(
    structure: GptConfig, weights: Weights, tokens_KBS: torch.Tensor, knobs: Knobs
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the logits before a softcap, (K, N, V), and the largest attention logit of every head, (L, K, H)."""
    (K, B, _), H = tokens_KBS.shape, structure.heads
    largest: list[torch.Tensor] = []

    def attention(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, may_attend_1TT: torch.Tensor | None
    ) -> torch.Tensor:
        score = q @ k.transpose(-1, -2) * structure.attention_scale
        if may_attend_1TT is None:
            may_attend_1TT = torch.ones(score.shape[-2:], dtype=torch.bool, device=score.device).tril()
        seen = score.abs().masked_fill(~may_attend_1TT, 0.0)
        largest.append(seen.view(K, B, H, -1).amax((1, 3)))
        if structure.attention_softcap is not None:
            score = softcapped(score, structure.attention_softcap)
        return score.masked_fill(~may_attend_1TT, -math.inf).softmax(-1) @ v

    logits_KNV, _ = _logits(structure, weights, tokens_KBS[..., :-1], knobs, attention)
    return logits_KNV, torch.stack(largest)


def _logits(
    structure: GptConfig, weights: Weights, tokens_KBT: torch.Tensor, knobs: Knobs, attention: Attention
) -> tuple[torch.Tensor, list[Routing]]:
    """Return the logits of the next byte before a softcap, (K, N, V), and the routing of every layer with experts."""
    (K, B, T), D = tokens_KBT.shape, structure.width
    member_K11 = torch.arange(K, device=tokens_KBT.device)[:, None, None]
    embedding = weights["embedding"].reshape(K * NUM_BYTES, D)
    x_KBTD = F.embedding(tokens_KBT + member_K11 * NUM_BYTES, embedding)
    if structure.embedding_scale != 1:
        x_KBTD = x_KBTD * structure.embedding_scale
    may_attend_1TT = None
    if knobs.context_K is not None:
        # Members are folded into the batch of one fused attention call.
        may_attend_1TT = may_attend(knobs.context_K, T).repeat_interleave(B, dim=0)[:, None]
    if structure.position == "learned":
        x_KBTD = x_KBTD + _positions(weights["position"], T, knobs)[:, None]
    x_KND = x_KBTD.view(K, B * T, D)
    turn = rotation(structure, knobs, T, B, x_KND)
    routings: list[Routing] = []
    for layer in range(structure.depth):
        block = functools.partial(_block, structure, weights, layer, B, knobs, attention, may_attend_1TT, turn)
        if structure.recompute and torch.is_grad_enabled():
            x_KND, routing = checkpoint(block, x_KND, use_reentrant=False, preserve_rng_state=False)
        else:
            x_KND, routing = block(x_KND)
        if routing is not None:
            routings.append(routing)
    if structure.has_final_norm:
        x_KND = _normed(structure, weights, x_KND, "final_norm")
    if structure.size_factors.width != 1:
        x_KND = x_KND / structure.size_factors.width
    head_KDV = weights["embedding"].transpose(1, 2) if structure.tie_embeddings else weights["head"]
    return autocast_product(x_KND, head_KDV), routings


def _positions(position_KTD: torch.Tensor, num_positions: int, knobs: Knobs) -> torch.Tensor:
    """Return the learned table's rows of the first positions, counted within blocks of context, (K, T, D)."""
    if knobs.context_K is None:
        return position_KTD[:, :num_positions]
    member_K1 = torch.arange(len(position_KTD), device=position_KTD.device)[:, None]
    return position_KTD[member_K1, block_positions(knobs.context_K, num_positions)]


def _block(
    structure: GptConfig,
    weights: Weights,
    layer: int,
    num_sequences: int,
    knobs: Knobs,
    attention: Attention,
    may_attend_1TT: torch.Tensor | None,
    turn: Rotation | None,
    x_KND: torch.Tensor,
) -> tuple[torch.Tensor, Routing | None]:
    """Return the residual stream after one transformer block, and the routing of its experts if it has any."""
    (K, N, D), B, H, G = x_KND.shape, num_sequences, structure.heads, structure.num_kv_heads
    T, C, norm_place, routing = N // B, D // H, structure.place_of_norms, None

    def norm(x_KND: torch.Tensor, name: str) -> torch.Tensor:
        return _normed(structure, weights, x_KND, f"{layer}.{name}")

    def product(x_KNI: torch.Tensor, name: str) -> torch.Tensor:
        out_KNO = autocast_product(x_KNI, weights[f"{layer}.{name}"])
        return out_KNO + weights[f"{layer}.{name}_bias"].to(out_KNO.dtype)[:, None] if structure.bias else out_KNO

    def attended(x_KND: torch.Tensor) -> torch.Tensor:
        # Heads split the channels.
        heads = product(x_KND, "qkv").view(K * B, T, H + 2 * G, C).transpose(1, 2)
        q, k, v = heads.split((H, G, G), dim=1)
        if structure.qk_norm:
            q, k = (_head_norm(structure, z, weights[f"{layer}.{name}_norm"]) for z, name in ((q, "q"), (k, "k")))
            q, k = q.to(v.dtype), k.to(v.dtype)
        if turn is not None:
            q, k = rotated(q, turn), rotated(k, turn)
        mixed = attention(q, grouped_heads(k, H), grouped_heads(v, H), may_attend_1TT)
        return product(mixed.transpose(1, 2).reshape(K, N, D), "attention_out")

    def mlp(x_KND: torch.Tensor) -> torch.Tensor:
        nonlocal routing
        if structure.experts:
            out_KND, routing = mixture(structure, weights, layer, x_KND, B, knobs)
            return out_KND
        if structure.mlp == "swiglu":
            hidden = in_blocks(F.silu, product(x_KND, "mlp_gate")) * product(x_KND, "mlp_in")
        else:
            hidden = in_blocks(F.gelu, product(x_KND, "mlp_in"))
        return product(hidden, "mlp_out")

    for branch, sublayer, name in ((2 * layer, attended, "attention_norm"), (2 * layer + 1, mlp, "mlp_norm")):
        out_KND = sublayer(norm(x_KND, name) if norm_place == "pre" else x_KND)
        if norm_place == "output":
            out_KND = norm(out_KND.to(x_KND.dtype), name)
        factor = branch_factor(knobs, branch, x_KND, B)
        x_KND = x_KND + (out_KND if factor is None else out_KND * factor)
        x_KND = norm(x_KND, name) if norm_place == "post" else x_KND
    return x_KND, routing


def _attention_of(structure: GptConfig) -> Attention:
    """Return torch's fused attention, or one with a softcap."""
    apply = _fused_attention if structure.attention_softcap is None else _capped_attention
    return functools.partial(apply, structure)


def _capped_attention(
    structure: GptConfig, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, may_attend_1TT: torch.Tensor | None
) -> torch.Tensor:
    """Apply causal attention whose logits are capped."""
    assert structure.attention_softcap is not None
    score = softcapped(q @ k.transpose(-1, -2) * structure.attention_scale, structure.attention_softcap)
    if may_attend_1TT is None:
        may_attend_1TT = torch.ones(score.shape[-2:], dtype=torch.bool, device=score.device).tril()
    return score.masked_fill(~may_attend_1TT, -math.inf).softmax(-1) @ v


def _fused_attention(
    structure: GptConfig, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, may_attend_1TT: torch.Tensor | None
) -> torch.Tensor:
    """Apply attention, causal without a mask. On a CPU an explicit causal mask gives the same bits."""
    scale = structure.attention_scale
    if may_attend_1TT is None:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=may_attend_1TT, scale=scale)


def _normed(structure: GptConfig, weights: Weights, x_KND: torch.Tensor, name: str) -> torch.Tensor:
    """Apply the norm ``name`` with its gain, and its offset if it has one."""
    out_KND = _norm(structure, x_KND) * weights[name][:, None]
    return out_KND + weights[f"{name}_bias"][:, None] if structure.has_norm_offsets else out_KND


def _norm(structure: GptConfig, x: torch.Tensor) -> torch.Tensor:
    """Apply layer norm, or x / sqrt(mean(x^2) + eps) (Zhang & Sennrich, arXiv 1910.07467), over the last axis; no gain.

    In a model without a ``norm``, only queries and keys are normed, by the second.
    """
    if structure.norm == "layer":
        return F.layer_norm(x, x.shape[-1:])
    return F.rms_norm(x, x.shape[-1:], eps=NORM_EPS)


def _head_norm(structure: GptConfig, z: torch.Tensor, gain_KC: torch.Tensor) -> torch.Tensor:
    """Apply the norm over the channels of each head; z is (K * B, H, T, C)."""
    normed = _norm(structure, z).reshape(len(gain_KC), -1, *z.shape[1:])
    return (normed * gain_KC[:, None, None, None]).view(z.shape)


def initial_weights(structure: GptConfig, seed: int) -> Weights:
    """Return one member's weights for any ``init``: deviation 0.02, residual outputs 0.02 / sqrt(2 depth), gains 1."""
    D, C, generator = structure.width, structure.width // structure.heads, seeded_generator(seed, WEIGHT_PURPOSE)
    has_norms, weights = structure.norm is not None, dict[str, torch.Tensor]()
    stack = (structure.experts + structure.shared_experts,) if structure.experts else ()

    def normal(name: str, *size: int) -> None:
        weights[name] = torch.randn(size, generator=generator) * _drawn_deviation(name, structure.depth)

    def matrix(name: str, num_rows: int, num_columns: int, stack: tuple[int, ...] = ()) -> None:
        normal(name, *stack, num_rows, num_columns)
        if structure.bias:
            weights[f"{name}_bias"] = torch.zeros(math.prod(stack) * num_columns)

    def gain(name: str) -> None:
        weights[name] = torch.ones(D)
        if structure.has_norm_offsets:
            weights[f"{name}_bias"] = torch.zeros(D)

    normal("embedding", NUM_BYTES, D)
    if structure.position == "learned":
        normal("position", structure.context, D)
    for layer in range(structure.depth):
        if has_norms:
            gain(f"{layer}.attention_norm")
        matrix(f"{layer}.qkv", D, D + 2 * structure.num_kv_heads * C)
        if structure.qk_norm:
            weights[f"{layer}.q_norm"] = torch.ones(C)
            weights[f"{layer}.k_norm"] = torch.ones(C)
        matrix(f"{layer}.attention_out", D, D)
        if has_norms:
            gain(f"{layer}.mlp_norm")
        if structure.experts:
            normal(f"{layer}.router", D, structure.experts)
        if structure.mlp == "swiglu":
            matrix(f"{layer}.mlp_gate", D, structure.mlp_width, stack)
        matrix(f"{layer}.mlp_in", D, structure.mlp_width, stack)
        matrix(f"{layer}.mlp_out", structure.mlp_width, D, stack)
    if structure.has_final_norm:
        gain("final_norm")
    if not structure.tie_embeddings:
        normal("head", D, NUM_BYTES)
    return weights


def with_init(drawn: Weights, config: GptConfig) -> Weights:
    """Scale the weights of ``initial_weights`` to a member's ``init``; by default the bits stay the same."""
    return {
        name: weight if weight.dim() == 1 else weight * _factor(config, name, weight) for name, weight in drawn.items()
    }


def _factor(config: GptConfig, name: str, drawn: torch.Tensor) -> float:
    """Return the factor on a drawn matrix or stack."""
    own = config.router_init if group_of(name) == "router" else 1.0
    if config.init == "gpt2":
        return own * (config.init_deviation / _DEVIATION * config.size_factors.of_weight("init", name))
    return own * math.sqrt(_variance(config, name, *drawn.shape[-2:])) / _drawn_deviation(name, config.depth)


def _drawn_deviation(name: str, depth: int) -> float:
    """Return the deviation of a drawn matrix: GPT-2's (Radford et al. 2019), smaller for outputs of sublayers."""
    return _DEVIATION / math.sqrt(2 * depth) if name.endswith("_out") else _DEVIATION


def _variance(config: GptConfig, name: str, num_rows: int, num_columns: int) -> float:
    """Return the variance of a matrix for an ``init`` that keeps the scale of activations at any width.

    fan_in: 1 / fan_in (LeCun et al., Efficient BackProp, 1998). he: 2 / fan_in where a nonlinearity follows
    (``mlp_in``, SwiGLU's ``mlp_gate``), 1 / fan_in for the others (He et al., arXiv 1502.01852; derived for ReLU, here
    GELU). xavier: 2 / (fan_in + fan_out) (Glorot & Bengio, AISTATS 2010, equation 12), for queries, keys and values
    each. Embeddings and positions are looked up and have no fan: 1, but 1 / width for a table that is also the head.
    """
    if name == "embedding" and config.tie_embeddings:
        return 1 / num_columns
    if group_of(name) == "embedding":
        return 1.0
    if config.init == "xavier":
        return 2 / (num_rows + (config.width if name.endswith("qkv") else num_columns))
    activated = "mlp_gate" if config.mlp == "swiglu" else "mlp_in"
    return (2 if config.init == "he" and name.endswith(activated) else 1) / num_rows

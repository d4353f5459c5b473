"""Losses and gradients of the stacked transformer on a CPU, with hand-written forward and backward passes.

The same mathematics as ``objectives.models.gpt.cross_entropy`` under autograd, in two thirds of the time at proxy
sizes: attention over short contexts is a few batched products, the softmax of the loss becomes its own gradient in
place, residual sums are fused into matrix products, no graph is recorded and no gradient zeroed. Only plain tensor
operations, so ``torch.compile`` can fuse everything.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F

from objectives.base import GptConfig, Kernels
from objectives.models.gpt_knobs import NEUTRAL, Knobs, block_positions, branch_factor, may_attend, with_z_loss
from objectives.models.gpt_model import NORM_EPS
from objectives.models.gpt_parts import Rotation, grouped_heads, rotated, rotation, silu_backward, softcapped
from objectives.stacking import in_blocks, rows_of_blocks

# Shapes: K members, B sequences, T positions, N = B * T, D width, H heads, C channels per head, V bytes,
# G = K * B * H groups of attention. d_x is the gradient of the summed losses with respect to x.

Tensors = dict[str, torch.Tensor]


def losses_and_gradient(
    weights: Tensors, tokens_KBS: torch.Tensor, structure: GptConfig, kernels: Kernels, knobs: Knobs = NEUTRAL
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each member's loss, (K,), and gradient, (K, n), in the order of ``weights``, zero-padded.

    ``tokens_KBS`` has S = T + 1 bytes per sequence: inputs, and targets shifted by one.
    """
    K, B, S = tokens_KBS.shape
    (V, D), N = weights["embedding"].shape[1:], B * (S - 1)
    members_K11 = torch.arange(K, device=tokens_KBS.device)[:, None, None]
    rows = (tokens_KBS[..., :-1] + members_K11 * V).reshape(-1)
    x_KBTD = weights["embedding"].reshape(K * V, D)[rows].view(K, B, S - 1, D)
    if structure.embedding_scale != 1:
        x_KBTD = x_KBTD * structure.embedding_scale
    if structure.position == "learned":
        x_KBTD = x_KBTD + _positions(weights["position"], S - 1, knobs)[:, None]
    x_KND = x_KBTD.view(K, N, D)
    turn = rotation(structure, knobs, S - 1, B, x_KND)
    blocks = [_Block(_Layer(weights, number, structure, B, kernels, knobs, turn)) for number in range(structure.depth)]
    for block in blocks:
        x_KND = block.forward(x_KND)
    final = _norm_of(structure, x_KND, weights, "final_norm") if structure.has_final_norm else None
    out_KND = x_KND if final is None else final.out
    if (by_width := structure.size_factors.width) != 1:
        out_KND = out_KND / by_width
    head_KDV = weights["embedding"].transpose(1, 2) if structure.tie_embeddings else weights["head"]
    logits, cap = _product(out_KND, head_KDV, kernels), structure.logit_softcap
    capped = logits if cap is None else softcapped(logits, cap)
    loss_K, d_logits = _cross_entropy(capped, tokens_KBS[..., 1:].reshape(K * N, 1), knobs.z_loss_K)
    if cap is not None:
        d_logits = d_logits.mul_(1 - (capped / cap).square())

    gradient: Tensors = {}
    d_x = _into_inputs(d_logits, head_KDV, out_KND, "head", gradient, kernels)
    d_x = d_x if by_width == 1 else d_x / by_width
    if final is not None:
        d_x = final.backward(d_x, "final_norm", gradient)
    while blocks:
        d_x = blocks.pop().backward(d_x, gradient)
    if structure.position == "learned":
        gradient["position"] = _into_positions(d_x.view(K, B, S - 1, D).sum(1), weights["position"], knobs)
    if structure.embedding_scale != 1:
        d_x = d_x * structure.embedding_scale
    d_embedding = gradient["head"].transpose(1, 2).contiguous() if structure.tie_embeddings else None
    d_embedding = torch.zeros_like(weights["embedding"]) if d_embedding is None else d_embedding
    gradient["embedding"] = d_embedding.view(K * V, D).index_add_(0, rows, d_x.view(-1, D))
    return loss_K, rows_of_blocks(gradient[name].reshape(K, -1) for name in weights)


def _positions(position_KTD: torch.Tensor, num_positions: int, knobs: Knobs) -> torch.Tensor:
    """Return the position embedding added at each of the first positions, (K, T, D)."""
    if knobs.context_K is None:
        return position_KTD[:, :num_positions]
    return position_KTD.reshape(-1, position_KTD.shape[2])[_rows_of_positions(position_KTD, num_positions, knobs)]


def _into_positions(d_KTD: torch.Tensor, position_KTD: torch.Tensor, knobs: Knobs) -> torch.Tensor:
    """Do the backward pass of ``_positions``."""
    num_positions, D = d_KTD.shape[1:]
    if knobs.context_K is None:
        return F.pad(d_KTD, (0, 0, 0, position_KTD.shape[1] - num_positions))
    rows_KT = _rows_of_positions(position_KTD, num_positions, knobs)
    return torch.zeros_like(position_KTD).view(-1, D).index_add_(0, rows_KT.view(-1), d_KTD.reshape(-1, D))


def _rows_of_positions(position_KTD: torch.Tensor, num_positions: int, knobs: Knobs) -> torch.Tensor:
    """Return the row of each position in the flattened position tables of all members, (K, T)."""
    assert knobs.context_K is not None
    K, context = position_KTD.shape[:2]
    members_K1 = torch.arange(K, device=position_KTD.device)[:, None]
    return block_positions(knobs.context_K, num_positions) + members_K1 * context


@dataclass(frozen=True, slots=True)
class _Layer:
    """What the parts of one transformer block share."""

    weights: Tensors
    number: int
    structure: GptConfig
    num_sequences: int
    kernels: Kernels
    knobs: Knobs
    turn: Rotation | None

    def weight(self, name: str) -> torch.Tensor:
        return self.weights[f"{self.number}.{name}"]

    def product(self, x_KNI: torch.Tensor, name: str) -> torch.Tensor:
        out_KNO = _product(x_KNI, self.weight(name), self.kernels)
        return out_KNO.add_(self.weight(f"{name}_bias")[:, None]) if self.structure.bias else out_KNO

    def back(self, d_out: torch.Tensor, x_KNI: torch.Tensor, name: str, gradient: Tensors) -> torch.Tensor:
        if self.structure.bias:
            gradient[f"{self.number}.{name}_bias"] = d_out.sum(1)
        return _into_inputs(d_out, self.weight(name), x_KNI, f"{self.number}.{name}", gradient, self.kernels)

    def norm(self, x: torch.Tensor, name: str) -> _Norm:
        return _norm_of(self.structure, x, self.weights, f"{self.number}.{name}")


class _Block:
    """One transformer block. It keeps what its backward pass needs, or only its input with ``recompute``."""

    def __init__(self, layer: _Layer) -> None:
        self.layer = layer

    def forward(self, x_KND: torch.Tensor) -> torch.Tensor:
        attention, mlp = _Branch(self.layer, 0), _Branch(self.layer, 1)
        out_KND = mlp.forward(attention.forward(x_KND))
        self.kept: torch.Tensor | tuple[_Branch, _Branch] = (
            x_KND if self.layer.structure.recompute else (attention, mlp)
        )
        return out_KND

    def backward(self, d_x: torch.Tensor, gradient: Tensors) -> torch.Tensor:
        """Return the gradient at the block's input and write the weights' gradients to ``gradient``."""
        if isinstance(self.kept, torch.Tensor):
            attention, mlp = _Branch(self.layer, 0), _Branch(self.layer, 1)
            # Repeats the same products of the same numbers, with the same bits.
            mlp.forward(attention.forward(self.kept))
        else:
            attention, mlp = self.kept
        return attention.backward(mlp.backward(d_x, gradient), gradient)


class _Branch:
    """A sublayer, its norm, and the residual sum: x + f(norm(x)), norm(x + f(x)), x + norm(f(x)) or x + f(x)."""

    def __init__(self, layer: _Layer, which: Literal[0, 1]) -> None:
        self.layer, self.norm_place, self.number = layer, layer.structure.place_of_norms, 2 * layer.number + which
        mlp = _Swiglu if layer.structure.mlp == "swiglu" else _Mlp
        self.inner = (_Attention, mlp)[which](layer)
        self.name = ("attention_norm", "mlp_norm")[which]

    def forward(self, x_KND: torch.Tensor) -> torch.Tensor:
        out_KND = self.inner.forward(self._normed(x_KND) if self.norm_place == "pre" else x_KND)
        if self.norm_place == "output":
            out_KND = self._normed(out_KND)
        self.factor = branch_factor(self.layer.knobs, self.number, x_KND, self.layer.num_sequences)
        if self.factor is not None:
            out_KND = out_KND * self.factor
        x_KND = x_KND + out_KND
        return self._normed(x_KND) if self.norm_place == "post" else x_KND

    def backward(self, d_x: torch.Tensor, gradient: Tensors) -> torch.Tensor:
        if self.norm_place == "post":
            d_x = self._back(d_x, gradient)
        d_out = d_x if self.factor is None else d_x * self.factor
        if self.norm_place == "output":
            d_out = self._back(d_out, gradient)
        d_in = self.inner.backward(d_out, gradient)
        return d_x + (self._back(d_in, gradient) if self.norm_place == "pre" else d_in)

    def _normed(self, x_KND: torch.Tensor) -> torch.Tensor:
        self.norm = self.layer.norm(x_KND, self.name)
        return self.norm.out

    def _back(self, d_out: torch.Tensor, gradient: Tensors) -> torch.Tensor:
        return self.norm.backward(d_out, f"{self.layer.number}.{self.name}", gradient)


class _Attention:
    """Causal attention of every head, within each member's context blocks."""

    def __init__(self, layer: _Layer) -> None:
        self.layer = layer

    def forward(self, x_KND: torch.Tensor) -> torch.Tensor:
        K, N, D = x_KND.shape
        layer, structure = self.layer, self.layer.structure
        B, H, kv_heads = layer.num_sequences, structure.heads, structure.num_kv_heads
        T, C = N // B, D // H
        self.x = x_KND
        heads = layer.product(x_KND, "qkv").view(K * B, T, H + 2 * kv_heads, C).transpose(1, 2)
        # Copied, so that products read whole rows.
        q, k, v = (z.reshape(K, -1, C) for z in heads.split((H, kv_heads, kv_heads), dim=1))
        if structure.qk_norm:
            self.q_norm, self.k_norm = layer.norm(q, "q_norm"), layer.norm(k, "k_norm")
            q, k = self.q_norm.out, self.k_norm.out
        q, k, v = (z.view(K * B, -1, T, C) for z in (q, k, v))
        if layer.turn is not None:
            q, k = rotated(q, layer.turn), rotated(k, layer.turn)
        self.q, self.k, self.v = (grouped_heads(z, H).view(K * B * H, T, C) for z in (q, k, v))
        score_GTT = self.scores(K, T)
        self.share_GTT = torch.softmax(score_GTT, dim=-1)
        self.mixed_GTC = torch.bmm(self.share_GTT, self.v)
        self.mixed = self.mixed_GTC.view(K * B, H, T, C).transpose(1, 2).reshape(K, N, D)
        return layer.product(self.mixed, "attention_out")

    def scores(self, K: int, T: int) -> torch.Tensor:
        """Return the logits of attention, with -inf for positions that are not attended to."""
        knobs, structure = self.layer.knobs, self.layer.structure
        cap, scale = structure.attention_softcap, structure.attention_scale
        later_TT = torch.full((T, T), -math.inf, dtype=self.q.dtype, device=self.q.device).triu(1)
        if cap is None:
            score_GTT = torch.baddbmm(later_TT, self.q, self.k.transpose(1, 2), alpha=scale)
        else:
            self.capped_GTT = softcapped(torch.bmm(self.q, self.k.transpose(1, 2)) * scale, cap)
            score_GTT = self.capped_GTT + later_TT
        if knobs.context_K is not None:
            is_beyond_K1TT = ~may_attend(knobs.context_K, T)[:, None]
            score_GTT.view(K, -1, T, T).masked_fill_(is_beyond_K1TT, -math.inf)
        return score_GTT

    def backward(self, d_out: torch.Tensor, gradient: Tensors) -> torch.Tensor:
        K, N, D = d_out.shape
        layer, structure = self.layer, self.layer.structure
        B, H, kv_heads = layer.num_sequences, structure.heads, structure.num_kv_heads
        T, C = N // B, D // H
        d_mixed = layer.back(d_out, self.mixed, "attention_out", gradient)
        d_mixed_GTC = d_mixed.view(K * B, T, H, C).transpose(1, 2).reshape(K * B * H, T, C)
        d_v = torch.bmm(self.share_GTT.transpose(1, 2), d_mixed_GTC)
        # The derivative of softmax: share * (incoming gradient - its mean over the row, weighted by the shares).
        row_mean = (d_mixed_GTC * self.mixed_GTC).sum(-1, keepdim=True)
        d_score = torch.bmm(d_mixed_GTC, self.v.transpose(1, 2)).sub_(row_mean).mul_(self.share_GTT)
        if structure.attention_softcap is not None:
            d_score = d_score.mul_(1 - (self.capped_GTT / structure.attention_softcap).square())
        d_score = d_score.mul_(structure.attention_scale)
        d_q, d_k = torch.bmm(d_score, self.k), torch.bmm(d_score.transpose(1, 2), self.q)
        d_q, d_k, d_v = (z.view(K * B, H, T, C) for z in (d_q, d_k, d_v))
        if kv_heads < H:
            d_k, d_v = (z.view(K * B, kv_heads, -1, T, C).sum(2) for z in (d_k, d_v))
        if layer.turn is not None:
            cosine, sine = layer.turn
            d_q, d_k = rotated(d_q, (cosine, -sine)), rotated(d_k, (cosine, -sine))
        if structure.qk_norm:
            d_q = self.q_norm.backward(d_q.view(K, -1, C), f"{layer.number}.q_norm", gradient)
            d_k = self.k_norm.backward(d_k.view(K, -1, C), f"{layer.number}.k_norm", gradient)
        d_qkv = torch.cat([z.view(K * B, -1, T, C) for z in (d_q, d_k, d_v)], dim=1)
        d_qkv = d_qkv.transpose(1, 2).reshape(K, N, -1)
        return layer.back(d_qkv, self.x, "qkv", gradient)


class _Mlp:
    """Two products with a GELU in between."""

    def __init__(self, layer: _Layer) -> None:
        self.layer = layer

    def forward(self, x_KND: torch.Tensor) -> torch.Tensor:
        self.x = x_KND
        self.hidden = self.layer.product(x_KND, "mlp_in")
        self.active = F.gelu(self.hidden)
        return self.layer.product(self.active, "mlp_out")

    def backward(self, d_out: torch.Tensor, gradient: Tensors) -> torch.Tensor:
        d_active = self.layer.back(d_out, self.active, "mlp_out", gradient)
        d_hidden = torch.ops.aten.gelu_backward(d_active, self.hidden)
        return self.layer.back(d_hidden, self.x, "mlp_in", gradient)


class _Swiglu:
    """A product, gated by SiLU of another, and a third (Shazeer, arXiv 2002.05202)."""

    def __init__(self, layer: _Layer) -> None:
        self.layer = layer

    def forward(self, x_KND: torch.Tensor) -> torch.Tensor:
        self.x = x_KND
        self.gate, self.value = self.layer.product(x_KND, "mlp_gate"), self.layer.product(x_KND, "mlp_in")
        self.open = in_blocks(F.silu, self.gate)
        self.hidden = self.open * self.value
        return self.layer.product(self.hidden, "mlp_out")

    def backward(self, d_out: torch.Tensor, gradient: Tensors) -> torch.Tensor:
        d_hidden = self.layer.back(d_out, self.hidden, "mlp_out", gradient)
        d_gate = silu_backward(d_hidden * self.value, self.gate)
        d_x = self.layer.back(d_gate, self.x, "mlp_gate", gradient)
        return d_x + self.layer.back(d_hidden * self.open, self.x, "mlp_in", gradient)


class _Norm:
    """Layer norm with gain and, if any, offset per member; x is (K, rows, channels), they are (K, channels)."""

    def __init__(self, x: torch.Tensor, gain: torch.Tensor, offset: torch.Tensor | None = None) -> None:
        self.x, self.gain, self.has_offset = x, gain[:, None], offset is not None
        self.normed, self.mean, self.inverse = torch.ops.aten.native_layer_norm(x, x.shape[-1:], None, None, NORM_EPS)
        self.out = self.normed * self.gain
        if offset is not None:
            self.out += offset[:, None]

    def backward(self, d_out: torch.Tensor, name: str, gradient: Tensors) -> torch.Tensor:
        gradient[name] = (d_out * self.normed).sum(1)
        if self.has_offset:
            gradient[f"{name}_bias"] = d_out.sum(1)
        return torch.ops.aten.native_layer_norm_backward(
            d_out * self.gain, self.x, self.x.shape[-1:], self.mean, self.inverse, None, None, [True, False, False]
        )[0]


class _RmsNorm(_Norm):
    """x / sqrt(mean(x^2) + eps) with a gain per member (Zhang & Sennrich, arXiv 1910.07467)."""

    def __init__(self, x: torch.Tensor, gain: torch.Tensor, offset: None = None) -> None:
        self.gain = gain[:, None]
        self.inverse = 1 / (x.square().mean(-1, keepdim=True) + NORM_EPS).sqrt()
        self.normed = x * self.inverse
        self.out = self.normed * self.gain

    def backward(self, d_out: torch.Tensor, name: str, gradient: Tensors) -> torch.Tensor:
        gradient[name] = (d_out * self.normed).sum(1)
        d_normed = d_out * self.gain
        # A change along x changes only its norm, which is divided out.
        along = (d_normed * self.normed).mean(-1, keepdim=True)
        return (d_normed - self.normed * along) * self.inverse


# None is for queries and keys in a model without other norms.
_NORMS = {"layer": _Norm, "rms": _RmsNorm, None: _RmsNorm}


def _norm_of(structure: GptConfig, x: torch.Tensor, weights: Tensors, name: str) -> _Norm:
    """Return the norm ``name`` of x; a norm of queries and keys has no offset."""
    return _NORMS[structure.norm](x, weights[name], weights.get(f"{name}_bias"))


def _cross_entropy(
    logits_KNV: torch.Tensor, target_R1: torch.Tensor, z_loss_K: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the mean loss of each member, (K,), and the gradient of their sum at the logits."""
    K, N, V = logits_KNV.shape
    logits_RV = logits_KNV.reshape(K * N, V)
    highest_R1 = logits_RV.amax(1, keepdim=True)
    chosen_R1 = logits_RV.gather(1, target_R1)
    weight_RV = torch.sub(logits_RV, highest_R1).exp_()
    total_R1 = weight_RV.sum(1, keepdim=True)
    log_z_R1 = total_R1.log() + highest_R1
    loss_K = (log_z_R1 - chosen_R1).view(K, N).mean(1)
    per_token_R1 = 1 / (total_R1 * N)
    if z_loss_K is not None:
        z_loss_K = z_loss_K.to(loss_K.dtype)
        loss_K = with_z_loss(loss_K, log_z_R1.view(K, N), z_loss_K)
        # The softmax share of each logit is also the derivative of log Z.
        slope_KN = 1 + 2 * z_loss_K[:, None] * log_z_R1.view(K, N)
        per_token_R1 = per_token_R1 * slope_KN.view(K * N, 1)
    d_logits = weight_RV.mul_(per_token_R1)
    d_logits.scatter_add_(1, target_R1, torch.full_like(total_R1, -1 / N))
    return loss_K, d_logits.view(K, N, V)


def _product(x_KNI: torch.Tensor, weight_KIO: torch.Tensor, kernels: Kernels) -> torch.Tensor:
    """Return x @ weight for each member, (K, N, O)."""
    if kernels == "default":
        return torch.bmm(x_KNI, weight_KIO)
    return _onednn_products(x_KNI, weight_KIO)


def _into_inputs(
    d_out: torch.Tensor, weight: torch.Tensor, x: torch.Tensor, name: str, gradient: Tensors, kernels: Kernels
) -> torch.Tensor:
    """Do the backward pass of ``_product``: return the gradient at x and store the weight's gradient."""
    gradient[name] = _product(x.transpose(1, 2), d_out, kernels)
    return _product(d_out, weight.transpose(1, 2), kernels)


@torch.library.custom_op("sweep::onednn_products", mutates_args=())
def _onednn_products(x_KNI: torch.Tensor, weight_KIO: torch.Tensor) -> torch.Tensor:
    """Return x @ weight by oneDNN, which has no batched product. It is faster than MKL on some processors only."""
    products = [
        torch.ops.mkldnn._linear_pointwise(x_NI, weight_IO.t(), None, "none", [], "")
        for x_NI, weight_IO in zip(x_KNI, weight_KIO, strict=True)
    ]
    return torch.stack(products)


@_onednn_products.register_fake
def _(x_KNI: torch.Tensor, weight_KIO: torch.Tensor) -> torch.Tensor:
    return x_KNI.new_empty(x_KNI.shape[0], x_KNI.shape[1], weight_KIO.shape[2])

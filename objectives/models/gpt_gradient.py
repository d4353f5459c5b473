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
from objectives.stacking import rows_of_blocks

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
    N, D, V = B * (S - 1), structure.width, weights["head"].shape[-1]
    members_K11 = torch.arange(K, device=tokens_KBS.device)[:, None, None]
    rows = (tokens_KBS[..., :-1] + members_K11 * V).reshape(-1)
    embedded = weights["embedding"].reshape(K * V, D)[rows].view(K, B, S - 1, D)
    x_KND = (embedded + _positions(weights["position"], S - 1, knobs)[:, None]).view(K, N, D)
    blocks = [_Block(_Layer(weights, number, structure, B, kernels, knobs)) for number in range(structure.depth)]
    for block in blocks:
        x_KND = block.forward(x_KND)
    final = _NORMS[structure.norm](x_KND, weights["final_norm"]) if structure.has_final_norm else None
    out_KND = x_KND if final is None else final.out
    logits = _product(out_KND, weights["head"], kernels)
    loss_K, d_logits = _cross_entropy(logits, tokens_KBS[..., 1:].reshape(K * N, 1), knobs.z_loss_K)

    gradient: Tensors = {}
    d_x = _into_inputs(d_logits, weights["head"], out_KND, "head", gradient, kernels)
    if final is not None:
        d_x = final.backward(d_x, "final_norm", gradient)
    while blocks:
        d_x = blocks.pop().backward(d_x, gradient)
    gradient["position"] = _into_positions(d_x.view(K, B, S - 1, D).sum(1), weights["position"], knobs)
    gradient["embedding"] = torch.zeros_like(weights["embedding"]).view(K * V, D).index_add_(0, rows, d_x.view(-1, D))
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

    def weight(self, name: str) -> torch.Tensor:
        return self.weights[f"{self.number}.{name}"]

    def product(self, x_KNI: torch.Tensor, name: str) -> torch.Tensor:
        return _product(x_KNI, self.weight(name), self.kernels)

    def back(self, d_out: torch.Tensor, x_KNI: torch.Tensor, name: str, gradient: Tensors) -> torch.Tensor:
        return _into_inputs(d_out, self.weight(name), x_KNI, f"{self.number}.{name}", gradient, self.kernels)

    def norm(self, x: torch.Tensor, name: str) -> _Norm:
        return _NORMS[self.structure.norm](x, self.weight(name))


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
        self.inner = (_Attention, _Mlp)[which](layer)
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
        layer = self.layer
        B, H = layer.num_sequences, layer.structure.heads
        T, C = N // B, D // H
        self.x = x_KND
        qkv = layer.product(x_KND, "qkv").view(K * B, T, 3, H, C)
        q, k, self.v = qkv.permute(2, 0, 3, 1, 4).reshape(3, K, B * H * T, C).unbind(0)
        if layer.structure.qk_norm:
            self.q_norm, self.k_norm = layer.norm(q, "q_norm"), layer.norm(k, "k_norm")
            q, k = self.q_norm.out, self.k_norm.out
        self.q, self.k, self.v = (z.view(K * B * H, T, C) for z in (q, k, self.v))
        later_TT = torch.full((T, T), -math.inf, dtype=q.dtype, device=q.device).triu(1)
        score_GTT = torch.baddbmm(later_TT, self.q, self.k.transpose(1, 2), alpha=1 / math.sqrt(C))
        if layer.knobs.context_K is not None:
            is_beyond_K1TT = ~may_attend(layer.knobs.context_K, T)[:, None]
            score_GTT.view(K, B * H, T, T).masked_fill_(is_beyond_K1TT, -math.inf)
        self.share_GTT = torch.softmax(score_GTT, dim=-1)
        self.mixed_GTC = torch.bmm(self.share_GTT, self.v)
        self.mixed = self.mixed_GTC.view(K * B, H, T, C).transpose(1, 2).reshape(K, N, D)
        return layer.product(self.mixed, "attention_out")

    def backward(self, d_out: torch.Tensor, gradient: Tensors) -> torch.Tensor:
        K, N, D = d_out.shape
        layer = self.layer
        B, H = layer.num_sequences, layer.structure.heads
        T, C = N // B, D // H
        d_mixed = layer.back(d_out, self.mixed, "attention_out", gradient)
        d_mixed_GTC = d_mixed.view(K * B, T, H, C).transpose(1, 2).reshape(K * B * H, T, C)
        d_v = torch.bmm(self.share_GTT.transpose(1, 2), d_mixed_GTC)
        # The derivative of softmax: share * (incoming gradient - its mean over the row, weighted by the shares).
        row_mean = (d_mixed_GTC * self.mixed_GTC).sum(-1, keepdim=True)
        d_score = torch.bmm(d_mixed_GTC, self.v.transpose(1, 2)).sub_(row_mean).mul_(self.share_GTT)
        d_score = d_score.mul_(1 / math.sqrt(C))
        d_q, d_k = torch.bmm(d_score, self.k), torch.bmm(d_score.transpose(1, 2), self.q)
        if layer.structure.qk_norm:
            d_q = self.q_norm.backward(d_q.view(K, -1, C), f"{layer.number}.q_norm", gradient)
            d_k = self.k_norm.backward(d_k.view(K, -1, C), f"{layer.number}.k_norm", gradient)
        d_qkv = torch.stack([z.view(K * B, H, T, C) for z in (d_q, d_k, d_v)])
        d_qkv = d_qkv.permute(1, 3, 0, 2, 4).reshape(K, N, 3 * D)
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


class _Norm:
    """Layer norm with a gain per member and no offset; x is (K, rows, channels), the gain (K, channels)."""

    def __init__(self, x: torch.Tensor, gain: torch.Tensor) -> None:
        self.x, self.gain = x, gain[:, None]
        self.normed, self.mean, self.inverse = torch.ops.aten.native_layer_norm(x, x.shape[-1:], None, None, NORM_EPS)
        self.out = self.normed * self.gain

    def backward(self, d_out: torch.Tensor, name: str, gradient: Tensors) -> torch.Tensor:
        gradient[name] = (d_out * self.normed).sum(1)
        return torch.ops.aten.native_layer_norm_backward(
            d_out * self.gain, self.x, self.x.shape[-1:], self.mean, self.inverse, None, None, [True, False, False]
        )[0]


class _RmsNorm(_Norm):
    """x / sqrt(mean(x^2) + eps) with a gain per member (Zhang & Sennrich, arXiv 1910.07467)."""

    def __init__(self, x: torch.Tensor, gain: torch.Tensor) -> None:
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

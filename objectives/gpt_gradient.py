"""Losses and gradients of the stacked transformer on a CPU, both passes written out.

The same mathematics as ``GptTrainer.losses`` under autograd, at the sizes of a proxy in two thirds of
the time: attention over short contexts is a few batched products, the softmax of the loss is turned into
its own gradient in place, residual sums ride on matrix products, and nothing is recorded or zeroed for a
later pass. Plain tensor operations throughout, so ``torch.compile`` can fuse the whole of it.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from objectives.base import GptConfig, Kernels
from objectives.rounding import rows_of_blocks

# Shapes: K members, B sequences, T positions, N = B * T, D width, H heads, C channels of a head, V bytes,
# G = K * B * H groups of attention. d_x is the gradient of the summed losses with respect to x.

Tensors = dict[str, torch.Tensor]
_EPS = 1e-5  # of layer norm, torch's default


def losses_and_gradient(
    weights: Tensors, tokens_KBS: torch.Tensor, shape: GptConfig, kernels: Kernels
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean cross-entropy of each member, (K,), and its gradient, (K, n) in the order of ``weights`` and zeros.

    ``tokens_KBS`` has S = T + 1 bytes a sequence: inputs and, shifted by one, targets.
    """
    K, B, S = tokens_KBS.shape
    N, D, V = B * (S - 1), shape.width, weights["head"].shape[-1]
    members_K11 = torch.arange(K, device=tokens_KBS.device)[:, None, None]
    rows = (tokens_KBS[..., :-1] + members_K11 * V).reshape(-1)
    embedded = weights["embedding"].reshape(K * V, D)[rows].view(K, B, S - 1, D)
    x_KND = (embedded + weights["position"][:, None, : S - 1]).view(K, N, D)
    layers = [_Layer(weights, layer, shape, B, kernels) for layer in range(shape.depth)]
    for layer in layers:
        x_KND = layer.forward(x_KND)
    final = _Norm(x_KND, weights["final_norm"])
    logits = _product(final.out, weights["head"], kernels)
    loss_K, d_logits = _cross_entropy(logits, tokens_KBS[..., 1:].reshape(K * N, 1))

    gradient: Tensors = {}
    d_final = _into_inputs(d_logits, weights["head"], final.out, "head", gradient, kernels)
    d_x = final.backward(d_final, "final_norm", gradient)
    for layer in reversed(layers):
        d_x = layer.backward(d_x, gradient)
    gradient["position"] = F.pad(d_x.view(K, B, S - 1, D).sum(1), (0, 0, 0, shape.context - S + 1))
    gradient["embedding"] = torch.zeros_like(weights["embedding"]).view(K * V, D).index_add_(0, rows, d_x.view(-1, D))
    return loss_K, rows_of_blocks(gradient[name].reshape(K, -1) for name in weights)


class _Layer:
    """One transformer block: keeps what its backward pass needs."""

    def __init__(self, weights: Tensors, layer: int, shape: GptConfig, num_sequences: int, kernels: Kernels) -> None:
        self.prefix, self.shape, self.num_sequences, self.kernels = f"{layer}.", shape, num_sequences, kernels
        self.weights = weights

    def forward(self, x_KND: torch.Tensor) -> torch.Tensor:
        K, N, D = x_KND.shape
        B, H = self.num_sequences, self.shape.heads
        T, C = N // B, D // H
        self.attention_norm = _Norm(x_KND, self._weight("attention_norm"))
        qkv = self._product(self.attention_norm.out, "qkv").view(K * B, T, 3, H, C)
        q, k, self.v = qkv.permute(2, 0, 3, 1, 4).reshape(3, K, B * H * T, C).unbind(0)
        if self.shape.qk_norm:
            self.q_norm, self.k_norm = _Norm(q, self._weight("q_norm")), _Norm(k, self._weight("k_norm"))
            q, k = self.q_norm.out, self.k_norm.out
        self.q, self.k, self.v = (z.view(K * B * H, T, C) for z in (q, k, self.v))
        later_TT = torch.full((T, T), -math.inf, dtype=q.dtype, device=q.device).triu(1)
        score_GTT = torch.baddbmm(later_TT, self.q, self.k.transpose(1, 2), alpha=1 / math.sqrt(C))
        self.share_GTT = torch.softmax(score_GTT, dim=-1)
        self.mixed_GTC = torch.bmm(self.share_GTT, self.v)
        self.mixed = self.mixed_GTC.view(K * B, H, T, C).transpose(1, 2).reshape(K, N, D)
        x_KND = x_KND + self._product(self.mixed, "attention_out")
        self.mlp_norm = _Norm(x_KND, self._weight("mlp_norm"))
        self.hidden = self._product(self.mlp_norm.out, "mlp_in")
        self.active = F.gelu(self.hidden)
        return x_KND + self._product(self.active, "mlp_out")

    def backward(self, d_x: torch.Tensor, gradient: Tensors) -> torch.Tensor:
        """The gradient at the block's input; those of its weights go into ``gradient``."""
        K, N, D = d_x.shape
        B, H = self.num_sequences, self.shape.heads
        T, C = N // B, D // H
        d_hidden = torch.ops.aten.gelu_backward(self._back(d_x, self.active, "mlp_out", gradient), self.hidden)
        d_mlp = self._back(d_hidden, self.mlp_norm.out, "mlp_in", gradient)
        d_x = d_x + self.mlp_norm.backward(d_mlp, self.prefix + "mlp_norm", gradient)

        d_mixed = self._back(d_x, self.mixed, "attention_out", gradient)
        d_mixed_GTC = d_mixed.view(K * B, T, H, C).transpose(1, 2).reshape(K * B * H, T, C)
        d_v = torch.bmm(self.share_GTT.transpose(1, 2), d_mixed_GTC)
        # The softmax's derivative: share * (what comes in - its mean over the row, weighted by the shares).
        row_mean = (d_mixed_GTC * self.mixed_GTC).sum(-1, keepdim=True)
        d_score = torch.bmm(d_mixed_GTC, self.v.transpose(1, 2)).sub_(row_mean).mul_(self.share_GTT)
        d_score = d_score.mul_(1 / math.sqrt(C))
        d_q, d_k = torch.bmm(d_score, self.k), torch.bmm(d_score.transpose(1, 2), self.q)
        if self.shape.qk_norm:
            d_q = self.q_norm.backward(d_q.view(K, -1, C), self.prefix + "q_norm", gradient)
            d_k = self.k_norm.backward(d_k.view(K, -1, C), self.prefix + "k_norm", gradient)
        d_qkv = torch.stack([z.view(K * B, H, T, C) for z in (d_q, d_k, d_v)])
        d_qkv = d_qkv.permute(1, 3, 0, 2, 4).reshape(K, N, 3 * D)
        d_attention = self._back(d_qkv, self.attention_norm.out, "qkv", gradient)
        return d_x + self.attention_norm.backward(d_attention, self.prefix + "attention_norm", gradient)

    def _weight(self, name: str) -> torch.Tensor:
        return self.weights[self.prefix + name]

    def _product(self, x_KNI: torch.Tensor, name: str) -> torch.Tensor:
        return _product(x_KNI, self._weight(name), self.kernels)

    def _back(self, d_out: torch.Tensor, x_KNI: torch.Tensor, name: str, gradient: Tensors) -> torch.Tensor:
        return _into_inputs(d_out, self._weight(name), x_KNI, self.prefix + name, gradient, self.kernels)


class _Norm:
    """Layer norm with a gain per member and no offset; x is (K, rows, channels), the gain (K, channels)."""

    def __init__(self, x: torch.Tensor, gain: torch.Tensor) -> None:
        self.x, self.gain = x, gain[:, None]
        self.normed, self.mean, self.inverse = torch.ops.aten.native_layer_norm(x, x.shape[-1:], None, None, _EPS)
        self.out = self.normed * self.gain

    def backward(self, d_out: torch.Tensor, name: str, gradient: Tensors) -> torch.Tensor:
        gradient[name] = (d_out * self.normed).sum(1)
        return torch.ops.aten.native_layer_norm_backward(
            d_out * self.gain, self.x, self.x.shape[-1:], self.mean, self.inverse, None, None, [True, False, False]
        )[0]


def _cross_entropy(logits_KNV: torch.Tensor, target_R1: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean loss of each member, (K,), and the gradient of their sum at the logits."""
    K, N, V = logits_KNV.shape
    logits_RV = logits_KNV.reshape(K * N, V)
    highest_R1 = logits_RV.amax(1, keepdim=True)
    chosen_R1 = logits_RV.gather(1, target_R1)
    weight_RV = torch.sub(logits_RV, highest_R1).exp_()
    total_R1 = weight_RV.sum(1, keepdim=True)
    loss_R1 = total_R1.log() + highest_R1 - chosen_R1
    d_logits = weight_RV.mul_(1 / (total_R1 * N))
    d_logits.scatter_add_(1, target_R1, torch.full_like(total_R1, -1 / N))
    return loss_R1.view(K, N).mean(1), d_logits.view(K, N, V)


def _product(x_KNI: torch.Tensor, weight_KIO: torch.Tensor, kernels: Kernels) -> torch.Tensor:
    """x @ weight for each member, (K, N, O)."""
    if kernels == "default":
        return torch.bmm(x_KNI, weight_KIO)
    return _onednn_products(x_KNI, weight_KIO)


def _into_inputs(
    d_out: torch.Tensor, weight: torch.Tensor, x: torch.Tensor, name: str, gradient: Tensors, kernels: Kernels
) -> torch.Tensor:
    """The backward pass of ``_product``: returns the gradient at x, notes that of the weight."""
    gradient[name] = _product(x.transpose(1, 2), d_out, kernels)
    return _product(d_out, weight.transpose(1, 2), kernels)


@torch.library.custom_op("sweep::onednn_products", mutates_args=())
def _onednn_products(x_KNI: torch.Tensor, weight_KIO: torch.Tensor) -> torch.Tensor:
    """x @ weight by oneDNN, faster than MKL on some processors and slower on others. It has no batched product."""
    products = [
        torch.ops.mkldnn._linear_pointwise(x_NI, weight_IO.t(), None, "none", [], "")
        for x_NI, weight_IO in zip(x_KNI, weight_KIO, strict=True)
    ]
    return torch.stack(products)


@_onednn_products.register_fake
def _(x_KNI: torch.Tensor, weight_KIO: torch.Tensor) -> torch.Tensor:
    return x_KNI.new_empty(x_KNI.shape[0], x_KNI.shape[1], weight_KIO.shape[2])

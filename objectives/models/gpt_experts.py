"""A mixture of experts in place of the MLP: routing, the experts' sum, and the losses that keep routers sound.

Every expert computes every token, and gates of zero leave out what was not chosen: shapes do not depend on the routing,
so a member's bits do not depend on its pack. Backward passes are autograd's, and the native kernel refuses experts.

A router has the logits x W and the scores s: their softmax, or the sigmoid of each. A token uses the ``top_k`` experts
with the largest s, or s + b with the bias of ``balance: loss_free``. Its gates are the scores of the chosen, over their
sum if there are several (Switch: Fedus et al., arXiv 2101.03961, has one; Mixtral, arXiv 2401.04088, and DeepSeek-V3,
arXiv 2412.19437, normalise). With a ``capacity`` c an expert takes at most ceil(c N top_k / experts) of N tokens, all
first choices in the order of the text before all second ones (GShard, arXiv 2006.16668); what it drops has a gate of 0.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F

from objectives.base import GptConfig
from objectives.models.gpt_knobs import Knobs, mean_of_tokens
from objectives.models.gpt_parts import AUTOCAST
from objectives.stacking import autocast_product, in_blocks
from objectives.training.packed import Weights

# Shapes: K members, L layers, B sequences, T positions, N = B * T, D width, E experts that are routed to, J of them for
# a token, X experts with the shared ones.

# Weights whose first axis counts experts.
STACKS = (".mlp_in", ".mlp_gate", ".mlp_out")


class Routing(NamedTuple):
    """Where the router of one layer sends its tokens; ``chosen_KNJ`` are experts, the best first."""

    logits_KNE: torch.Tensor
    score_KNE: torch.Tensor
    chosen_KNJ: torch.Tensor


def mixture(
    structure: GptConfig, weights: Weights, layer: int, x_KND: torch.Tensor, num_sequences: int, knobs: Knobs
) -> tuple[torch.Tensor, Routing]:
    """Return the sum of a layer's experts, each times its gate, and the routing."""
    routing = _route(structure, weights[f"{layer}.router"], layer, x_KND, num_sequences, knobs)
    gate_KNE = _gates(routing, knobs.capacity_K)
    if structure.shared_experts:
        gate_KNE = F.pad(gate_KNE, (0, structure.shared_experts), value=1.0)
    return _sum_of_experts(structure, weights, layer, x_KND, gate_KNE), routing


def _route(
    structure: GptConfig,
    router_KDE: torch.Tensor,
    layer: int,
    x_KND: torch.Tensor,
    num_sequences: int,
    knobs: Knobs,
) -> Routing:
    """Return the routing, in the precision of the weights also under autocast, as in Switch."""
    K, N, _ = x_KND.shape
    has_autocast = structure.precision in AUTOCAST
    with torch.autocast(x_KND.device.type, enabled=False) if has_autocast else contextlib.nullcontext():
        logits_KNE = torch.bmm(x_KND.to(router_KDE.dtype), router_KDE)
    if knobs.router_noise_K is not None:
        assert knobs.router_draw_KBLTE is not None
        draw_KNE = knobs.router_draw_KBLTE[:, :, layer, : N // num_sequences].reshape(K, N, -1)
        logits_KNE = logits_KNE + knobs.router_noise_K.to(logits_KNE)[:, None, None] * draw_KNE.to(logits_KNE)
    is_softmax = structure.gate == "softmax"
    score_KNE = logits_KNE.softmax(-1) if is_softmax else in_blocks(torch.sigmoid, logits_KNE)
    ranked_KNE = score_KNE.detach()
    if knobs.router_bias_KLE is not None:
        ranked_KNE = ranked_KNE + knobs.router_bias_KLE[:, layer].to(score_KNE)[:, None]
    return Routing(logits_KNE, score_KNE, ranked_KNE.topk(structure.top_k, dim=-1).indices)


def _gates(routing: Routing, capacity_K: torch.Tensor | None) -> torch.Tensor:
    """Return what each expert's output is multiplied by, zero if it was not chosen or drops the token, (K, N, E)."""
    gate_KNJ = routing.score_KNE.gather(-1, routing.chosen_KNJ)
    if gate_KNJ.shape[-1] > 1:
        gate_KNJ = gate_KNJ / gate_KNJ.sum(-1, keepdim=True)
    if capacity_K is not None:
        is_dropped_KNJ = ~_fits(routing.chosen_KNJ, routing.score_KNE.shape[-1], capacity_K)
        gate_KNJ = gate_KNJ.masked_fill(is_dropped_KNJ, 0.0)
    return torch.zeros_like(routing.score_KNE).scatter(-1, routing.chosen_KNJ, gate_KNJ)


def _fits(chosen_KNJ: torch.Tensor, num_experts: int, capacity_K: torch.Tensor) -> torch.Tensor:
    """Return whether each chosen expert still has room for the token, bool (K, N, J)."""
    K, N, J = chosen_KNJ.shape
    queue = chosen_KNJ.transpose(1, 2).reshape(K, J * N)
    is_in_queue = F.one_hot(queue, num_experts)
    place = (is_in_queue.cumsum(1) * is_in_queue).sum(-1)  # from 1
    room_K1 = (capacity_K * (N * J / num_experts)).ceil()[:, None]
    return (place <= room_K1).view(K, J, N).transpose(1, 2)


def _sum_of_experts(
    structure: GptConfig, weights: Weights, layer: int, x_KND: torch.Tensor, gate_KNX: torch.Tensor
) -> torch.Tensor:
    """Return the experts' outputs times their gates, summed in the precision of the gates."""
    names = ("mlp_gate", "mlp_in", "mlp_out") if structure.mlp == "swiglu" else ("mlp_in", "mlp_out")
    gates = gate_KNX.unbind(-1)
    matrices = {name: weights[f"{layer}.{name}"].unbind(1) for name in names}
    offsets = {}
    if structure.bias:
        offsets = {name: weights[f"{layer}.{name}_bias"].unflatten(1, (len(gates), -1)).unbind(1) for name in names}

    def product(x_KNI: torch.Tensor, name: str, expert: int) -> torch.Tensor:
        out_KNO = autocast_product(x_KNI, matrices[name][expert])
        return out_KNO + offsets[name][expert].to(out_KNO.dtype)[:, None] if structure.bias else out_KNO

    out_KND = torch.zeros((), dtype=gate_KNX.dtype, device=gate_KNX.device)
    for expert, gate_KN in enumerate(gates):
        hidden = product(x_KND, "mlp_in", expert)
        if structure.mlp == "swiglu":
            hidden = in_blocks(F.silu, product(x_KND, "mlp_gate", expert)) * hidden
        else:
            hidden = in_blocks(F.gelu, hidden)
        out_KND = out_KND + product(hidden, "mlp_out", expert).to(gate_KN.dtype) * gate_KN[..., None]
    return out_KND


def loads(routings: Sequence[Routing]) -> torch.Tensor:
    """Return how many choices of a batch each expert got in every layer, before any is dropped, (K, L, E)."""
    return torch.stack([_is_chosen(routing).sum(1) for routing in routings], dim=1)


def with_router_losses(loss_K: torch.Tensor, routings: Sequence[Routing], knobs: Knobs) -> torch.Tensor:
    """Return the loss plus, for each layer, balance_weight E sum_i f_i P_i and router_z_loss mean(log^2 sum_i exp x_i).

    f_i is the share of the choices that expert i got, P_i the mean over the tokens of its probability: its score over
    the sum of all scores (Switch; with sigmoids as in DeepSeek-V3). z-loss: ST-MoE (Zoph et al., arXiv 2202.08906).
    Both are means over the batch, or over each micro-batch.
    """
    share_KB = knobs.sequence_share_KB
    if knobs.balance_weight_K is not None:
        weight_K = knobs.balance_weight_K.to(loss_K.dtype)
        penalty_K = torch.stack([_imbalance(routing, share_KB) for routing in routings]).sum(0)
        loss_K = loss_K + torch.where(weight_K > 0, weight_K * penalty_K, 0.0)
    if knobs.router_z_loss_K is not None:
        weight_K = knobs.router_z_loss_K.to(loss_K.dtype)
        squares = [mean_of_tokens(log_z(routing.logits_KNE).square(), share_KB) for routing in routings]
        loss_K = loss_K + torch.where(weight_K > 0, weight_K * torch.stack(squares).sum(0), 0.0)
    return loss_K


def _imbalance(routing: Routing, share_KB: torch.Tensor | None) -> torch.Tensor:
    """Return E sum_i f_i P_i, 1 for even loads, (K,)."""
    (_, _, E), J = routing.score_KNE.shape, routing.chosen_KNJ.shape[-1]
    part_KNE = _is_chosen(routing).to(routing.score_KNE.dtype) / J
    return E * (_means(part_KNE, share_KB) * _means(probability(routing), share_KB)).sum(1)


def _means(value_KNE: torch.Tensor, share_KB: torch.Tensor | None) -> torch.Tensor:
    """Return the means over the tokens, (K, E); each sum is over consecutive numbers, whatever the pack."""
    K, N, E = value_KNE.shape
    share_XB = None if share_KB is None else share_KB.repeat_interleave(E, dim=0)
    return mean_of_tokens(value_KNE.transpose(1, 2).reshape(K * E, N), share_XB).view(K, E)


def _is_chosen(routing: Routing) -> torch.Tensor:
    """Return 1 for the experts that a token uses, else 0, int64 (K, N, E)."""
    return F.one_hot(routing.chosen_KNJ, routing.score_KNE.shape[-1]).sum(2)


def probability(routing: Routing) -> torch.Tensor:
    """Return the scores over their sum, (K, N, E)."""
    return routing.score_KNE / routing.score_KNE.sum(-1, keepdim=True)


def log_z(logits_KNE: torch.Tensor) -> torch.Tensor:
    """Return the logsumexp of the logits, (K, N)."""
    highest_KN1 = logits_KNE.detach().amax(-1, keepdim=True)
    total_KN = in_blocks(torch.exp, logits_KNE - highest_KN1).sum(-1)
    return in_blocks(torch.log, total_KN) + highest_KN1[..., 0]

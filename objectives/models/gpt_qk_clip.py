"""QK-clip (Kimi K2: arXiv 2507.20534): after an update, shrink queries and keys of heads with too large logits."""

from __future__ import annotations

import torch

from objectives.base import GptConfig
from objectives.optimizers.holder import Holder
from objectives.stacking import index_on
from objectives.training.packed import Weights

# Shapes: L layers, K members, H heads, G heads of keys, C channels per head, W columns of qkv.

CAPPED_LOGIT = 100.0  # of a member whose attention an intervention caps, as in Kimi K2


@torch.no_grad()
def clip_queries_and_keys(
    structure: GptConfig, weights: Weights, largest_LKH: torch.Tensor, is_acting_K: torch.Tensor, holder: Holder
) -> None:
    """Multiply the queries and keys of each head by sqrt(limit / S), in place, where its largest logit S exceeds it.

    The limit is ``qk_clip``; without it only members whose attention is capped are clipped. Queries that share keys are
    clipped by the largest of their logits. Members that are not acting, logits that are not finite, and layers that a
    member freezes or keeps the norm of, change nothing.
    """
    limit = CAPPED_LOGIT if structure.qk_clip is None else structure.qk_clip
    is_acting_LK = is_acting_K.repeat(structure.depth, 1)
    uncapped = set() if structure.qk_clip is not None else {*range(len(is_acting_K))} - {*holder.capped}
    for layer in range(structure.depth):
        if idle := uncapped.union(holder.keeping(f"{layer}.qkv")):
            is_acting_LK[layer, index_on(is_acting_K.device, tuple(sorted(idle)))] = False
    H, G = structure.heads, structure.num_kv_heads
    largest_LKG = largest_LKH.unflatten(2, (G, H // G)).amax(3)
    is_clipped_LKG = (largest_LKG > limit) & largest_LKG.isfinite() & is_acting_LK[..., None]
    factor_LKG = torch.where(is_clipped_LKG, (limit / largest_LKG).sqrt(), 1.0)
    for layer, factor_KG in enumerate(factor_LKG):
        by_head = torch.cat([factor_KG.repeat_interleave(H // G, dim=1), factor_KG, torch.ones_like(factor_KG)], dim=1)
        factor_KW = by_head.repeat_interleave(structure.width // H, dim=1)
        weights[f"{layer}.qkv"].mul_(factor_KW[:, None])
        if structure.bias:
            weights[f"{layer}.qkv_bias"].mul_(factor_KW)

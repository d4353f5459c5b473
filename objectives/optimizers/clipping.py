"""Clipping: what gradients are multiplied by before an update rule sees them, for K members at once.

Three ways, each off for a member whose field is null:

``clip``   bounds the norm of the whole gradient by a number (Pascanu et al., arXiv 1211.5063), as
           ``torch.nn.utils.clip_grad_norm_``.
``zclip``  bounds it by what it usually is (ZClip, Kumar et al., arXiv 2504.02507). With mean mu and deviation s of the
           norms so far, a norm of z = (norm - mu) / (s + 1e-6) above c = ``zclip`` is clipped to mu + c s / (z / c):
           the further off, the closer to mu. Mean and variance are those of the first ``zclip_warmup`` norms, in which
           nothing is clipped, and from then on averages of decay 0.97 of the norms as ZClip leaves them.
``adagc``  bounds the norm of each weight's gradient (AdaGC, Wang et al., arXiv 2502.11034) by ``adagc`` times the
           average norm that AdaGC left of it, of decay 0.98. The average begins as the smallest norm of the first
           ``adagc_warmup`` steps, in which AdaGC clips nothing; norms of zero do not count among these.

They may be combined: the smaller of ``clip`` and ZClip's threshold bounds the whole gradient, and AdaGC what is left
of each weight's. In AdaGC's warmup ``clip`` is the absolute threshold of its paper; here ``clip`` stays on afterwards.
A weight that has had no gradient so far has no average, and AdaGC leaves its first one as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from objectives.base import TrainingConfig
from objectives.instruments.telemetry import norm_per_member
from objectives.stacking.layout import Layout

# Shapes: K members, n parameters of one member, T weights.

_ZCLIP_DECAY, _ADAGC_DECAY = 0.97, 0.98
_NO_DIVISION_BY_ZERO = 1e-6  # that of torch and of ZClip

Numbers = Mapping[str, torch.Tensor]


class Clipping:
    """Clipping of K members, each with its own numbers. What it remembers is kept with the states of the rule."""

    fields: Sequence[str] = ("clip", "zclip", "zclip_warmup", "adagc", "adagc_warmup")

    def __init__(self, configs: Sequence[TrainingConfig], layout: Layout) -> None:
        """What is off for all of ``configs`` costs nothing."""
        self.layout = layout
        self.has_zclip = any(config.zclip is not None for config in configs)
        self.has_adagc = any(config.adagc is not None for config in configs)

    def states(self, params_Kn: torch.Tensor) -> dict[str, torch.Tensor]:
        """All zeros: how many norms were seen, and averages of them, for the whole gradient or for each weight's."""
        states = {}
        if self.has_zclip:
            # In double precision, as there are squares of norms among them.
            states["zclip"] = params_Kn.new_zeros(len(params_Kn), 3, dtype=torch.float64)
        if self.has_adagc:
            states["adagc"] = params_Kn.new_zeros(len(params_Kn), 1 + len(self.layout.pieces))
        return states

    def clip(
        self,
        states: Mapping[str, torch.Tensor],
        numbers_K: Numbers,
        grad_Kn: torch.Tensor,
        norm_K: torch.Tensor,
        is_updated_K: torch.Tensor,
        may_look: bool,
    ) -> torch.Tensor:
        """Clip ``grad_Kn``, whose norms are ``norm_K``, in place; the share of each norm that is left, (K,).

        ``numbers_K`` are the fields, null as infinite. Only the members in ``is_updated_K`` learn from their norms.
        """
        threshold_K = numbers_K["clip"]
        if self.has_zclip:
            threshold_K = torch.minimum(threshold_K, _zclip_threshold(states["zclip"], numbers_K, norm_K, is_updated_K))
        factor_K = (threshold_K.to(norm_K.dtype) / (norm_K + _NO_DIVISION_BY_ZERO)).clamp(max=1.0)
        if not (may_look and bool((factor_K == 1).all())):
            grad_Kn.mul_(factor_K[:, None])
        if not self.has_adagc:
            return factor_K
        norm_KT = self.layout.norms_per_weight(grad_Kn)
        factor_KT = _adagc_factor(states["adagc"], numbers_K, norm_KT, is_updated_K)
        self.layout.scale(grad_Kn, factor_KT)
        left_K = norm_per_member(norm_KT * factor_KT) / norm_K
        return torch.where((factor_KT < 1).any(1), left_K, factor_K)


def _zclip_threshold(
    state_K3: torch.Tensor, numbers_K: Numbers, norm_K: torch.Tensor, is_updated_K: torch.Tensor
) -> torch.Tensor:
    """The norm that ZClip clips to, infinite where it does not clip."""
    count_K, mean_K, variance_K = state_K3.unbind(1)
    most_K, norm_K = numbers_K["zclip"], norm_K.to(state_K3.dtype)
    deviation_K = variance_K.sqrt()
    score_K = (norm_K - mean_K) / (deviation_K + _NO_DIVISION_BY_ZERO)
    is_warming_up_K = count_K < numbers_K["zclip_warmup"]
    threshold_K = mean_K + most_K * deviation_K / (score_K / most_K)
    threshold_K = threshold_K.masked_fill((score_K <= most_K) | is_warming_up_K, float("inf"))

    # The plain mean and variance of t norms are averages too, in which the last norm has the weight 1 / t.
    weight_K = torch.where(is_warming_up_K, 1 / (count_K + 1), 1 - _ZCLIP_DECAY)
    left_K = torch.minimum(norm_K, threshold_K)
    before_K = left_K - mean_K
    mean_K = mean_K + weight_K * before_K
    after_K = left_K - mean_K
    square_K = after_K * torch.where(is_warming_up_K, before_K, after_K)
    learned_K3 = torch.stack([count_K + 1, mean_K, variance_K + weight_K * (square_K - variance_K)], dim=1)
    _learn(state_K3, learned_K3, is_updated_K & torch.isfinite(most_K))
    return threshold_K


def _adagc_factor(
    state_K: torch.Tensor, numbers_K: Numbers, norm_KT: torch.Tensor, is_updated_K: torch.Tensor
) -> torch.Tensor:
    """What AdaGC multiplies each weight's gradient by, whose norms are ``norm_KT``, (K, T)."""
    count_K1, average_KT = state_K[:, :1], state_K[:, 1:]
    most_K = numbers_K["adagc"].to(norm_KT.dtype)
    is_warming_up_K1 = count_K1 < numbers_K["adagc_warmup"][:, None]
    is_known_KT = average_KT > 0
    threshold_KT = (most_K[:, None] * average_KT).masked_fill(is_warming_up_K1 | ~is_known_KT, float("inf"))
    factor_KT = (threshold_KT / norm_KT).clamp(max=1.0)

    left_KT = norm_KT * factor_KT
    moved_KT = average_KT + (1 - _ADAGC_DECAY) * (left_KT - average_KT)
    # A norm of zero would be the smallest one for good; zero also stands for a weight without an average.
    smallest_KT = torch.where(left_KT > 0, torch.minimum(average_KT, left_KT), average_KT)
    learned_KT = torch.where(is_warming_up_K1, smallest_KT, moved_KT)
    learned_KT = torch.where(is_known_KT, learned_KT, left_KT)
    _learn(state_K, torch.cat([count_K1 + 1, learned_KT], dim=1), is_updated_K & torch.isfinite(most_K))
    return factor_KT


def _learn(state_K: torch.Tensor, learned_K: torch.Tensor, is_learning_K: torch.Tensor) -> None:
    """Replace the states of those who learn, (K, ...), in place."""
    state_K.copy_(torch.where(is_learning_K[:, None], learned_K, state_K))

"""Gradient clipping before the update rule, for K members at once.

Three methods, each off for a member whose field is null:

``clip``   bounds the norm of the whole gradient by a number (Pascanu et al., arXiv 1211.5063), as
           ``torch.nn.utils.clip_grad_norm_``.
``zclip``  bounds it relative to its usual size (ZClip, Kumar et al., arXiv 2504.02507). With mean mu and deviation s
           of the norms so far, a norm of z = (norm - mu) / (s + 1e-6) above c = ``zclip`` is clipped to
           mu + c s / (z / c): the larger z, the closer to mu. Mean and variance are computed from the first
           ``zclip_warmup`` norms, without clipping; then they are averages of decay 0.97 of the norms after ZClip.
``adagc``  bounds the norm of each weight's gradient (AdaGC, Wang et al., arXiv 2502.11034) by ``adagc`` times the
           average of its norms after AdaGC, of decay 0.98. The average starts as the smallest nonzero norm of the
           first ``adagc_warmup`` steps, during which AdaGC clips nothing.

They may be combined: the smaller of ``clip`` and ZClip's threshold bounds the whole gradient, then AdaGC bounds the
rest for each weight. In the AdaGC paper ``clip`` is the absolute threshold of the warmup; here it stays on afterwards.
A weight without a gradient so far has no average, so AdaGC does not clip its first one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from objectives.base import TrainingConfig
from objectives.instruments.telemetry import norm_per_member
from objectives.interventions import ever_set
from objectives.stacking import Layout

# Shapes: K members, n parameters per member, T weights.

_ZCLIP_DECAY, _ADAGC_DECAY = 0.97, 0.98
_NO_DIVISION_BY_ZERO = 1e-6  # as in torch and ZClip

Numbers = Mapping[str, torch.Tensor]


class Clipping:
    """Clipping of K members, each with its own numbers. Its state is stored with the rule's states."""

    fields: Sequence[str] = ("clip", "zclip", "zclip_warmup", "adagc", "adagc_warmup")

    def __init__(self, configs: Sequence[TrainingConfig], layout: Layout) -> None:
        """A method that is off in all ``configs`` costs nothing."""
        self.layout = layout
        # A method that is switched on later counts too: a pack's states do not change during training.
        self.has_zclip = any(ever_set(config, "zclip") for config in configs)
        self.has_adagc = any(ever_set(config, "adagc") for config in configs)

    def states(self, params_Kn: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return zeros: the number of norms seen and their averages, for the whole gradient or per weight."""
        states = {}
        if self.has_zclip:
            # In double precision, since they include squares of norms.
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
        """Clip ``grad_Kn``, whose norms are ``norm_K``, in place; return the remaining share of each norm, (K,).

        ``numbers_K`` are the fields, with infinity for null. Only the averages of members in ``is_updated_K`` change.
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
    """Return the norm that ZClip clips to, infinite without clipping."""
    count_K, mean_K, variance_K = state_K3.unbind(1)
    most_K, norm_K = numbers_K["zclip"], norm_K.to(state_K3.dtype)
    deviation_K = variance_K.sqrt()
    score_K = (norm_K - mean_K) / (deviation_K + _NO_DIVISION_BY_ZERO)
    is_warming_up_K = count_K < numbers_K["zclip_warmup"]
    threshold_K = mean_K + most_K * deviation_K / (score_K / most_K)
    threshold_K = threshold_K.masked_fill((score_K <= most_K) | is_warming_up_K, float("inf"))

    # The plain mean and variance of t norms are averages with weight 1 / t for the last norm.
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
    """Return AdaGC's factor on each weight's gradient, whose norms are ``norm_KT``, (K, T)."""
    count_K1, average_KT = state_K[:, :1], state_K[:, 1:]
    most_K = numbers_K["adagc"].to(norm_KT.dtype)
    is_warming_up_K1 = count_K1 < numbers_K["adagc_warmup"][:, None]
    is_known_KT = average_KT > 0
    threshold_KT = (most_K[:, None] * average_KT).masked_fill(is_warming_up_K1 | ~is_known_KT, float("inf"))
    factor_KT = (threshold_KT / norm_KT).clamp(max=1.0)

    left_KT = norm_KT * factor_KT
    moved_KT = average_KT + (1 - _ADAGC_DECAY) * (left_KT - average_KT)
    # A norm of zero would stay the smallest one forever; zero also marks a weight without an average.
    smallest_KT = torch.where(left_KT > 0, torch.minimum(average_KT, left_KT), average_KT)
    learned_KT = torch.where(is_warming_up_K1, smallest_KT, moved_KT)
    learned_KT = torch.where(is_known_KT, learned_KT, left_KT)
    _learn(state_K, torch.cat([count_K1 + 1, learned_KT], dim=1), is_updated_K & torch.isfinite(most_K))
    return factor_KT


def _learn(state_K: torch.Tensor, learned_K: torch.Tensor, is_learning_K: torch.Tensor) -> None:
    """Replace the states of the members that learn, (K, ...), in place."""
    state_K.copy_(torch.where(is_learning_K[:, None], learned_K, state_K))

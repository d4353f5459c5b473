"""The optimizer that a configuration names: one for all members of a pack, or a library's for each member."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from objectives.base import TrainingConfig
from objectives.optimizers.packed_optimizer import PackedOptimizer
from objectives.stacking.layout import Layout


def make_optimizer(
    params_Kn: torch.Tensor,
    configs: Sequence[TrainingConfig],
    layout: Layout,
    *,
    compiled: bool,
    seeds: Sequence[int] | None = None,
) -> PackedOptimizer:
    """For K members whose parameters are the rows of ``params_Kn``, (K, n); a library's is never ``compiled``.

    ``seeds`` are for random starts and random updates. Raises ValueError in one line where a library's optimizer does
    not exist, is not installed or needs more than gradients.
    """
    if configs[0].can_be_stacked:
        return PackedOptimizer(params_Kn, configs, layout, compiled=compiled, seeds=seeds)
    from objectives.optimizers.foreign import ForeignOptimizer  # only packs that need the libraries load them

    return ForeignOptimizer(params_Kn, configs, layout, seeds=seeds)

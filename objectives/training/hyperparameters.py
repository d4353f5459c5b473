"""Fields of the members' configurations as tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from objectives.training_config import TrainingConfig


def hyperparameter(
    configs: Sequence[TrainingConfig], name: str, device: torch.device, dtype: torch.dtype
) -> torch.Tensor:
    """The field ``name`` of every config as a tensor of shape (K,)."""
    return torch.tensor([getattr(config, name) for config in configs], dtype=dtype, device=device)

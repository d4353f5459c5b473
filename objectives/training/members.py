"""Per-member tensors of a PackedTrainer, and a check that its subclasses renew them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from objectives.base import ExecutionPlan
from objectives.training_config import TrainingConfig

# Attributes that PackedTrainer itself renews.
OWN = frozenset({
    "device", "plan", "structure", "_shapes", "configs", "seeds", "_ages", "num_steps", "_skipped", "_cohorts",
    "cohort_of_member_K", "_params_Kn", "weights", "layout", "optimizer", "memory", "held_K", "_warm_Kn", "_rollback",
    "_changes", "_control",
})  # fmt: skip
_checked: set[type] = set()


def hyperparameter(
    configs: Sequence[TrainingConfig], name: str, device: torch.device, dtype: torch.dtype
) -> torch.Tensor:
    """Return the field ``name`` of every config as a tensor of shape (K,)."""
    return torch.tensor([getattr(config, name) for config in configs], dtype=dtype, device=device)


def check_members_renewed(trainer: Any) -> None:
    """Raise ValueError if an attribute has a row per member but ``members_changed`` does not renew it.

    Two packs, with one and two members, show which attributes these are. Each class is checked once per process.
    """
    kind = type(trainer)
    if kind in _checked:
        return
    _checked.add(kind)  # the packs below are of this class
    if kind.__module__.startswith("objectives."):
        return
    try:
        one, two = (
            kind([trainer.configs[0]] * size, [trainer.seeds[0]] * size, str(trainer.device), ExecutionPlan(size))
            for size in (1, 2)
        )
    except Exception:  # its constructor has other arguments, so there is nothing to compare
        return
    names = [name for name in set(vars(one)) - OWN if (_rows(vars(one)[name]), _rows(vars(two).get(name))) == (1, 2)]
    before = {name: vars(two)[name] for name in sorted(names)}
    for value in before.values():
        _empty(value)
    two.members_changed()
    stale = [name for name, value in before.items() if vars(two)[name] is value and _is_empty(value)]
    if stale:
        _checked.discard(kind)
        raise ValueError(
            f"{kind.__name__}: self.{stale[0]} has a row for each member, but is not renewed when members come and go: "
            f"use self.field(NAME) for a field of the configuration, or set self.{stale[0]} in members_changed()"
        )


def _empty(value: Any) -> None:
    """Clear a tensor, an array or a list, to see whether it is filled again in place."""
    if isinstance(value, list):
        value.clear()
    elif hasattr(value, "fill_"):
        value.fill_(0)


def _is_empty(value: Any) -> bool:
    if isinstance(value, list):
        return not value
    return not hasattr(value, "fill_") or not bool((value != 0).any())


def _rows(value: Any) -> int | None:
    """Return the length of a tensor, an array or a list along its first axis."""
    shape = getattr(value, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else None
    return len(value) if isinstance(value, list | tuple) else None

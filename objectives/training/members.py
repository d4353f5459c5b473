"""Refuses a subclass of PackedTrainer whose tensors of the members would go stale when members come and go."""

from __future__ import annotations

from typing import Any

from objectives.base import ExecutionPlan

# What PackedTrainer itself keeps, and renews.
OWN = frozenset({
    "device", "plan", "structure", "_shapes", "configs", "seeds", "_ages", "num_steps", "_skipped", "_cohorts",
    "cohort_of_member_K", "_params_Kn", "weights", "layout", "optimizer", "memory", "held_K", "_warm_Kn", "_rollback",
    "_changes", "_control",
})  # fmt: skip
_checked: set[type] = set()


def refuse_stale_members(trainer: Any) -> None:
    """Raise ValueError where an attribute has a row for each member and ``members_changed`` does not renew it.

    Two packs of one and of two members show which attributes these are. Each class is checked once in a process.
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
    except Exception:  # its constructor takes something else, so there is nothing to compare
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
    """Take the content of a tensor, an array or a list, to see whether it is written again in place."""
    if isinstance(value, list):
        value.clear()
    elif hasattr(value, "fill_"):
        value.fill_(0)


def _is_empty(value: Any) -> bool:
    if isinstance(value, list):
        return not value
    return not hasattr(value, "fill_") or not bool((value != 0).any())


def _rows(value: Any) -> int | None:
    """The length of a tensor, an array or a list along its first axis."""
    shape = getattr(value, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else None
    return len(value) if isinstance(value, list | tuple) else None

"""The table of optimizers and the facts about them, free of torch.

A new optimizer is its fields, its facts and a line of the table in ``packed``, and a file in ``rules`` with its update.
"""

from __future__ import annotations

from collections.abc import Iterable

from objectives.fields import Condition
from objectives.optimizers.facts.library import LIBRARY
from objectives.optimizers.facts.optimizer import Optimizer
from objectives.optimizers.facts.packed import OPTIMIZERS

__all__ = ["OPTIMIZERS", "facts_of", "read_by_the_optimizer", "that_can_start_the_second_moment"]


def facts_of(name: str) -> Optimizer:
    """Return the facts about the optimizer ``name``, in the table or from a library."""
    return OPTIMIZERS.get(name, LIBRARY)


def read_by_the_optimizer(field: str) -> Condition:
    """Return the condition that the optimizer reads a field which optimizers share."""
    known = [optimizer.name for optimizer in (*OPTIMIZERS.values(), LIBRARY) if field in optimizer.reads]
    return Condition(f"optimizer is {_listed(known)}", lambda settings: field in facts_of(settings["optimizer"]).reads)


def that_can_start_the_second_moment() -> Condition:
    """Return the condition that the optimizer's second moment can start at other values than zero."""
    known = [optimizer.name for optimizer in OPTIMIZERS.values() if optimizer.can_start_second_moment]
    return Condition(
        f"optimizer is {_listed(known)}", lambda settings: facts_of(settings["optimizer"]).can_start_second_moment
    )


def _listed(names: Iterable[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} or {last}" if most else last

"""What interventions hold for as long as they last, and which batch a step sees; free of torch.

A held weight or state is as it was before the step ``at``: frozen weights, weights whose norm is kept, the second
moment of ``sgd_like``. What is held at a step is a function of the configuration and the step alone; the norms and the
age of the second moment, which are kept, are states of the optimizer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from objectives.entries import SAME, Intervention
from objectives.interventions import Configuration, check_interventions
from objectives.optimizers.facts import OPTIMIZERS

EVERY_WEIGHT = "all"
_RESETS_OF_V = ("moments", "second_moment")


class Holding(Configuration, Protocol):
    """The part of a training configuration that is read here; None for what only the trainer knows."""

    @property
    def weight_groups(self) -> tuple[str, ...] | None:
        """Layer groups and parts of the depth of the model."""

    @property
    def takes_float64(self) -> bool | None:
        """Whether a member may change to double precision."""

    @property
    def can_cap_attention(self) -> bool:
        """Whether there are queries and keys to shrink."""


@dataclass(frozen=True, slots=True)
class Held:
    """What a member holds at a step.

    ``frozen`` are groups, and whether their moments stop. ``decay`` is the weight decay of groups, ``norms`` are groups
    whose weights keep their norms.
    """

    frozen: Mapping[str, bool] = field(default_factory=dict)
    decay: Mapping[str, float] = field(default_factory=dict)
    norms: frozenset[str] = frozenset()
    keeps_v: bool = False
    caps_attention: bool = False


def held_at(config: Configuration, step: int) -> Held:
    """Return what ``config`` holds at ``step``; a later entry has the last word on a group's weight decay."""
    entries = [entry for entry in config.interventions if entry.holds and entry.is_on(step)]
    frozen: dict[str, bool] = {}
    for entry in entries:
        if entry.freeze is not None:
            frozen[entry.freeze] = frozen.get(entry.freeze, False) or entry.moments == "stop"
    return Held(
        frozen=frozen,
        decay={entry.group: entry.weight_decay for entry in entries if entry.weight_decay is not None},
        norms=frozenset(entry.group for entry in entries if entry.norm is not None),
        keeps_v=any(entry.optimizer is not None for entry in entries),
        caps_attention=any(entry.attention is not None for entry in entries),
    )


def begun_at(config: Configuration, step: int) -> Held:
    """Return what begins to be held before ``step``: a second moment that stands still already does not begin."""
    begun = held_at(config.model_copy(update={"interventions": _entries_at(config, step)}), step)
    if begun.keeps_v and step and held_at(config, step - 1).keeps_v:
        begun = replace(begun, keeps_v=False)
    return begun


def _entries_at(config: Configuration, step: int) -> tuple[Intervention, ...]:
    return tuple(entry for entry in config.interventions if entry.at == step)


def ever_holds(config: Configuration, key: str) -> bool:
    """Return whether an intervention or a rule of ``config`` may use ``key``."""
    in_entries = any(getattr(entry, key) is not None for entry in config.interventions)
    rules: Any = getattr(config, "control", ())
    return in_entries or any(key in change for rule in rules for change in rule.do)


def float64_step(config: Configuration) -> int | None:
    """Return the first step in double precision, or None."""
    return min((entry.at for entry in config.interventions if entry.precision is not None), default=None)


# --- data ---


def data_seed(config: Configuration, seed: int, step: int) -> int:
    """Return the seed of batches and noise at ``step``: the member's, or the seed of the latest other stream."""
    if (same := _same(config, step)) is not None:
        return data_seed(config, seed, same.at - 1)
    streams = [entry.data for entry in config.interventions if entry.data not in (0, SAME) and entry.is_on(step)]
    if not streams:
        return seed
    digest = hashlib.sha256(f"stream {streams[-1]} of {seed}".encode()).digest()
    return int.from_bytes(digest[:6], "big")


def moved_on(config: Configuration, step: int) -> int:
    """Return which batch of its stream ``step`` sees, after the batches that interventions leave out or repeat."""
    if (same := _same(config, step)) is not None:
        return moved_on(config, same.at - 1)
    return step + sum(entry.skip for entry in config.interventions if entry.at <= step)


def sees_the_same(config: Configuration, step: int) -> bool:
    """Return whether ``step`` sees a batch again."""
    return _same(config, step) is not None


def _same(config: Configuration, step: int) -> Intervention | None:
    return next((e for e in reversed(config.interventions) if e.data == SAME and e.is_on(step)), None)


# --- whether an entry has a meaning ---


def check_entries(config: Holding) -> None:
    """Raise ValueError for an intervention without a meaning in these settings; the message names the remedy."""
    check_interventions(config)
    for entry in config.interventions:
        here = f"interventions at {entry.at}"
        if entry.data == SAME and entry.at == 0:
            raise ValueError(f"{here} cannot repeat a batch: none came before; choose a later step")
        _check_groups(config, entry, here)
        _check_states(config, entry, here)
        if entry.attention is not None and not config.can_cap_attention:
            raise ValueError(f"{here} cannot cap attention: gpt without qk_norm and qk_clip has logits to cap")
        if entry.precision is not None and config.takes_float64 is False:
            raise ValueError(f"{here} cannot change the precision: these settings train in float64, or cannot")


def _check_groups(config: Holding, entry: Intervention, here: str) -> None:
    known, group = config.weight_groups, entry.group if entry.freeze is None else entry.freeze
    for name in dict.fromkeys((group, entry.group)):
        if known is not None and name not in (EVERY_WEIGHT, *known):
            choice = ", ".join((EVERY_WEIGHT, *known))
            raise ValueError(f"{here} name the group {name!r}, which the model does not have; choose from {choice}")


def _check_states(config: Holding, entry: Intervention, here: str) -> None:
    facts = config.optimizer_facts
    if entry.optimizer is not None and not facts.can_keep_v:
        known = " and ".join(name for name, other in OPTIMIZERS.items() if other.can_keep_v)
        raise ValueError(f"{here} cannot be sgd_like: {known} can keep v, not {config.optimizer}")
    if entry.optimizer is not None and (entry.at == 0 or entry.reset in _RESETS_OF_V):
        raise ValueError(f"{here} cannot be sgd_like: it would keep a second moment of zeros; choose a later step")
    if entry.reset in _RESETS_OF_V:
        kept = next((e for e in config.interventions if e.optimizer is not None and e.is_on(entry.at)), None)
        if kept is not None:
            problem = f"sgd_like keeps the second moment from {kept.at} on; reset it before, or first_moment alone"
            raise ValueError(f"{here} cannot reset {entry.reset}: {problem}")
    if entry.moments == "stop" and not facts.keeps_columns:
        remedy = "leave out moments"
        raise ValueError(f"{here} cannot stop moments: {config.optimizer} has no state for each weight; {remedy}")
    if entry.precision is not None and not facts.can_be_stacked:
        raise ValueError(f"{here} cannot change the precision of {config.optimizer}, an optimizer of a library")

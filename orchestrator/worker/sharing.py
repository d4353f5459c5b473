"""Members that train as one until their interventions or their rules of control differ.

Members of equal seed and equal configuration, but for interventions and control, have the same past up to the first
step at which their lists of interventions differ, and up to the first step that a rule reads of which not all have the
same. So they share a row of the stacked model until then, and fork there.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

from objectives.base import TrainingConfig
from objectives.control import first_reading

_APART = {"interventions", "control"}  # the fields in which members of a family may differ


def families(configs: Sequence[TrainingConfig], seeds: Sequence[int], apart: Sequence[Hashable]) -> list[int]:
    """The family of each member, by number: those that may share a row; ``apart`` is what else keeps members apart.

    Without interventions and control each member is a family of its own.
    """
    if not any(config.interventions or config.control for config in configs):
        return list(range(len(configs)))
    number: dict[Hashable, int] = {}
    keys = [
        (config.model_dump_json(exclude=_APART), seed, other)
        for config, seed, other in zip(configs, seeds, apart, strict=True)
    ]
    return [number.setdefault(key, len(number)) for key in keys]


def first_difference(configs: Sequence[TrainingConfig]) -> int | None:
    """The first step before which not all of a family change in the same way; None where all are alike to the end."""
    steps = [first_reading(config.control) for config in configs if config.control != configs[0].control]
    steps += [first_reading(configs[0].control)] if steps else []
    first, *others = (config.interventions for config in configs)
    for other in others:
        num_alike = next((i for i, (a, b) in enumerate(zip(first, other, strict=False)) if a != b), None)
        num_alike = min(len(first), len(other)) if num_alike is None else num_alike
        steps += [entry.at for entries in (first, other) for entry in entries[num_alike : num_alike + 1]]
    soonest = min(steps, default=math.inf)
    return None if math.isinf(soonest) else int(soonest)


def split_at(members: Sequence[int], configs: Sequence[TrainingConfig], step: int) -> list[list[int]]:
    """``members`` of a family that may train ``step`` together, by what has changed in each up to it, itself included.

    In the order in which they come; but in each part those with rules are first, as a row keeps the trends that rules
    will read only where its first member has some.
    """
    parts: dict[str, list[int]] = {}
    for member in members:
        past = [entry.model_dump_json() for entry in configs[member].interventions if entry.at <= step]
        rules = configs[member].control
        past += [rule.model_dump_json() for rule in rules] if first_reading(rules) <= step else []
        parts.setdefault("\n".join(past), []).append(member)
    return [sorted(part, key=lambda member: not configs[member].control) for part in parts.values()]

"""The members of a pack: their changes by interventions, their batches, and a check that tensors are renewed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from objectives.base import ExecutionPlan
from objectives.held import begun_at, data_seed, held_at, moved_on, sees_the_same
from objectives.interventions import in_force, next_change
from objectives.optimizers.packed_optimizer import PackedOptimizer
from objectives.training_config import TrainingConfig

# Attributes that PackedTrainer itself renews.
OWN = frozenset({
    "device", "plan", "structure", "weight_shapes", "configs", "seeds", "_ages", "num_steps", "_skipped", "_cohorts",
    "cohort_of_member_K", "_params_Kn", "weights", "layout", "optimizer", "memory", "held_K", "_curvature", "_rollback",
    "_changes", "_control", "_averages", "_restarts",
})  # fmt: skip
_FOREVER = 2**31
_checked: set[type] = set()


class Changes:
    """The steps of a pack before which members change. A step without changes costs one comparison.

    ``ages`` are the members' completed steps; steps of the pack count from there. ``configs`` is read when a change is
    due, after the rows that ``wake`` names may have been replaced.
    """

    def __init__(self, configs: Sequence[TrainingConfig], ages: Sequence[int]) -> None:
        self._configs, self._ages = configs, ages
        # At the first step, all members with interventions or rules read their numbers, which depend on the step alone.
        # So a pack that is resumed or rearranged within a ramp continues unchanged.
        self._next = {row: 0 for row, config in enumerate(configs) if config.interventions or config.control}
        self._soonest: float = 0 if self._next else math.inf

    def before_step(
        self, num_steps: int, optimizer: PackedOptimizer, seeds: Sequence[int]
    ) -> dict[int, TrainingConfig]:
        """Change numbers and states of the members that are due before the pack's step ``num_steps``.

        Returns the configuration in force for each changed row.
        """
        if num_steps < self._soonest:
            return {}
        rows = [row for row, due in self._next.items() if due <= num_steps]
        ages = [self._ages[row] + num_steps for row in rows]
        configs = [self._configs[row] for row in rows]
        acting = [in_force(config, age) for config, age in zip(configs, ages, strict=True)]
        optimizer.renew(rows, acting)
        for row, config, age in zip(rows, configs, ages, strict=True):
            _change_states(optimizer, row, config, age, seeds)
            optimizer.hold(row, held_at(config, age), begun_at(config, age))
            later = next_change(config, age + 1)
            self._next[row] = -1 if later is None else later - self._ages[row]
        self._next = {row: due for row, due in self._next.items() if due >= 0}
        self._soonest = min(self._next.values(), default=math.inf)
        return dict(zip(rows, acting, strict=True))

    def num_steps_before(self, num_steps: int) -> int:
        """Return how many steps from ``num_steps`` on change no member."""
        return int(min(max(0, self._soonest - num_steps), _FOREVER))

    def wake(self, rows: Iterable[int], num_steps: int) -> None:
        """Note that the members ``rows`` have new interventions, which begin before the step ``num_steps``."""
        for row in rows:
            self._next[row] = num_steps
            self._soonest = min(self._soonest, num_steps)


def _change_states(
    optimizer: PackedOptimizer, row: int, config: TrainingConfig, step: int, seeds: Sequence[int]
) -> None:
    facts = config.optimizer_facts
    for entry in config.interventions:
        if entry.at != step:
            continue
        if entry.reset == "moments":
            optimizer.restart(row, seeds)
        if entry.reset == "first_moment":
            optimizer.rescale(row, facts.first_moments, 0.0)
        if entry.reset == "second_moment":
            optimizer.rescale(row, facts.second_moments, 0.0)
        if entry.rescale is not None:
            optimizer.rescale(row, facts.second_moments, entry.rescale)


def batches_of(
    configs: Sequence[TrainingConfig], seeds: Sequence[int], ages: Sequence[int], skipped: Sequence[int]
) -> list[tuple[int, int, bool]]:
    """Return seed, data step, and whether it stands still, of each member's batch at ``ages``.

    ``skipped`` other batches came before.
    """
    return [
        (data_seed(config, seed, age), left_out + moved_on(config, age), sees_the_same(config, age))
        for config, seed, age, left_out in zip(configs, seeds, ages, skipped, strict=True)
    ]


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

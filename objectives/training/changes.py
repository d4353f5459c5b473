"""When interventions change the members of a pack, and how."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from objectives.interventions import data_seed, events, in_force, next_change, num_skipped
from objectives.optimizers.packed_optimizer import PackedOptimizer
from objectives.training_config import TrainingConfig


class Changes:
    """The steps of a pack before which members change. A step without changes costs one comparison.

    ``ages`` are the members' completed steps; steps of the pack count from there. ``configs`` is read when a change is
    due, after the rows that ``wake`` names may have been replaced.
    """

    def __init__(self, configs: Sequence[TrainingConfig], ages: Sequence[int]) -> None:
        self._configs, self._ages = configs, ages
        # At the first step, all members with interventions read their numbers, which depend on the step alone. So a
        # pack that is resumed or rearranged within a ramp continues unchanged.
        self._next = {row: 0 for row, config in enumerate(configs) if config.interventions}
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
            later = next_change(config, age + 1)
            self._next[row] = -1 if later is None else later - self._ages[row]
        self._next = {row: due for row, due in self._next.items() if due >= 0}
        self._soonest = min(self._next.values(), default=math.inf)
        return dict(zip(rows, acting, strict=True))

    def wake(self, rows: Iterable[int], num_steps: int) -> None:
        """Note that the members ``rows`` have new interventions, which begin before the step ``num_steps``."""
        for row in rows:
            self._next[row] = num_steps
            self._soonest = min(self._soonest, num_steps)


def _change_states(
    optimizer: PackedOptimizer, row: int, config: TrainingConfig, step: int, seeds: Sequence[int]
) -> None:
    facts = config.optimizer_facts
    for entry in events(config, step):
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
) -> list[tuple[int, int]]:
    """Return (seed, data step) of each member's batch at the steps ``ages``, after ``skipped`` other batches."""
    return [
        (data_seed(config, seed, age), age + left_out + num_skipped(config, age))
        for config, seed, age, left_out in zip(configs, seeds, ages, skipped, strict=True)
    ]

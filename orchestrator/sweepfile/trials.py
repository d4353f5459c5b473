"""From a cell to its trials: the one way in which a configuration is resolved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.space import Trial, trial_id
from orchestrator.sweepfile.fields import Fields


@dataclass(frozen=True)
class TrialMaker:
    """Makes the trials of one sweep's cells. ``judged_by`` are the rules of its outcomes, which are part of an id."""

    objective: str
    steps: int
    seeds: Sequence[int]
    fields: Fields
    fixed: Mapping[str, Any]
    judged_by: Mapping[str, Any]

    def trials(self, cell: Mapping[str, Any]) -> list[Trial]:
        """A trial for each seed, in order. Raises ValueError where the values of ``cell`` do not fit together."""
        config, _ = self.fields.resolve(self.steps, self.fixed, cell)
        return self.of_config(cell, config)

    def of_config(self, cell: Mapping[str, Any], config: Mapping[str, Any]) -> list[Trial]:
        """The trials of a cell whose resolved configuration is known."""
        return [
            Trial(trial_id(self.objective, config, seed, self.judged_by), cell, seed, config) for seed in self.seeds
        ]

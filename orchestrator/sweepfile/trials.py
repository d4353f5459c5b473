"""From a cell to its trials: the one way in which a configuration is resolved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.base.cell import Cell, Trial
from orchestrator.base.space import trial_id
from orchestrator.sweepfile.arithmetic import Expression
from orchestrator.sweepfile.counted_steps import counted, needs_steps
from orchestrator.sweepfile.fields import Fields, Resolved
from orchestrator.sweepfile.lengths import Length
from orchestrator.sweepfile.ties import STEPS, that_need_steps, tied_values


@dataclass(frozen=True)
class TrialMaker:
    """Makes the trials of one sweep's cells. ``judged_by`` are the rules of its outcomes, which are part of an id.

    ``ties`` are in the order in which they can be computed. Axes of ``conditional`` are null where they do not exist.
    """

    objective: str
    length: Length
    seeds: Sequence[int]
    fields: Fields
    fixed: Mapping[str, Any]
    ties: Mapping[str, Expression]
    conditional: frozenset[str]
    judged_by: Mapping[str, Any]

    def trials(self, cell: Mapping[str, Any]) -> list[Trial]:
        """A trial for each seed, in order. Raises ValueError where the values of ``cell`` do not fit together."""
        return self.of_config(cell, self.resolve(cell).config)

    def resolve(self, cell: Mapping[str, Any]) -> Resolved:
        """The configuration of a cell. Raises ValueError where its values do not fit together."""
        there = self.existing(cell)
        steps = self.steps_of(cell)
        fixed, there = counted(self.fixed, steps, self.fields), counted(there, steps, self.fields)
        tied = tied_values(self.ties, {**fixed, **cell, **there, STEPS: steps}, self.fields)
        beside = {name: value for name, value in tied.items() if name not in there}
        on_axes = {**there, **{name: tied[name] for name in tied if name in there}}
        return self.fields.resolve(steps, {**fixed, **beside}, on_axes)

    def steps_of(self, cell: Mapping[str, Any]) -> int:
        """The steps of a cell's trials. Raises ValueError where its values do not say."""
        if self.length.tokens is None:
            return self.length.steps_of({}, self.fields)
        given = {**self.fixed, **cell}
        late = that_need_steps(self.ties, [name for name, value in given.items() if needs_steps(value)])
        early = {name: tie for name, tie in self.ties.items() if name not in late}
        known = {**self.fixed, **self.existing(cell), **tied_values(early, given, self.fields)}
        return self.length.steps_of(known, self.fields)

    def existing(self, cell: Mapping[str, Any]) -> dict[str, Any]:
        """The values of the axes that exist in ``cell``."""
        return {name: value for name, value in cell.items() if value is not None or name not in self.conditional}

    def of_config(self, cell: Mapping[str, Any], config: Mapping[str, Any]) -> list[Trial]:
        """The trials of a cell whose resolved configuration is known."""
        return [
            Trial(trial_id(self.objective, config, seed, self.judged_by), Cell(cell), seed, config)
            for seed in self.seeds
        ]

"""From cells to trials, each with its resolved configuration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.base.errors import InputError, Problem
from orchestrator.base.space import Cell, Trial, trial_id
from orchestrator.sweepfile.custom_trainer import PARTS
from orchestrator.sweepfile.entries import ENTRY_FIELDS
from orchestrator.sweepfile.fields import Fields, Resolved
from orchestrator.sweepfile.sections import SweepFile
from orchestrator.sweepfile.steps import Length, in_whole_steps, needs_steps
from orchestrator.sweepfile.strict_yaml import MAX_PROBLEMS, Document
from orchestrator.sweepfile.ties import STEPS, Expression, tied_values, ties_of_steps


@dataclass(frozen=True)
class TrialMaker:
    """Makes the trials of one sweep's cells. ``judged_by`` are the rules of its outcomes, which are part of an id.

    ``ties`` come after the ties that they use. Axes of ``conditional`` are null in cells without them.
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
        """Return a trial for each seed, in order. Raises ValueError if the values of ``cell`` are incompatible."""
        return self.of_config(cell, self.resolve(cell).config)

    def resolve(self, cell: Mapping[str, Any]) -> Resolved:
        """Return the configuration of a cell. Raises ValueError if its values are incompatible."""
        on_axes = self.existing(cell)
        steps = self.steps_of(cell)
        fixed, on_axes = in_whole_steps(self.fixed, steps, self.fields), in_whole_steps(on_axes, steps, self.fields)
        tied = tied_values(self.ties, {**fixed, **cell, **on_axes, STEPS: steps}, self.fields)
        others = {name: value for name, value in tied.items() if name not in on_axes}
        on_axes |= {name: tied[name] for name in tied if name in on_axes}
        return self.fields.resolve(steps, {**fixed, **others}, on_axes)

    def steps_of(self, cell: Mapping[str, Any]) -> int:
        """Return the steps of a cell's trials. Raises ValueError if its values do not determine them."""
        if self.length.tokens is None:
            return self.length.steps_of({}, self.fields)
        given = {**self.fixed, **cell}
        late = ties_of_steps(self.ties, [name for name, value in given.items() if needs_steps(value)])
        early = {name: tie for name, tie in self.ties.items() if name not in late}
        known = {**self.fixed, **self.existing(cell), **tied_values(early, given, self.fields)}
        return self.length.steps_of(known, self.fields)

    def existing(self, cell: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of the axes that exist in ``cell``."""
        return {name: value for name, value in cell.items() if value is not None or name not in self.conditional}

    def of_config(self, cell: Mapping[str, Any], config: Mapping[str, Any]) -> list[Trial]:
        """Return the trials of a cell with the resolved ``config``."""
        ids = [trial_id(self.objective, config, seed, self.judged_by) for seed in self.seeds]
        return [Trial(name, Cell(cell), seed, config) for name, seed in zip(ids, self.seeds, strict=True)]


def resolved_trials(
    cells: Iterable[Mapping[str, Any]], file: SweepFile, maker: TrialMaker, document: Document
) -> tuple[list[Trial], Counter[str]]:
    """Return all trials with their configurations, and in how many cells each axis has no effect.

    A configuration leaves no acting setting to a later default. Raises InputError for incompatible values, and for a
    field that has no effect in any cell.
    """
    trials: dict[str, Trial] = {}
    idle: Counter[str] = Counter()
    given: Counter[str] = Counter()
    for cell in cells:
        try:
            config, inert = maker.resolve(cell)
        except ValueError as error:
            raise InputError(_combination_problem(error, cell, document)) from None
        idle.update(inert)
        given.update(maker.fixed.keys() | maker.existing(cell).keys() | (maker.ties.keys() - cell.keys()))
        for trial in maker.of_config(cell, config):
            if trials.setdefault(trial.trial_id, trial).cell != cell:
                raise InputError(_twin_problem(trials[trial.trial_id], trial, maker, document))
    if never := [name for name, number in idle.items() if number == given[name]]:
        raise InputError(*(_idle_problem(name, maker.fields, file, document) for name in sorted(never)[:MAX_PROBLEMS]))
    return list(trials.values()), Counter({name: idle[name] for name in file.axes if name in idle})


def _idle_problem(name: str, fields: Fields, file: SweepFile, document: Document) -> Problem:
    path = (next(section for section in ("axes", "tie", "fixed") if name in getattr(file, section)), name)
    message = f"acts only where {fields.acts_where(name)}, which is true in no trial of this sweep"
    return document.problem(path, message, "remove it, or set what it acts with")


def _combination_problem(error: ValueError, cell: Mapping[str, Any], document: Document) -> Problem:
    message = str(error)
    field = message.split(" ", 1)[0]
    paths: list[tuple[str, ...]] = [(key, field) for key in ("tie", "axes", "fixed")]
    paths += [("batch", key) for key, name in PARTS.items() if name == field] + [("tokens",)] * (field == "tokens")
    paths += [(field,)]
    path = next((path for path in paths if path in document.places), ())
    shown = f"{message} (at {Cell(cell).name})" if cell else message
    remedy = "change the expression, or the values that it uses" if path[:1] == ("tie",) else "change one of the two"
    if field in ENTRY_FIELDS:
        remedy = "change that entry; docs/sweep-file.md lists its keys and values"
    return document.problem(path, shown, remedy)


def _twin_problem(first: Trial, second: Trial, maker: TrialMaker, document: Document) -> Problem:
    """Return the problem of two cells with the same trials: a trial has no values of tied axes, and no preset."""
    differs = [name for name, value in second.cell.items() if first.cell.get(name) != value]
    name = next((name for name in maker.ties if name in first.cell), differs[0] if differs else "")
    message = f"the cells {first.cell.name} and {second.cell.name} would train the same trials"
    remedy = f"give {name} a different value in each cell, or take one cell out"
    return document.problem(("tie" if name in maker.ties else "axes", name), message, remedy)

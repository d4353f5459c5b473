"""Several sweeps of one training as one: their trials over all axes, and over the numbers that differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from orchestrator.base.errors import InputError, Problem
from orchestrator.base.measure import SCORE
from orchestrator.base.space import Axis, Cell, format_value, is_number, to_hashable
from orchestrator.ledger.facts import trainer_facts
from orchestrator.maps.axes import axis_values
from orchestrator.maps.lengths import STEPS
from orchestrator.maps.shared import changed_fields, unique_names, with_cell_of, with_fields_as_trained
from orchestrator.maps.table import SweepTable
from orchestrator.sweepfile.settings import settings_of


def pooled_table(tables: Sequence[SweepTable]) -> SweepTable:
    """Return the trials of several sweeps as trials of the first, each once.

    A number that is constant in each sweep and differs between them is an axis, such as a width or the steps. Raises
    InputError where anything else of the training differs.
    """
    names = unique_names([table.name for table in tables])
    by_name = {axis.name: axis for table in reversed(tables) for axis in reversed(table.axes)}
    order = list(dict.fromkeys(axis.name for table in tables for axis in table.axes))
    for name, table in zip(names, tables, strict=True):
        if not table.runs:
            raise InputError(Problem(name, "", "has no trial", "leave it out, or `sweep run` it first"))
        first = table.runs[0]
        if lacking := by_name.keys() - settings_of(first.objective, first.config, first.cell).keys() - {STEPS}:
            remedy = "pool sweeps with the same axes, or with the value in each sweep file"
            raise InputError(Problem(name, min(lacking), "is an axis of another sweep, and has no value here", remedy))
    lengths = {table.runs[0].steps for table in tables}
    changed = changed_fields(tables, order)
    sizes = [name for name, values in changed.items() if all(is_number(value) and value > 0 for value in values)]
    sizes += [STEPS] if len(lengths) > 1 and STEPS not in order else []
    differing = [*((name, values) for name, values in changed.items() if name not in sizes), *_facts(tables)]
    for name, values in differing:
        i = next(i for i, value in enumerate(values) if value != values[0])
        message = f"is {format_value(to_hashable(values[i]))}, and {format_value(to_hashable(values[0]))} in {names[0]}"
        remedy = "pool sweeps of one objective and schedule; `sweep compare` shows how sweeps differ"
        raise InputError(Problem(names[i], name, message, remedy))
    names_of_axes = [*order, *sizes]
    runs_of = with_fields_as_trained([table.runs for table in tables], [table.ties for table in tables])
    trials = {
        (run.trial_id, run.steps): with_cell_of(replace(run, cell=Cell({STEPS: run.steps, **run.cell})), names_of_axes)
        for runs in runs_of
        for run in runs
    }
    values_of = axis_values([trial.cell for trial in trials.values()])
    axes = [by_name.get(name, Axis(name, "values", ())) for name in names_of_axes]
    axes = [replace(axis, values=values_of[axis.name]) for axis in axes]
    return replace(tables[0], axes=tuple(axes), trials=tuple(trials.values()))


def _facts(tables: Sequence[SweepTable]) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yield what the sweeps as a whole say otherwise: facts of a custom trainer, and the score."""
    stated = [{**trainer_facts(table.facts), SCORE: table.facts.get(SCORE)} for table in tables]
    for name in dict.fromkeys(name for facts in stated for name in facts):
        values = tuple(facts.get(name) for facts in stated)
        if any(value != values[0] for value in values):
            yield name, values

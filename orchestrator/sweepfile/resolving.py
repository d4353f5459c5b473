"""Every trial of a sweep with its configuration, and the problems of values that do not fit together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from orchestrator.base.cell import Cell, Trial
from orchestrator.base.errors import InputError, Problem
from orchestrator.sweepfile.axes import MAX_PROBLEMS
from orchestrator.sweepfile.entry_values import ENTRY_FIELDS
from orchestrator.sweepfile.fields import Fields
from orchestrator.sweepfile.global_batch import PARTS
from orchestrator.sweepfile.sections import SweepFile
from orchestrator.sweepfile.strict_yaml import Document
from orchestrator.sweepfile.trials import TrialMaker


def resolved_trials(
    cells: Iterable[Mapping[str, Any]], file: SweepFile, maker: TrialMaker, document: Document
) -> tuple[list[Trial], Counter[str]]:
    """Every trial with its configuration, which leaves no acting setting to a later default.

    Also the number of cells in which each axis does not act, where there are some. Raises InputError for incompatible
    values, and for a field that acts in no cell.
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
    if wrong := [name for name, number in idle.items() if number == given[name]]:
        raise InputError(*(_idle_problem(name, maker.fields, file, document) for name in sorted(wrong)[:MAX_PROBLEMS]))
    return list(trials.values()), Counter({name: idle[name] for name in file.axes if name in idle})


def _idle_problem(name: str, fields: Fields, file: SweepFile, document: Document) -> Problem:
    path = (next(section for section in ("axes", "tie", "fixed") if name in getattr(file, section)), name)
    message = f"acts only where {fields.acts_where(name)}, which is so in no trial of this sweep"
    return Problem(document.place(path), ".".join(path), message, "remove it, or set what it acts with")


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
        remedy = "change that entry; docs/sweep-file.md has the keys and what they take"
    return Problem(document.place(path), ".".join(path), shown, remedy)


def _twin_problem(first: Trial, second: Trial, maker: TrialMaker, document: Document) -> Problem:
    """Two cells whose trials are the same, since the values on tied axes do not belong to a trial."""
    name = next(name for name in maker.ties if name in first.cell)
    message = f"the cells {first.cell.name} and {second.cell.name} would train the same trials"
    remedy = f"let {name} have another value in each of them, or take one of them out"
    return Problem(document.place(("tie", name)), f"tie.{name}", message, remedy)

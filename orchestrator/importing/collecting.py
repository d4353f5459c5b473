"""From the sources of an import to all that it brings in."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.errors import InputError, Problem
from orchestrator.importing.options import ImportOptions
from orchestrator.importing.outcomes import rules_of
from orchestrator.importing.recording import Collected
from orchestrator.importing.rows import LeftOut, Rows, read_tables
from orchestrator.importing.runs import (
    Asked,
    Run,
    axes_of,
    chosen_rows,
    differing_columns,
    in_order,
    with_seeds,
)
from orchestrator.importing.table import ResultColumns, runs_of_rows
from orchestrator.importing.values import AxisColumn, axis_columns, column_named

_LENGTHS = ("steps",)  # names that a fixed setting may not have: a trial's own length and seed
_SHOWN = 5


@dataclass(slots=True)
class Import:
    """All that an import brings in, and what the user is to know of it."""

    collected: Collected
    notes: list[str] = field(default_factory=list)


def collect(sources: Sequence[str], options: ImportOptions) -> Import:
    """What ``sources`` hold, as ``options`` say. Raises InputError where they cannot be read or hold no run."""
    for source in sources:
        if not os.path.exists(source):
            raise InputError(Problem(source, "", "no such file or folder", "name a table"))
    return _of_table([Path(source) for source in sources], options)


def _of_table(paths: Sequence[Path], options: ImportOptions) -> Import:
    """Tables with a run in each row."""
    table = read_tables(paths)
    axes = axis_columns(options.axes, options.scale, table.columns)
    results, asked = _results(table, options), _asked(table, options, axes)
    rows = chosen_rows(table.rows, asked.where)
    taken = {*(axis.column for axis in axes), asked.seed, asked.steps, *asked.where}
    taken |= {results.outcome, results.loss, results.validation_loss}
    unused = [name for name in table.columns if name not in taken]
    rules = rules_of(options.map, options.diverged_above)
    fixed = [name for name in unused if name not in ("seed", *_LENGTHS)]
    judged_by, runs, left_out = runs_of_rows(rows, asked, results, rules, fixed)
    columns = {axis.name: axis.column for axis in axes} | {
        key: name
        for key, name in (
            ("seed", asked.seed),
            ("steps", options.steps),
            ("outcome", results.outcome),
            ("final_loss", results.loss),
            ("validation_loss", results.validation_loss),
        )
        if name is not None
    }
    notes = []
    if differing := differing_columns(rows, asked, unused):
        shown = ", ".join(differing[:_SHOWN]) + (" and others" if len(differing) > _SHOWN else "")
        notes.append(
            f"rows of one cell differ in {shown}, and count as its seeds; --axis NAME makes an axis of a column, "
            "--where NAME=VALUE chooses rows, --seed NAME is for seeds"
        )
    found = finished_import(
        tuple(map(str, paths)), judged_by, columns, axes, options.scattered, runs, [*table.left_out, *left_out]
    )
    return Import(found, notes)


def _asked(table: Rows, options: ImportOptions, axes: Sequence[AxisColumn]) -> Asked:
    columns = table.columns
    steps: str | int | None = None
    if options.steps is not None:
        steps = int(options.steps) if options.steps.isdigit() else column_named("--steps", options.steps, columns)
    seed = None if options.seed is None else column_named("--seed", options.seed, columns)
    where = {column_named("--where", name, columns): value for name, value in options.where.items()}
    return Asked(axes, seed, steps, where)


def _results(table: Rows, options: ImportOptions) -> ResultColumns:
    """The columns of results; without --outcome that of --loss is judged."""
    named = {
        option: None if text is None else column_named(option, text, table.columns)
        for option, text in (
            ("--outcome", options.outcome),
            ("--loss", options.loss),
            ("--validation-loss", options.validation_loss),
        )
    }
    outcome = named["--outcome"] or named["--loss"]
    if outcome is None:
        remedy = "say --outcome COLUMN: words such as stable and diverged, or final losses"
        raise InputError(Problem("--outcome", "", "is missing: nothing says how the runs ended", remedy))
    return ResultColumns(outcome, named["--loss"], named["--validation-loss"])


def finished_import(
    sources: tuple[str, ...],
    judged_by: str,
    columns: dict[str, str],
    axes: Sequence[AxisColumn],
    scattered: bool | None,
    runs: Sequence[Run],
    left_out: Sequence[LeftOut],
) -> Collected:
    """``runs`` with their seeds, over axes, in the order of the map. Raises InputError where there is none."""
    kept, repeated = with_seeds(runs)
    all_left_out = [*left_out, *repeated]
    if not kept:
        reasons = "; ".join(map(str, all_left_out[:_SHOWN]))
        raise InputError(Problem(sources[0], "", "holds no run that can be used", reasons or "is it empty?"))
    found, is_scattered = axes_of(kept, axes, scattered)
    return Collected(sources, judged_by, columns, found, is_scattered, in_order(kept, found), all_left_out)

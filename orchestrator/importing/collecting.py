"""From the sources of an import to all that it brings in."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from orchestrator.base.errors import InputError, Problem
from orchestrator.importing.curves import CurveColumns, logs_of_rows, repeated_steps, runs_of_logs
from orchestrator.importing.folders import FolderOptions, logs_in, path_pattern
from orchestrator.importing.options import ImportOptions
from orchestrator.importing.outcomes import ResultColumns, rules_of, runs_of_rows
from orchestrator.importing.recording import Collected
from orchestrator.importing.rows import RUN, LeftOut, Row, Rows, is_wide, long_of_wide, read_tables
from orchestrator.importing.runs import (
    Asked,
    Run,
    Settings,
    axes_of,
    chosen_rows,
    differing_columns,
    in_order,
    settings_of_rows,
    with_seeds,
)
from orchestrator.importing.stores import OPTUNA, is_store, logs_of_experiment, rows_of_studies
from orchestrator.importing.values import axis_columns, column_named
from orchestrator.ledger.facts import BY_CURVES
from orchestrator.logs.columns import Columns
from orchestrator.logs.tables import Log

_OWN = ("seed", "steps")  # names that a fixed setting may not have: they are a trial's own
_SHOWN = 5


@dataclass(slots=True)
class Import:
    """All that an import brings in, and what the user is to know of it."""

    collected: Collected
    notes: list[str] = field(default_factory=list)


def collect(sources: Sequence[str], options: ImportOptions, results: Path) -> Import:
    """What ``sources`` hold, as ``options`` say. Raises InputError where they cannot be read or hold no run.

    An MLflow experiment is looked for in the store under ``results`` where the environment names no other.
    """
    if any(map(is_store, sources)):
        return _of_stores(sources, options, results)
    for source in sources:
        if not os.path.exists(source):
            raise InputError(Problem(source, "", "no such file or folder", "name tables, or folders of runs"))
    paths = [Path(source) for source in sources]
    folders = [path for path in paths if path.is_dir()]
    if folders and len(folders) < len(paths):
        raise InputError(Problem(str(folders[0]), "", "is a folder beside tables", "import each on its own"))
    if folders:
        return _of_folders(folders, options)
    return (
        _of_long_tables(paths, options) if options.step is not None else _of_tables(paths, read_tables(paths), options)
    )


def _of_stores(sources: Sequence[str], options: ImportOptions, results: Path) -> Import:
    """Experiments of MLflow, or studies of Optuna."""
    kinds = {source.partition(":")[0] for source in sources}
    if len(kinds) > 1:
        raise InputError(Problem(sources[0], "", "stands beside a source of another kind", "import each on its own"))
    if kinds == {OPTUNA.rstrip(":")}:
        return _of_tables(sources, rows_of_studies(sources), options)
    _refuse(options, ("run", "from_path", "config", "log"), "is for tables and folders of runs")
    _refuse_judged(options)
    wanted = Columns(options.step, options.loss, options.grad_norm)
    return _of_runs(sources, [logs_of_experiment(source, results, wanted) for source in sources], options)


def _of_tables(paths: Sequence[Path | str], table: Rows, options: ImportOptions) -> Import:
    """Tables with a run in each row."""
    _refuse(options, ("grad_norm", "run", "from_path", "config", "log", "stopping"), "is for runs with curves")
    asked, results = _asked(table.columns, options), _results(table, options)
    rows = chosen_rows(table.rows, asked.where)
    named = {"outcome": results.outcome, "final_loss": results.loss, "validation_loss": results.validation_loss}
    if isinstance(results.initial_loss, str):
        named["initial_loss"] = results.initial_loss
    unused = _unused(table.columns, asked, named.values())
    rules = rules_of(options.map, options.diverged_above)
    judged_by, runs, left_out = runs_of_rows(rows, asked, results, rules, _fixed(unused))
    return _import(paths, judged_by, asked, named, runs, [*table.left_out, *left_out], options, rows, unused)


def _of_long_tables(paths: Sequence[Path], options: ImportOptions) -> Import:
    """Tables with a loss in each row."""
    _refuse(options, ("config", "log"), "is for a folder of runs")
    _refuse_judged(options)
    table = read_tables(paths)
    step, loss = options.step, options.loss
    if step is None or loss is None:
        raise InputError(Problem("--loss", "", "is missing beside --step", "name the column of losses"))
    if is_wide(table, loss):
        table = long_of_wide(table, step, loss, path_pattern(options.from_path))
        if not table.rows:
            raise InputError(_none(str(paths[0]), table.left_out))
        options = replace(options, run=options.run or (RUN,))
    else:
        _refuse(options, ("from_path",), "is for a folder of runs, and for a chart with a column for each run")
    asked = _asked(table.columns, options)
    own = [column_named("--run", name, table.columns) for name in options.run]
    axes = [axis.column for axis in asked.axes]
    columns = CurveColumns(
        column_named("--step", step, table.columns),
        column_named("--loss", loss, table.columns),
        None if options.grad_norm is None else column_named("--grad-norm", options.grad_norm, table.columns),
        own or [*axes, *([asked.seed] if asked.seed else [])],
    )
    rows = chosen_rows(table.rows, asked.where)
    if not own and (where := repeated_steps(rows, columns)) is not None:
        message = f"has a step of another row with the same {', '.join(columns.run)}, and another loss"
        raise InputError(Problem(where, columns.step, message, "say which column tells runs apart: --run NAME"))
    firsts, logs, left_out = logs_of_rows(rows, columns, axes)
    named = {"step": columns.step, "loss": columns.loss, "grad_norm": columns.grad_norm, "run": ", ".join(columns.run)}
    unused = _unused(table.columns, asked, [*named.values(), *columns.run])
    return _judged(paths, firsts, logs, [*table.left_out, *left_out], asked, named, unused, options)


def _of_folders(folders: Sequence[Path], options: ImportOptions) -> Import:
    """Folders of runs with a log each."""
    _refuse(options, ("run",), "is for a table with a loss in each row")
    _refuse_judged(options)
    wanted = Columns(options.step, options.loss, options.grad_norm)
    found = FolderOptions(path_pattern(options.from_path), options.config, options.log, wanted, options.told)
    return _of_runs(folders, [logs_in(folder, found) for folder in folders], options)


def _of_runs(
    sources: Sequence[Path | str], found: Iterable[tuple[list[Row], list[Log], list[LeftOut]]], options: ImportOptions
) -> Import:
    """Runs with a row of settings and a log each."""
    rows: list[Row] = []
    logs: list[Log] = []
    left_out: list[LeftOut] = []
    for its_rows, its_logs, its_left_out in found:
        rows, logs, left_out = rows + its_rows, logs + its_logs, left_out + its_left_out
    if not rows:
        raise InputError(_none(str(sources[0]), left_out))
    names = list(dict.fromkeys(name for row in rows for name in row.values))
    asked = _asked(names, options)
    kept = {id(row) for row in chosen_rows(rows, asked.where)}
    logs = [log for row, log in zip(rows, logs, strict=True) if id(row) in kept]
    rows = [row for row in rows if id(row) in kept]
    named = {
        key: ", ".join(dict.fromkeys(str(name) for log in logs if (name := getattr(log.columns, key)) is not None))
        for key in ("step", "loss", "grad_norm")
    }
    unused = _unused(names, asked, ())
    return _judged(sources, rows, logs, left_out, asked, named, unused, options)


def _judged(
    paths: Sequence[Path | str],
    rows: Sequence[Row],
    logs: Sequence[Log],
    left_out: Sequence[LeftOut],
    asked: Asked,
    named: Mapping[str, str | None],
    unused: Sequence[str],
    options: ImportOptions,
) -> Import:
    """Runs by their logs, each with a row of settings."""
    if not rows:
        raise InputError(_none(str(paths[0]), left_out))
    settings = settings_of_rows(rows, asked, _fixed(unused))
    known = [(one, log) for one, log in zip(settings, logs, strict=True) if isinstance(one, Settings)]
    unknown = [one for one in settings if isinstance(one, LeftOut)]
    runs = runs_of_logs([one for one, _ in known], [log for _, log in known], options.stopping_config)
    return _import(paths, BY_CURVES, asked, named, runs, [*left_out, *unknown], options, rows, unused)


def _import(
    paths: Sequence[Path | str],
    judged_by: str,
    asked: Asked,
    named: Mapping[str, str | None],
    runs: Sequence[Run],
    left_out: Sequence[LeftOut],
    options: ImportOptions,
    rows: Sequence[Row],
    unused: Sequence[str],
) -> Import:
    """``runs`` with their seeds, over axes, in the order of the map. Raises InputError where there is none."""
    kept, repeated = with_seeds(runs)
    all_left_out = [*left_out, *repeated]
    if not kept:
        raise InputError(_none(str(paths[0]), all_left_out))
    axes, is_scattered = axes_of(kept, asked.axes, options.scattered)
    columns = {axis.name: axis.column for axis in asked.axes}
    columns |= {"seed": asked.seed} if asked.seed else {}
    columns |= {"steps": options.steps} if options.steps else {}
    columns |= {key: name for key, name in named.items() if name}
    collected = Collected(
        sources=tuple(map(str, paths)),
        judged_by=judged_by,
        columns=columns,
        axes=axes,
        is_scattered=is_scattered,
        runs=in_order(kept, axes),
        left_out=all_left_out,
        stopping=options.stopping_config,
    )
    found = Import(collected)
    if differing := differing_columns(rows, asked, unused):
        shown = ", ".join(differing[:_SHOWN]) + (" and others" if len(differing) > _SHOWN else "")
        found.notes.append(
            f"rows of one cell differ in {shown}, and count as its seeds; --axis NAME makes an axis of a column, "
            "--where NAME=VALUE chooses rows, --seed NAME is for seeds"
        )
    if all(run.result.initial_loss is None for run in kept):
        found.notes.append(
            "no initial loss is known: nothing is degraded, and a learning-rate sensitivity leaves out what has no "
            "final loss; --initial-loss says it"
        )
    return found


def _asked(columns: Sequence[str], options: ImportOptions) -> Asked:
    steps: str | int | None = None
    if options.steps is not None:
        steps = int(options.steps) if options.steps.isdigit() else column_named("--steps", options.steps, columns)
    seed = None if options.seed is None else column_named("--seed", options.seed, columns)
    where = {column_named("--where", name, columns): value for name, value in options.where.items()}
    return Asked(axis_columns(options.axes, options.scale, columns), seed, steps, where)


def _results(table: Rows, options: ImportOptions) -> ResultColumns:
    """The columns of results; without --outcome that of --loss is judged."""

    def named(option: str, text: str | None) -> str | None:
        return None if text is None else column_named(option, text, table.columns)

    loss = named("--loss", options.loss)
    outcome = named("--outcome", options.outcome) or loss
    if outcome is None:
        remedy = "say --outcome COLUMN (words such as stable and diverged, or final losses), or --step and --loss"
        raise InputError(Problem("--outcome", "", "is missing: nothing says how the runs ended", remedy))
    initial: str | float | None = options.initial_loss_number
    if initial is None:
        initial = named("--initial-loss", options.initial_loss)
    return ResultColumns(outcome, loss, named("--validation-loss", options.validation_loss), initial)


def _unused(columns: Sequence[str], asked: Asked, named: Iterable[str | None]) -> list[str]:
    taken = {*(axis.column for axis in asked.axes), asked.seed, asked.steps, *asked.where}
    taken |= set(named)
    return [name for name in columns if name not in taken]


def _fixed(unused: Sequence[str]) -> list[str]:
    return [name for name in unused if name not in _OWN]


def _refuse(options: ImportOptions, names: Sequence[str], what: str) -> None:
    """Raise InputError for an option that has no meaning for this source."""
    for name in names:
        if getattr(options, name):
            option = {"stopping": "--set"}.get(name, f"--{name.replace('_', '-')}")
            raise InputError(Problem(option, str(getattr(options, name)), what, "leave it out"))


def _refuse_judged(options: ImportOptions) -> None:
    """Raise InputError for options of results where the detector judges curves."""
    _refuse(
        options,
        ("outcome", "map", "diverged_above", "validation_loss", "initial_loss"),
        "is for a table with a run in each row: here the curves say how runs ended",
    )


def _none(source: str, left_out: Sequence[LeftOut]) -> Problem:
    return Problem(
        source, "", "holds no run that can be used", "; ".join(map(str, left_out[:_SHOWN])) or "is it empty?"
    )

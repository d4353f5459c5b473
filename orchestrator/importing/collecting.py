"""Collect the runs of all sources of an import, and write them to the ledger of a results folder."""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from orchestrator.base import __version__
from orchestrator.base.errors import InputError, Problem
from orchestrator.base.files import LEDGER, sweep_lock, whole_database
from orchestrator.base.measure import SCORE, Measure, score_fact
from orchestrator.base.space import Axis, canonical_text, trial_id
from orchestrator.base.vocabulary import IMPORTED
from orchestrator.base.words import count
from orchestrator.detection.config import StoppingConfig
from orchestrator.importing.options import ImportOptions
from orchestrator.importing.outcomes import (
    CurveColumns,
    LoggedRuns,
    ResultColumns,
    logs_of_rows,
    outcome_rules,
    runs_of_logs,
    runs_of_rows,
)
from orchestrator.importing.rows import RUN, LeftOut, Rows, is_chart, read_tables, rows_of_chart
from orchestrator.importing.runs import (
    OF_TRIAL,
    Run,
    SettingColumns,
    Settings,
    axes_of,
    chosen_rows,
    count_of,
    differing_columns,
    in_order,
    near_note,
    number_of,
    settings_of_rows,
    with_seeds,
)
from orchestrator.importing.scores import check_curves_of_losses, optimized_column, scored
from orchestrator.importing.sources import OPTUNA, is_store, rows_of_studies, runs_in, runs_of_experiment
from orchestrator.importing.spool import Row
from orchestrator.ledger.facts import BY_CURVES, IMPORTED_FACT, Imported, ImportedTrial, imported_fact, imported_of
from orchestrator.ledger.reader import LedgerReader
from orchestrator.ledger.writer import LedgerWriter
from orchestrator.sweepfile.sections import NAME_PATTERN

_MAX_LISTED = 5


def collect(sources: Sequence[str], options: ImportOptions, results: Path) -> Collected:
    """Return the runs in ``sources``. Raises InputError if they cannot be read or hold no run.

    An MLflow experiment is looked up in the store under ``results``, unless the environment names another.
    """
    if any(map(is_store, sources)):
        return _of_stores(sources, options, results)
    for source in sources:
        if not os.path.exists(source):
            raise InputError(Problem(source, "", "no such file or folder", "name tables, or folders of runs"))
    paths = [Path(source) for source in sources]
    folders = [path for path in paths if path.is_dir()]
    if folders and len(folders) < len(paths):
        raise InputError(Problem(str(folders[0]), "", "is a folder among tables", "import each on its own"))
    if folders:
        options.reject(("run",), "applies to a table with a loss in each row")
        return _of_logs(sources, (runs_in(folder, options) for folder in folders), options)
    return (
        _of_curves(sources, options)
        if options.keys.step is not None
        else _of_table(sources, read_tables(paths), options)
    )


def _of_stores(sources: Sequence[str], options: ImportOptions, results: Path) -> Collected:
    kinds = {source.partition(":")[0] for source in sources}
    if len(kinds) > 1:
        message = "is a store of another kind than the other sources"
        raise InputError(Problem(sources[0], "", message, "import each on its own"))
    if kinds == {OPTUNA.rstrip(":")}:
        return _of_table(sources, rows_of_studies(sources), options)
    options.reject(("run", "from_path", "config", "log"), "applies to tables and folders of runs")
    columns = options.log_columns
    return _of_logs(sources, (runs_of_experiment(source, results, columns) for source in sources), options)


def _of_table(sources: Sequence[str], table: Rows, options: ImportOptions) -> Collected:
    """Collect the runs of tables with a run in each row."""
    options.reject(("grad_norm", "run", "from_path", "config", "log", "stopping"), "applies to runs with curves")
    columns, results = _setting_columns(table.columns, options), _result_columns(table, options)
    rows = list(chosen_rows(table.rows, columns.where))
    named = {"outcome": results.outcome, "final_loss": results.loss, "validation_loss": results.validation_loss}
    if isinstance(results.initial_loss, str):
        named["initial_loss"] = results.initial_loss
    unused = _unused(table.columns, columns, named.values())
    rules = outcome_rules(options)
    rules = replace(rules, has_direction=rules.has_direction or results.outcome in table.directions)
    judged_by, runs, left_out = runs_of_rows(rows, columns, results, rules, _fixed(unused))
    left_out = [*table.left_out, *left_out]
    judged_by, runs, score = scored(judged_by, runs, results, table, options)
    if score is not None:
        named["score"] = named.pop("final_loss") or results.outcome
    collected = _collected(sources, judged_by, columns, named, runs, left_out, options, rows, unused)
    return replace(collected, score=score)


def _of_curves(sources: Sequence[str], options: ImportOptions) -> Collected:
    """Collect the runs of tables with a loss in each row."""
    options.reject(("config", "log"), "applies to a folder of runs")
    _reject_results(options)
    table = read_tables(list(map(Path, sources)))
    step, loss, run = options.keys.step, options.keys.loss, options.keys.run
    if step is None or loss is None:
        raise InputError(Problem("--loss", "", "is missing next to --step", "name the column of losses"))
    if is_chart(table, loss):
        table = rows_of_chart(table, step, loss, options.path_pattern)
        if not table.rows:
            raise InputError(_no_run(sources[0], table.left_out))
        run = run or [RUN]
    else:
        message = "applies to a folder of runs, and to a chart with a column for each run"
        options.reject(("from_path",), message)
    columns = _setting_columns(table.columns, options)
    given = [options.column_of("run", name, table.columns) for name in run]
    axes = [axis.column for axis in columns.axes]
    curves = CurveColumns(
        options.column_of("step", step, table.columns),
        options.column_of("loss", loss, table.columns),
        options.column("grad_norm", table.columns),
        given or [*axes, *([columns.seed] if columns.seed else [])],
    )
    runs, repeated = logs_of_rows(chosen_rows(table.rows, columns.where), curves, axes)
    if not given and repeated is not None:
        where = next(itertools.islice(chosen_rows(table.rows, columns.where), repeated, None)).where
        message = f"has a step of another row with the same {', '.join(curves.run)}, and another loss"
        raise InputError(Problem(where, curves.step, message, "name the column that identifies runs: --run NAME"))
    runs.left_out = [*table.left_out, *runs.left_out]
    named = {"step": curves.step, "loss": curves.loss, "grad_norm": curves.grad_norm, "run": ", ".join(curves.run)}
    unused = _unused(table.columns, columns, [*named.values(), *curves.run])
    return _judged(sources, runs, columns, named, unused, options)


def _of_logs(sources: Sequence[str], parts: Iterable[LoggedRuns], options: ImportOptions) -> Collected:
    """Collect runs with a row of settings and a log each."""
    _reject_results(options)
    runs = LoggedRuns()
    for part in parts:
        runs.runs += part.runs
        runs.left_out += part.left_out
    if not runs.runs:
        raise InputError(_no_run(sources[0], runs.left_out))
    names = list(dict.fromkeys(name for row in runs.rows for name in row.values))
    columns = _setting_columns(names, options)
    kept = {id(row) for row in chosen_rows(runs.rows, columns.where)}
    runs.runs = [(row, log) for row, log in runs.runs if id(row) in kept]
    named = {
        key: ", ".join(dict.fromkeys(name for _, log in runs.runs if (name := getattr(log().columns, key)) is not None))
        for key in ("step", "loss", "grad_norm")
    }
    return _judged(sources, runs, columns, named, _unused(names, columns, ()), options)


def _judged(
    sources: Sequence[str],
    runs: LoggedRuns,
    columns: SettingColumns,
    named: Mapping[str, str | None],
    unused: Sequence[str],
    options: ImportOptions,
) -> Collected:
    """Judge runs by their logs."""
    if not runs.runs:
        raise InputError(_no_run(sources[0], runs.left_out))
    settings = settings_of_rows(runs.rows, columns, _fixed(unused))
    known = [(own, log) for own, (_, log) in zip(settings, runs.runs, strict=True) if isinstance(own, Settings)]
    left_out = [*runs.left_out, *(own for own in settings if isinstance(own, LeftOut))]
    judged = runs_of_logs(known, options.stopping)
    return _collected(sources, BY_CURVES, columns, named, judged, left_out, options, runs.rows, unused)


def _collected(
    sources: Sequence[str],
    judged_by: str,
    columns: SettingColumns,
    named: Mapping[str, str | None],
    runs: Sequence[Run],
    left_out: Sequence[LeftOut],
    options: ImportOptions,
    rows: Sequence[Row],
    unused: Sequence[str],
) -> Collected:
    """Give ``runs`` their seeds and axes, in the order of the map. Raises InputError if there are none."""
    kept, repeated = with_seeds(runs)
    if not kept:
        raise InputError(_no_run(sources[0], [*left_out, *repeated]))
    axes, is_scattered = axes_of(kept, columns.axes, options.keys.scattered)
    meanings = {axis.name: axis.column for axis in columns.axes}
    meanings |= {"seed": columns.seed} if columns.seed else {}
    meanings |= {"steps": str(options.keys.steps)} if options.keys.steps is not None else {}
    meanings |= {key: name for key, name in named.items() if name}
    notes = [note for axis in columns.axes if (note := near_note(axis, axes))]
    if differing := differing_columns(rows, columns, unused):
        shown = ", ".join(differing[:_MAX_LISTED]) + (" and others" if len(differing) > _MAX_LISTED else "")
        notes.append(
            f"rows of one cell differ in {shown}, and count as its seeds; --axis NAME makes an axis of a column, "
            "--where NAME=VALUE chooses rows, --seed NAME is for seeds"
        )
    if all(run.result.initial_loss is None and run.result.initial_score is None for run in kept):
        notes.append(
            "no initial value is known: nothing is degraded, and a learning-rate sensitivity leaves out runs without a "
            "final one; initial_loss in a mapping file gives it"
        )
    return Collected(
        sources=tuple(map(str, sources)),
        judged_by=judged_by,
        columns=meanings,
        axes=axes,
        is_scattered=is_scattered,
        runs=in_order(kept, axes),
        left_out=[*left_out, *repeated],
        stopping=options.stopping,
        notes=notes,
    )


# --- columns ---------------------------------------------------------------------------------------


def _setting_columns(columns: Sequence[str], options: ImportOptions) -> SettingColumns:
    steps = options.keys.steps
    if isinstance(steps, str):
        number = count_of(steps)
        steps = options.column("steps", columns) if number is None else number
    where = {options.column_of("where", name, columns): value for name, value in options.keys.where.items()}
    return SettingColumns(options.axis_columns(columns), options.column("seed", columns), steps, where)


def _result_columns(table: Rows, options: ImportOptions) -> ResultColumns:
    """Return the columns of results; without an outcome, the losses are judged, or what a study optimizes."""
    loss = options.column("loss", table.columns)
    outcome = options.column("outcome", table.columns) or loss
    outcome = outcome or optimized_column(table)
    initial = options.keys.initial_loss
    if isinstance(initial, str):
        number = number_of(initial)
        initial = options.column("initial_loss", table.columns) if number is None else float(number)
    return ResultColumns(outcome, loss, options.column("validation_loss", table.columns), initial)


def _unused(columns: Sequence[str], settings: SettingColumns, named: Iterable[str | None]) -> list[str]:
    used = {*(axis.column for axis in settings.axes), settings.seed, settings.steps, *settings.where, *named}
    return [name for name in columns if name not in used]


def _fixed(unused: Sequence[str]) -> list[str]:
    return [name for name in unused if name.lower() not in OF_TRIAL]


def _reject_results(options: ImportOptions) -> None:
    """Raise InputError for columns of results, since the detector judges curves."""
    keys = ("outcome", "map", "diverged_above", "validation_loss", "initial_loss")
    options.reject(keys, "applies to a table with a run in each row: here the curves say how runs ended")
    check_curves_of_losses(options)


def _no_run(source: str, left_out: Sequence[LeftOut]) -> Problem:
    reasons = "; ".join(map(str, left_out[:_MAX_LISTED]))
    return Problem(source, "", "holds no run that can be used", reasons or "is it empty?")


# --- the ledger, written as a whole or not at all --------------------------------------------------

_MAX_NAMED = 1000  # rows left out that the ledger names
_HASHED = (
    "onset_step", "num_spikes", "steps_done", "initial_loss", "best_loss", "final_loss", "peak_loss", "peak_factor",
    "off_share", "risen_share", "norm_rises", "fired", "validation_loss", "best_validation_loss",
    "best_validation_step", "overfit_step", "reason", "verdict_step", "slow_step", "plateau_step", "is_audited",
    "episodes", "curve_digest", "rung_losses", "trial_id", "outcome",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Collected:
    """All that an import brings in, in the order of the map, with notes for the user."""

    sources: tuple[str, ...]
    judged_by: str
    columns: Mapping[str, str]
    axes: Sequence[Axis]
    is_scattered: bool
    runs: Sequence[Run] = field(repr=False)
    left_out: Sequence[LeftOut] = field(repr=False)
    stopping: StoppingConfig
    notes: Sequence[str] = ()
    score: Measure | None = None


def checked_name(name: str) -> str:
    """Return ``name``. Raises InputError if it is not a valid name of a sweep."""
    if not re.fullmatch(NAME_PATTERN, name):
        raise InputError(Problem("--name", name, "is not a valid name of a sweep", "write letters, digits, _ and -"))
    return name


def record(
    folder: Path, name: str, collected: Collected, *, replaces: bool, clock: Callable[[], float] = time.time
) -> bool:
    """Write what was ``collected`` to the ledger in ``folder``; return False if it holds exactly that already.

    Raises InputError if the folder holds trained results, or other imported ones and ``replaces`` is False, and while
    another process writes there.
    """
    trials = [_trial(run) for run in collected.runs]
    digest = _digest(trials, collected)
    if not _is_needed(folder, digest, replaces=replaces):
        return False
    imported = Imported(
        sources=collected.sources,
        judged_by=collected.judged_by,
        columns=collected.columns,
        num_runs=len(trials),
        num_left_out=len(collected.left_out),
        left_out=tuple(map(str, collected.left_out[:_MAX_NAMED])),
        digest=digest,
        imported_at=clock(),
    )
    facts = {
        "name": name,
        "objective": IMPORTED,
        "sweep_version": __version__,
        "axes": canonical_text([{"name": a.name, "scale": a.scale, "ends": a.ends} for a in collected.axes]),
        "ties": "{}",
        "is_sampled": canonical_text(collected.is_scattered),
        "num_spread": "null",
        "stopping": canonical_text(collected.stopping.model_dump()),
        IMPORTED_FACT: imported_fact(imported),
    }
    if collected.score is not None:
        facts[SCORE] = score_fact(collected.score.name, maximize=collected.score.maximize)
    with sweep_lock(folder), whole_database(folder / LEDGER) as path, LedgerWriter(path, clock=clock) as ledger:
        ledger.replace_with_imported(digest[:12], trials, facts)
    return True


def _is_needed(folder: Path, digest: str, *, replaces: bool) -> bool:
    if not (folder / LEDGER).is_file():
        return True
    with LedgerReader(folder / LEDGER) as ledger:
        if not ledger.version or not ledger.facts():
            return True  # an empty ledger, from a run or an import that was interrupted
        known, num_trials = imported_of(ledger.facts()), len(ledger.statuses())
    if known is None:
        message = "holds a sweep that was not imported, which an import never replaces"
        raise InputError(Problem(str(folder), "", message, "say --name NEW_NAME"))
    if known.digest == digest:
        return False
    if not replaces:
        message = f"holds {count(num_trials, 'other run')}, imported from {known.source_text}"
        remedy = "say --name NEW_NAME, or --replace to put these in their place"
        raise InputError(Problem(str(folder), "", message, remedy))
    return True


def _trial(run: Run) -> ImportedTrial:
    settings = run.settings
    config: dict[str, Any] = {**settings.fixed, **settings.cell}
    if settings.steps is not None:
        config["steps"] = settings.steps
    identity = trial_id(IMPORTED, config, run.seed, {})
    result = replace(run.result, trial_id=identity)
    return ImportedTrial(identity, settings.cell, run.seed, config, settings.steps or 0, result, run.curve)


def _digest(trials: Sequence[ImportedTrial], collected: Collected) -> str:
    """Hash runs, results, curves and their description, but not the time.

    Ledgers keep this hash: it must not change with fields that later versions add to a result.
    """
    digest = hashlib.sha256()
    description = (collected.sources, collected.judged_by, dict(collected.columns), collected.is_scattered)
    digest.update(repr((description, [(a.name, a.scale, a.ends) for a in collected.axes])).encode())
    digest.update(repr([str(row) for row in collected.left_out]).encode())
    if collected.score is not None:
        ends = [(trial.result.score, trial.result.initial_score) for trial in trials]
        digest.update(repr((collected.score.name, ends)).encode())
    for trial in trials:
        of_result = ", ".join(f"{name}={getattr(trial.result, name)!r}" for name in _HASHED)
        digest.update(f"({trial.trial_id!r}, {trial.steps!r}, MemberResult({of_result}))".encode())
        for name, values in (trial.curve() if trial.curve is not None else {}).items():
            digest.update(name.encode() + values.tobytes())
    return digest.hexdigest()

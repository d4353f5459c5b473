"""Runs in folders of logs, and in stores: `mlflow:EXPERIMENT` and `optuna:URL#STUDY`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from orchestrator.base.errors import InputError, Problem
from orchestrator.importing.options import ImportOptions
from orchestrator.importing.outcomes import LoggedRuns
from orchestrator.importing.rows import LeftOut, Rows, flat
from orchestrator.importing.spool import Row
from orchestrator.logs.columns import Columns
from orchestrator.logs.files import find_logs, read_log
from orchestrator.logs.tables import Log, make_log
from orchestrator.sweepfile.strict_yaml import load_foreign

MLFLOW, OPTUNA = "mlflow:", "optuna:"
# Written by trainers, Hydra, Lightning, Ray Tune and Weights & Biases.
SETTINGS_FILES = (
    "config.yaml", "config.yml", "config.json", "hparams.yaml", "hparams.yml", "hparams.json", "args.json", "args.yaml",
    "params.json", ".hydra/config.yaml", "files/config.yaml",
)  # fmt: skip
_MAX_BYTES = 16 * 2**20
_MAX_LISTED = 3


# --- folders ---------------------------------------------------------------------------------------


def runs_in(folder: Path, options: ImportOptions) -> LoggedRuns:
    """Return the runs in ``folder``: the logs below one settings file are one run.

    Raises InputError if the folder holds no log.
    """
    logs_of: dict[Path, list[Path]] = {}
    settings_of: dict[Path, Path | None] = {}
    for path in _candidates(folder, options):
        settings = _settings_file(path, folder, options.keys.config)
        run = path if settings is None else settings[0]
        logs_of.setdefault(run, []).append(path)
        settings_of[run] = None if settings is None else settings[1]
    runs = LoggedRuns()
    for run, paths in logs_of.items():
        log = _only_log(run, paths, options)
        if isinstance(log, LeftOut):
            runs.left_out.append(log)
            continue
        values = _settings(Path(log.name), folder, settings_of[run], options)
        if isinstance(values, LeftOut):
            runs.left_out.append(values)
        else:
            runs.runs.append((Row(log.name, values), partial(_same, log)))
    return runs


def _same(log: Log) -> Log:
    return log


def _candidates(folder: Path, options: ImportOptions) -> list[Path]:
    """Return the files that may be logs, without settings files."""
    config, log = options.keys.config, options.keys.log
    names = {Path(name).name for name in (*SETTINGS_FILES, *([config] if config else []))}
    paths = [path for path in find_logs(folder) if path.name not in names]
    if log is not None:
        paths = [path for path in paths if path.match(log)]
        if not paths:
            message = f"no log in {folder} is called {log}"
            raise InputError(Problem(*options.source("log"), message, "write e.g. metrics.csv"))
    return paths


def _settings_file(path: Path, folder: Path, name: str | None) -> tuple[Path, Path] | None:
    """Return the nearest folder above ``path``, up to ``folder``, that has a settings file, and the file, or None."""
    for parent in path.parents:
        for wanted in SETTINGS_FILES if name is None else (name,):
            if (parent / wanted).is_file():
                return parent, parent / wanted
        if parent == folder:
            return None
    return None


def _only_log(run: Path, paths: Sequence[Path], options: ImportOptions) -> Log | LeftOut:
    """Return the only readable log of a run, or why there is none."""
    logs: list[Log] = []
    reasons: list[str] = []
    for path in paths:
        try:
            logs.append(read_log(path, options.log_columns, options.metrics))
        except InputError as error:
            reasons.append(str(error).partition("\n")[0])
    if len(logs) == 1:
        return logs[0]
    if not logs:
        return LeftOut(str(run), f"no log: {'; '.join(reasons[:_MAX_LISTED])}")
    names = ", ".join(str(Path(log.name).relative_to(run)) for log in logs[:_MAX_LISTED])
    example = Path(logs[0].name).name
    return LeftOut(str(run), f"has {len(logs)} logs ({names}): choose one in a mapping file, e.g. log: {example}")


def _settings(log: Path, folder: Path, file: Path | None, options: ImportOptions) -> Mapping[str, Any] | LeftOut:
    values: dict[str, Any] = {}
    if file is not None:
        try:
            values = _read_settings(file)
        except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
            return LeftOut(str(file), f"cannot be read: {str(error).splitlines()[0]}")
    if options.path_pattern is not None:
        relative = log.relative_to(folder).as_posix()
        match = options.path_pattern.search(relative)
        if match is None:
            return LeftOut(str(log), f"its path {relative} does not match --from-path")
        values |= {name: text for name, text in match.groupdict().items() if text is not None}
    return values if values else LeftOut(str(log), "has no settings: no settings file is near it (see --from-path)")


def _read_settings(path: Path) -> dict[str, Any]:
    """Read a settings file; dots join nested names, and Weights & Biases writes each setting under `value`."""
    if path.stat().st_size > _MAX_BYTES:
        raise ValueError("is larger than 16 MiB")
    text = path.read_text(encoding="utf-8")
    values = json.loads(text) if path.suffix == ".json" else load_foreign(text)
    if not isinstance(values, Mapping):
        raise ValueError("has no names and values")
    return flat({key: value["value"] if _is_wrapped(value) else value for key, value in values.items()})


def _is_wrapped(value: Any) -> bool:
    return isinstance(value, Mapping) and "value" in value and set(value) <= {"value", "desc"}


# --- stores ----------------------------------------------------------------------------------------


def is_store(source: str) -> bool:
    """Whether ``source`` names a store, not a file or a folder."""
    return source.startswith((MLFLOW, OPTUNA))


def runs_of_experiment(source: str, results: Path, wanted: Columns) -> LoggedRuns:
    """Return the runs of an MLflow experiment, with their parameters as settings.

    MLFLOW_TRACKING_URI names the store, which is by default under ``results``. Raises InputError if it has no such
    experiment.
    """
    from orchestrator.mirrors.mlflow_store import read_experiment

    runs = LoggedRuns()
    for run_id, settings, table in read_experiment(source.removeprefix(MLFLOW), results):
        where = f"{MLFLOW}{run_id}"
        try:
            log = make_log(where, table, wanted)
        except InputError as error:
            runs.left_out.append(LeftOut(where, str(error).partition("\n")[0].removeprefix(f"{where}: ")))
            continue
        runs.runs.append((Row(where, settings), partial(_same, log)))
    return runs


def rows_of_studies(sources: Sequence[str]) -> Rows:
    """Return a row for each trial of Optuna studies: parameters, `value` (or `values.0` and so on) and `state`.

    Raises InputError if there is no such study, and for studies with other objectives.
    """
    from orchestrator.search.study import read_study

    rows = Rows()
    for source in sources:
        url, _, name = source.removeprefix(OPTUNA).partition("#")
        directions, trials = read_study(url, name)
        if directions != (rows.directions or directions):
            raise InputError(Problem(source, "", "optimises something else than the first study", "import each alone"))
        rows.directions = directions
        for number, trial in trials:
            values = flat(trial)
            rows.add_columns(values)
            rows.rows.append(Row(f"{source}:{number}", values))
    return rows

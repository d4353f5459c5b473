"""Runs that lie in a store: an MLflow experiment, `mlflow:NAME`, or an Optuna study, `optuna:URL#STUDY`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from orchestrator.base.errors import InputError, Problem
from orchestrator.importing.rows import LeftOut, Row, Rows
from orchestrator.logs.columns import Columns
from orchestrator.logs.tables import Log, make_log

MLFLOW, OPTUNA = "mlflow:", "optuna:"


def is_store(source: str) -> bool:
    """Whether ``source`` names a store, not a file or a folder."""
    return source.startswith((MLFLOW, OPTUNA))


def logs_of_experiment(source: str, results: Path, wanted: Columns) -> tuple[list[Row], list[Log], list[LeftOut]]:
    """For each run of an MLflow experiment a row of its parameters and its log; and runs without a curve.

    The store is that of MLFLOW_TRACKING_URI, or the one under ``results``. Raises InputError where it has no such
    experiment.
    """
    from orchestrator.mirrors.mlflow_store import read_experiment

    rows: list[Row] = []
    logs: list[Log] = []
    left_out: list[LeftOut] = []
    for run_id, settings, table in read_experiment(source.removeprefix(MLFLOW), results):
        where = f"{MLFLOW}{run_id}"
        try:
            log = make_log(where, table, wanted)
        except InputError as error:
            left_out.append(LeftOut(where, str(error).partition("\n")[0].removeprefix(f"{where}: ")))
            continue
        rows.append(Row(where, settings))
        logs.append(log)
    return rows, logs, left_out


def rows_of_studies(sources: Sequence[str]) -> Rows:
    """The trials of Optuna studies: their parameters, `value` (or `values.0` and so on) and `state` in a row each.

    Raises InputError where there is no such study.
    """
    from orchestrator.search.study import study_trials

    found = Rows()
    for source in sources:
        url, _, name = source.removeprefix(OPTUNA).partition("#")
        path = Path(url.removeprefix("sqlite:///"))
        if url.startswith("sqlite:///") and not path.is_file():
            raise InputError(Problem(source, "", f"there is no file {path}", "write optuna:sqlite:///PATH#STUDY"))
        for number, values in study_trials(url, name):
            found.columns += [column for column in values if column not in found.columns]
            found.rows.append(Row(f"{source}:{number}", values))
    return found

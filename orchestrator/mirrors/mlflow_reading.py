"""What is read from an MLflow store: the log in a run's metrics, and runs that were left behind."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.base.errors import InputError, Problem
from orchestrator.logs.columns import Columns
from orchestrator.logs.tables import Log, Table, make_log
from orchestrator.mirrors.mlflow_store import folder_tag, shown_uri, sqlite_file, tracking_uri
from orchestrator.sweepfile.sections import TrackingConfig

if TYPE_CHECKING:
    from mlflow import MlflowClient

_PAGE = 1000
_SHOWN = 8


def read_run(run_id: str, results: Path, wanted: Columns) -> Log:
    """The log in an MLflow run's metrics, from MLFLOW_TRACKING_URI or the store under ``results``.

    Raises InputError when there is no such run.
    """
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    name = f"mlflow:{run_id}"
    uri = _store(results, name)
    client = MlflowClient(tracking_uri=uri)
    try:
        table = _metrics(client, run_id, client.get_run(run_id).data.metrics)
    except MlflowException as error:
        cause = str(error).splitlines()[0]
        raise InputError(Problem(name, "", shown_uri(cause), f"looked in {shown_uri(uri)}")) from None
    return make_log(name, table, wanted)


def read_experiment(name: str, results: Path) -> Iterator[tuple[str, dict[str, str], Table]]:
    """Id, parameters and metrics by step of each run of an experiment, from the store that ``read_run`` reads.

    Raises InputError where there is no such experiment.
    """
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    uri, source = _store(results, f"mlflow:{name}"), f"mlflow:{name}"
    client = MlflowClient(tracking_uri=uri)
    try:
        experiment = client.get_experiment_by_name(name)
        if experiment is None:
            known = ", ".join(one.name for one in client.search_experiments(max_results=_PAGE)[:_SHOWN])
            problem = Problem(source, "", f"{shown_uri(uri)} has no experiment {name!r}", f"there are: {known}")
            raise InputError(problem)
        token: str | None = None
        while token != "":
            page = client.search_runs([experiment.experiment_id], max_results=_PAGE, page_token=token)
            for run in page:
                yield run.info.run_id, dict(run.data.params), _metrics(client, run.info.run_id, run.data.metrics)
            token = page.token or ""
    except MlflowException as error:
        cause = str(error).splitlines()[0]
        raise InputError(Problem(source, "", shown_uri(cause), f"looked in {shown_uri(uri)}")) from None


def _store(results: Path, source: str) -> str:
    """MLFLOW_TRACKING_URI, or the store under ``results``. Raises InputError where its file is missing."""
    uri = os.environ.get("MLFLOW_TRACKING_URI") or tracking_uri(TrackingConfig(), results)
    if uri.startswith("sqlite:///") and not Path(uri.removeprefix("sqlite:///")).is_file():
        raise InputError(Problem(source, "", f"no MLflow store at {shown_uri(uri)}", "set MLFLOW_TRACKING_URI"))
    return uri


def _metrics(client: MlflowClient, run_id: str, keys: Iterable[str]) -> Table:
    table = Table()
    for key in keys:
        for metric in client.get_metric_history(run_id, key):
            table.add({key: metric.value} | {"step": metric.step})
    return table


def runs_without_driver(folder: Path, tracking: TrackingConfig) -> int:
    """Number of runs of the sweep in ``folder`` that MLflow lists as RUNNING; call it when no driver has the sweep.

    0 where there is no store, or none that can be read. Creates and changes no store.
    """
    uri, tag = tracking_uri(tracking, folder.parent), folder_tag(folder)
    try:
        if (path := sqlite_file(uri)) is not None:
            # MLflow would create, or migrate, what is only to be read.
            with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
                query = (
                    "SELECT COUNT(*) FROM runs JOIN tags USING (run_uuid) WHERE tags.key = 'sweep.folder'"
                    " AND tags.value = ? AND runs.status = 'RUNNING' AND runs.lifecycle_stage = 'active'"
                )
                return database.execute(query, (tag,)).fetchone()[0]
        from mlflow import MlflowClient

        client = MlflowClient(tracking_uri=uri)
        found = client.get_experiment_by_name(tracking.experiment)
        query = f"tags.`sweep.folder` = '{tag}' and attributes.status = 'RUNNING'"
        return len(client.search_runs([found.experiment_id], query, max_results=_PAGE)) if found is not None else 0
    except Exception:
        return 0

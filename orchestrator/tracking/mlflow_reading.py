"""The log in an MLflow run's metrics."""

from __future__ import annotations

import os
from pathlib import Path

from orchestrator.errors import InputError, Problem
from orchestrator.logs.columns import Columns
from orchestrator.logs.tables import Log, Table, make_log
from orchestrator.sweepfile.sections import TrackingConfig
from orchestrator.tracking.mlflow_store import shown_uri, tracking_uri


def read_run(run_id: str, results: Path, wanted: Columns) -> Log:
    """The log in an MLflow run's metrics, from MLFLOW_TRACKING_URI or the store under ``results``.

    Raises InputError when there is no such run.
    """
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    uri = os.environ.get("MLFLOW_TRACKING_URI") or tracking_uri(TrackingConfig(), results)
    name = f"mlflow:{run_id}"
    if uri.startswith("sqlite:///") and not Path(uri.removeprefix("sqlite:///")).is_file():
        raise InputError(Problem(name, "", f"no MLflow store at {shown_uri(uri)}", "set MLFLOW_TRACKING_URI"))
    client = MlflowClient(tracking_uri=uri)
    table = Table()
    try:
        for key in client.get_run(run_id).data.metrics:
            for metric in client.get_metric_history(run_id, key):
                table.add({key: metric.value} | {"step": metric.step})
    except MlflowException as error:
        cause = str(error).splitlines()[0]
        raise InputError(Problem(name, "", shown_uri(cause), f"looked in {shown_uri(uri)}")) from None
    return make_log(name, table, wanted)

"""`sweep import mlflow:NAME`: the runs of a real MLflow store, judged by their curves."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

import orchestrator
from orchestrator.api.importing import import_results
from orchestrator.base.errors import InputError
from orchestrator.importing.collecting import collect
from orchestrator.importing.options import import_options

pytestmark = pytest.mark.services


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Three runs: one that learns, one that becomes NaN, one without a loss."""
    from mlflow import MlflowClient
    from mlflow.entities import Metric

    folder = tmp_path_factory.mktemp("theirs")
    uri = f"sqlite:///{folder}/mlflow.db"
    client = MlflowClient(tracking_uri=uri)
    experiment = client.create_experiment("theirs", artifact_location=str(folder))
    for lr in ("0.01", "1", "none"):
        run = client.create_run(experiment).info.run_id
        client.log_param(run, "lr", lr)
        if lr != "none":
            losses = [3 / (1 + step / 10) if lr == "0.01" or step < 60 else math.nan for step in range(100)]
            client.log_batch(run, [Metric("train/loss", loss, 0, step) for step, loss in enumerate(losses)])
        client.set_terminated(run)
    return uri


def test_runs_of_an_experiment_become_a_sweep_with_curves(store: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    printed = "\n".join(map(str, import_results(["mlflow:theirs"], "theirs", import_options(axis=["lr"]), tmp_path)))
    assert "imported 2 runs in 2 cells from mlflow:theirs" in printed
    assert "left out: 1 of 3" in printed
    found = orchestrator.load("theirs", tmp_path)
    assert found.trials.set_index("lr").outcome.to_dict() == {0.01: "stable", 1.0: "diverged"}
    assert len(found.trace(found.trials.trial_id[0])) == 100


def test_an_experiment_that_is_not_there_lists_those_that_are(store: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    with pytest.raises(InputError, match=r"(?s)no experiment 'ours'.*theirs"):
        collect(["mlflow:ours"], import_options(axis=["lr"]), tmp_path)

"""`sweep import mlflow:NAME`: the runs of a real MLflow store, judged by their curves."""

import contextlib
import math
import sqlite3
from pathlib import Path

import pytest

import orchestrator
from orchestrator.api.importing import import_results
from orchestrator.base.errors import InputError
from orchestrator.importing.collecting import collect
from orchestrator.importing.options import import_options
from orchestrator.ledger.writer import LedgerWriter

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


def test_the_store_stays_as_it_was(store: str, tmp_path: Path, monkeypatch) -> None:
    path = Path(store.removeprefix("sqlite:///"))
    before = path.read_bytes()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    collect(["mlflow:theirs"], import_options(axis=["lr"]), tmp_path)
    assert path.read_bytes() == before


def test_no_tables_are_made_in_the_database_of_another_program(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "ledger.db"
    LedgerWriter(path).close()
    before = path.read_bytes()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{path}")
    with pytest.raises(InputError, match="has no table experiments"):
        collect(["mlflow:theirs"], import_options(axis=["lr"]), tmp_path)
    assert path.read_bytes() == before


def test_a_store_that_mlflow_would_complete_is_not_changed(store: str, tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "old.db"
    path.write_bytes(Path(store.removeprefix("sqlite:///")).read_bytes())
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE experiments SET name = 'old' WHERE name = 'theirs'")
        db.execute("DELETE FROM experiments WHERE name = 'Default'")  # which MLflow makes again
    before = path.read_bytes()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{path}")
    assert len(collect(["mlflow:old"], import_options(axis=["lr"]), tmp_path).runs) == 2
    assert path.read_bytes() == before


def test_a_database_server_without_the_tables_is_left_alone(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "ledger.db"
    LedgerWriter(path).close()
    before = path.read_bytes()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite+pysqlite:///{path}")  # opened as a server's database
    with pytest.raises(InputError, match="would change the tables"):
        collect(["mlflow:theirs"], import_options(axis=["lr"]), tmp_path)
    assert path.read_bytes() == before

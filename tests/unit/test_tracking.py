from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import mlflow
import pytest
from conftest import QUADRATIC
from mlflow import MlflowClient

from orchestrator.drive import drive, sync_sweep
from orchestrator.executors.inline import InlineExecutor
from orchestrator.files import LEDGER
from orchestrator.ledger import Ledger
from orchestrator.overrides import Overrides
from orchestrator.spec import build_sweep
from orchestrator.strict_yaml import parse_document
from orchestrator.tracking import Mirror, TrackingError, server_command, shown_uri


def tracked_sweep(*sets: str):
    return build_sweep(parse_document(QUADRATIC, "edge.yaml"), Overrides(sets=("tracking.enabled=true", *sets)))


@pytest.fixture(scope="module")
def empty_store(tmp_path_factory) -> Path:
    """A store with its schema in place: making one takes seconds, a copy none."""
    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    MlflowClient(tracking_uri=f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def results(tmp_path: Path, empty_store: Path) -> Path:
    (tmp_path / "results").mkdir()
    shutil.copy(empty_store, tmp_path / "results" / "mlflow.db")
    return tmp_path / "results"


def run(sweep, results: Path) -> int:
    return drive(sweep, results, lambda: InlineExecutor, False)


def all_runs(results: Path):
    client = MlflowClient(tracking_uri=f"sqlite:///{results / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("sweep")
    runs = client.search_runs([experiment.experiment_id], max_results=500)
    parents = [run for run in runs if "sweep.trial_id" not in run.data.tags]
    children = {run.data.tags["sweep.trial_id"]: run for run in runs if "sweep.trial_id" in run.data.tags}
    assert len(children) + len(parents) == len(runs), "a trial has one run"
    return client, parents, children


def test_the_mirror_says_what_the_ledger_says(results: Path) -> None:
    assert run(tracked_sweep(), results) == 0
    client, (parent,), children = all_runs(results)
    with Ledger(results / "edge" / LEDGER, read_only=True) as ledger:
        rows = ledger.trials()
        assert set(children) == {row["trial_id"] for row in rows}
        for row in rows:
            child = children[row["trial_id"]]
            assert child.data.tags["mlflow.parentRunId"] == parent.info.run_id
            assert child.data.tags["outcome"] == row["outcome"]
            assert {name for name in ("stable", "spiked", "diverged", "stalled") if child.data.metrics[name]} == {
                row["outcome"]
            }
            assert child.info.status == "FINISHED"
            assert child.info.run_name.startswith("lr=")
            assert float(child.data.params["lr"]) == row["config"]["lr"]
            assert child.data.params["clip"] == "none"
            assert child.data.params["seed"] == str(row["seed"])
            assert child.data.metrics.get("onset_step") == row["onset_step"]
            trace = ledger.trace(row["trial_id"])
            for name in ("loss", "grad_norm", "update_norm", "lr"):
                history = client.get_metric_history(child.info.run_id, name)
                assert [(m.step, m.value) for m in history] == list(zip(trace["step"], trace[name], strict=True))
    assert {item.path for item in client.list_artifacts(parent.info.run_id)} == {
        "sweep.yaml", "map.csv", "trials.csv", "heatmap.png", "report.html",
    }  # fmt: skip
    assert parent.info.status == "FINISHED"
    assert parent.data.metrics["num_diverged"] == sum(row["outcome"] == "diverged" for row in rows)
    assert parent.data.tags["environment.torch"]


def test_syncing_again_adds_nothing_and_a_deleted_store_is_made_again(results: Path) -> None:
    run(tracked_sweep(), results)

    def content() -> dict:
        client, _, children = all_runs(results)
        return {
            trial_id: (child.data.metrics, len(client.get_metric_history(child.info.run_id, "loss")))
            for trial_id, child in children.items()
        }

    before = content()
    sync_sweep(results / "edge", None)
    assert content() == before
    other = f"sqlite:///{results / 'other' / 'mlflow.db'}"
    (results / "other").mkdir()
    shutil.copy(results / "mlflow.db", results / "other" / "mlflow.db")
    with sqlite3.connect(results / "other" / "mlflow.db") as database:
        for table in ("latest_metrics", "metrics", "tags", "params", "runs"):
            database.execute(f"DELETE FROM {table}")
    database.close()
    sync_sweep(results / "edge", other)
    shutil.copy(results / "other" / "mlflow.db", results / "mlflow.db")
    assert content() == before


def test_a_run_that_was_cut_off_half_way_is_completed_without_duplicates(results: Path) -> None:
    sweep = tracked_sweep()
    run(sweep, results)
    client, _, children = all_runs(results)
    cut = next(iter(children.values()))
    history = client.get_metric_history(cut.info.run_id, "loss")
    client.set_tag(cut.info.run_id, "sweep.mirrored", "")
    client.update_run(cut.info.run_id, status="RUNNING")
    sync_sweep(results / "edge", None)
    assert client.get_metric_history(cut.info.run_id, "loss") == history
    assert client.get_run(cut.info.run_id).info.status == "FINISHED"


def test_every_nth_step_is_logged_when_asked(results: Path) -> None:
    run(tracked_sweep("tracking.every=25"), results)
    client, _, children = all_runs(results)
    stable = next(child for child in children.values() if child.data.tags["outcome"] == "stable")
    assert [m.step for m in client.get_metric_history(stable.info.run_id, "loss")] == [0, 25, 50]


def test_a_store_that_is_down_costs_one_warning_and_no_result(tmp_path: Path, capsys) -> None:
    broken = tmp_path / "store.db"
    broken.write_bytes(b"this is no database" * 100)
    code = run(tracked_sweep(f"tracking.uri=sqlite:///{broken}"), tmp_path / "results")
    output = capsys.readouterr().out
    assert code == 0
    assert output.count("warning:") == 1
    assert "sweep sync edge" in output
    with Ledger(tmp_path / "results" / "edge" / LEDGER, read_only=True) as ledger:
        assert {row["status"] for row in ledger.trials()} == {"finished"}
        with pytest.raises(TrackingError, match="MLflow at sqlite"):
            Mirror(tmp_path / "results" / "edge", tracked_sweep(f"tracking.uri=sqlite:///{broken}").tracking)


def test_passwords_in_a_tracking_uri_are_not_shown() -> None:
    assert shown_uri("https://user:secret@host/path") == "https://host/path"


def test_pages_are_served_on_loopback_only(tmp_path: Path) -> None:
    command = server_command("sqlite:///x.db", tmp_path, 5001, "python")
    assert command[command.index("--host") + 1] == "127.0.0.1"
    assert command[command.index("--allowed-hosts") + 1] == "127.0.0.1:5001,localhost:5001"


def test_the_mirror_leaves_the_global_tracking_state_alone(results: Path) -> None:
    before = mlflow.get_tracking_uri()
    run(tracked_sweep(), results)
    assert mlflow.get_tracking_uri() == before
    assert mlflow.active_run() is None

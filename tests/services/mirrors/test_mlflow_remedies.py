"""The answer on remedies in MLflow: on the run of the trial, written once, and again after another question."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import mlflow
import pytest
from mlflow import MlflowClient

SWEEP = """
name: beyond
objective: quadratic
steps: 80
axes: {lr: {values: [0.5, 3.0]}}
fixed: {optimizer: sgd, beta1: 0.0, warmup: 40}
tracking: {to: [mlflow]}
"""
ASKED = ("--fork", "0", "--replicates", "1", "--no-pairs")


@pytest.fixture
def call(command_line: Callable, tmp_path: Path) -> Callable[..., str]:
    (tmp_path / "beyond.yaml").write_text(SWEEP)

    def run(*arguments: str) -> str:
        code, printed = command_line(*arguments, "--results", str(tmp_path / "results"))
        assert code == 0, printed
        return printed

    return run


def unstable_run(tmp_path: Path) -> tuple[MlflowClient, mlflow.entities.Run]:
    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'results' / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("sweep")
    runs = client.search_runs([experiment.experiment_id], "tags.outcome = 'diverged'")
    (run,) = [run for run in runs if "sweep.trial_id" in run.data.tags]
    return client, run


def test_the_run_of_the_trial_has_its_remedies_and_another_question_replaces_them(
    call: Callable[..., str], tmp_path: Path
) -> None:
    call("run", str(tmp_path / "beyond.yaml"), "--executor", "inline")
    client, before = unstable_run(tmp_path)
    assert "remedy.cheapest" not in before.data.tags
    assert "2 trials are in MLflow" in call("remedy", "beyond", *ASKED, "--try", "lr=x0.5,x0.99")
    client, run = unstable_run(tmp_path)
    assert run.info.run_id == before.info.run_id
    assert run.data.tags["remedy.cheapest"] == run.data.tags["remedy.best"] == "lr x0.5 from step 0"
    assert run.data.tags["remedy.control_repeats"] == "yes"
    assert run.data.tags["diagnosis"] == "step over the threshold from the start"
    assert run.data.metrics["remedies_tried"] == 2
    assert run.data.metrics["remedies_helped"] == 1
    assert run.data.metrics["remedy_cheapest_step"] == 0
    assert {item.path for item in client.list_artifacts(run.info.run_id)} == {"remedies.json", "remedies.png"}
    table = json.loads(Path(client.download_artifacts(run.info.run_id, "remedies.json")).read_text())
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    found = [(row["remedy"], row["saved"], row["helped"]) for row in rows]
    assert found == [("lr x0.5", 1, True), ("lr x0.99", 0, False)]

    call("sync", "beyond")
    assert len(client.get_metric_history(run.info.run_id, "remedies_tried")) == 1, "it is there already"
    call("remedy", "beyond", *ASKED, "--try", "lr=x0.99")
    _, run = unstable_run(tmp_path)
    assert run.data.tags["remedy.cheapest"] == "none"
    assert run.data.metrics["remedies_tried"] == 1, "the last question counts, though its number is lower"
    (tmp_path / "results" / "mlflow.db").unlink()
    call("sync", "beyond")
    _, again = unstable_run(tmp_path)
    assert {name: again.data.tags[name] for name in run.data.tags if name.startswith("remedy.")} == {
        name: value for name, value in run.data.tags.items() if name.startswith("remedy.")
    }

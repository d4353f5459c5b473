"""Replay of a run in MLflow."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
from mlflow import MlflowClient
from sweep_cases import learning

from orchestrator.logs.columns import Columns
from orchestrator.mirrors.mlflow_store import read_run

PNG = b"\x89PNG\r\n\x1a\n"


CALM = learning(300)


def test_a_run_in_mlflow_is_read_and_one_that_is_not_there_is_an_error(
    tmp_path: Path, command_line: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    code, text = command_line("replay", "mlflow:abc")
    assert (code, "error: mlflow:abc: no MLflow store" in text) == (2, True)
    Path("results").mkdir()
    client = MlflowClient(tracking_uri=f"sqlite:///{Path('results/mlflow.db').absolute()}")
    run_id = client.create_run(client.create_experiment("any")).info.run_id
    losses = [*CALM[:40], math.inf]
    for step, loss in enumerate(losses):
        client.log_metric(run_id, "train_loss", loss, step=5 * step)
        client.log_metric(run_id, "grad_norm", 7.0 + step, step=5 * step)
        client.log_metric(run_id, "val_loss", 1.0, step=5 * step)
    log = read_run(run_id, Path("results"), Columns())
    assert log.columns == Columns("step", "train_loss", "grad_norm")
    assert log.step_N.tolist() == list(range(0, 205, 5))
    assert log.loss_N.tolist() == losses
    assert log.grad_norm_N.tolist() == [7.0 + step for step in range(41)]
    code, text = command_line("replay", f"mlflow:{run_id}", "--figures", "pictures")
    assert code == 0, text
    assert text.splitlines()[1].split()[1:3] == ["41", "diverged"]
    assert [picture.read_bytes()[:8] for picture in Path("pictures").iterdir()] == [PNG]
    code, text = command_line("replay", "mlflow:abc")
    assert (code, "error: mlflow:abc: " in text, "remedy: looked in sqlite" in text) == (2, True, True)

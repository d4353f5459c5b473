"""What `sweep run` and `sweep sync` say of trackers."""

import importlib.util
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("without_files")
TO_TENSORBOARD = [
    "edge.yaml",
    "--executor",
    "inline",
    "--set",
    "tracking.enabled=true",
    "--set",
    "tracking.to=[tensorboard]",
]


def test_a_run_writes_to_the_trackers_of_its_file_and_says_where(sweep_command, tmp_path: Path) -> None:
    code, text = sweep_command("run", *TO_TENSORBOARD)
    assert code == 0
    assert "mirroring to TensorBoard ..." in text
    assert "tensorboard: results/edge/tensorboard\n" in text
    assert "mlflow" not in text
    assert len(list((tmp_path / "results/edge/tensorboard/trials").iterdir())) == 12
    assert not (tmp_path / "results/mlflow.db").exists()
    _, text = sweep_command("run", *TO_TENSORBOARD)
    assert "mirroring" not in text, "the marker says that all is there"


def test_a_tracker_that_is_down_costs_one_warning_and_sync_completes_it(sweep_command, tmp_path: Path) -> None:
    store = tmp_path / "results/edge/tensorboard"
    store.parent.mkdir(parents=True)
    store.write_text("in the way")
    code, text = sweep_command("run", *TO_TENSORBOARD)
    assert code == 0
    assert text.count("warning:") == 1
    assert "warning: TensorBoard at results/edge/tensorboard: " in text
    assert "remedy: `sweep sync edge` writes what is missing" in text
    assert "12/12 trials" in text
    code, text = sweep_command("sync", "edge", "--to", "tensorboard")
    assert code != 0
    assert text.startswith("error: TensorBoard at results/edge/tensorboard: ")
    store.unlink()
    code, text = sweep_command("sync", "edge", "--to", "tensorboard")
    assert (code, text) == (0, "12 trials are in TensorBoard at results/edge/tensorboard\n")


def test_sync_can_write_to_a_tracker_that_the_file_does_not_name(sweep_command) -> None:
    sweep_command("run", "edge.yaml", "--executor", "inline")
    code, text = sweep_command("sync", "edge", "--to", "tensorboard")
    assert (code, text) == (0, "12 trials are in TensorBoard at results/edge/tensorboard\n")
    code, text = sweep_command("sync", "edge", "--to", "wandbb")
    assert code == 2
    assert "'wandbb' is unknown" in text
    assert "mlflow, tensorboard, wandb" in text


def test_a_tracker_without_its_library_is_refused_before_training(sweep_command, tmp_path: Path, monkeypatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "wandb" else find(name, *rest))
    code, text = sweep_command("run", *TO_TENSORBOARD[:-1], "tracking.to=[wandb]")
    assert code == 2
    assert "tracking.to: Weights & Biases needs the package wandb, which is not installed" in text
    assert "pip install 'wandb" in text
    assert not (tmp_path / "results").exists()

"""Weights & Biases and TensorBoard as their users meet them; `make test-trackers` installs both."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import psutil
import pytest
from stored_sweeps import read_run
from sweep_cases import sweep_with

from orchestrator.driver.runner import run_sweep
from orchestrator.executors.inline import InlineExecutor
from orchestrator.pictures.exports import export_all
from orchestrator.sweepfile.sections import TrackingConfig
from orchestrator.tracking.mirror import Mirror
from orchestrator.tracking.tracker import TrackingError, tracker_class

pytestmark = pytest.mark.trackers


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A sweep that was trained, with its exports; no server and no key are known."""
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    run_sweep(sweep_with("steps=30"), tmp_path / "edge", InlineExecutor)
    export_all(tmp_path / "edge")
    return tmp_path / "edge"


def mirror_to(name: str, folder: Path) -> None:
    with Mirror(folder, TrackingConfig(), tracker=tracker_class(name)) as mirror:
        mirror.mirror_sweep([folder / "heatmap.png", folder / "map.csv"])


def test_without_a_key_runs_stay_in_the_folder_nothing_is_printed_and_no_process_is_left(folder, capfd) -> None:
    before = set(psutil.Process().children(recursive=True))
    capfd.readouterr()
    mirror_to("wandb", folder)
    assert capfd.readouterr() == ("", "")
    _, alive = psutil.wait_procs(set(psutil.Process().children(recursive=True)) - before, timeout=10)
    assert alive == []
    runs = [read_run(path) for path in folder.glob("wandb/offline-run-*/*.wandb")]
    assert [run["kind"] for run in runs].count("trial") == 12
    [sweep] = [run for run in runs if run["kind"] == "sweep"]
    assert len(sweep["tables"]["map"]) == 6
    assert sweep["files"] == ["heatmap.png", "map.csv"]
    assert len(list(folder.glob("wandb/offline-run-*/files/media/images/heatmap_*.png"))) == 1
    assert "WANDB_DATA_DIR" not in os.environ


def test_a_run_that_is_lost_or_was_not_written_to_its_end_is_written_again(folder: Path) -> None:
    mirror_to("wandb", folder)

    def trials() -> dict[str, Path]:
        runs = {path.parent: read_run(path) for path in folder.glob("wandb/offline-run-*/*.wandb")}
        return {run["config"]["trial_id"]: place for place, run in runs.items() if run["kind"] == "trial"}

    before = trials()
    listed = folder / "wandb" / "sweep.jsonl"
    cut, lost = (json.loads(line)["trial_id"] for line in listed.read_text().splitlines()[-1:-3:-1])
    listed.write_text(listed.read_text()[:-20])  # the writer died in its last line
    shutil.rmtree(before[lost])
    mirror_to("wandb", folder)
    after = trials()
    assert set(after) == set(before)
    assert {trial for trial in before if after[trial] != before[trial]} <= {cut, lost}
    assert {json.loads(line)["trial_id"] for line in listed.read_text().splitlines()[-2:]} == {cut, lost}


def test_runs_are_known_after_their_folder_was_moved(folder: Path, tmp_path: Path) -> None:
    mirror_to("wandb", folder)
    (tmp_path / "elsewhere").mkdir()
    moved = folder.rename(tmp_path / "elsewhere" / "edge")
    versions = tracker_class("wandb")(moved, TrackingConfig(), lambda: None).known.values()
    assert len(versions) == 12
    assert "" not in versions


def test_a_run_of_the_users_own_in_this_process_goes_on(folder: Path, tmp_path: Path) -> None:
    import wandb

    own = wandb.init(mode="offline", dir=str(tmp_path), id="own", settings=wandb.Settings(silent=True))
    mirror_to("wandb", folder)
    assert wandb.run is own
    own.log({"loss": 1.0}, step=3)
    own.finish()
    wandb.teardown()  # which waits until the file is written
    [path] = tmp_path.glob("wandb/offline-run-*-own/*.wandb")
    assert read_run(path)["history"][0][1]["loss"] == 1.0


def test_a_server_that_cannot_be_reached_is_one_tracking_error(folder, monkeypatch, capfd) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setattr("orchestrator.tracking.wandb._TIMEOUT_S", 3)
    capfd.readouterr()
    with pytest.raises(TrackingError, match=r"^Weights & Biases at http://127.0.0.1:9 \(project sweep\): "):
        mirror_to("wandb", folder)
    assert capfd.readouterr() == ("", "")
    monkeypatch.setenv("WANDB_MODE", "offline")
    mirror_to("wandb", folder)
    assert len(list(folder.glob("wandb/offline-run-*"))) == 13


def test_tensorboard_finds_the_values_and_results_of_every_trial_and_cell(folder: Path) -> None:
    from tensorboard import context
    from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
    from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
    from tensorboard.plugins import base_plugin
    from tensorboard.plugins.hparams import api_pb2, backend_context, list_session_groups

    mirror_to("tensorboard", folder)
    events = EventMultiplexer()
    events.AddRunsFromDirectory(str(folder / "tensorboard"))
    events.Reload()
    provider = MultiplexerDataProvider(events, "logs")
    request = api_pb2.ListSessionGroupsRequest(start_index=0, slice_size=100, allowed_statuses=[0, 1, 2, 3])
    backend = backend_context.Context(base_plugin.TBContext(data_provider=provider))
    groups = list_session_groups.Handler(context.RequestContext(), backend, "", request).run().session_groups
    levels = [group.hparams["level"].string_value for group in groups]
    assert (levels.count("trial"), levels.count("cell")) == (12, 6)
    cell = next(group for group in groups if group.hparams["level"].string_value == "cell")
    metrics = {metric.name.tag: metric.value for metric in cell.metric_values}
    assert 0 <= metrics["stable_fraction"] <= 1
    pictures = provider.list_blob_sequences(context.RequestContext(), experiment_id="", plugin_name="images")
    assert {run: list(tags) for run, tags in pictures.items()} == {"sweep": ["heatmap.png"]}

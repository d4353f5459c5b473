"""Weights & Biases and TensorBoard as their users meet them; `make test-trackers` installs both."""

import json
import math
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from stored_sweeps import in_tensorboard, read_run
from sweep_cases import sweep_with

from orchestrator.base.files import LEDGER
from orchestrator.driver.runner import run_sweep
from orchestrator.executors.inline import InlineExecutor
from orchestrator.ledger.reader import LedgerReader
from orchestrator.logs.columns import Columns
from orchestrator.logs.files import find_logs, read_log
from orchestrator.maps.table import read_table
from orchestrator.mirrors.mirror import Mirror
from orchestrator.mirrors.records import log_columns, running_record
from orchestrator.mirrors.tracker import Point, TrackingError, tracker_class
from orchestrator.pages.report import export_all
from orchestrator.sweepfile.sections import TrackingConfig

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
    _, alive = psutil.wait_procs(set(psutil.Process().children(recursive=True)) - before, timeout=60)
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


def test_after_a_move_the_next_run_names_the_copies_of_tables_in_their_new_place(folder: Path, tmp_path: Path) -> None:
    mirror_to("wandb", folder)
    wandb = tracker_class("wandb")
    assert wandb.may_exist(folder, TrackingConfig())
    (tmp_path / "elsewhere").mkdir()
    moved = folder.rename(tmp_path / "elsewhere" / "edge")
    assert not wandb.may_exist(moved, TrackingConfig()), "so that a run looks"
    before = {path: path.stat().st_mtime_ns for path in moved.glob("wandb/offline-run-*/*.wandb")}
    mirror_to("wandb", moved)
    assert wandb.may_exist(moved, TrackingConfig())
    after = {path: path.stat().st_mtime_ns for path in moved.glob("wandb/offline-run-*/*.wandb")}
    assert (len(after), len(before.items() & after.items())) == (13, 12), "only the run of the sweep is written again"
    content = b"".join(path.read_bytes() for path in after)
    assert str(folder).encode() not in content
    for name in re.findall(rb"/[ -~]*/artifacts/staging/tmp\w{8}", content):
        assert Path(name.decode()).is_file()
    assert b"/artifacts/staging/" in content


def test_what_is_not_written_to_its_end_is_no_complete_run(folder: Path, tmp_path: Path) -> None:
    from orchestrator.mirrors.wandb_service import is_complete

    mirror_to("wandb", folder)
    whole = max(folder.glob("wandb/offline-run-*/*.wandb"), key=lambda path: path.stat().st_size)
    assert is_complete(whole)
    content, cut = whole.read_bytes(), tmp_path / "cut"
    for length in {0, 1, 7, 8, 13, 14, 4096, len(content) // 2, len(content) - 1}:
        cut.write_bytes(content[:length])
        assert not is_complete(cut), length
    cut.write_bytes(content[:100] + bytes([content[100] ^ 1]) + content[101:])
    assert not is_complete(cut)


@pytest.mark.parametrize(
    ("variables", "machine", "is_online"),
    [
        ({}, None, False),
        ({}, "api.wandb.ai", True),
        ({}, "api.forge.coreweave.com", True),
        ({}, "example.org", False),
        ({"WANDB_BASE_URL": "http://example.org:8080"}, "example.org:8080", True),
        ({"WANDB_BASE_URL": "http://example.org:8080"}, "api.wandb.ai", False),
        ({"WANDB_API_KEY": "0" * 40}, None, True),
        ({"WANDB_API_KEY": "0" * 40, "WANDB_MODE": "offline"}, None, False),
        ({"WANDB_MODE": "online"}, None, True),
    ],
)
def test_runs_are_uploaded_where_a_key_of_the_server_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], machine: str | None, is_online: bool
) -> None:
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    if machine is not None:
        (tmp_path / "netrc").write_text(f"machine {machine} login user password {'0' * 40}\n")
    shown = tracker_class("wandb").shown_store(tmp_path / "edge", TrackingConfig())
    assert shown.startswith("http") == is_online


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


def test_a_run_of_the_users_own_is_read_from_the_file_that_it_left(tmp_path: Path) -> None:
    import wandb

    losses = [2 + 8 / (1 + step) if step != 70 else math.nan for step in range(100)]
    with wandb.init(mode="offline", dir=str(tmp_path), settings=wandb.Settings(silent=True)) as run:
        for step, loss in enumerate(losses):
            run.log({"train/loss": loss, "optim/grad_norm": 1.5, "lr": 3e-4}, step=3 * step)
    wandb.teardown()  # else it keeps the address of its server for later tests
    (path,) = find_logs(tmp_path)
    log = read_log(path, Columns())
    assert log.step_N.tolist() == [3 * step for step in range(100)]
    assert repr(log.loss_N.tolist()) == repr(losses)
    assert (log.columns.loss, log.columns.step) == ("train/loss", "_step")


def test_a_server_that_cannot_be_reached_is_one_tracking_error(folder, monkeypatch, capfd) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setattr("orchestrator.mirrors.wandb._TIMEOUT_S", 3)
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


def test_a_tensorboard_that_watches_a_trial_shows_each_point_once(folder: Path) -> None:
    from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer

    store = Mirror(folder, TrackingConfig(every=1), tracker=tracker_class("tensorboard"))
    events = EventMultiplexer()

    def curve() -> list[tuple[int, float]]:
        events.AddRunsFromDirectory(str(folder / "tensorboard"))
        events.Reload()
        [run] = [name for name in events.Runs() if name.startswith("trials")]
        return [(event.step, event.tensor_proto.float_val[0]) for event in events.Tensors(run, "loss")]

    with store, LedgerReader(folder / LEDGER) as ledger:
        row = ledger.trials()[0]
        logs = log_columns(read_table(ledger).axes)
        for attempt, first, end in (("one", 0, 10), ("one", 10, 20), ("another", 0, 5)):
            running = replace(row, status="running", pack_id=attempt)
            record, _ = running_record(ledger, running, logs, "edge", 0)
            points = [Point("loss", 100.0 + step, step) for step in range(first, end)]
            store.tracker.write_running(replace(record, points=points))
            assert curve() == [(step, 100.0 + step) for step in range(end)]
        store.mirror_trials(ledger, [row.trial_id])
        trace = ledger.trace(row.trial_id)
    assert curve() == list(zip(trace["step"].tolist(), trace["loss"].astype("float32").tolist(), strict=True))


def test_after_a_move_tensorboard_shows_the_same_and_nothing_is_written(folder: Path, tmp_path: Path) -> None:
    mirror_to("tensorboard", folder)
    before = in_tensorboard(folder)
    (tmp_path / "elsewhere").mkdir()
    moved = folder.rename(tmp_path / "elsewhere" / "edge")
    files = {path: path.stat().st_mtime_ns for path in moved.rglob("tensorboard/**/*")}
    assert in_tensorboard(moved) == before
    mirror_to("tensorboard", moved)
    assert {path: path.stat().st_mtime_ns for path in moved.rglob("tensorboard/**/*")} == files
    assert all(str(folder).encode() not in path.read_bytes() for path in files if path.is_file())

"""Health of a sweep's trackers."""

import importlib.util
import shutil
from pathlib import Path

import pytest
from sweep_cases import ledger_at, record, sweep_of

from orchestrator.base.files import FROZEN_SWEEP, sweep_lock
from orchestrator.health import Finding, examine_sweep
from orchestrator.mirrors.mirror import Mirror
from orchestrator.mirrors.tracker import tracker_class
from orchestrator.sweepfile.sections import TrackingConfig

AXES = "axes: {lr: {values: [0.1, 0.2]}}\n"
SWEEP = sweep_of(f"{AXES}tracking: {{to: [tensorboard]}}\n")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A finished sweep that no tracker has."""
    with ledger_at(tmp_path) as ledger:
        record(ledger, SWEEP, ["stable", "diverged"])
    (tmp_path / FROZEN_SWEEP).write_text(SWEEP.text)
    return tmp_path


def mirror(folder: Path) -> None:
    with Mirror(folder, TrackingConfig(), tracker=tracker_class("tensorboard")) as store:
        store.mirror_sweep([])


def about_tensorboard(folder: Path) -> list[Finding]:
    return [finding for finding in examine_sweep(folder) if "TensorBoard" in finding.text]


def test_a_tracker_that_was_never_written_is_a_note_with_the_command_that_writes_it(folder: Path) -> None:
    [finding] = about_tensorboard(folder)
    assert finding.level == "note"
    assert finding.text == f"TensorBoard at {folder}/tensorboard does not have all results of the ledger"
    assert finding.remedy == f"`sweep sync {folder.name} --to tensorboard` writes what is missing"
    assert not (folder / "tensorboard").exists(), "looking makes no store"


def test_a_tracker_with_all_results_is_sound(folder: Path) -> None:
    mirror(folder)
    [finding] = about_tensorboard(folder)
    assert (finding.level, finding.text) == ("ok", f"TensorBoard at {folder}/tensorboard has all results of the ledger")


def test_trials_that_were_deleted_from_a_store_are_counted(folder: Path) -> None:
    mirror(folder)
    first, second = sorted((folder / "tensorboard" / "trials").iterdir())
    shutil.rmtree(first)
    next(second.glob("*.main")).unlink()
    [finding] = about_tensorboard(folder)
    assert (finding.level, finding.text) == ("note", f"TensorBoard at {folder}/tensorboard has lost 2 trials")
    mirror(folder)
    assert [finding.level for finding in about_tensorboard(folder)] == ["ok"]


def test_a_store_that_cannot_be_used_is_named(folder: Path) -> None:
    mirror(folder)
    (folder / "tensorboard").rename(folder / "elsewhere")
    (folder / "tensorboard").symlink_to(folder / "elsewhere")
    [finding] = about_tensorboard(folder)
    assert finding.level == "note"
    assert "is a link to" in finding.text


def test_nothing_is_said_while_a_driver_writes_or_of_a_sweep_without_trackers(folder: Path) -> None:
    with sweep_lock(folder):
        assert about_tensorboard(folder) == []
    (folder / FROZEN_SWEEP).write_text(sweep_of(f"{AXES}tracking: {{enabled: false}}\n").text)
    assert about_tensorboard(folder) == []


def test_a_tracker_without_its_library_is_a_note(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: find(name) if name != "tensorboardX" else None)
    [finding] = about_tensorboard(folder)
    assert finding.level == "note"
    assert "needs the package tensorboardX, which is not installed" in finding.text


def test_partial_event_files_are_found_and_are_none_that_tensorboard_reads(folder: Path) -> None:
    mirror(folder)
    [place, _] = sorted((folder / "tensorboard" / "trials").iterdir())
    (place / ".0a1b2c3d.part").write_bytes(b"half an event")
    [finding] = [finding for finding in examine_sweep(folder) if "partial files" in finding.text]
    assert finding.repair is not None
    finding.repair()
    assert not (place / ".0a1b2c3d.part").exists()

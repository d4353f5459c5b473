"""Event files of trials: what they hold besides the words that all trackers share."""

from dataclasses import replace
from pathlib import Path

import pytest
from stored_sweeps import read_events

from orchestrator.mirrors.tensorboard import TensorBoardTracker
from orchestrator.mirrors.tracker import CellKey, Point, TrialRecord
from orchestrator.sweepfile.sections import TrackingConfig

CELL = CellKey("c0ffee00", "lr=0.1 text=a/b", {"lr": 0.1, "log10_lr": "-1", "text": "a/b"})
TRIAL = TrialRecord(
    trial_id="0123456789abcdef",
    name="lr=0.1 text=a/b seed=0",
    version="2:finished:p1",
    status="finished",
    cell=CELL,
    values={**CELL.values, "clip": None, "qk_norm": True, "seed": 0},
    tags={"status": "finished", "outcome": "diverged"},
    points=[Point("loss", 2.0, 0), Point("loss", 1e39, 2), Point("loss", 3.0, 1), Point("final_loss", 3.0, 0)],
    started_s=1000.0,
    finished_s=1010.0,
    position=0,
    shares={"learned_share": 0.5},
)


@pytest.fixture
def tracker(tmp_path: Path) -> TensorBoardTracker:
    return TensorBoardTracker(tmp_path / "edge", TrackingConfig(), lambda: None)


def only_folder(tmp_path: Path) -> Path:
    [folder] = (tmp_path / "edge" / "tensorboard" / "trials").iterdir()
    return folder


def test_a_trial_has_its_curves_by_step_and_a_session_of_the_hparams_plugin(tracker, tmp_path: Path) -> None:
    tracker.write_trial(TRIAL)
    found = read_events(only_folder(tmp_path))
    assert found.scalars["loss"] == [(0, 2.0), (1, 3.0)], "in order, without what has more than 32 bits"
    assert found.values == {
        "level": "trial", "lr": 0.1, "log10_lr": -1.0, "text": "a/b", "clip": "none", "qk_norm": True, "seed": 0.0,
    }  # fmt: skip
    assert found.status == 1, "ended with success"
    assert only_folder(tmp_path).name == "lr=0.1 text=a_b seed=0 01234567"


def test_a_trial_that_is_trained_again_replaces_its_events_under_another_name(tracker, tmp_path: Path) -> None:
    tracker.write_trial(TRIAL)
    before = {path.name for path in only_folder(tmp_path).glob("*tfevents*")}
    assert len(before) == 2, "its events, and its results that depend on other trials"
    again = replace(TRIAL, version="2:finished:p2", points=[Point("loss", 5.0, 0)])
    TensorBoardTracker(tmp_path / "edge", TrackingConfig(), lambda: None).write_trial(again)
    after = {path.name for path in only_folder(tmp_path).glob("*tfevents*")}
    assert len(after) == 2
    assert len(after & before) == 1, "the results that are the same"
    assert read_events(only_folder(tmp_path)).scalars["loss"] == [(0, 5.0)]


def test_a_trial_whose_marker_or_events_are_lost_is_not_complete(tracker, tmp_path: Path) -> None:
    tracker.write_trial(TRIAL)

    def known() -> dict[str, str]:
        return dict(TensorBoardTracker(tmp_path / "edge", TrackingConfig(), lambda: None).known)

    assert known() == {TRIAL.trial_id: TRIAL.version}
    next(only_folder(tmp_path).glob("*.main")).unlink()
    assert known() == {TRIAL.trial_id: ""}
    tracker.write_trial(TRIAL)
    (only_folder(tmp_path) / "sweep.json").write_text("{")
    assert known() == {}
    tracker.write_trial(TRIAL)
    assert known() == {TRIAL.trial_id: TRIAL.version}

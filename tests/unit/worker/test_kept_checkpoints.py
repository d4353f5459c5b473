"""Which checkpoints of a trainer are kept for forks, and what is kept with them."""

import json
import math
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.logs.point_maker import Reading
from orchestrator.worker.forked_run import Keeper, ResumeSteps, drop_trainer_files, needed, restore_fork
from orchestrator.worker.points import Readings, TrialFolder, WatchReadings


@pytest.fixture
def trial(tmp_path: Path) -> TrialFolder:
    folder = TrialFolder(tmp_path / "trials" / "control")
    folder.path.mkdir(parents=True)
    return folder


def save(trial: TrialFolder, content: str, name: str = "ckpt.pt") -> str:
    """As a trainer that replaces its checkpoint."""
    path = trial.path / name
    path.with_suffix(".new").write_text(content)
    os.replace(path.with_suffix(".new"), path)
    return str(path)


def train(trial: TrialFolder, keeper: Keeper, steps: range, every: int, late: int = 0) -> None:
    """A run that saves after every few steps; what it prints is read ``late`` steps later."""
    checkpoint = None
    for step in steps:
        with trial.points.open("a") as file:
            file.write(json.dumps({"step": step, "loss": float(step)}) + "\n")
        for printed in (step - late,) * 2:
            keeper.update(checkpoint, [] if checkpoint is None else [checkpoint], printed if printed >= 0 else None)
        if (step + 1) % every == 0:
            checkpoint = save(trial, f"resumes at {step + 1}")


def resumes(keeper: Keeper) -> dict[int, int]:
    """What the candidates print first that are tried out, as long as one has to be."""
    found: dict[int, int | None] = {}
    while (one := keeper.next_to_try(found)) is not None:
        found[one] = int((keeper.candidate_files(one) / "ckpt.pt").read_text().split()[-1])
    return {one: at for one, at in found.items() if at is not None}


@pytest.mark.parametrize("late", [0, 3])
def test_the_nearest_checkpoint_at_or_before_each_step_is_kept(trial: TrialFolder, tmp_path: Path, late: int) -> None:
    keeper = Keeper(tmp_path / "kept", trial, [0, 5, 10, 34, 70])
    train(trial, keeper, range(100), 10, late)
    keeper.settle(resumes(keeper), None)
    assert ResumeSteps.read(tmp_path / "kept").steps == {5: None, 10: 10, 34: 30, 70: 70}
    assert {path.name for path in (tmp_path / "kept").iterdir()} == {"10", "30", "70", "steps.json"}


def test_a_checkpoint_that_is_seen_a_step_later_than_the_others_is_found_too(
    trial: TrialFolder, tmp_path: Path
) -> None:
    keeper = Keeper(tmp_path / "kept", trial, [50])
    for step in (40, 50):
        checkpoint = save(trial, f"resumes at {step}")
        # That of step 40 is seen before step 40 is printed, that of step 50 after step 50 is.
        first = step - 1 if step == 40 else step
        for printed in (first, first + 1):
            keeper.update(checkpoint, [checkpoint], printed)
    keeper.settle(resumes(keeper), None)
    assert ResumeSteps.read(tmp_path / "kept").steps == {50: 50}


def test_a_checkpoint_has_the_curve_before_the_step_at_which_it_resumes(trial: TrialFolder, tmp_path: Path) -> None:
    keeper = Keeper(tmp_path / "kept", trial, [34])
    train(trial, keeper, range(100), 10)
    keeper.settle(resumes(keeper), None)
    fork = TrialFolder(tmp_path / "trials" / "fork")
    assert restore_fork(tmp_path / "kept", 30, fork)
    assert [json.loads(line)["step"] for line in fork.points.read_text().splitlines()] == list(range(30))
    assert (fork.path / "ckpt.pt").read_text() == "resumes at 30"
    assert not restore_fork(tmp_path / "kept", 31, fork)


def test_a_checkpoint_that_is_still_written_is_not_copied(trial: TrialFolder, tmp_path: Path) -> None:
    keeper = Keeper(tmp_path / "kept", trial, [50])
    path = save(trial, "half")
    keeper.update(path, [path], 9)
    keeper.update(path, [path], 9)
    assert keeper.candidates() == [], "no loss was printed since it changed"
    path = save(trial, "the whole of it")
    keeper.update(path, [path], 10)
    assert keeper.candidates() == [], "it has changed since"
    keeper.update(path, [path], 11)
    assert keeper.candidates() == [10]
    assert (keeper.candidate_files(10) / "ckpt.pt").read_text() == "the whole of it"


def test_of_several_checkpoints_the_newest_alone_is_copied_and_no_file_of_sweep(
    trial: TrialFolder, tmp_path: Path
) -> None:
    keeper = Keeper(tmp_path / "kept", trial, [50])
    paths = [save(trial, "old", "ckpt-1"), save(trial, "new", "ckpt-2")]
    (trial.path / "config.json").write_text("{}")
    for file in (
        trial.settings,
        trial.rows,
        trial.telemetry,
        trial.points,
        trial.readings,
        trial.joules,
        trial.output(0),
        trial.output(1),
    ):
        file.write_text("")
    keeper.update(paths[1], paths, 10)
    keeper.update(paths[1], paths, 11)
    assert {path.name for path in keeper.candidate_files(10).iterdir()} == {"ckpt-2", "config.json"}
    drop_trainer_files(trial)
    assert {path.name for path in trial.path.iterdir()} == {
        "trial.json", "rows.jsonl", "telemetry.jsonl", "points.jsonl", "readings.jsonl", "joules.json", "output.log",
        "output.1.log",
    }  # fmt: skip


def test_no_more_is_kept_while_it_trains_than_the_steps_may_need(trial: TrialFolder, tmp_path: Path) -> None:
    keeper = Keeper(tmp_path / "kept", trial, [40])
    train(trial, keeper, range(100), 5)
    assert len(keeper.candidates()) <= 3


def test_what_is_settled_stays_when_a_killed_control_ends_again(trial: TrialFolder, tmp_path: Path) -> None:
    keeper = Keeper(tmp_path / "kept", trial, [34])
    train(trial, keeper, range(100), 10)
    keeper.settle(resumes(keeper), None)
    keeper.settle({}, "it failed")
    assert ResumeSteps.read(tmp_path / "kept") == ResumeSteps({34: 30}, "it failed")


def test_one_checkpoint_a_step_is_tried_out_where_what_is_printed_is_seen_at_once(
    trial: TrialFolder, tmp_path: Path
) -> None:
    keeper = Keeper(tmp_path / "kept", trial, [34, 71])
    train(trial, keeper, range(100), 10)
    assert sorted(resumes(keeper).values()) == [30, 70]


def test_a_checkpoint_that_cannot_be_resumed_gives_way_to_the_one_before(trial: TrialFolder, tmp_path: Path) -> None:
    keeper = Keeper(tmp_path / "kept", trial, [34])
    train(trial, keeper, range(100), 10)
    first = keeper.next_to_try({})
    assert first == 30
    assert keeper.next_to_try({first: None}) == 20
    assert keeper.next_to_try({first: None, 20: 20}) is None
    keeper.settle({20: 20}, "torn")
    assert ResumeSteps.read(tmp_path / "kept") == ResumeSteps({34: 20}, "torn")


def test_without_a_file_or_with_a_damaged_one_nothing_is_known(tmp_path: Path) -> None:
    assert ResumeSteps.read(tmp_path) == ResumeSteps({}, None)
    (tmp_path / "steps.json").write_text('{"steps": {"3":')
    assert ResumeSteps.read(tmp_path) == ResumeSteps({}, None)


@given(st.sets(st.integers(0, 200)), st.lists(st.integers(1, 200), max_size=4), st.integers(0, 1))
def test_the_nearest_is_always_among_those_that_are_needed(seen: set[int], wanted: list[int], late: int) -> None:
    # A checkpoint that was seen after step p resumes at p + 1, or earlier where printing was seen late.
    kept = needed(seen, wanted)
    for step in wanted:
        nearest = max((p for p in seen if p + 1 - late <= step), default=None)
        assert nearest is None or nearest in kept
    assert needed(kept, wanted) == kept


ROWS = [{"step": 0, "a": 1.0}, {"step": 5, "a": 2.0, "b/all": 3.0}, {"step": 10, "a": 4.0}]
CONTENT = b"".join(json.dumps(row).encode() + b"\n" for row in ROWS)
WHOLE = [Reading(0, {"a": 1.0}), Reading(5, {"a": 2.0, "b/all": 3.0}), Reading(10, {"a": 4.0})]


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_readings_are_the_same_however_the_file_grows(tmp_path: Path, size: int) -> None:
    path = tmp_path / "telemetry.jsonl"
    watched, found = WatchReadings(path), []
    assert watched.take() == []
    assert not watched.has_any
    for at in range(0, len(CONTENT), size):
        with path.open("ab") as file:
            file.write(CONTENT[at : at + size])
        found += watched.take()
    assert found == WHOLE
    assert watched.has_any


@pytest.mark.parametrize(
    "line",
    [
        '{"step": 5, "a": 9',
        "[1]",
        '{"step": true, "a": 1.0}',
        '{"step": -1, "a": 1.0}',
        '{"step": 5, "a": "x"}',
        "\xff",
    ],
)
def test_a_line_that_is_no_reading_is_left_out(tmp_path: Path, line: str) -> None:
    path = tmp_path / "telemetry.jsonl"
    first, *rest = CONTENT.splitlines(keepends=True)
    path.write_bytes(first + line.encode("latin-1") + b"\n" + b"".join(rest))
    assert WatchReadings(path).take() == WHOLE


def test_a_step_that_was_read_before_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "telemetry.jsonl"
    path.write_bytes(CONTENT + b'{"step": 5, "a": 7.0}\n{"step": 15, "a": NaN}\n')
    *same, last = WatchReadings(path).take()
    assert same == WHOLE
    assert last.step == 15
    assert math.isnan(last.values["a"])


def test_readings_of_one_step_from_two_sources_become_one_row_in_the_order_of_steps() -> None:
    readings = Readings()
    readings.add([Reading(4, {"validation_loss": 2.0}), Reading(10, {"validation_loss": 1.0})])
    readings.add(WHOLE)
    trace = readings.take(is_last=True)
    assert trace["step"].tolist() == [0, 4, 5, 10]
    assert trace["validation_loss"][[1, 3]].tolist() == [2.0, 1.0]
    assert trace["a"][[0, 2, 3]].tolist() == [1.0, 2.0, 4.0]


def test_readings_are_never_ahead_of_the_curve() -> None:
    readings = Readings()
    readings.add(WHOLE)
    assert readings.take(is_last=False, last_step=0) == {}
    assert readings.take(is_last=False, last_step=5)["step"].tolist() == [0]
    # A run that ended at step 7, by a verdict that its process had not learned of yet.
    assert readings.take(is_last=True, last_step=7)["step"].tolist() == [5]

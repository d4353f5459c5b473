"""Logs that others write, followed from outside: rotated, truncated, restarted, written anew, or through a pipe."""

import json
import os
import shutil
from pathlib import Path

import pytest

from orchestrator.base.errors import InputError
from orchestrator.logs.columns import Columns, MetricsConfig
from orchestrator.logs.following import FollowedLog, followed_log

DATA = Path(__file__).parents[2] / "data" / "logs"


def lines(first: int, end: int) -> str:
    return "".join(f"step {step} loss {3 - step / 1000:.4f}\n" for step in range(first, end))


def follow(path: object, **columns: str) -> FollowedLog:
    return followed_log(str(path), Columns(**columns), MetricsConfig())


def steps_of(log: FollowedLog) -> list[int]:
    return [point.step for points in log.read() for point in points]


def test_a_file_is_read_as_it_grows_and_says_when_it_does_not(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text("")
    log = follow(path)
    assert (steps_of(log), log.has_grown) == ([], False)
    with open(path, "a") as file:
        file.write(lines(0, 10) + "step 10 lo")
        file.flush()
        assert (steps_of(log), log.has_grown) == ([*range(10)], True)
        file.write("ss 2.9\n")
    assert (steps_of(log), log.has_grown, log.is_over) == ([10], True, False)
    assert (steps_of(log), log.has_grown) == ([], False)
    assert log.note.startswith("loss: loss; step: step")


def test_a_rotated_file_is_read_to_its_end_before_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(lines(0, 10))
    log = follow(path)
    assert steps_of(log) == [*range(10)]
    with open(path, "a") as file:
        file.write(lines(10, 20))
    path.rename(tmp_path / "train.log.1")
    assert steps_of(log) == [], "for a moment there is no file"
    path.write_text(lines(20, 30))
    assert steps_of(log) == [*range(10, 30)]


def test_a_truncated_file_and_a_restarted_run_go_on_where_their_steps_say(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(lines(0, 100))
    log = follow(path)
    steps_of(log)
    path.write_text(lines(60, 90))  # restarted from a checkpoint, which truncates its log
    assert steps_of(log) == [*range(60, 90)]
    with open(path, "a") as file:
        file.write(lines(0, 20))
    assert steps_of(log) == [*range(20)]


def test_a_state_that_is_written_anew_gives_only_what_is_new(tmp_path: Path) -> None:
    history = json.loads((DATA / "trainer_state.json").read_text())["log_history"]
    history.append({"step": 999, "eval_loss": 1.5})
    folder = tmp_path / "out"
    for number in (1, 2, 3):
        (folder / f"checkpoint-{number}").mkdir(parents=True)

    def write(number: int, num: int, content: str | None = None) -> None:
        path = folder / f"checkpoint-{number}" / "trainer_state.json"
        path.write_text(json.dumps({"log_history": history[:num]}) if content is None else content)
        os.utime(path, ns=(number * 10**9, number * 10**9))

    write(1, 11)
    log = follow(folder)
    first = steps_of(log)
    assert (bool(first), log.validation_loss) == (True, None)
    write(2, 30, '{"log_history": [{"st')  # half written
    assert (steps_of(log), log.has_grown) == ([], False)
    write(2, 30)
    second = steps_of(log)
    write(3, len(history))
    assert [*first, *second, *steps_of(log)] == [row["step"] for row in history if "loss" in row]
    assert (steps_of(log), log.has_grown, log.validation_loss) == ([], False, 1.5)


def test_a_folder_of_event_files_is_followed_into_the_next_file(tmp_path: Path) -> None:
    (events,) = (DATA / "tensorboard").iterdir()
    content = events.read_bytes()
    folder = tmp_path / "runs" / "big[1]"
    folder.mkdir(parents=True)
    path = folder / events.name
    path.write_bytes(content[: len(content) // 2])
    log = follow(tmp_path / "runs")
    assert log.name == str(folder)
    first = steps_of(log)
    path.write_bytes(content)
    rest = steps_of(log) + [point.step for point in log.finish()]
    assert [*first, *rest] == sorted({*first, *rest})
    assert len(first) < len({*first, *rest}) == 60


def test_the_newest_log_of_a_folder_is_followed(tmp_path: Path) -> None:
    for name, seconds in (("old.log", 1), ("metrics.csv", 3), ("other.log", 2)):
        (tmp_path / name).write_text("step,loss\n0,3.0\n1,2.9\n" if name == "metrics.csv" else "")
        os.utime(tmp_path / name, (seconds, seconds))
    log = follow(tmp_path)
    assert (log.name, steps_of(log)) == (str(tmp_path / "metrics.csv"), [0, 1])


def test_the_output_of_a_run_is_followed_among_the_files_that_weights_and_biases_writes(tmp_path: Path) -> None:
    contents = {
        "run-1/files/output.log": lines(0, 20), "run-2/files/output.log": lines(0, 30), "run-2/files/config.json": "{}",
        "run-2/files/wandb-summary.json": '{"loss": 2.9, "_step": 29, "_runtime": 12}',
        "run-2/logs/debug-internal.log": '{"time":"2026-01-01","level":"INFO","msg":"flushed 12 rows"}\n' * 9,
    }  # fmt: skip
    for seconds, (name, content) in enumerate(contents.items()):
        path = tmp_path / "wandb" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        os.utime(path, (seconds, seconds))
    assert follow(tmp_path / "wandb").name == str(tmp_path / "wandb" / "run-2" / "files" / "output.log")


def test_a_pipe_is_read_until_its_writer_ends() -> None:
    reading, writing = os.pipe()
    log = followed_log("-", Columns(), MetricsConfig(), reading)
    assert (steps_of(log), log.is_over) == ([], False)
    os.write(writing, lines(0, 3).encode())
    assert steps_of(log) == [0, 1, 2]
    os.write(writing, b"step 3 loss 2.5")
    os.close(writing)
    assert (steps_of(log), log.is_over) == ([], True)
    assert [point.step for point in log.finish()] == [3]
    os.close(reading)


def test_a_closed_standard_input_is_refused() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    os.close(writing)
    with pytest.raises(InputError, match="standard input is closed"):
        followed_log("-", Columns(), MetricsConfig(), reading)


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_a_log_in_utf_16_is_read_as_it_grows(encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "out" / "train.log"
    path.parent.mkdir()
    content = ("\ufeff" + lines(0, 20)).encode(encoding)
    path.write_bytes(content[:101])
    log = follow(path)
    first = steps_of(log)
    with open(path, "ab") as file:
        file.write(content[101:])
    assert [*first, *steps_of(log)] == [*range(20)]
    assert steps_of(follow(path.parent)) == [*range(20)]


@pytest.mark.parametrize(
    ("content", "message", "remedy"),
    [
        (None, "no such file or folder", "touch "),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "is a binary file, not a log", "TensorBoard's and W&B's"),
    ],
)
def test_what_cannot_be_followed_is_refused_with_a_remedy(tmp_path: Path, content, message: str, remedy: str) -> None:
    path = tmp_path / "run.log"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError) as refused:
        follow(path)
    assert str(refused.value).startswith(f"{path}: {message}")
    assert remedy in str(refused.value)


def test_an_empty_folder_and_a_named_pipe_are_refused_too(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no logs"):
        follow(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match=r"not a regular file[^|]*\| sweep watch -"):
        follow(tmp_path / "pipe")
    shutil.rmtree(tmp_path)

"""Files of Weights & Biases are read whole, and followed while they grow."""

import json
import math
import random
from pathlib import Path

import pytest
from wandb_cases import BLOCK, field, history, wandb_file

from orchestrator.logs.columns import Columns, MetricsConfig
from orchestrator.logs.files import find_logs, read_log
from orchestrator.logs.following import followed_log
from orchestrator.logs.wandb_files import WandbLines

ENVIRONMENT = field(23, b"x" * 1000)


def values_at(step: int) -> dict[str, float]:
    return {"train/loss": 2 + 8 * math.exp(-step / 100), "train/grad_norm": 1.5, "lr": 3e-4, "_step": step}


def run(num: int, size: int = 1000) -> bytes:
    """A file with ``num`` steps, and between them records of another kind, one of several blocks among them."""
    others = [field(4, bytes(random.Random(step).randbytes(size))) for step in range(num)]
    others[num // 2] = field(4, bytes(3 * BLOCK))
    logged = [part for step in range(num) for part in (history(values_at(step)), others[step])]
    return wandb_file([ENVIRONMENT, *logged])


@pytest.mark.parametrize("size", [1, 5, 1000, BLOCK, 10**6])
def test_each_logged_step_is_a_line_however_its_file_arrives(size: int) -> None:
    content, decoder = run(60), WandbLines()
    if size < 1000:
        content = content[: BLOCK + 100]
    parts = (content[at : at + size] for at in range(0, len(content), size))
    lines = [json.loads(line) for line in b"".join(map(decoder.feed, parts)).splitlines()]
    assert lines == [values_at(step) for step in range(60)][: len(lines)]
    assert len(lines) == 60 or size < 1000


def test_a_step_without_a_name_is_that_of_its_record() -> None:
    (line,) = WandbLines().feed(wandb_file([history({"loss": math.nan}, step=300)])).splitlines()
    assert line == b'{"loss": NaN, "_step": 300}'


def test_a_damaged_record_has_no_line_and_those_after_it_have() -> None:
    content = bytearray(wandb_file([history({"loss": 1.0}), b"\xff" * 20, history({"loss": 2.0})]))
    assert WandbLines().feed(bytes(content)).splitlines() == [b'{"loss": 1.0}', b'{"loss": 2.0}']
    content[11:13] = b"\xff\xff"  # the size of the first piece, beyond its block
    assert WandbLines().feed(bytes(content) + bytes(BLOCK)) == b""


def test_a_file_is_read_whole(tmp_path: Path) -> None:
    (tmp_path / "run-abc.wandb").write_bytes(run(200))
    log = read_log(tmp_path / "run-abc.wandb", Columns())
    assert log.step_N.tolist() == list(range(200))
    assert log.loss_N.tolist() == [values_at(step)["train/loss"] for step in range(200)]
    assert log.columns == Columns("_step", "train/loss", "train/grad_norm")


def test_a_folder_is_followed_by_the_file_of_its_run_once_that_has_losses(tmp_path: Path) -> None:
    folder = tmp_path / "wandb" / "offline-run-1"
    (folder / "files").mkdir(parents=True)
    (folder / "files" / "output.log").write_text("".join(f"step {step} loss 2.5\n" for step in range(20)))
    path, content = folder / "run-abc.wandb", run(60)
    (folder / "logs").mkdir()
    (folder / "logs" / "debug.log").write_text("2026-11-26 09:00:00 INFO ready\n")
    (tmp_path / "wandb" / "debug.log").symlink_to("offline-run-1/logs/debug.log")
    path.write_bytes(content[:900])
    assert [log.name for log in find_logs(tmp_path)] == ["debug.log", "output.log", "debug.log"]
    path.write_bytes(content[: 2 * BLOCK + 50])
    assert find_logs(tmp_path) == [path]
    log = followed_log(str(tmp_path), Columns(), MetricsConfig())
    first = [point for points in log.read() for point in points]
    with open(path, "ab") as file:
        file.write(content[2 * BLOCK + 50 :])
    points = [*first, *(point for points in log.read() for point in points), *log.finish()]
    assert 0 < len(first) < 60
    assert [(point.step, point.loss) for point in points] == [(k, values_at(k)["train/loss"]) for k in range(60)]

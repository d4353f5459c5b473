"""Readings that a `Watch` in a custom trainer writes, as they arrive and as they are reported."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from orchestrator.logs.streams import Reading
from orchestrator.worker.points import Readings, WatchReadings

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

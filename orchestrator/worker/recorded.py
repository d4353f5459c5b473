"""What the files of a custom trainer's trial have kept: points, readings, and what its rules did."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from orchestrator.base.files import storage_errors
from orchestrator.detection.rows import FIRED, firings_of, parsed_row, read_rows
from orchestrator.logs.point_maker import Point, Reading
from orchestrator.worker.points import TrialFolder, step_rows


def recorded_readings(folder: TrialFolder) -> list[Reading]:
    """Return the readings of an earlier attempt that were parsed from its output."""
    readings = []
    for row in step_rows(folder.readings):
        step = row.pop("step")
        with contextlib.suppress(ValueError, TypeError):
            readings.append(Reading(step, {name: float(value) for name, value in row.items()}))
    return readings


def recorded_points(folder: TrialFolder) -> Iterator[Point]:
    """Yield the points of an earlier attempt, as reported or as parsed."""
    path = folder.rows if folder.rows.is_file() and folder.rows.stat().st_size else folder.points
    for row in read_rows(path):
        own = ("step", "loss", "grad_norm", *([FIRED] if firings_of(row) else []))
        others = {name: value for name, value in row.items() if name not in own}
        yield Point(row["step"], float(row["loss"]), row.get("grad_norm"), others)


def recorded_firings(folder: TrialFolder) -> tuple[dict[str, Any], ...]:
    """Return what the rules of a `Watch` did, in order."""
    with storage_errors(folder.rows):
        lines = folder.rows.read_bytes().splitlines()
    marked = (line for line in lines if f'"{FIRED}"'.encode() in line)
    rows = (row for row in map(parsed_row, marked) if row is not None)
    return tuple(firing for row in rows for firing in firings_of(row))

"""Readings of telemetry that a `Watch` in a custom trainer writes to a file while it trains."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from orchestrator.logs.file_tail import FileTail
from orchestrator.logs.streams import Reading

_LONGEST_LINE = 2**20  # bytes; hundreds of layer groups need a tenth of it
_MOST_PARTS = 16  # of the file in one call: a file that grows faster than it is read must not hold up the run


class WatchReadings:
    """The lines of a file as readings: one JSON object a line, with a ``step`` that increases and numbers by name."""

    def __init__(self, path: Path) -> None:
        self._tail, self._rest = FileTail(str(path)), b""
        self._last_step: int | None = None

    @property
    def has_any(self) -> bool:
        """Whether there was a reading so far."""
        return self._last_step is not None

    def taken(self) -> list[Reading]:
        """Readings since the last call. A line that is cut off by a crash, or is no reading, is left out."""
        readings = []
        for _ in range(_MOST_PARTS):
            content = self._tail.read()
            if not content:
                break
            *lines, self._rest = (self._rest + content).split(b"\n")
            self._rest = self._rest[-_LONGEST_LINE:]
            for line in lines:
                reading = _reading(line)
                if reading is not None and (self._last_step is None or reading.step > self._last_step):
                    self._last_step = reading.step
                    readings.append(reading)
        return readings


def _reading(line: bytes) -> Reading | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    if not isinstance(row, dict) or not _is_whole(row.get("step")):
        return None
    values = {name: float(value) for name, value in row.items() if name != "step" and isinstance(value, float)}
    return Reading(row["step"], values) if values else None


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53

"""Points and readings of a custom trainer's run: their source, the curve that they form, and an earlier attempt's."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from orchestrator.base.files import open_private, storage_errors
from orchestrator.base.packs import Trace
from orchestrator.detection.run_monitor import JUDGED
from orchestrator.detection.watch import read_rows
from orchestrator.logs.columns import MetricsConfig
from orchestrator.logs.files import FileTail
from orchestrator.logs.streams import MetricStream, Point, Reading
from orchestrator.worker.launcher import Process
from orchestrator.worker.trial_folder import TrialFolder, step_rows

# Time to read remaining output after the process ended, since a daemon that it started may write forever.
_MAX_REST_S = 10.0
_MAX_OTHERS = 24
_MAX_LINE = 2**20  # bytes; hundreds of layer groups need a tenth
_MAX_PARTS = 16  # parts of a file read in one call, so that a file that grows quickly does not hold up the run
_REPORTS = MetricsConfig(format="json", step="step", loss="loss", grad_norm="grad_norm")


class Source:
    """The source of a run's losses: its own reports, its output, or a file that it writes."""

    def __init__(
        self,
        metrics: MetricsConfig | None,
        folder: TrialFolder,
        *,
        after: int | None,
        keeps_points: bool,
        is_function: bool = False,
        skips_existing: bool = False,
    ) -> None:
        """Read the output or file of ``metrics`` beyond the step ``after``; a function's output is not read."""
        self._rows = FileTail(str(folder.rows))
        self._row_stream = MetricStream(_REPORTS.model_copy(update={"also": metrics.also if metrics else []}))
        self._after = after
        self._points_file = folder.points if keeps_points else None
        self._readings_file = folder.readings if keeps_points else None
        self._tail = FileTail(metrics.file) if metrics is not None and metrics.file is not None else None
        self._stream = MetricStream(metrics) if metrics is not None and not is_function else None
        self.uses_watch = False  # the trainer reports through `Watch`, which learns of a verdict immediately
        self._has_printed = False
        self._last_old: int | None = None  # the last step up to ``after`` while no later one was printed
        if (after is None or skips_existing) and self._tail is not None:
            while self._tail.read():
                pass  # skip content from before this run
        if after is not None:
            while content := self._rows.read():
                self._row_stream.feed(content)

    @property
    def _active(self) -> MetricStream | None:
        return self._row_stream if self.uses_watch else self._stream

    @property
    def note(self) -> str:
        """Say which columns are read, or why nothing is."""
        return "nothing was reported: call report(step, loss=...)" if self._active is None else self._active.note

    @property
    def question(self) -> str | None:
        """A question to the user that must be answered before the losses can be trusted, with a remedy, or None."""
        question = None if self._stream is None or self.uses_watch else self._stream.question
        return None if question is None else f"{question}; say which under metrics: loss"

    @property
    def validation_loss(self) -> float:
        """The last validation loss; NaN without one."""
        loss = None if self._active is None else self._active.validation_loss
        return math.nan if loss is None else loss

    def take_readings(self) -> list[Reading]:
        """Return validation losses and other metrics since the last call, beyond the steps of an earlier attempt."""
        readings = [] if self._active is None else self._active.taken_readings()
        if self._after is not None:
            readings = [reading for reading in readings if reading.step > self._after]
        if readings and self._readings_file is not None:
            with storage_errors(self._readings_file), open_private(self._readings_file, "a") as file:
                file.writelines(f"{json.dumps({'step': reading.step, **reading.values})}\n" for reading in readings)
        return readings

    def read(self, child: Process, timeout_s: float) -> list[Point]:
        """Return the points since the last call. Raises StorageError if the output cannot be stored."""
        output = child.read(timeout_s)
        if not self._has_printed and (content := self._rows.read()):
            self.uses_watch = True
            return self._new(self._row_stream.feed(content))
        if self.uses_watch or self._stream is None:
            return []
        content = output if self._tail is None else self._tail.read()
        return self._printed(self._stream.feed(content))

    def finish(self, child: Process) -> list[Point]:
        """Return the remaining points after the process has ended."""
        points = self.read(child, 0.0)
        deadline = time.monotonic() + _MAX_REST_S
        while child.is_readable() and time.monotonic() < deadline:
            points += self.read(child, 0.0)
        if self._tail is not None and self._stream is not None and not self.uses_watch:
            while content := self._tail.read():
                points += self._printed(self._stream.feed(content))
        return points + (self._new(self._active.finish()) if self._active is not None else [])

    def _printed(self, points: Sequence[Point]) -> list[Point]:
        self._has_printed = self._has_printed or bool(points)
        new = self._new(points)
        if new and self._points_file is not None:
            rows = [{"step": p.step, "loss": p.loss, "grad_norm": p.grad_norm, **p.others} for p in new]
            with storage_errors(self._points_file), open_private(self._points_file, "a") as file:
                file.writelines(f"{json.dumps(row)}\n" for row in rows)
        return new

    def _new(self, points: Sequence[Point]) -> list[Point]:
        """The points beyond the last step of an earlier attempt."""
        new = [point for point in points if self._after is None or point.step > self._after]
        old = points[-1].step if points and not new else None
        self._last_old = None if new else self._last_old if old is None else old
        return new

    @property
    def only_repeats(self) -> bool:
        """Whether a resumed run has printed losses but has not reached the last step of the earlier attempt."""
        return self._last_old is not None and self._after is not None and self._last_old < self._after


class Curve:
    """The points of one run in order, and the unreported ones."""

    def __init__(self) -> None:
        self.first_step: int | None = None
        self.last_step: int | None = None
        self._has_norm = False
        self._digest = hashlib.blake2b(digest_size=16)
        self._others: dict[str, None] = {}
        self._new: list[Point] = []

    @property
    def steps_done(self) -> int:
        """Steps completed at the last point, whether the trainer counts from 0 or 1."""
        if self.last_step is None or self.first_step is None:
            return 0
        return self.last_step + 1 if self.first_step == 0 else self.last_step

    @property
    def digest(self) -> str:
        """A hash of all steps and losses so far."""
        return self._digest.hexdigest()

    def add(self, point: Point) -> bool:
        """Append ``point``; returns False if its step is not above the last one."""
        if self.last_step is not None and point.step <= self.last_step:
            return False
        if self.first_step is None:
            self.first_step = point.step
        self.last_step = point.step
        self._digest.update(struct.pack("<qd", point.step, point.loss))
        self._has_norm = self._has_norm or point.grad_norm is not None
        self._new.append(point)
        for name in point.others:
            if len(self._others) < _MAX_OTHERS or name in JUDGED:
                self._others.setdefault(name)
        return True

    def take(self) -> Trace:
        """Return the points since the last call as columns, NaN for missing values; empty without points."""
        points, self._new = self._new, []
        if not points:
            return {}
        columns = {"step": np.array([p.step for p in points]), "loss": np.array([p.loss for p in points], dtype=float)}
        if self._has_norm:
            # NaN stands for an unmeasured norm, which counts as finite, so a measured NaN becomes infinite.
            norms = [p.grad_norm if p.grad_norm is None or not math.isnan(p.grad_norm) else math.inf for p in points]
            columns["grad_norm"] = np.array(norms, dtype=float)
        for name in self._others:
            columns[name] = np.array([p.others.get(name, math.nan) for p in points], dtype=float)
        return columns


class Readings:
    """Occasional values, one row per step, that were not reported yet."""

    def __init__(self) -> None:
        self._rows: dict[int, dict[str, float]] = {}

    def add(self, readings: Iterable[Reading]) -> None:
        """Add ``readings``; readings of one step become one row."""
        for reading in readings:
            self._rows.setdefault(reading.step, {}).update(reading.values)

    def take(self, *, is_last: bool, last_step: int | None = None) -> Trace:
        """Return rows since the last call as columns, in ascending order of steps.

        The row of the last step is held back until ``is_last``, since it may still grow. With ``last_step``, the last
        step of the curve, rows at that step are held back too, and later rows are never returned.
        """
        steps = sorted(self._rows)
        if not is_last:
            steps = steps[:-1]
        if last_step is not None:
            steps = [step for step in steps if step < last_step or (is_last and step == last_step)]
        rows = [self._rows.pop(step) for step in steps]
        names = dict.fromkeys(name for values in rows for name in values)
        if not rows:
            return {}
        return {"step": np.array(steps), **{name: np.array([v.get(name, math.nan) for v in rows]) for name in names}}


class WatchReadings:
    """Readings that a `Watch` writes to a file while it trains: JSON lines of numbers with increasing ``step``."""

    def __init__(self, path: Path) -> None:
        self._tail, self._rest = FileTail(str(path)), b""
        self._last_step: int | None = None

    @property
    def has_any(self) -> bool:
        """Whether there was any reading so far."""
        return self._last_step is not None

    def take(self) -> list[Reading]:
        """Return readings since the last call, skipping lines that were cut off by a crash or are not a reading."""
        readings = []
        for _ in range(_MAX_PARTS):
            content = self._tail.read()
            if not content:
                break
            *lines, self._rest = (self._rest + content).split(b"\n")
            self._rest = self._rest[-_MAX_LINE:]
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
        others = {name: value for name, value in row.items() if name not in ("step", "loss", "grad_norm")}
        yield Point(row["step"], float(row["loss"]), row.get("grad_norm"), others)

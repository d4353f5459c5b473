"""The points of a custom trainer's run: where they come from, the curve they make, and those of an earlier attempt."""

from __future__ import annotations

import hashlib
import json
import math
import struct
import time
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from orchestrator.base.files import open_private, storage_errors
from orchestrator.base.reports import Trace
from orchestrator.detection.run_monitor import JUDGED
from orchestrator.detection.watch import read_rows
from orchestrator.logs.config import MetricsConfig
from orchestrator.logs.file_tail import FileTail
from orchestrator.logs.streams import MetricStream, Point, Reading
from orchestrator.worker.ranks import Process
from orchestrator.worker.trial_folder import TrialFolder

# Time to read remaining output after the process ended; a daemon that it started may write forever.
_LONGEST_REST_S = 10.0
_MAX_OTHERS = 24
_REPORTS = MetricsConfig(format="json", step="step", loss="loss", grad_norm="grad_norm")


class Source:
    """The source of a run's losses: its own reports, else its output, else a file that it writes."""

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
        """The output of a function is not read."""
        self._rows = FileTail(str(folder.rows))
        self._row_stream = MetricStream(_REPORTS.model_copy(update={"also": metrics.also if metrics else []}))
        self._after = after
        self._points_file = folder.points if keeps_points else None
        self._readings_file = folder.readings if keeps_points else None
        self._tail = FileTail(metrics.file) if metrics is not None and metrics.file is not None else None
        self._stream = MetricStream(metrics) if metrics is not None and not is_function else None
        self.is_told = False  # the trainer reports through `Watch`, and so learns of a verdict immediately
        self._has_spoken = False
        self._last_old: int | None = None  # the last step up to ``after``, while there are none beyond
        if (after is None or skips_existing) and self._tail is not None:
            while self._tail.read():
                pass  # content from before this run does not belong to it
        if after is not None:
            while content := self._rows.read():
                self._row_stream.feed(content)

    @property
    def note(self) -> str:
        """Which columns are read, or why there are no points, for the user."""
        if self.is_told:
            return self._row_stream.note
        if self._stream is None:
            return "nothing was reported: call report(step, loss=...)"
        return self._stream.note

    @property
    def question(self) -> str | None:
        """What must be asked before the losses can be trusted, with the remedy."""
        question = None if self._stream is None or self.is_told else self._stream.question
        return None if question is None else f"{question}; say which under metrics: loss"

    @property
    def validation_loss(self) -> float:
        """The last validation loss, NaN without one."""
        stream = self._row_stream if self.is_told else self._stream
        found = None if stream is None else stream.validation_loss
        return math.nan if found is None else found

    def taken_readings(self) -> list[Reading]:
        """Validation losses and other metrics since the last call, beyond those of an earlier attempt."""
        stream = self._row_stream if self.is_told else self._stream
        readings = [] if stream is None else stream.taken_readings()
        if self._after is not None:
            readings = [reading for reading in readings if reading.step > self._after]
        if readings and self._readings_file is not None:
            with storage_errors(self._readings_file), open_private(self._readings_file, "a") as file:
                file.writelines(f"{json.dumps({'step': one.step, **one.values})}\n" for one in readings)
        return readings

    def read(self, child: Process, timeout_s: float) -> list[Point]:
        """Points since the last call. Raises StorageError where the output cannot be stored."""
        output = child.read(timeout_s)
        if not self._has_spoken and (content := self._rows.read()):
            self.is_told = True
            return self._new(self._row_stream.feed(content))
        if self.is_told or self._stream is None:
            return []
        content = output if self._tail is None else self._tail.read()
        return self._spoken(self._stream.feed(content))

    def finish(self, child: Process) -> list[Point]:
        """The remaining points, after the process has ended."""
        points = self.read(child, 0.0)
        deadline = time.monotonic() + _LONGEST_REST_S
        while child.is_readable() and time.monotonic() < deadline:
            points += self.read(child, 0.0)
        if self._tail is not None and self._stream is not None and not self.is_told:
            while content := self._tail.read():
                points += self._spoken(self._stream.feed(content))
        stream = self._row_stream if self.is_told else self._stream
        return points + (self._new(stream.finish()) if stream is not None else [])

    def _spoken(self, points: Sequence[Point]) -> list[Point]:
        self._has_spoken = self._has_spoken or bool(points)
        new = self._new(points)
        if new and self._points_file is not None:
            rows = [{"step": p.step, "loss": p.loss, "grad_norm": p.grad_norm, **p.others} for p in new]
            with storage_errors(self._points_file), open_private(self._points_file, "a") as file:
                file.writelines(f"{json.dumps(row)}\n" for row in rows)
        return new

    def _new(self, points: Sequence[Point]) -> list[Point]:
        """Points beyond those of an earlier attempt."""
        new = [point for point in points if self._after is None or point.step > self._after]
        old = points[-1].step if points and not new else None
        self._last_old = None if new else self._last_old if old is None else old
        return new

    @property
    def only_repeats(self) -> bool:
        """Whether a resumed run has printed losses, and no step as far as the earlier attempt came."""
        return self._last_old is not None and self._after is not None and self._last_old < self._after


class Curve:
    """The points of one run, in order, and those not reported yet."""

    def __init__(self) -> None:
        self.first_step: int | None = None
        self.last_step: int | None = None
        self._has_norm = False
        self._digest = hashlib.blake2b(digest_size=16)
        self._others: dict[str, None] = {}
        self._new: list[Point] = []

    @property
    def steps_done(self) -> int:
        """Steps completed at the last point, whether the trainer counts from 0 or from 1."""
        if self.last_step is None or self.first_step is None:
            return 0
        return self.last_step + 1 if self.first_step == 0 else self.last_step

    @property
    def digest(self) -> str:
        """A hash of all steps and losses so far."""
        return self._digest.hexdigest()

    def add(self, point: Point) -> bool:
        """Append ``point``; false where its step is not above the last one's."""
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

    def taken(self) -> Trace:
        """The points since the last call as columns, with NaN for missing values; empty without points."""
        points, self._new = self._new, []
        if not points:
            return {}
        columns = {"step": np.array([p.step for p in points]), "loss": np.array([p.loss for p in points], dtype=float)}
        if self._has_norm:
            # NaN means a norm that was not measured and counts as finite, so a measured NaN becomes infinite.
            norms = [p.grad_norm if p.grad_norm is None or not math.isnan(p.grad_norm) else math.inf for p in points]
            columns["grad_norm"] = np.array(norms, dtype=float)
        for name in self._others:
            columns[name] = np.array([p.others.get(name, math.nan) for p in points], dtype=float)
        return columns


class Readings:
    """Values that were read now and then, one row for each step, and those not reported yet."""

    def __init__(self) -> None:
        self._rows: dict[int, dict[str, float]] = {}

    def add(self, readings: Iterable[Reading]) -> None:
        """Add ``readings``; those of one step become one row."""
        for reading in readings:
            self._rows.setdefault(reading.step, {}).update(reading.values)

    def taken(self, *, is_last: bool, last_step: int | None = None) -> Trace:
        """Rows since the last call as columns, in the order of their steps.

        The row of the last step is held back until ``is_last``, as it may still grow. With ``last_step``, that of the
        curve so far, so is every row from that step on, and rows beyond it are never taken.
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


def known_readings(folder: TrialFolder) -> list[Reading]:
    """The readings of an earlier attempt that are not among the trainer's own reports."""
    if not folder.readings.is_file():
        return []
    with storage_errors(folder.readings):
        lines = folder.readings.read_text(errors="replace").splitlines()
    found = []
    for line in lines:
        try:
            row = json.loads(line)
            found.append(Reading(int(row.pop("step")), {name: float(value) for name, value in row.items()}))
        except (ValueError, KeyError, TypeError, AttributeError):
            continue  # cut off by a crash
    return found


def known_points(folder: TrialFolder) -> Iterator[Point]:
    """The points of an earlier attempt, as reported or as parsed."""
    path = folder.rows if folder.rows.is_file() and folder.rows.stat().st_size else folder.points
    for row in read_rows(path):
        others = {name: value for name, value in row.items() if name not in ("step", "loss", "grad_norm")}
        yield Point(row["step"], float(row["loss"]), row.get("grad_norm"), others)

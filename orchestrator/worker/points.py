"""The folder of a custom trainer's trial, results/NAME/trials/ID, and what its files and output say about the run."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import struct
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from orchestrator.base.files import check_no_links, make_folder, open_private, storage_errors
from orchestrator.base.packs import Trace
from orchestrator.detection.run_monitor import JUDGED
from orchestrator.logs.columns import MetricsConfig, ScoreConfig
from orchestrator.logs.files import FileTail
from orchestrator.logs.point_maker import Point, Reading
from orchestrator.logs.streams import MetricStream

# Time to read remaining output after the process ended, since a daemon that it started may write forever.
_MAX_REST_S = 10.0
_MAX_OTHERS = 24
_ENOUGH_POINTS = 40  # to judge a run that nothing else ends
_MAX_LINE = 2**20  # bytes; hundreds of layer groups need a tenth
_MAX_PARTS = 16  # parts of a file read in one call, so that a file that grows quickly does not hold up the run
# Output that is kept on disk.
_HEAD_BYTES = 8 * 2**20
_TAIL_BYTES = 64 * 2**10
_REPORTS = MetricsConfig(format="json", step="step", loss="loss", grad_norm="grad_norm")


class TrialFolder:
    """The files of a trial; ``path`` is absolute."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.settings = path / "trial.json"  # input of the trainer's process
        self.rows = path / "rows.jsonl"  # reports of a trainer that uses `Watch`, one JSON object per line
        self.telemetry = path / "telemetry.jsonl"  # what a `Watch` reads from the optimizer's steps
        self.readings = path / "readings.jsonl"  # validation losses and other metrics parsed from its output
        self.points = path / "points.jsonl"  # points parsed from a trainer that prints its losses
        self.joules = path / "joules.json"  # the energy of its attempts so far
        self.workers = path / "workers.json"  # how many processes it began with, and its restarts with another number

    def output(self, rank: int) -> Path:
        """Return the file for the output of the process ``rank``."""
        return self.path / ("output.log" if rank == 0 else f"output.{rank}.log")

    @property
    def curve_files(self) -> tuple[Path, ...]:
        """The files with one row per step."""
        return self.rows, self.telemetry, self.points, self.readings

    def prepare(self, *, keep: bool) -> None:
        """Create the folder; empty it unless it is to ``keep`` an earlier attempt. Raises StorageError."""
        check_no_links(self.path.parent.parent, self.path.parent, self.path)
        with storage_errors(self.path):
            if not keep and self.path.exists():
                shutil.rmtree(self.path)
            make_folder(self.path)


def step_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file with one JSON object per step, skipping lines that a crash cut off.

    Yields nothing if the file is missing. Raises StorageError.
    """
    if not path.is_file():
        return
    with storage_errors(path):
        lines = path.read_text(errors="replace").splitlines()
    for line in lines:
        try:
            row = json.loads(line)
            row["step"] = int(row["step"])
        except (ValueError, KeyError, TypeError, OverflowError):
            continue
        yield row


class OutputLog:
    """The output of a process on disk: its first 8 MiB and its last 64 KiB."""

    def __init__(self, path: Path) -> None:
        self._path, self._num_bytes, self._tail = path, 0, b""
        with storage_errors(path):
            self._file = open_private(path, "ab")

    def write(self, content: bytes) -> None:
        """Append ``content``. Raises StorageError."""
        room = max(0, _HEAD_BYTES - self._num_bytes)
        self._num_bytes += len(content)
        with storage_errors(self._path):
            if room:
                self._file.write(content[:room])
                self._file.flush()
        self._tail = (self._tail + content[room:])[-_TAIL_BYTES:]

    def close(self) -> None:
        """Write the buffered end. Raises StorageError."""
        if self._file.closed:
            return
        with storage_errors(self._path), self._file as file:
            left_out = self._num_bytes - _HEAD_BYTES - len(self._tail)
            if left_out > 0:
                file.write(f"\n[... {left_out} bytes left out ...]\n".encode())
            file.write(self._tail)


class Process(Protocol):
    """A process of a trial, here or on another machine; see `Child` for each method."""

    def read(self, timeout_s: float = 0.0) -> bytes:
        """Return new output."""

    def is_readable(self) -> bool:
        """Whether there is output to read now."""

    def last_lines(self) -> list[str]:
        """Return the last lines of its output."""

    def returncode(self) -> int | None:
        """Return the exit status, or None while it runs."""

    def terminate(self) -> None:
        """Ask it to end."""

    def close(self) -> None:
        """Kill it and everything it started."""


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
        named = {} if metrics is None else {"also": metrics.also, "score": _by_name(metrics.score)}
        self._row_stream = MetricStream(_REPORTS.model_copy(update=named))
        self._after = after
        self._folder, self._keeps_points = folder, keeps_points
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
    def goes_back(self) -> bool:
        """Whether the run goes back again and again and comes no further."""
        return self._active is not None and self._active.goes_back

    @property
    def question(self) -> str | None:
        """A question to the user that must be answered before the losses can be trusted, with a remedy, or None."""
        question = None if self._stream is None or self.uses_watch else self._stream.question
        return question and f"{question}; say which under metrics: loss"

    @property
    def validation_loss(self) -> float:
        """The last validation loss; NaN without one."""
        return math.nan if self._active is None or (loss := self._active.validation_loss) is None else loss

    def take_readings(self) -> list[Reading]:
        """Return validation losses and other metrics since the last call, beyond the steps of an earlier attempt."""
        readings = [] if self._active is None else self._active.taken_readings()
        if self._after is not None:
            readings = [reading for reading in readings if reading.step > self._after]
        self._keep(self._folder.readings, [{"step": reading.step, **reading.values} for reading in readings])
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
        rows = [{"step": p.step, "loss": p.loss, "grad_norm": p.grad_norm, **p.others} for p in new]
        self._keep(self._folder.points, rows)
        return new

    def _keep(self, path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append ``rows`` to a file for an attempt that resumes, if any may."""
        if rows and self._keeps_points:
            with storage_errors(path), open_private(path, "a") as file:
                file.writelines(f"{json.dumps(row)}\n" for row in rows)

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


def _by_name(score: ScoreConfig | None) -> ScoreConfig | None:
    """A score as a trainer reports it: by its name, not in lines of text."""
    return None if score is None else score.model_copy(update={"pattern": None})


class Curve:
    """The points of one run in order, and the unreported ones."""

    def __init__(self, end_step: int | None = None) -> None:
        """``end_step`` is where a run should end that is not given its steps, so that it may go on for ever."""
        self._end_step = end_step
        self.first_step: int | None = None
        self.last_step: int | None = None
        self._num_points = 0
        self._longest = 0  # between one step and the next
        self._resumed_after: int | None = None
        self.lost: tuple[int, int] | None = None  # the steps around losses that nobody read before a kill
        self.first_loss: float | None = None
        self.last_loss: float | None = None
        self._has_norm = False
        self._digest = hashlib.blake2b(digest_size=16)
        self._others: dict[str, None] = {}
        self._new: list[Point] = []

    @property
    def steps_done(self) -> int:
        """Steps completed at the last point, whether the trainer counts from 0 or 1."""
        return 0 if self.last_step is None else self.last_step + (self.first_step == 0)

    @property
    def goes_on(self) -> bool:
        """Whether it is twice as long as it should be, and long enough to judge."""
        if self._end_step is None or self.last_step is None:
            return False
        return self.last_step > 2 * self._end_step and self._num_points >= _ENOUGH_POINTS

    @property
    def digest(self) -> str:
        """A hash of all steps and losses so far."""
        return self._digest.hexdigest()

    def resume(self) -> None:
        """Expect the next point from an attempt that goes on from a checkpoint."""
        self._resumed_after = self.last_step

    def add(self, point: Point) -> bool:
        """Append ``point``; returns False if its step is not above the last one."""
        if self.last_step is not None:
            if (length := point.step - self.last_step) <= 0:
                return False
            if self._resumed_after == self.last_step and length > self._longest > 0:
                self.lost = (self.last_step, point.step)
            self._longest = max(self._longest, length)
        if self.first_step is None:
            self.first_step, self.first_loss = point.step, point.loss
        self.last_step, self.last_loss = point.step, point.loss
        self._num_points += 1
        self._digest.update(struct.pack("<qd", point.step, point.loss))
        self._has_norm = self._has_norm or point.grad_norm is not None
        self._new.append(point)
        for name in point.others:
            if len(self._others) < _MAX_OTHERS or name in JUDGED:
                self._others.setdefault(name)
        return True

    def take(self) -> Trace:
        """Return the points since the last call as columns, NaN for missing values; empty without points."""
        if not (points := self._new):
            return {}
        self._new = []
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
        steps = sorted(self._rows) if is_last else sorted(self._rows)[:-1]
        if last_step is not None:
            steps = [step for step in steps if step < last_step or (is_last and step == last_step)]
        if not steps:
            return {}
        rows = [self._rows.pop(step) for step in steps]
        names = dict.fromkeys(name for values in rows for name in values)
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
            if not (content := self._tail.read()):
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
    step = row.get("step") if isinstance(row, dict) else None
    if type(step) is not int or not 0 <= step < 2**53:
        return None
    values = {name: value for name, value in row.items() if name != "step" and isinstance(value, float)}
    return Reading(step, values) if values else None

"""Sweeps as TensorBoard's event files: one folder per trial and cell, and one for the sweep.

A folder has one event file, named after a hash of its content, and a JSON marker that says what it is. The marker is
written last, so a trial counts as complete only with all its events. The event file of a running trial grows, and is
replaced when the trial ends. TensorBoard reads the files of a folder in the order of their names.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.base.errors import SweepError
from orchestrator.base.files import atomic_write, check_no_links, remove
from orchestrator.base.space import is_number
from orchestrator.base.words import count
from orchestrator.mirrors.records import logs_as_numbers
from orchestrator.mirrors.tracker import CellRecord, Point, SweepRecord, TrackingError, TrialRecord
from orchestrator.sweepfile.sections import TrackingConfig

STORE = "tensorboard"  # in the folder of a sweep
MARKER = "sweep.json"
# Suffixes of event files: of a running trial, of a whole folder, and of a trial's results that depend on other trials.
# The number orders their names.
_GROWING, _MAIN, _SHARES = "growing", "main", "shares"
_ORDER = {_GROWING: 0, _MAIN: 1, _SHARES: 2}
_PREFIX = "events.out.tfevents."
_LONGEST_NAME = 150  # of a folder
_SUCCESS, _FAILURE, _RUNNING = 1, 2, 3  # status of a session in the hparams plugin's api.proto
_STATUS = {"finished": _SUCCESS, "errored": _FAILURE, "lost": _FAILURE}
_HPARAMS_VERSION = 0
_LARGEST = 3.4028234663852886e38  # event files have 32-bit numbers


class TensorBoardTracker:
    """One sweep's event files; see ``Tracker`` for the methods."""

    name = "tensorboard"
    title = "TensorBoard"
    library = "tensorboardX"

    def __init__(self, folder: Path, tracking: TrackingConfig, on_response: Callable[[], None]) -> None:
        """Read the markers of trials. Raises TrackingError."""
        self.where = self.shown_store(folder, tracking)
        self._store = folder / STORE
        self._on_response = on_response
        self._known: dict[str, str] = {}
        self._folder_of: dict[str, Path] = {}
        self._started_s: dict[str, float] = {}
        self._growing: dict[str, tuple[str, Path]] = {}  # attempt and file of the trials that this process appends to
        with self._tracking_errors():
            check_no_links(self._store)
            if self._store.exists() and not self._store.is_dir():
                raise TrackingError(f"{self.title} at {self.where}: not a folder; remove it")
            for marker in self._store.glob(f"trials/*/{MARKER}"):
                self._read_marker(marker)
            grown = self._store.glob(f"trials/*/{_PREFIX}*.{_GROWING}")
            self._emptied = [path for path in grown if path.stat().st_size == 0]

    @classmethod
    def shown_store(cls, folder: Path, tracking: TrackingConfig) -> str:
        """Return the folder for ``tensorboard --logdir``."""
        return str(folder / STORE)

    @classmethod
    def may_exist(cls, folder: Path, tracking: TrackingConfig) -> bool:
        """Return whether that folder exists."""
        return (folder / STORE).is_dir()

    @property
    def known(self) -> Mapping[str, str]:
        """Versions of the trials with a folder; "" for incomplete ones."""
        return self._known

    def write_trial(self, trial: TrialRecord) -> None:
        """Write a trial's folder."""
        with self._tracking_errors():
            started_s, ended_s = trial.started_s or 0.0, trial.finished_s or trial.started_s or 0.0
            events = _hparams_file(started_s, "trial", trial.values)
            events.add_end(_STATUS.get(trial.status, _RUNNING), ended_s)
            events.add_texts({"cell": trial.cell.name, **trial.tags})
            events.add_points(trial.points)
            folder = self._trial_folder(trial)
            self._write(folder, events, _facts(trial, trial.version))
            self._growing.pop(trial.trial_id, None)
            self._remember(trial, folder, trial.version)
            if not trial.shares:
                _remove(_event_files(folder, _SHARES))
            self._write_shares(trial.trial_id, trial.shares)

    def write_running(self, trial: TrialRecord) -> None:
        """Append to a trial's event file; a new attempt, or a new process, begins a new file."""
        with self._tracking_errors():
            attempt, path = self._growing.get(trial.trial_id, ("", Path()))
            if attempt == trial.version:
                events = EventFile(trial.started_s or 0.0, has_head=False)
                events.add_points(trial.points)
                with open(path, "r+b") as file:  # raises if the file was deleted
                    file.seek(0, os.SEEK_END)
                    file.write(events.content())
            else:
                self._begin(trial)
            self._on_response()

    def write_machine(self) -> None:
        """Do nothing: TensorBoard has no place for it."""

    def write_results(self, sweep: SweepRecord) -> None:
        """Do nothing: files of the sweep are written in a moment."""

    def write_sweep(self, sweep: SweepRecord, artifacts: Sequence[Path]) -> None:
        """Write the folders of the sweep and its cells. TensorBoard shows only the images among ``artifacts``."""
        with self._tracking_errors():
            if lost := sum(not (folder / MARKER).is_file() for folder in self._folder_of.values()):
                raise TrackingError(
                    f"{self.title} at {self.where}: {count(lost, 'trial was', 'trials were')} deleted during the run"
                )
            for trial_id, shares in sweep.shares.items():
                self._write_shares(trial_id, shares)
            for cell in sweep.cells:
                self._write_cell(cell)
            events = EventFile(sweep.finished_s)
            events.add_restart()
            rows = "".join(f"| {key} | {_markdown_cell(value)} |\n" for key, value in sweep.settings.items())
            events.add_texts({"settings": f"| setting | value |\n| --- | --- |\n{rows}"})
            events.add_results({**sweep.metrics, "is_over": float(sweep.is_over)})
            for path in artifacts:
                if path.suffix == ".png":
                    events.add_picture(path.name, path.read_bytes())
            for answer in sweep.answers:
                if answer.picture is not None:
                    events.add_picture(f"remedies/{answer.trial_id}", answer.picture.read_bytes())
            self._write(self._store / "sweep", events, {"level": "sweep"})
            remove(self._emptied)  # left by earlier processes: TensorBoard has read on in later files
            self._on_response()

    @contextlib.contextmanager
    def _tracking_errors(self) -> Iterator[None]:
        """Turn errors of files and of the format into TrackingError."""
        try:
            yield
        except TrackingError:
            raise
        except (SweepError, OSError, ValueError) as error:
            raise TrackingError(f"{self.title} at {self.where}: {str(error).splitlines()[0]}") from error

    def _read_marker(self, marker: Path) -> None:
        """Register the trial of ``marker``. With missing events or a damaged marker it is incomplete or unknown."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            facts = json.loads(marker.read_text())
            trial_id, is_whole = str(facts["trial_id"]), (marker.parent / str(facts["events"])).is_file()
            self._folder_of[trial_id], self._started_s[trial_id] = marker.parent, float(facts["started_s"])
            self._known[trial_id] = str(facts["version"]) if is_whole else ""

    def _remember(self, trial: TrialRecord, folder: Path, version: str) -> None:
        self._folder_of[trial.trial_id], self._known[trial.trial_id] = folder, version
        self._started_s[trial.trial_id] = trial.started_s or 0.0

    def _begin(self, trial: TrialRecord) -> None:
        """Begin the event file of a running trial, and remove the files of its earlier attempts."""
        events = _hparams_file(trial.started_s or 0.0, "trial", trial.values)
        events.add_texts({"cell": trial.cell.name, **trial.tags})
        events.add_points(trial.points)
        folder = self._trial_folder(trial)
        path = folder / f"{_PREFIX}{_ORDER[_GROWING]}{time.time_ns()}.{_GROWING}"
        old = _event_files(folder, *_ORDER)
        atomic_write(path, events.content())
        atomic_write(folder / MARKER, json.dumps({**_facts(trial, ""), "events": path.name}, indent=1))
        _remove(old)
        self._remember(trial, folder, "")
        self._growing[trial.trial_id] = (trial.version, path)

    def _trial_folder(self, trial: TrialRecord) -> Path:
        return self._folder_of.get(trial.trial_id) or self._new_folder("trials", trial.name, trial.trial_id)

    def _new_folder(self, kind: str, name: str, key: str) -> Path:
        """Return a folder with a readable and unique name."""
        readable = re.sub(r"[^\w.=+ -]", "_", name)[:_LONGEST_NAME]
        return self._store / kind / f"{readable} {key[:8]}"

    def _write_cell(self, cell: CellRecord) -> None:
        key, started_s = cell.key, cell.key.started_s or 0.0
        events = _hparams_file(started_s, "cell", key.values)
        events.add_end(_SUCCESS if cell.is_over else _RUNNING, max(started_s, cell.finished_s))
        events.add_texts({"cell": key.name})
        events.add_results(cell.metrics)
        self._write(self._new_folder("cells", key.name, key.cell_id), events, {"level": "cell"})

    def _write_shares(self, trial_id: str, shares: Mapping[str, float]) -> None:
        if shares and (folder := self._folder_of.get(trial_id)) is not None:
            events = EventFile(self._started_s[trial_id])
            events.add_results(shares)
            self._write_events(folder, _SHARES, events)
        self._on_response()

    def _write(self, folder: Path, events: EventFile, facts: Mapping[str, Any]) -> None:
        """Write the main event file of a folder, then its marker."""
        name = self._write_events(folder, _MAIN, events)
        marker, text = folder / MARKER, json.dumps({**facts, "events": name}, indent=1)
        if not marker.is_file() or marker.read_text() != text:
            atomic_write(marker, text)

    def _write_events(self, folder: Path, kind: str, events: EventFile) -> str:
        """Replace a folder's event file of a ``kind`` atomically and return its name.

        The main file also replaces the growing one. TensorBoard reads on where it stopped in a file, so new content
        needs a new name.
        """
        content = events.content()
        name = f"{_PREFIX}{_ORDER[kind]}{hashlib.sha256(content).hexdigest()[:16]}.{kind}"
        if not (folder / name).is_file():
            atomic_write(folder / name, content)
        replaced = _event_files(folder, kind, *([_GROWING] if kind == _MAIN else []))
        _remove(path for path in replaced if path.name != name)
        return name


class EventFile:
    """The records of one event file; the same calls give the same bytes."""

    def __init__(self, wall_s: float, *, has_head: bool = True) -> None:
        """Begin a file with events at ``wall_s`` since 1970, or without a head a part to append to another file."""
        from tensorboardX.proto import event_pb2, plugin_hparams_pb2, summary_pb2  # installed with Ray

        self._event, self._summary, self._hparams = event_pb2.Event, summary_pb2, plugin_hparams_pb2
        self._restart = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._wall_s = wall_s
        self._frames: list[bytes] = []
        if has_head:
            self._add_event(self._event(wall_time=wall_s, file_version="brain.Event:2"))

    def content(self) -> bytes:
        """Return the bytes of the file."""
        return b"".join(self._frames)

    def add_restart(self) -> None:
        """Make TensorBoard forget the events in files of this run whose names sort before this one's."""
        self._add_event(self._event(wall_time=self._wall_s, session_log=self._restart))

    def add_points(self, points: Iterable[Point]) -> None:
        """Add scalars in the order of their steps, one event per step. Numbers beyond 32 bits are left out."""
        by_step: dict[int, list[Any]] = {}
        for name, value, step in points:
            if abs(value) <= _LARGEST:
                by_step.setdefault(step, []).append(self._summary.Summary.Value(tag=name, simple_value=value))
        for step in sorted(by_step):
            self._add(by_step[step], step)

    def add_results(self, results: Mapping[str, float]) -> None:
        """Add scalars at step 0."""
        self.add_points(Point(name, float(value), 0) for name, value in results.items())

    def add_texts(self, texts: Mapping[str, str]) -> None:
        """Add texts, which TensorBoard shows as Markdown."""
        for tag, text in texts.items():
            value = self._plugin_value(tag, "text", b"")
            value.tensor.dtype = 7  # DT_STRING
            value.tensor.string_val.append(text.encode())
            value.tensor.tensor_shape.dim.add(size=1)
            self._add([value])

    def add_picture(self, tag: str, png: bytes) -> None:
        """Add an image."""
        value = self._summary.Summary.Value(tag=tag)
        value.image.encoded_image_string, value.image.colorspace = png, 3
        if png[12:16] == b"IHDR":
            value.image.width, value.image.height = struct.unpack(">II", png[16:24])
        self._add([value])

    def add_session(self, values: Mapping[str, Any], started_s: float) -> None:
        """Add the hyperparameters of this run; TensorBoard takes its metrics from the scalars."""
        data = self._hparams.HParamsPluginData(version=_HPARAMS_VERSION)
        data.session_start_info.start_time_secs = started_s
        for name, value in values.items():
            entry = data.session_start_info.hparams[name]
            if isinstance(value, bool):
                entry.bool_value = value
            elif is_number(value):
                entry.number_value = float(value)
            else:
                entry.string_value = "none" if value is None else str(value)
        self._add([self._plugin_value("_hparams_/session_start_info", "hparams", data.SerializeToString())])

    def add_end(self, status: int, ended_s: float) -> None:
        """Add how and when this run ended. Call it once: TensorBoard keeps the first end that it reads."""
        data = self._hparams.HParamsPluginData(version=_HPARAMS_VERSION)
        data.session_end_info.status, data.session_end_info.end_time_secs = status, ended_s
        self._add([self._plugin_value("_hparams_/session_end_info", "hparams", data.SerializeToString())])

    def _plugin_value(self, tag: str, plugin: str, content: bytes) -> Any:
        value = self._summary.Summary.Value(tag=tag)
        value.metadata.plugin_data.plugin_name, value.metadata.plugin_data.content = plugin, content
        return value

    def _add(self, values: Sequence[Any], step: int = 0) -> None:
        event = self._event(wall_time=self._wall_s + step / 1000, step=step)
        event.summary.value.extend(values)
        self._add_event(event)

    def _add_event(self, event: Any) -> None:
        self._frames.append(_frame(event.SerializeToString(deterministic=True)))


def _frame(record: bytes) -> bytes:
    """Return a record with its length, and a checksum of each."""
    length = struct.pack("<Q", len(record))
    return length + _checksum(length) + record + _checksum(record)


def _checksum(content: bytes) -> bytes:
    from tensorboardX.crc32c import crc32c

    crc = crc32c(content)
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def _hparams_file(started_s: float, level: str, values: Mapping[str, Any]) -> EventFile:
    """Return the event file of a trial or cell, with its hyperparameters."""
    events = EventFile(started_s)
    events.add_restart()
    events.add_session({"level": level, **logs_as_numbers(values)}, started_s)
    return events


def _facts(trial: TrialRecord, version: str) -> dict[str, Any]:
    """Return the content of a trial's marker, without the name of its event file."""
    return {"level": "trial", "trial_id": trial.trial_id, "version": version, "started_s": trial.started_s or 0.0}


def _event_files(folder: Path, *kinds: str) -> list[Path]:
    return [path for kind in kinds for path in folder.glob(f"{_PREFIX}*.{kind}")]


def _remove(paths: Iterable[Path]) -> None:
    """Delete event files; a growing file is emptied, since TensorBoard does not read on after a deleted one."""
    for path in paths:
        if path.suffix == f".{_GROWING}":
            os.truncate(path, 0)
        else:
            path.unlink(missing_ok=True)


def _markdown_cell(text: str) -> str:
    return str(text).replace("|", "\\|").replace("\n", " ")

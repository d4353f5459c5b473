"""Sweeps as TensorBoard's event files: a folder for each trial, for each cell, and for the sweep.

A folder has one event file, whose name depends on its content, and a JSON file that says what it is. The JSON file is
written last, so that a trial counts as complete only with all of its events. The file of a trial that still trains
grows; one that is written as a whole replaces it. TensorBoard reads the files of a folder in the order of their names.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.base.errors import SweepError
from orchestrator.base.files import atomic_write, refuse_links, remove
from orchestrator.mirrors.event_writing import FAILURE, RUNNING, SUCCESS, EventFile
from orchestrator.mirrors.tracker import CellRecord, Point, SweepRecord, TrackingError, TrialRecord, with_numbers
from orchestrator.sweepfile.sections import TrackingConfig

STORE = "tensorboard"  # in the folder of a sweep
MARKER = "sweep.json"
# Kinds of event files, as their names end, with the number by which their names are in order: a trial in training, a
# whole folder, and beside a trial's events its results that change as others finish.
_GROWING, _MAIN, _SHARES = "growing", "main", "shares"
_ORDER = {_GROWING: 0, _MAIN: 1, _SHARES: 2}
_PREFIX = "events.out.tfevents."
_LONGEST_NAME = 150  # of a folder
_STATUS = {"finished": SUCCESS, "errored": FAILURE, "lost": FAILURE}


class TensorBoardTracker:
    """One sweep's event files; ``Tracker`` describes the methods."""

    name = "tensorboard"
    title = "TensorBoard"
    library = "tensorboardX"

    def __init__(self, folder: Path, tracking: TrackingConfig, sign_of_life: Callable[[], None]) -> None:
        """Read what is there. Raises TrackingError."""
        self.where = self.shown_store(folder, tracking)
        self._store = folder / STORE
        self._sign_of_life = sign_of_life
        self._known: dict[str, str] = {}
        self._folder_of: dict[str, Path] = {}
        self._started_s: dict[str, float] = {}
        self._growing: dict[str, tuple[str, Path]] = {}  # attempt and file of trials that this process adds to
        with self._told_as_tracking_errors():
            refuse_links(self._store)
            if self._store.exists() and not self._store.is_dir():
                raise TrackingError(f"{self.title} at {self.where}: is no folder; remove it")
            for marker in self._store.glob(f"trials/*/{MARKER}"):
                self._take(marker)
            grown = self._store.glob(f"trials/*/{_PREFIX}*.{_GROWING}")
            self._emptied = [path for path in grown if path.stat().st_size == 0]

    @classmethod
    def load(cls) -> None:
        """Import the format of events now."""
        with contextlib.suppress(Exception):
            from tensorboardX.proto import event_pb2  # noqa: F401

    @classmethod
    def shown_store(cls, folder: Path, tracking: TrackingConfig) -> str:
        """The folder that ``tensorboard --logdir`` takes."""
        return str(folder / STORE)

    @classmethod
    def is_there(cls, folder: Path, tracking: TrackingConfig) -> bool:
        """Whether there is such a folder."""
        return (folder / STORE).is_dir()

    @property
    def known(self) -> Mapping[str, str]:
        """Trials with a folder, and the version of each complete one."""
        return self._known

    def write_trial(self, trial: TrialRecord) -> None:
        """Write a trial's folder."""
        with self._told_as_tracking_errors():
            started_s, ended_s = trial.started_s or 0.0, trial.finished_s or trial.started_s or 0.0
            events = self._first_events(trial)
            events.add_end(_STATUS.get(trial.status, RUNNING), ended_s)
            events.add_texts({"cell": trial.cell.name, **trial.tags})
            events.add_points(trial.points)
            place = self._place_of(trial)
            facts = {"level": "trial", "trial_id": trial.trial_id, "version": trial.version, "started_s": started_s}
            self._write(place, events, facts)
            self._growing.pop(trial.trial_id, None)
            self._folder_of[trial.trial_id], self._known[trial.trial_id] = place, trial.version
            self._started_s[trial.trial_id] = started_s
            if not trial.shares:
                _remove(_event_files(place, _SHARES))
            self._write_shares(trial.trial_id, trial.shares)

    def write_running(self, trial: TrialRecord) -> None:
        """Add to the event file of a trial, or begin another one for another attempt or after another process."""
        with self._told_as_tracking_errors():
            attempt, path = self._growing.get(trial.trial_id, ("", Path()))
            if attempt == trial.version:
                events = EventFile(trial.started_s or 0.0, has_head=False)
                events.add_points(trial.points)
                with open(path, "r+b") as file:  # an error where the file was deleted
                    file.seek(0, os.SEEK_END)
                    file.write(events.content())
            else:
                self._begin(trial)
            self._sign_of_life()

    def _begin(self, trial: TrialRecord) -> None:
        """Begin the event file of a trial in training, in place of all that is there of it."""
        events = self._first_events(trial)
        events.add_texts({"cell": trial.cell.name, **trial.tags})
        events.add_points(trial.points)
        place, started_s = self._place_of(trial), trial.started_s or 0.0
        path = place / f"{_PREFIX}{_ORDER[_GROWING]}{time.time_ns()}.{_GROWING}"
        old = _event_files(place, *_ORDER)
        atomic_write(path, events.content())
        facts = {"level": "trial", "trial_id": trial.trial_id, "version": "", "started_s": started_s}
        atomic_write(place / MARKER, _marker({**facts, "events": path.name}))
        _remove(old)
        self._folder_of[trial.trial_id], self._known[trial.trial_id] = place, ""
        self._started_s[trial.trial_id], self._growing[trial.trial_id] = started_s, (trial.version, path)

    def write_machine(self) -> None:
        """Nothing: TensorBoard has no place for it."""

    def write_sweep(self, sweep: SweepRecord, artifacts: Sequence[Path]) -> None:
        """Write the folders of the sweep and of its cells; of ``artifacts`` the pictures, since it shows no others."""
        with self._told_as_tracking_errors():
            if lost := sum(not (place / MARKER).is_file() for place in self._folder_of.values()):
                raise TrackingError(f"{self.title} at {self.where}: {lost} trials were deleted during the run")
            for trial_id, shares in sweep.shares.items():
                self._write_shares(trial_id, shares)
            for cell in sweep.cells:
                self._write_cell(cell)
            events = EventFile(sweep.finished_s)
            events.add_restart()
            rows = "".join(f"| {key} | {_in_table(value)} |\n" for key, value in sweep.settings.items())
            events.add_texts({"settings": f"| setting | value |\n| --- | --- |\n{rows}"})
            metrics = {**sweep.metrics, "is_over": float(sweep.is_over)}
            events.add_points([Point(name, float(value), 0) for name, value in metrics.items()])
            for path in artifacts:
                if path.suffix == ".png":
                    events.add_picture(path.name, path.read_bytes())
            for answer in sweep.answers:
                if answer.picture is not None:
                    events.add_picture(f"remedies/{answer.trial_id}", answer.picture.read_bytes())
            self._write(self._store / "sweep", events, {"level": "sweep"})
            remove(self._emptied)  # by earlier processes; TensorBoard has gone on
            self._sign_of_life()

    @contextlib.contextmanager
    def _told_as_tracking_errors(self) -> Iterator[None]:
        try:
            yield
        except TrackingError:
            raise
        except (SweepError, OSError, ValueError) as error:
            raise TrackingError(f"{self.title} at {self.where}: {str(error).splitlines()[0]}") from error

    def _take(self, marker: Path) -> None:
        """What the trial with ``marker`` is; one without its events, or with a damaged marker, is written again."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            facts = json.loads(marker.read_text())
            trial_id, is_whole = str(facts["trial_id"]), (marker.parent / str(facts["events"])).is_file()
            self._folder_of[trial_id], self._started_s[trial_id] = marker.parent, float(facts["started_s"])
            self._known[trial_id] = str(facts["version"]) if is_whole else ""

    def _first_events(self, trial: TrialRecord) -> EventFile:
        """A trial's event file with its hyperparameters."""
        events = EventFile(trial.started_s or 0.0)
        events.add_restart()
        events.add_session({"level": "trial", **with_numbers(trial.values)}, trial.started_s or 0.0)
        return events

    def _place_of(self, trial: TrialRecord) -> Path:
        return self._folder_of.get(trial.trial_id) or self._place("trials", trial.name, trial.trial_id)

    def _place(self, kind: str, name: str, key: str) -> Path:
        """A folder whose name says what it is, and differs where names do not."""
        shown = re.sub(r"[^\w.=+ -]", "_", name)[:_LONGEST_NAME]
        return self._store / kind / f"{shown} {key[:8]}"

    def _write_cell(self, cell: CellRecord) -> None:
        key, started_s = cell.key, cell.key.started_s or 0.0
        events = EventFile(started_s)
        events.add_restart()
        events.add_session({"level": "cell", **with_numbers(key.values)}, started_s)
        events.add_end(SUCCESS if cell.is_over else RUNNING, max(started_s, cell.finished_s))
        events.add_texts({"cell": key.name})
        events.add_points([Point(name, float(value), 0) for name, value in cell.metrics.items()])
        self._write(self._place("cells", key.name, key.cell_id), events, {"level": "cell"})

    def _write_shares(self, trial_id: str, shares: Mapping[str, float]) -> None:
        if shares and (place := self._folder_of.get(trial_id)) is not None:
            events = EventFile(self._started_s[trial_id])
            events.add_points([Point(name, value, 0) for name, value in shares.items()])
            self._write_events(place, _SHARES, events)
        self._sign_of_life()

    def _write(self, place: Path, events: EventFile, facts: Mapping[str, Any]) -> None:
        name = self._write_events(place, _MAIN, events)
        marker, text = place / MARKER, _marker({**facts, "events": name})
        if not marker.is_file() or marker.read_text() != text:
            atomic_write(marker, text)

    def _write_events(self, place: Path, kind: str, events: EventFile) -> str:
        """Replace a folder's event file of a ``kind``; a reader sees the old one or the new one. Returns its name.

        The main one replaces one that grows, too.

        TensorBoard reads on where it stopped in a file, so another content needs another name.
        """
        content = events.content()
        name = f"{_PREFIX}{_ORDER[kind]}{hashlib.sha256(content).hexdigest()[:16]}.{kind}"
        if not (place / name).is_file():
            atomic_write(place / name, content)
        replaced = [*_event_files(place, kind), *(_event_files(place, _GROWING) if kind == _MAIN else [])]
        _remove(path for path in replaced if path.name != name)
        return name


def _event_files(place: Path, *kinds: str) -> list[Path]:
    return [path for kind in kinds for path in place.glob(f"{_PREFIX}*.{kind}")]


def _remove(paths: Iterable[Path]) -> None:
    """Delete event files; those that grew become empty, since TensorBoard goes on to no other after a deleted one."""
    for path in paths:
        if path.suffix == f".{_GROWING}":
            os.truncate(path, 0)
        else:
            path.unlink(missing_ok=True)


def _marker(facts: Mapping[str, Any]) -> str:
    return json.dumps(facts, indent=1)


def _in_table(text: str) -> str:
    return str(text).replace("|", "\\|").replace("\n", " ")

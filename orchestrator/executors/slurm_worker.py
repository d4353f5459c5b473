"""A Slurm job on its node: train a pack, write reports to files, and end before the time limit.

Reports are JSON text. They are parsed strictly, since a file may be damaged.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import threading
import time
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Union

import numpy as np

from orchestrator.base.files import atomic_write, make_folder, open_private, storage_errors
from orchestrator.base.packs import Ending, Failed, LaunchedPack, Lost, Report
from orchestrator.base.processes import MARK, new_mark
from orchestrator.executors.slurm_launcher import JobLauncher
from orchestrator.worker.run import run_pack

REPORTS = "reports"
MORE_MEMORY = "its job ran out of memory (raise --slurm mem_gb=)"
# Slurm may send the signal before a job's time limit by this much earlier than requested.
_SLACK_S = 60.0
_LAST_REPORT_S = 2.0
_MAX_WAIT_S = 120.0  # for a job to end after Slurm has sent SIGTERM
_STEP_S = 0.05
_SECONDS_BETWEEN_SIGNALS = 1.0
_SHOWN = 60


class TrialJob:
    """Trains one pack in a thread, since only the main thread receives signals."""

    def __init__(self, folder: str, token: str, minutes: int, signal_delay_s: int) -> None:
        """A job below ``folder`` that may run while the driver's ``token`` exists, for at most ``minutes``."""
        self.arguments = (folder, token, minutes, signal_delay_s)
        self._folder, self._token = Path(folder), Path(folder) / token
        self._minutes, self._signal_delay_s = minutes, signal_delay_s
        self._began = time.monotonic()
        self._outbox: Outbox | None = None
        self._launcher = JobLauncher(minutes)
        self._is_ending = self._is_over = False
        self._failure: BaseException | None = None

    @property
    def outbox(self) -> Outbox:
        """Where reports go; only after training has started."""
        assert self._outbox is not None
        return self._outbox

    def train(self, pack: LaunchedPack, cluster: str, job_id: str) -> None:
        """Train ``pack`` and write its reports for the driver."""
        if cluster != "local":
            os.environ[MARK] = new_mark()  # a driver's mark from another machine would look like a dead driver's
        self._began = time.monotonic()
        # Register this job before checking its permission. A new driver does the reverse: it withdraws the permission
        # before it looks for registered jobs.
        self._outbox = Outbox(self._folder / REPORTS / pack.pack_id, cluster, job_id)
        if not self._is_wanted():
            return
        # Slurm sends SIGTERM before it kills a job that is cancelled or preempted.
        signal.signal(signal.SIGTERM, lambda *_: self._end_trial())
        threading.Thread(target=self._train, args=(pack,), daemon=True, name="trial").start()
        try:
            while not self._is_over:
                time.sleep(_STEP_S)  # a signal handler may exit here, which would be unsafe with a lock held
        finally:
            self._launcher.kill()
        if self._failure is not None:
            raise self._failure
        # Slurm would not requeue a preempted job that exits by itself now.
        deadline = time.monotonic() + _MAX_WAIT_S
        while self._is_ending and self._is_wanted() and time.monotonic() < deadline:
            time.sleep(_STEP_S)

    def end(self, pack: LaunchedPack) -> bool:
        """End the trial before the job ends; returns whether the job should restart."""
        if self._outbox is None:
            return True  # training has not started
        if self._is_over and not self._is_ending:
            return False  # its last report is written
        self._end_trial()
        self._wait(pack.launch.grace_s)
        self._launcher.kill()
        self._wait(_LAST_REPORT_S)
        seconds = time.monotonic() - self._began
        is_time_over = seconds > 60 * self._minutes - self._signal_delay_s - _SLACK_S
        if is_time_over and pack.launch.checkpoint is None:
            error = (
                f"its job's {self._minutes} minutes were not enough, and without objective.resume"
                " the next job would start over (raise --slurm time=)"
            )
            self.outbox.write(Report(pack.pack_id, 0, 0, seconds, ending=Failed(error)))
            return False
        return self._is_wanted()

    def _train(self, pack: LaunchedPack) -> None:
        last, num_killed = None, num_oom_kills()
        try:
            for report in run_pack(pack, lambda: not self._is_wanted(), self._launcher):
                if report.ending is not None:
                    last = report  # held back until all of the trial's processes have ended
                elif not self._is_ending:
                    self.outbox.write(report)
            if last is not None and isinstance(last.ending, Lost) and not self._is_ending:
                # A signal to the whole job may reach the trial's processes before this one.
                time.sleep(_SECONDS_BETWEEN_SIGNALS)
                if num_oom_kills() > num_killed:
                    last = replace(last, ending=replace(last.ending, error=f"{last.ending.error}; {MORE_MEMORY}"))
            if last is not None and not self._is_ending:
                self.outbox.write(last)
        except BaseException as error:
            self._failure = error
        finally:
            self._is_over = True

    def _is_wanted(self) -> bool:
        """Whether the driver still permits this job and no later attempt at the pack has started."""
        try:
            with open(self._token):  # asks the file server, unlike exists()
                pass
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            pass  # do not lose a trial while the file server is temporarily unavailable
        return not self.outbox.is_outdated()

    def _end_trial(self) -> None:
        """Ask the trial's processes to end; its later reports are discarded."""
        self._is_ending = True
        self._launcher.terminate()

    def _wait(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not self._is_over and time.monotonic() < deadline:
            time.sleep(_STEP_S)


def num_oom_kills() -> int:
    """Return how many processes of this job's control group the kernel has killed for memory; 0 if unknown."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, group = line.split(":", 2)
            if controllers in ("", "memory"):  # the second is version 1
                kind, name = ("memory", "memory.oom_control") if controllers else ("", "memory.events")
                counts = Path("/sys/fs/cgroup", kind, group.lstrip("/"), name)
                if counts.is_file():
                    return int(dict(entry.split() for entry in counts.read_text().splitlines())["oom_kill"])
    return 0


class Outbox:
    """The reports of one attempt at a pack: files A-N.json; A-0 names its job."""

    def __init__(self, folder: Path, cluster: str, job_id: str) -> None:
        """Claim the next attempt by creating its first file, since clocks of nodes differ. Raises StorageError."""
        self._folder, self._attempt, self._num_reports = folder, 0, 0
        with storage_errors(folder):
            make_folder(folder)
            is_claimed = False
            while not is_claimed:
                self._attempt += 1
                with contextlib.suppress(FileExistsError), open_private(self._path(self._attempt, 0), "x") as file:
                    json.dump({"cluster": cluster, "job": job_id}, file)
                    is_claimed = True

    def write(self, report: Report) -> None:
        """Write ``report``. Raises StorageError."""
        self._num_reports += 1
        atomic_write(self._path(self._attempt, self._num_reports), report_as_text(report))

    def is_outdated(self) -> bool:
        """Whether a later attempt exists because Slurm has lost contact with this node."""
        return os.path.exists(self._path(self._attempt + 1, 0))

    def _path(self, attempt: int, number: int) -> Path:
        return self._folder / f"{attempt:04d}-{number:06d}.json"


def report_as_text(report: Report) -> str:
    """Return ``report`` as one line; NaN and infinities are written as in Python's json."""
    return json.dumps(_plain(report), separators=(",", ":"))


def report_from_text(text: str | bytes) -> Report:
    """Return the report in ``text``; columns are float64, or int64 if named step.

    Raises ValueError for anything but a complete report.
    """
    try:
        return _built(Report, json.loads(text), "report")
    except RecursionError:
        raise ValueError("report: is nested too deeply") from None


def _plain(value: Any) -> Any:
    """Convert ``value`` to JSON types."""
    if isinstance(value, Ending):
        return {"kind": type(value).__name__, **_plain_fields(value)}
    if is_dataclass(value):
        return _plain_fields(value)
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return [_plain(inner) for inner in value] if isinstance(value, tuple) else value


def _plain_fields(value: Any) -> dict[str, Any]:
    return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}


def _built(kind: Any, value: Any, where: str) -> Any:
    """Build the type ``kind`` from ``value``. Raises ValueError naming ``where`` if it does not fit."""
    if isinstance(kind, type) and is_dataclass(kind):
        # `orchestrator.base.packs` imports numpy for its annotations alone.
        hints = typing.get_type_hints(kind, localns={"np": np})
        if not isinstance(value, dict) or value.keys() != hints.keys():
            raise ValueError(f"{where}: does not have the fields of {kind.__name__}")
        return kind(**{name: _built(hint, value[name], f"{where}.{name}") for name, hint in hints.items()})
    if kind is Any and _is_plain(value):
        return value
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in inner:
            return None
        choices = {choice.__name__: choice for choice in inner if choice is not type(None)}
        if len(choices) == 1:
            (only,) = choices.values()
            return _built(only, value, where)
        # For one of several dataclasses the value names the class.
        name = value.get("kind") if isinstance(value, dict) else None
        if not isinstance(name, str) or name not in choices:
            raise ValueError(f"{where}: {_shown(name)} is not one of {', '.join(choices)}")
        return _built(choices[name], {key: item for key, item in value.items() if key != "kind"}, where)
    if origin is tuple and isinstance(value, list):
        kinds = [inner[0]] * len(value) if inner[-1] is Ellipsis else list(inner)
        if len(kinds) == len(value):
            pairs = enumerate(zip(kinds, value, strict=True))
            return tuple(_built(kind, item, f"{where}.{i}") for i, (kind, item) in pairs)
    elif origin is not None and issubclass(origin, Mapping) and isinstance(value, dict):
        if inner[1] is np.ndarray:
            return _curve(value, where)
        return {name: _built(inner[1], item, f"{where}.{name}") for name, item in value.items()}
    elif kind in _SCALARS:
        accepts, build = _SCALARS[kind]
        if type(value) in accepts:
            try:
                return build(value)
            except (ValueError, OverflowError) as error:
                raise ValueError(f"{where}: {error}") from None
    raise ValueError(f"{where}: {_shown(value)} is not valid here")


def _is_plain(value: Any) -> bool:
    """Whether ``value`` is a JSON scalar, or a mapping of names to such values."""
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    return value is None or isinstance(value, str | bool | int | float)


def _curve(value: Mapping[str, Any], where: str) -> dict[str, np.ndarray]:
    """Build a curve: columns of equal length."""
    columns = {name: _column(name, values, f"{where}.{name}") for name, values in value.items()}
    if "step" not in columns or len({len(column) for column in columns.values()}) > 1:
        raise ValueError(f"{where}: is not a curve: its columns are {', '.join(columns)}")
    return columns


def _column(name: str, values: Any, where: str) -> np.ndarray:
    """Build one column of a curve."""
    accepts, dtype = ((int,), np.int64) if name == "step" else ((int, float), np.float64)
    if not isinstance(values, list) or not all(type(value) in accepts for value in values):
        raise ValueError(f"{where}: {_shown(values)} is not a list of numbers")
    try:
        return np.array(values, dtype=dtype)
    except OverflowError as error:
        raise ValueError(f"{where}: {error}") from None


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


# For each type of a field: the accepted JSON types, and the conversion.
_SCALARS: Mapping[Any, tuple[tuple[type, ...], Callable[[Any], Any]]] = {
    str: ((str,), str),
    bool: ((bool,), bool),
    int: ((int,), int),
    float: ((int, float), float),
    bytes: ((str,), lambda text: base64.b64decode(text, validate=True)),
}

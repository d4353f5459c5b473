"""Write to a tracker what it lacks of a sweep's ledger, at once or in a thread during training.

The mirror is idempotent: a trial that the tracker has in the ledger's version is not written again. The tracker's store
may be deleted and rebuilt at any time.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.base.errors import SweepError
from orchestrator.base.files import FORKS_OF_EACH, LEDGER, MIRRORED, atomic_write, open_private
from orchestrator.base.query import Say, silent
from orchestrator.base.trial_result import MemberResult, TrialResult
from orchestrator.ledger.reader import LedgerReader, PackRow
from orchestrator.maps.table import axes_of, read_table
from orchestrator.mirrors.records import LogColumns, log_columns, running_record, trial_record, version_of
from orchestrator.mirrors.sweep_records import sweep_record
from orchestrator.mirrors.tracker import (
    SweepAnswer,
    SweepRecord,
    Tracker,
    TrackingError,
    TrialAnswer,
    import_library,
    tracker_class,
)
from orchestrator.sweepfile.sections import TrackingConfig

PATIENCE_S = 30.0  # how long the end of a run waits for a silent store, or for another process that writes
_WRITER_LOCK = "mirror.lock"
_SAID_EVERY = 500  # trials
_LIVE_S = 3.0  # between two updates of running trials, if nothing else happens
_LIVE_PAUSE = 20.0  # the same, as a multiple of the time that an update takes


class Mirror:
    """One sweep's copy in a tracker, written only by the driver."""

    def __init__(
        self,
        folder: Path,
        tracking: TrackingConfig,
        on_response: Callable[[], None] = lambda: None,
        tracker: type[Tracker] | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """Connect to the store; ``on_response`` is called whenever it responds.

        Raises TrackingError if the store is unusable, or another process is still writing the sweep after
        ``patience_s``.
        """
        self.folder, self.tracking = folder, tracking
        self._logs: LogColumns | None = None
        # The ledger's state with its packs, and the sweep, when all trials were written last.
        self._written: tuple[tuple[str, list[PackRow]], SweepRecord] | None = None
        self._num_shown: dict[tuple[str, str | None], int] = {}  # rows of growing curves, by trial and attempt
        kind = tracker or tracker_class()
        import_library(kind)
        on_response()
        self._locks = contextlib.ExitStack()
        # Two writers that both look for a run and miss it would both create it.
        self._locks.enter_context(_only_writer(folder / _file_of(kind.name, _WRITER_LOCK), kind.title, patience_s))
        try:
            self.tracker = kind(folder, tracking, on_response)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let other processes write this sweep."""
        self._locks.close()

    def __enter__(self) -> Mirror:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def mirror_trials(
        self,
        ledger: LedgerReader,
        trial_ids: Sequence[str],
        shares: Mapping[str, Mapping[str, float]] | None = None,
        judged: Mapping[str, TrialResult] | None = None,
        say: Say = silent,
    ) -> None:
        """Write the trials that the tracker lacks, with their ``shares`` if known. Raises TrackingError.

        ``judged`` are trials as the others of the sweep judge them.
        """
        name = ledger.facts().get("name", "")
        for num, trial_id in enumerate(trial_ids):
            if num and num % _SAID_EVERY == 0:
                say(f"{num} of {len(trial_ids)} trials are in {self.tracker.title}")
            row = (judged or {}).get(trial_id) or ledger.trial(trial_id)
            if self.tracker.known.get(trial_id) != version_of(row):
                own = (shares or {}).get(trial_id, {})
                record = trial_record(ledger, row, self.tracking.every, self._logs_of(ledger), name, own)
                self.tracker.write_trial(record)

    def mirror_running(self, ledger: LedgerReader, is_cancelled: Callable[[], bool]) -> None:
        """Append the new points of running trials, until all are written or ``is_cancelled``. Raises TrackingError."""
        name = ledger.facts().get("name", "")
        for trial_id in [trial_id for trial_id, (status, _) in ledger.statuses().items() if status == "running"]:
            if is_cancelled():
                return
            row = ledger.trial(trial_id)
            after = self._num_shown.get((trial_id, row.pack_id), 0)
            record, num_rows = running_record(ledger, row, self._logs_of(ledger), name, after)
            if row.status == "running" and num_rows > after:
                self.tracker.write_running(record)
                self._num_shown[trial_id, row.pack_id] = num_rows

    def mirror_results(self) -> None:
        """Write all missing trials, and what else has no need of artifacts and answers. Raises TrackingError."""
        with LedgerReader(self.folder / LEDGER) as ledger:
            self.tracker.write_results(self._with_trials(ledger, (), silent))

    def mirror_sweep(
        self, artifacts: Sequence[Path], answers: Sequence[TrialAnswer | SweepAnswer] = (), say: Say = silent
    ) -> None:
        """Write all missing trials, and the sweep with its ``artifacts`` and ``answers``. Raises TrackingError."""
        with LedgerReader(self.folder / LEDGER) as ledger:
            sweep = self._with_trials(ledger, answers, say)
            self.tracker.write_sweep(sweep, artifacts)
            state = _state(self.folder, ledger)
        atomic_write(self.folder / _file_of(self.tracker.name, MIRRORED), f"{self.tracker.where} {state}")

    def _with_trials(self, ledger: LedgerReader, answers: Sequence[TrialAnswer | SweepAnswer], say: Say) -> SweepRecord:
        """Write all missing trials, and return the sweep with its ``answers``. Raises TrackingError."""
        now = ledger.state(), ledger.packs()
        if self._written is None or self._written[0] != now:
            self._written = now, self._all_trials(ledger, say)
        return _with_answers(self._written[1], answers)

    def _all_trials(self, ledger: LedgerReader, say: Say) -> SweepRecord:
        statuses, known = ledger.statuses(removed=True), self.tracker.known
        # A tracker gets planned trials only if an earlier run has put them there.
        begun = [trial for trial, (status, _) in statuses.items() if status != "planned" or trial in known]
        table = read_table(ledger)
        sweep = sweep_record(table)
        judged = {row.trial_id: row for row in table.trials}
        self.mirror_trials(ledger, begun, sweep.shares, judged, say)
        return sweep

    def _logs_of(self, ledger: LedgerReader) -> LogColumns:
        """Return the log columns of the sweep's axes, read once: it takes all rows."""
        if self._logs is None:
            self._logs = log_columns(axes_of(ledger.facts(), ledger.trials()))
        return self._logs


def _with_answers(sweep: SweepRecord, answers: Sequence[TrialAnswer | SweepAnswer]) -> SweepRecord:
    own = [answer for answer in answers if isinstance(answer, SweepAnswer)]
    return replace(
        sweep,
        answers=[answer for answer in answers if isinstance(answer, TrialAnswer)],
        tags={**sweep.tags, **{name: text for answer in own for name, text in answer.tags.items()}},
        metrics={**sweep.metrics, **{name: value for answer in own for name, value in answer.metrics.items()}},
        description=[*sweep.description, *(answer.sentence for answer in own)],
    )


class BackgroundMirror:
    """Mirror trials in a thread as they finish, while workers train. An observer of the run.

    The first failure stops it for this run and is kept in ``failure``: an unreachable store costs one warning, and a
    later sync writes what is missing. The driver's thread never calls the store, so a hanging store can be abandoned.
    """

    def __init__(
        self,
        folder: Path,
        tracking: TrackingConfig,
        tracker: type[Tracker] | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """``patience_s`` is how long the end of the run waits for a silent store."""
        self.folder, self.tracking = folder, tracking
        self._tracker, self._patience_s = tracker or tracker_class(), patience_s
        self.failure: TrackingError | None = None
        self._mirror: Mirror | None = None
        self._queue: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._is_ending = False
        self._deadline = 0.0
        self._thread = threading.Thread(target=self._attempt, args=(self._work,), daemon=True, name="mirror")
        self._last: threading.Thread | None = None

    def start(self) -> None:
        """Start connecting. A tracker's first start may keep a core busy for seconds."""
        self._thread.start()

    def began(self, progress: Any) -> None:
        """Do nothing: no trial has a result yet."""

    def changed(self, progress: Any, finished: Sequence[MemberResult]) -> None:
        """Queue the new results."""
        for result in finished:
            self._queue.put(result.trial_id)

    def ended(self, progress: Any) -> None:
        """Accept no more results; queued ones and cells are written while workers and exports finish."""
        if self._is_ending:
            return
        self._is_ending = True
        self._queue.put(None)  # for the thread to see it
        if self._thread.native_id is not None:
            self._last = self._begun(self._write_results)

    def is_current(self) -> bool:
        """Return whether the store has everything in the ledger."""
        return is_current(self.folder, self.tracking, self._tracker)

    def finish(
        self, artifacts: Sequence[Path], answers: Sequence[TrialAnswer | SweepAnswer] = ()
    ) -> TrackingError | None:
        """Write everything that is missing and the parent run, and return the error, or None.

        A silent store blocks the caller for ``patience_s`` at most.
        """
        import_library(self._tracker)  # slow on a busy machine, which must not count as a silent store
        self.ended(None)
        self._deadline = time.monotonic() + self._patience_s
        if self._last is not None:
            self._wait_for(self._last)
        if self.failure is None:
            self._wait_for(self._begun(self._complete, artifacts, answers))
        return self.failure

    def _begun(self, action: Callable[..., None], *arguments: Any) -> threading.Thread:
        """Start a thread with the priority of the process, which the one behind training may not get back."""
        thread = threading.Thread(target=self._attempt, args=(action, *arguments), daemon=True, name="mirror-end")
        thread.start()
        return thread

    def _wait_for(self, thread: threading.Thread) -> None:
        """Wait until ``thread`` ends, or the store has been silent or slow for too long."""
        while thread.is_alive() and time.monotonic() < self._deadline:
            thread.join(0.1)
        if thread.is_alive():
            where = self._tracker.shown_store(self.folder, self.tracking)
            self.failure = TrackingError(f"{self._tracker.title} at {where}: does not answer, or too slowly")

    def _extend_deadline(self) -> None:
        # A response earns one second: a store that takes longer for each of thousands of calls is abandoned too.
        self._deadline = min(self._deadline + 1.0, time.monotonic() + self._patience_s)

    def _attempt(self, action: Callable[..., None], *arguments: Any) -> None:
        """Run ``action``; on an error, keep it and release the sweep's lock."""
        try:
            action(*arguments)
        except TrackingError as error:
            self.failure = error
        except (SweepError, OSError) as error:
            self.failure = TrackingError(f"{self._tracker.title}: {error}")
        if self.failure is not None and self._mirror is not None:
            self._mirror.close()

    def _new_mirror(self) -> Mirror:
        return Mirror(self.folder, self.tracking, self._extend_deadline, self._tracker, self._patience_s)

    def _work(self) -> None:
        if not self._is_ending:  # behind training; the end of the run writes what is left
            _set_niceness(threading.get_native_id(), 19)
        self._mirror = self._new_mirror()
        with contextlib.closing(LedgerReader(self.folder / LEDGER)) as ledger:
            # Once the run waits for this thread, another one with normal priority writes the rest.
            pause_s = _LIVE_S
            while not self._is_ending:
                self._mirror.tracker.write_machine()
                try:
                    trial_id = self._queue.get(timeout=pause_s)
                except queue.Empty:
                    began = time.monotonic()
                    self._mirror.mirror_running(ledger, lambda: self._is_ending or not self._queue.empty())
                    pause_s = max(_LIVE_S, _LIVE_PAUSE * (time.monotonic() - began))
                    continue
                if trial_id is None:
                    return
                self._mirror.mirror_trials(ledger, [trial_id])

    def _write_results(self) -> None:
        assert self._thread.native_id is not None
        # It may be importing, and other programs may keep the processors busy.
        _set_niceness(self._thread.native_id, os.nice(0))
        self._thread.join()
        if self.failure is None and self._mirror is not None:
            self._mirror.mirror_results()

    def _complete(self, artifacts: Sequence[Path], answers: Sequence[TrialAnswer | SweepAnswer]) -> None:
        self._mirror = self._mirror or self._new_mirror()
        self._mirror.mirror_sweep(artifacts, answers)
        self._mirror.close()


def has_been_mirrored(folder: Path, name: str) -> bool:
    """Return whether the sweep in ``folder`` was ever written to the tracker ``name``."""
    return (folder / _file_of(name, MIRRORED)).is_file()


def is_current(folder: Path, tracking: TrackingConfig, tracker: type[Tracker]) -> bool:
    """Return whether the store has everything in the ledger, as far as known without connecting."""
    marker = folder / _file_of(tracker.name, MIRRORED)
    if not marker.is_file() or not tracker.may_exist(folder, tracking):
        return False
    with LedgerReader(folder / LEDGER) as ledger:
        return marker.read_text() == f"{tracker.shown_store(folder, tracking)} {_state(folder, ledger)}"


def _file_of(tracker_name: str, file: str) -> str:
    """Return a tracker's name for ``file``. MLflow came first, so its files have no suffix."""
    return file if tracker_name == "mlflow" else f"{file}.{tracker_name}"


def _state(folder: Path, ledger: LedgerReader) -> str:
    """Return a hash of what is mirrored: the sweep's ledger, and the ledgers of forks of its trials."""
    states = [ledger.state()]
    for path in sorted(folder.glob(FORKS_OF_EACH)):
        with LedgerReader(path) as forks:
            states.append(forks.state())
    return states[0] if len(states) == 1 else hashlib.sha256(" ".join(states).encode()).hexdigest()


@contextlib.contextmanager
def _only_writer(path: Path, title: str, patience_s: float) -> Iterator[None]:
    """Hold the lock file ``path``, waiting for other holders. Raises TrackingError after ``patience_s``."""
    deadline = time.monotonic() + patience_s
    with open_private(path, "a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TrackingError(f"another process is writing this sweep to {title}") from None
                time.sleep(0.1)
        yield


def _set_niceness(native_id: int, niceness: int) -> None:
    """Set how far a thread stands behind others. Most systems let root alone put one back in front."""
    with contextlib.suppress(AttributeError, OSError):  # only Linux has thread priorities
        os.setpriority(os.PRIO_PROCESS, native_id, niceness)

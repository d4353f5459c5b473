"""Ledger -> tracker: what the tracker lacks of a sweep.

The mirror is idempotent: a trial that the tracker has completely, in the ledger's version, is not written again. The
tracker's store may be deleted and created again at any time.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from orchestrator.base.files import FORKS_OF_EACH, LEDGER, MIRRORED, atomic_write, open_private
from orchestrator.base.space import Axis
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.stability import sweep_axes
from orchestrator.mirrors.records import running_record, trial_record, version_of
from orchestrator.mirrors.sweep_records import sweep_record
from orchestrator.mirrors.tracker import Tracker, TrackingError, TrialAnswer, tracker_class
from orchestrator.sweepfile.sections import TrackingConfig

# How long the end of a run waits for a store that does not respond, or for another process that writes.
PATIENCE_S = 30.0
_WRITER_LOCK = "mirror.lock"


def own_file(file: str, tracker: type[Tracker]) -> str:
    """The name of ``file`` for this tracker; MLflow's have no addition, since MLflow was the first."""
    return _own_name(file, tracker.name)


def _own_name(file: str, tracker_name: str) -> str:
    return file if tracker_name == "mlflow" else f"{file}.{tracker_name}"


class Mirror:
    """One sweep's copy in a tracker, written only by the driver."""

    def __init__(
        self,
        folder: Path,
        tracking: TrackingConfig,
        sign_of_life: Callable[[], None] = lambda: None,
        tracker: type[Tracker] | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """Connect to the store; ``sign_of_life`` is called on every response.

        Raises TrackingError when the store cannot be used, or another process writes the sweep for ``patience_s``.
        """
        self.folder, self.tracking = folder, tracking
        self._axes: Mapping[str, Axis] | None = None
        self._shown_rows: dict[tuple[str, str | None], int] = {}  # of curves that still grow, by trial and attempt
        make = tracker or tracker_class()
        make.load()
        sign_of_life()
        self._holds = contextlib.ExitStack()
        # Two writers that look for a run and find none would both create it.
        self._holds.enter_context(_only_writer(folder / own_file(_WRITER_LOCK, make), make.title, patience_s))
        try:
            self.tracker = make(folder, tracking, sign_of_life)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let other processes write this sweep."""
        self._holds.close()

    def __enter__(self) -> Mirror:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def mirror_trials(
        self, ledger: LedgerReader, trial_ids: Sequence[str], shares: Mapping[str, Mapping[str, float]] | None = None
    ) -> None:
        """Write these trials from the ledger, with their ``shares`` if known, unless the tracker has them.

        Raises TrackingError.
        """
        name = ledger.facts().get("name", "")
        for trial_id in trial_ids:
            row = ledger.trial(trial_id)
            if self.tracker.known.get(trial_id) != version_of(row):
                own = (shares or {}).get(trial_id, {})
                record = trial_record(ledger, row, self.tracking.every, self._axes_of(ledger), name, own)
                self.tracker.write_trial(record)

    def mirror_running(self, ledger: LedgerReader, wants_end: Callable[[], bool]) -> None:
        """Write what is new of trials that still train, until all are written or it ``wants_end``.

        Raises TrackingError.
        """
        name = ledger.facts().get("name", "")
        for trial_id in [trial_id for trial_id, (status, _) in ledger.statuses().items() if status == "running"]:
            if wants_end():
                return
            row = ledger.trial(trial_id)
            after = self._shown_rows.get((trial_id, row.pack_id), 0)
            record, until = running_record(ledger, row, self._axes_of(ledger), name, after)
            if row.status == "running" and until > after:
                self.tracker.write_running(record)
                self._shown_rows[trial_id, row.pack_id] = until

    def mirror_machine(self) -> None:
        """Write the load of this machine. Raises TrackingError."""
        self.tracker.write_machine()

    def _axes_of(self, ledger: LedgerReader) -> Mapping[str, Axis]:
        """The axes of the sweep; reading them takes all rows."""
        if self._axes is None:
            self._axes = {axis.name: axis for axis in sweep_axes(ledger)}
        return self._axes

    def mirror_sweep(self, artifacts: Sequence[Path], answers: Sequence[TrialAnswer] = ()) -> None:
        """Write what is missing of all trials, and the sweep as a whole with ``artifacts`` and ``answers``.

        Raises TrackingError.
        """
        with LedgerReader(self.folder / LEDGER) as ledger:
            statuses = ledger.statuses(removed=True)
            # Planned trials of an interrupted sweep are not in the tracker yet.
            there = [trial for trial, (status, _) in statuses.items() if status != "planned" or trial in self.known]
            sweep = replace(sweep_record(ledger), answers=answers)
            self.mirror_trials(ledger, there, sweep.shares)
            self.tracker.write_sweep(sweep, artifacts)
            state = _state(self.folder, ledger)
        atomic_write(self.folder / own_file(MIRRORED, type(self.tracker)), f"{self.tracker.where} {state}")

    @property
    def known(self) -> Mapping[str, str]:
        """Trials that the tracker has."""
        return self.tracker.known


def has_been_mirrored(folder: Path, name: str) -> bool:
    """Whether the sweep in ``folder`` was written to the tracker of that name."""
    return (folder / _own_name(MIRRORED, name)).is_file()


def is_current(folder: Path, tracking: TrackingConfig, tracker: type[Tracker]) -> bool:
    """Whether the store has everything in the ledger, as far as known without connecting."""
    marker = folder / own_file(MIRRORED, tracker)
    if not marker.is_file() or not tracker.is_there(folder, tracking):
        return False
    with LedgerReader(folder / LEDGER) as ledger:
        return marker.read_text() == f"{tracker.shown_store(folder, tracking)} {_state(folder, ledger)}"


def _state(folder: Path, ledger: LedgerReader) -> str:
    """A hash of what is mirrored: the sweep's ledger and those of forks of its trials."""
    states = [ledger.state()]
    for path in sorted(folder.glob(FORKS_OF_EACH)):
        with LedgerReader(path) as forks:
            states.append(forks.state())
    return states[0] if len(states) == 1 else hashlib.sha256(" ".join(states).encode()).hexdigest()


@contextlib.contextmanager
def _only_writer(path: Path, title: str, patience_s: float) -> Iterator[None]:
    """Hold the lock file ``path``, waiting a while for other holders. Raises TrackingError on timeout."""
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

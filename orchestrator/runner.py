"""The loop: plan, lease, launch, record, stop. It knows no Ray, no MLflow and no terminal."""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from orchestrator import __version__
from orchestrator.errors import EXIT_INTERRUPTED, EXIT_OK, EXIT_SOME_FAILED, EXIT_TERMINATED
from orchestrator.executors import Executor
from orchestrator.files import FROZEN_SWEEP, LEDGER, sweep_lock, write_if_changed
from orchestrator.ledger import Ledger
from orchestrator.packing import make_packs
from orchestrator.reports import Event, Finished, Pack, PackLost, PackStarted, Report
from orchestrator.space import Trial, canonical_json
from orchestrator.spec import Sweep

MAX_ATTEMPTS = 3
_POLL_S = 0.25
# Packs queued beyond those that run, so that no worker waits for the driver.
_LOOKAHEAD = 1


@dataclass
class Progress:
    """Where a run stands; observers read it, the runner alone writes it."""

    sweep: Sweep
    statuses: dict[str, str]
    outcomes: dict[str, str]
    to_train: int
    workers: int = 0
    member_steps: int = 0
    saved_steps: int = 0
    ways: list[str] = field(default_factory=list)  # how packs are run and why, each one once
    started: float = field(default_factory=time.monotonic)
    running: dict[str, Report] = field(default_factory=dict)

    @property
    def counts(self) -> Counter[str]:
        """Trials by outcome, or by status where there is none yet."""
        return Counter(self.outcomes.get(trial_id, status) for trial_id, status in self.statuses.items())

    @property
    def steps_left(self) -> int:
        """Member-steps that are still to train, if nobody is lost."""
        unfinished = sum(1 for status in self.statuses.values() if status in ("planned", "running", "lost"))
        done = sum(report.steps_in_hand for report in self.running.values())
        return max(0, unfinished * self.sweep.steps - done)

    @property
    def seconds(self) -> float:
        """Time since the run began to train."""
        return time.monotonic() - self.started

    @property
    def member_steps_per_second(self) -> float:
        """Throughput of all workers together so far."""
        return self.member_steps / self.seconds if self.seconds else 0.0


class Observer(Protocol):
    """Somebody who watches a run: the live view, the mirror to MLflow."""

    def began(self, progress: Progress) -> None:
        """Training is about to begin."""

    def changed(self, progress: Progress, finished: Sequence[Finished]) -> None:
        """Something happened, or a quarter of a second went by; ``finished`` are new results."""

    def ended(self, progress: Progress) -> None:
        """Training is over, also after an error."""


@dataclass(frozen=True, slots=True)
class Summary:
    """How a run ended."""

    counts: Counter[str]
    trained: int
    seconds: float
    stopped_by: int | None  # a signal's number

    @property
    def exit_code(self) -> int:
        """0 when all trials finished, 3 when some did not, 128 + signal when stopped."""
        if self.stopped_by is not None:
            return EXIT_TERMINATED if self.stopped_by == signal.SIGTERM else EXIT_INTERRUPTED
        return EXIT_SOME_FAILED if self.counts["errored"] or self.counts["lost"] else EXIT_OK


def run_sweep(
    sweep: Sweep,
    folder: Path,
    make_executor: Callable[[], Executor],
    observers: Sequence[Observer] = (),
    *,
    retry_errored: bool = False,
) -> Summary:
    """Train what ``sweep`` still misses and record it in the ledger under ``folder``.

    The executor is made only when there is something to train, so a finished sweep is a no-op.
    Raises InputError when another driver has the sweep, StorageError when results cannot be written.
    """
    with sweep_lock(folder), Ledger(folder / LEDGER) as ledger:
        write_if_changed(folder / FROZEN_SWEEP, sweep.text)
        ledger.plan(sweep.objective.name, sweep.trials, driver_facts(sweep))
        ledger.release_abandoned()
        if retry_errored:
            ledger.release_errored()
        return _Run(sweep, ledger, observers).train(make_executor)


def missing_trials(sweep: Sweep, statuses: dict[str, tuple[str, int]]) -> list[Trial]:
    """Trials that a run would train: planned, interrupted or lost, not yet given up."""
    again = ("planned", "interrupted", "lost")
    return [t for t in sweep.trials if statuses.get(t.trial_id, ("planned", 0))[0] in again]


class _Run:
    """One driver's run over one sweep."""

    def __init__(self, sweep: Sweep, ledger: Ledger, observers: Sequence[Observer]) -> None:
        self.sweep, self.ledger, self.observers = sweep, ledger, observers
        self.packs: dict[str, Pack] = {}
        self.stopped_by: int | None = None
        statuses = ledger.statuses()
        outcomes = {row["trial_id"]: row["outcome"] for row in ledger.trials() if row["outcome"]}
        self.attempts = {trial_id: attempts for trial_id, (_, attempts) in statuses.items()}
        missing = missing_trials(sweep, statuses)
        self.waiting = {trial.trial_id: trial for trial in missing}
        self.progress = Progress(
            sweep, {trial_id: status for trial_id, (status, _) in statuses.items()}, outcomes, len(missing)
        )

    def train(self, make_executor: Callable[[], Executor]) -> Summary:
        if self.waiting:
            executor = make_executor()
            try:
                # After the executor began: Ray installs handlers of its own.
                with _signals(self._request_stop):
                    self._loop(executor)
            finally:
                executor.close()
        return Summary(self.progress.counts, self.progress.to_train, self.progress.seconds, self.stopped_by)

    def _loop(self, executor: Executor) -> None:
        progress = self.progress
        progress.workers, progress.started = executor.slots, time.monotonic()
        queued: list[Pack] = []
        for observer in self.observers:
            observer.began(progress)
        try:
            while self.stopped_by is None:
                if self.waiting:
                    queued += make_packs(self.sweep, list(self.waiting.values()), executor.slots)
                    self.waiting.clear()
                while queued and len(self.packs) < executor.slots + _LOOKAHEAD:
                    pack = queued.pop(0)
                    self.packs[pack.pack_id] = pack
                    executor.submit(pack)
                if not self.packs:
                    return
                finished = [new for event in executor.poll(_POLL_S) for new in self._handle(event, executor)]
                for observer in self.observers:
                    observer.changed(progress, finished)
            executor.stop()
        finally:
            self._release_running()
            for observer in self.observers:
                observer.ended(progress)

    def _handle(self, event: Event, executor: Executor) -> Sequence[Finished]:
        pack = self.packs.get(event.pack_id)
        if pack is None:
            return ()
        if isinstance(event, PackStarted):
            self.ledger.start_pack(pack, executor.name)
            self._set_status(pack.trial_ids, "running")
            for trial_id in pack.trial_ids:
                self.attempts[trial_id] = self.attempts.get(trial_id, 0) + 1
            return ()
        if isinstance(event, PackLost):
            self._lose(pack, event.reason)
            return ()
        self._take(pack, event)
        return event.finished

    def _take(self, pack: Pack, report: Report) -> None:
        progress = self.progress
        self.ledger.record(report)
        before = progress.running.get(pack.pack_id)
        progress.member_steps += report.member_steps - (before.member_steps if before else 0)
        progress.running[pack.pack_id] = report
        if (way := report.environment.get("way")) and way not in progress.ways:
            progress.ways.append(way)
        for finished in report.finished:
            progress.statuses[finished.trial_id] = "finished"
            progress.outcomes[finished.trial_id] = finished.outcome
            progress.saved_steps += pack.steps - finished.steps_done
        if not report.is_last:
            return
        if report.error is None:
            # A worker that forgot a member would be a bug of ours, and must not look like a result.
            self.ledger.end_pack(pack.pack_id, "done", "errored", "the worker ended without its result")
        else:
            cause = report.error.strip().splitlines()[-1][:300]
            self.ledger.end_pack(pack.pack_id, "errored", "errored", cause, report.error, report.waited)
        self._forget(pack, "errored")
        self._set_status(report.waited, "planned")
        for trial_id in report.waited:
            self.attempts[trial_id] -= 1
        self.waiting.update({t.trial_id: t for t in self.sweep.trials if t.trial_id in report.waited})

    def _lose(self, pack: Pack, reason: str) -> None:
        """A pack's process died: its unfinished members run again, but not for ever."""
        self.ledger.end_pack(pack.pack_id, "lost", "lost", reason)
        lost = self._forget(pack, "lost")
        given_up = [trial_id for trial_id in lost if self.attempts.get(trial_id, 0) >= MAX_ATTEMPTS]
        self.ledger.give_up(given_up, f"lost {MAX_ATTEMPTS} times, last because {reason}")
        self._set_status(given_up, "errored")
        again = set(lost) - set(given_up)
        self.waiting.update({t.trial_id: t for t in self.sweep.trials if t.trial_id in again})

    def _forget(self, pack: Pack, status: str) -> list[str]:
        """Drop a pack that is over; its unfinished trials, which get ``status``."""
        self.packs.pop(pack.pack_id, None)
        self.progress.running.pop(pack.pack_id, None)
        unfinished = [t for t in pack.trial_ids if self.progress.statuses[t] != "finished"]
        self._set_status(unfinished, status)
        return unfinished

    def _release_running(self) -> None:
        """Mark what was in training as interrupted; what only waited stays planned."""
        for pack in list(self.packs.values()):
            self.ledger.end_pack(pack.pack_id, "interrupted", "interrupted", "the run was stopped")
            unstarted = {t for t in pack.trial_ids if self.progress.statuses[t] == "planned"}
            self._forget(pack, "interrupted")
            self._set_status(unstarted, "planned")

    def _set_status(self, trial_ids: Sequence[str] | set[str], status: str) -> None:
        for trial_id in trial_ids:
            self.progress.statuses[trial_id] = status

    def _request_stop(self, signal_number: int) -> None:
        if self.stopped_by is not None:
            raise KeyboardInterrupt  # the second time means now
        self.stopped_by = signal_number


@contextlib.contextmanager
def _signals(request_stop: Callable[[int], None]) -> Iterator[None]:
    """Turn SIGINT, SIGTERM and SIGHUP into a request to stop; a no-op outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    previous = {number: signal.signal(number, lambda received, _: request_stop(received)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def driver_facts(sweep: Sweep) -> dict[str, str]:
    """What the ledger says of a sweep as a whole."""
    return {
        "name": sweep.name,
        "objective": sweep.objective.name,
        "sweep_version": __version__,
        "python": platform.python_version(),
        "git_commit": git_commit(),
        "axes": canonical_json([{"name": axis.name, "scale": axis.scale, "ends": axis.ends} for axis in sweep.axes]),
        "is_sampled": canonical_json(sweep.is_sampled),
        "stopping": canonical_json(sweep.stopping.model_dump()),
    }


def git_commit() -> str:
    """The commit of the folder one stands in, with + when files differ from it; empty without git."""
    try:
        command = ["git", "describe", "--always", "--dirty=+", "--abbrev=40", "--exclude=*"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, env={**os.environ, "LC_ALL": "C"})
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""

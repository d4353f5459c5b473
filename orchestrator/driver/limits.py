"""What ends a run before its last trial: its budget, failures with one cause, and signals."""

from __future__ import annotations

import contextlib
import datetime
import re
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from orchestrator.base.space import Trial
from orchestrator.driver.progress import Progress
from orchestrator.ledger.reader import LedgerReader
from orchestrator.sweepfile.sections import BudgetConfig

# Time for running packs to write a checkpoint when the run is stopped, in seconds.
PAUSE_S = 10.0
_HOUR_S = 3600.0
_MINUTE_S = 60.0
_NUM_ALIKE = 2  # failures with the same cause that hold back all other trials
# Failures with one cause differ in numbers, ids and paths of trial folders.
_VARIABLE = re.compile(r"[0-9a-f]{8,}|\d+(?:\.\d+)?(?:e[-+]?\d+)?", re.IGNORECASE)


@dataclass
class Budget:
    """The budget of a sweep over all of its runs, as seen by one run. ``wall_clock`` is in seconds since 1970."""

    config: BudgetConfig
    gpus: float  # of a pack
    wall_clock: Callable[[], float]
    member_steps: int  # used by earlier runs
    seconds: float  # used by earlier runs
    gpu_seconds: float  # including this run
    begun: set[str]  # trials that were ever started
    used_up: str | None = None  # key and value of the limit that ended the run
    checked_s: float = 0.0  # progress.seconds at the last check

    @classmethod
    def of(cls, config: BudgetConfig, gpus: float, ledger: LedgerReader, wall_clock: Callable[[], float]) -> Budget:
        """Return the budget minus what the ledger says is used; each pack takes ``gpus``."""
        packs = ledger.packs()
        return cls(
            config,
            gpus,
            wall_clock,
            sum(pack.member_steps for pack in packs),
            ledger.training_seconds(),
            gpus * sum(pack.seconds for pack in packs),
            {trial_id for trial_id, (_, num_attempts) in ledger.statuses().items() if num_attempts},
        )

    def affordable(self, trials: Iterable[Trial]) -> dict[str, Trial]:
        """Return the trials that may be trained, by id and in order, and count them as begun."""
        kept = {}
        for trial in trials:
            if self.config.trials is None or trial.trial_id in self.begun or len(self.begun) < self.config.trials:
                self.begun.add(trial.trial_id)
                kept[trial.trial_id] = trial
            else:
                self.used_up = f"budget.trials = {self.config.trials}"
        return kept

    def is_used_up(self, progress: Progress, num_packs: int) -> bool:
        """Whether training must end; ``num_packs`` have trained since the last check."""
        self.gpu_seconds += (progress.seconds - self.checked_s) * self.gpus * num_packs
        self.checked_s = progress.seconds
        reason = self._reason(progress)
        self.used_up = reason or self.used_up
        return reason is not None

    def _reason(self, progress: Progress) -> str | None:
        config = self.config
        used: Sequence[tuple[str, float | None, float]] = (
            ("member_steps", config.member_steps, self.member_steps + progress.member_steps),
            ("minutes", config.minutes, (self.seconds + progress.seconds) / _MINUTE_S),
            ("gpu_hours", config.gpu_hours, self.gpu_seconds / _HOUR_S),
        )
        for key, limit, value in used:
            if limit is not None and value >= limit:
                return f"budget.{key} = {limit:g}"
        if config.until is not None and self.wall_clock() >= _timestamp(config.until):
            return f"budget.until = {config.until}"
        return None


def _timestamp(until: str) -> float:
    """The time ``until`` in seconds since 1970; local time unless it names a zone."""
    return datetime.datetime.fromisoformat(until).timestamp()


class FailFast:
    """Holds back further trials when the first ones all fail with one cause before any loss: they would fail too."""

    def __init__(self) -> None:
        self._has_trained = False
        self._num_alike = 0
        self._cause = ""
        self.reason: str | None = None  # why no further trial is started

    def trained(self) -> None:
        """Record that a trial of this run has a loss or a result."""
        self._has_trained, self.reason = True, None

    def failed(self, cause: str) -> bool:
        """Record that a pack failed for ``cause`` before its first loss; returns whether this holds back the others."""
        kind = _VARIABLE.sub("#", cause)
        self._num_alike = self._num_alike + 1 if kind == self._cause else 1
        self._cause = kind
        is_new = self.reason is None and self._num_alike >= _NUM_ALIKE and not self._has_trained
        if is_new:
            self.reason = f"no other trial is started: the first {self._num_alike} failed alike before their first loss"
        return is_new


@contextlib.contextmanager
def stop_signals(request_stop: Callable[[int], None]) -> Iterator[None]:
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

"""The state of a run while it trains, its observers and summary, and what ends it before its last trial."""

from __future__ import annotations

import contextlib
import datetime
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from orchestrator.base.errors import EXIT_OK, EXIT_SOME_FAILED
from orchestrator.base.packs import Report
from orchestrator.base.space import Trial
from orchestrator.base.trial_result import MemberResult
from orchestrator.base.vocabulary import CUSTOM_KINDS
from orchestrator.detection.relative import lr_axis
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.relative_results import with_relative_results
from orchestrator.sweepfile.sections import BudgetConfig
from orchestrator.sweepfile.spec import Sweep

_ENOUGH_S = 3.0
_TO_TRAIN = ("planned", "running", "interrupted", "lost")
# Time for running packs to write a checkpoint when the run is stopped, in seconds.
PAUSE_S = 10.0
_HOUR_S = 3600.0
_MINUTE_S = 60.0
_NUM_ALIKE = 2  # failures with the same cause that hold back all other trials
# Failures with one cause differ in numbers, ids and paths of trial folders.
_VARIABLE = re.compile(r"[0-9a-f]{8,}|\d+(?:\.\d+)?(?:e[-+]?\d+)?", re.IGNORECASE)


@dataclass
class Progress:
    """The state of a run; observers read it, only the runner writes it."""

    sweep: Sweep
    trials: Mapping[str, Trial]  # by id, in the order of the sweep; an open search adds to them
    statuses: dict[str, str]
    outcomes: dict[str, str]
    to_train: int
    clock: Callable[[], float]  # for durations, in seconds
    started: float
    workers: int = 0
    member_steps: int = 0
    steps_began: tuple[float, int] | None = None  # when the first steps were reported, and how many
    saved_steps: int = 0
    notes: list[str] = field(default_factory=list)  # execution plans and problems, without duplicates
    num_hung: int = 0  # packs without news for too long
    held_back: str | None = None  # why no further trial is started
    stopped_by: int | None = None  # a signal's number
    error: Exception | None = None  # what ended the run
    running: dict[str, Report] = field(default_factory=dict)
    is_compared: bool = False  # the outcomes are those of a map

    @property
    def is_provisional(self) -> bool:
        """Whether a trial's outcome may change when it is compared with others, at the end."""
        can_change = self.sweep.objective.name in CUSTOM_KINDS and lr_axis([axis.name for axis in self.sweep.axes])
        return bool(can_change and self.outcomes) and not self.is_compared

    def compare(self, ledger: LedgerReader) -> None:
        """Take the outcomes that trials have side by side, as a map has them."""
        if self.sweep.objective.name in CUSTOM_KINDS:  # others record their losses from before the first update
            trials = with_relative_results(ledger.trials(), ledger.facts(), ledger.trace)
            self.outcomes |= {trial.trial_id: trial.ending for trial in trials if trial.ending is not None}
        else:
            self.outcomes |= ledger.endings()
        self.is_compared = True

    @property
    def counts(self) -> Counter[str]:
        """Number of trials by outcome, or by status before they have one."""
        return Counter(self.outcomes.get(trial_id, status) for trial_id, status in self.statuses.items())

    @property
    def num_over(self) -> int:
        """Trials that will get no further result."""
        return sum(status in ("finished", "errored") for status in self.statuses.values())

    @property
    def num_risen(self) -> int:
        """Trials in training whose gradient norm has risen by half over its last steps."""
        return sum(report.num_risen for report in self.running.values())

    @property
    def num_nonfinite(self) -> int:
        """Trials in training whose last 100 steps had a loss or gradient norm that was not finite."""
        return sum(report.num_nonfinite for report in self.running.values())

    @property
    def peak_memory(self) -> float | None:
        """The most memory that a process in training has had, in MiB; None if unknown."""
        return max((report.peak_memory for report in self.running.values() if report.peak_memory), default=None)

    @property
    def steps_left(self) -> int:
        """Upper bound of the member-steps left, reached if no member is lost and a search uses all its trials."""
        unfinished = (self.trials[trial_id] for trial_id, status in self.statuses.items() if status in _TO_TRAIN)
        done = sum(report.steps_in_hand for report in self.running.values())
        return max(0, sum(trial.steps for trial in unfinished) + self._steps_not_proposed - done)

    @property
    def share_done(self) -> float:
        """Share of all member-steps that are trained or no longer needed, from 0 to 1."""
        total = sum(trial.steps for trial in self.trials.values()) + self._steps_not_proposed
        return 1 - self.steps_left / total if total else 0.0

    @property
    def _steps_not_proposed(self) -> int:
        """Member-steps of trials that an open search may still propose."""
        return max(0, (self.sweep.max_trials or 0) - len(self.trials)) * self.sweep.steps

    @property
    def seconds(self) -> float:
        """Time since training started."""
        return self.clock() - self.started

    @property
    def member_steps_per_second(self) -> float:
        """Throughput of all workers since their first steps; 0 during the first ``_ENOUGH_S``.

        The time before the first steps, such as imports, does not predict the time left.
        """
        if self.steps_began is None:
            return 0.0
        since, steps = self.steps_began
        seconds = self.clock() - since
        return (self.member_steps - steps) / seconds if seconds >= _ENOUGH_S else 0.0


class Observer(Protocol):
    """An observer of a run: the live view, the mirrors to trackers, or the messages of `notify`."""

    def began(self, progress: Progress) -> None:
        """Training is about to begin."""

    def changed(self, progress: Progress, finished: Sequence[MemberResult]) -> None:
        """Something happened or a quarter of a second passed; ``finished`` are new results."""

    def ended(self, progress: Progress) -> None:
        """Training has ended, possibly with an error."""


@dataclass(frozen=True, slots=True)
class Summary:
    """How a run ended."""

    counts: Counter[str]
    trained: int
    seconds: float
    stopped_by: int | None  # a signal's number
    used_up: str | None = None  # the limit of the budget that ended the run

    @property
    def exit_code(self) -> int:
        """0 if all trials finished, 3 if some did not, 128 + signal if stopped."""
        if self.stopped_by is not None:
            return 128 + self.stopped_by
        return EXIT_SOME_FAILED if self.counts["errored"] or self.counts["lost"] else EXIT_OK


class Budget:
    """The budget of a sweep over all of its runs, as seen by one run."""

    def __init__(
        self, config: BudgetConfig, gpus: float, ledger: LedgerReader, wall_clock: Callable[[], float] = time.time
    ) -> None:
        """Subtract what the ledger says is used; each pack takes ``gpus``, and ``wall_clock`` is in s since 1970."""
        self.config, self.gpus, self.wall_clock = config, gpus, wall_clock
        packs = ledger.packs()
        self.member_steps = sum(pack.member_steps for pack in packs)  # used by earlier runs
        self.seconds = ledger.training_seconds()  # used by earlier runs
        self.gpu_seconds = gpus * sum(pack.seconds for pack in packs)  # including this run
        # Trials that were ever started.
        self.begun = {trial_id for trial_id, (_, num_attempts) in ledger.statuses().items() if num_attempts}
        self.used_up: str | None = None  # key and value of the limit that ended the run
        self.checked_s = 0.0  # progress.seconds at the last check

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
        # Local time unless it names a zone.
        if config.until is not None and self.wall_clock() >= datetime.datetime.fromisoformat(config.until).timestamp():
            return f"budget.until = {config.until}"
        return None


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
    """Turn SIGINT, SIGTERM and SIGHUP into a request to stop, but no SIGHUP under nohup; a no-op in other threads."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    hang_up = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)
    numbers = (signal.SIGINT, signal.SIGTERM, *hang_up)
    previous = {number: signal.signal(number, lambda received, _: request_stop(received)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)

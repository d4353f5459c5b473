"""The state of a run while it trains, its observers, and the summary when it has ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from orchestrator.base.errors import EXIT_OK, EXIT_SOME_FAILED
from orchestrator.base.packs import Report
from orchestrator.base.space import Trial
from orchestrator.base.trial_result import MemberResult
from orchestrator.sweepfile.spec import Sweep

_ENOUGH_S = 3.0
_TO_TRAIN = ("planned", "running", "lost")


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

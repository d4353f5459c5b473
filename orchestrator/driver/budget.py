"""What a sweep may use in all its runs together, and when it is used up."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from orchestrator.base.space import Trial
from orchestrator.driver.progress import Progress
from orchestrator.ledger.reader import LedgerReader
from orchestrator.sweepfile.sections import BudgetConfig

_HOUR_S = 3600.0
_MINUTE_S = 60.0


@dataclass
class Budget:
    """A run's view of ``config``: what earlier runs used, and what it adds. ``wall_clock`` is in seconds since 1970."""

    config: BudgetConfig
    gpus: float  # of a pack
    wall_clock: Callable[[], float]
    member_steps: int  # of earlier runs, as the next
    seconds: float
    gpu_seconds: float  # of this run too
    begun: set[str]  # trials that were started at some time
    used_up: str | None = None  # the key and value of what ended the run
    looked_s: float = 0.0  # progress.seconds at the last look

    @classmethod
    def of(cls, config: BudgetConfig, gpus: float, ledger: LedgerReader, wall_clock: Callable[[], float]) -> Budget:
        """The budget with what the ledger says is used; ``gpus`` are those of a pack."""
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
        """Those of ``trials`` that may be trained, by id, in order: they count as begun from now on."""
        kept = {}
        for trial in trials:
            if self.config.trials is None or trial.trial_id in self.begun or len(self.begun) < self.config.trials:
                self.begun.add(trial.trial_id)
                kept[trial.trial_id] = trial
            else:
                self.used_up = f"budget.trials = {self.config.trials}"
        return kept

    def is_used_up(self, progress: Progress, num_packs: int) -> bool:
        """Whether no more may be trained; ``num_packs`` have trained since the last look."""
        self.gpu_seconds += (progress.seconds - self.looked_s) * self.gpus * num_packs
        self.looked_s = progress.seconds
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
        for key, most, value in used:
            if most is not None and value >= most:
                return f"budget.{key} = {most:g}"
        if config.until is not None and self.wall_clock() >= end_of(config.until):
            return f"budget.until = {config.until}"
        return None


def end_of(until: str) -> float:
    """The time ``until`` in seconds since 1970; local where it names no zone."""
    return datetime.datetime.fromisoformat(until).timestamp()

"""What the forks of a trial came to: for each remedy and fork step, how many replicates it saved."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from orchestrator.base.intervals import wilson
from orchestrator.base.trial_result import TrialResult
from orchestrator.causes.remedies.remedy import Entry, Fork, Remedy, fork_of


@dataclass(frozen=True, slots=True)
class Tally:
    """The replicates of one remedy from one step on.

    ``saved`` of them are stable and learned at least half of what the best fork did; ``recovered`` left their trend and
    came back. ``final_loss`` is the median over the replicates, None where half of them ended with no finite loss.
    ``own_loss`` is that of the replicate with the data of the original. ``spent_steps`` were trained after the fork.
    ``own_passed`` says whether the replicate with the data of the original is still on its trend where the first spike
    of the original was over, whatever comes later; None where that never was over. ``different`` replicates ended
    differently: where data has no part in training, all are one run. ``outcomes`` counts all by what they came to.
    """

    remedy: Remedy
    fork_step: int
    tried: int
    saved: int
    recovered: int
    final_loss: float | None
    own_loss: float | None
    spent_steps: int
    different: int
    own_passed: bool | None
    outcomes: Mapping[str, int] = field(default_factory=dict)

    @property
    def share(self) -> float:
        """The share of the replicates that it saved, 0 to 1."""
        return self.saved / self.tried

    @property
    def counts(self) -> str:
        """Saved of tried, and with a plus those that left the trend and came back: ``2/3+1``."""
        return f"{self.saved}/{self.tried}" + (f"+{self.recovered}" if self.recovered else "")

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's interval of ``share``."""
        return wilson(self.saved, self.tried)

    @property
    def saves_all(self) -> bool:
        """Whether it saved every replicate."""
        return self.saved == self.tried


def tallies(rows: Iterable[TrialResult], own: Sequence[Entry] = (), over: int | None = None) -> list[Tally]:
    """The tally of each remedy and fork step of ``rows``, in their order; trials without a result do not count.

    ``own`` are the interventions of the original, whose first spike was ``over`` at that step. Its own row has no fork
    and no tally. The forks without a remedy have other data alone.
    """
    found: dict[tuple[str, int], list[tuple[Fork, TrialResult]]] = {}
    for row in rows:
        fork = fork_of(row.config.get("interventions") or (), own)
        if fork is not None and row.is_judged:
            found.setdefault((fork.remedy.name, fork.step), []).append((fork, row))
    return [_tally(group, over) for group in found.values()]


def _tally(group: Sequence[tuple[Fork, TrialResult]], over: int | None) -> Tally:
    (first, _), *_ = group
    rows = [row for _, row in group]
    losses = [math.inf if row.final_loss is None else row.final_loss for row in rows]
    middle = median(losses)
    own_row = next((row for fork, row in group if fork.replicate == 0), None)
    return Tally(
        remedy=first.remedy,
        fork_step=first.step,
        tried=len(rows),
        saved=sum(is_saved(row) for row in rows),
        recovered=sum(row.outcome == "spiked" for row in rows),
        final_loss=middle if math.isfinite(middle) else None,
        own_loss=None if own_row is None else own_row.final_loss,
        spent_steps=sum(max(0, (row.steps_done or 0) - first.step) for row in rows),
        own_passed=None if own_row is None or over is None else _has_passed(own_row, over),
        outcomes=dict(sorted(Counter(row.label for row in rows).items())),
        different=len({(row.outcome, row.steps_done, row.final_loss) for row in rows}),
    )


def _has_passed(row: TrialResult, over: int) -> bool:
    if row.onset_step is None:
        return row.outcome == "stable"
    return row.onset_step > over


def is_saved(row: TrialResult) -> bool:
    """Whether a fork is stable and learned.

    One that only stands still is not saved, nor one that ends above the loss with which training began: the detector
    gives a loss that falls over decades room for a rise by some of them.
    """
    first, last = row.initial_loss, row.final_loss
    is_above = first is not None and last is not None and last > first
    return row.outcome == "stable" and not row.is_degraded and not is_above

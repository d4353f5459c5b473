"""What the forks of a trial came to: how many replicates each remedy saved, until which step, and at what cost."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from orchestrator.base.intervals import wilson
from orchestrator.base.query import hidden, reported
from orchestrator.base.trial_result import TrialResult
from orchestrator.base.vocabulary import CUSTOM_KINDS
from orchestrator.causes.mechanisms.catalogue import MECHANISMS
from orchestrator.causes.remedies.remedy import NO_CHANGE, Entry, Fork, Remedy, fork_of, own_interventions
from orchestrator.causes.remedies.repeats import NO_REPEATS, Difference, Repeats

_LONGEST_LOSS = 6  # characters


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """The replicates of one remedy from one fork step.

    ``saved`` replicates are stable and learned at least half of what the best fork did; ``recovered`` ones left their
    trend and came back. ``final_loss`` is the median over the replicates, None if half ended without a finite loss.
    ``own_loss`` is the final loss of the replicate with the original's data, and ``own_passed`` says whether it was
    still on its trend when the original's first spike was over, None if that spike never ended. ``spent_steps`` were
    trained after the fork. ``different`` counts replicates that ended differently: 1 if the data play no part in
    training. ``outcomes`` counts the replicates by their label.
    """

    remedy: Remedy = hidden()
    fork_step: int
    tried: int
    saved: int
    recovered: int
    final_loss: float | None
    own_loss: float | None
    spent_steps: int
    different: int = hidden()
    own_passed: bool | None
    outcomes: Mapping[str, int]

    @reported
    def name(self) -> str:
        """The name of the remedy."""
        return self.remedy.name

    @reported
    def low(self) -> float:
        """The lower end of Wilson's 95 % interval of ``share``."""
        return wilson(self.saved, self.tried)[0]

    @reported
    def high(self) -> float:
        """The upper end of Wilson's 95 % interval of ``share``."""
        return wilson(self.saved, self.tried)[1]

    @property
    def share(self) -> float:
        """The share of the replicates that it saved, 0 to 1."""
        return self.saved / self.tried

    @property
    def counts(self) -> str:
        """Saved of tried, and with a plus the replicates that left the trend and came back: ``2/3+1``."""
        return f"{self.saved}/{self.tried}" + (f"+{self.recovered}" if self.recovered else "")

    @property
    def saves_all(self) -> bool:
        """Whether it saved every replicate."""
        return self.saved == self.tried

    @property
    def comparable_loss(self) -> float:
        """The final loss, infinite if it is not finite."""
        return math.inf if self.final_loss is None else self.final_loss

    @property
    def short_loss(self) -> str:
        """The final loss in at most six characters if it is positive, such as 2.41 or 6.3e-4; empty without one."""
        if self.final_loss is None:
            return ""
        text = f"{self.final_loss:.3g}"
        if len(text) > _LONGEST_LOSS:
            text = re.sub(r"e([+-])0*", r"e\1", f"{self.final_loss:.1e}").replace("e+", "e")
        return text


@dataclass(frozen=True, slots=True)
class StableCell:
    """A stable cell near the trial's on the map: the ``setting`` that differs, its value, and its median loss."""

    setting: str
    value: Any
    final_loss: float | None


@dataclass(frozen=True, slots=True)
class Cost:
    """What a remedy costs without an instability: its final loss in a stable neighbour, and the neighbour's own."""

    name: str
    fork_step: int
    outcome: str
    final_loss: float | None
    own_loss: float | None


@dataclass(frozen=True, slots=True)
class Remedies:
    """The results of the forks of one trial.

    ``control`` is the trial trained again and left alone. ``control_repeats`` says whether its curve equals the
    original's bit for bit, None without a result; otherwise ``control_differs`` are the facts of the two processes that
    differ, and ``control_difference`` says how the losses differ. ``tallies`` are the remedies, ``unchanged`` the forks
    with nothing but other data. ``cause`` is the mechanism of the diagnosis. ``costs`` were measured on the stable
    trial ``neighbour``. ``num_missing`` forks have no result yet. ``repeats`` is about a custom trainer, whose forks
    are resumed; remedies without effect there have no tally.
    """

    sweep: str
    trial: TrialResult
    onset: int | None
    cause: str | None
    control: TrialResult | None
    control_repeats: bool | None
    control_differs: Mapping[str, tuple[str, str]]
    tallies: tuple[Tally, ...]
    unchanged: tuple[Tally, ...]
    stable_cells: tuple[StableCell, ...]
    neighbour: TrialResult | None
    costs: tuple[Cost, ...]
    num_missing: int
    control_difference: Difference | None = None
    repeats: Repeats = NO_REPEATS

    @property
    def is_custom(self) -> bool:
        """Whether a custom trainer made the trial: its forks are resumed from its own checkpoints."""
        return self.trial.objective in CUSTOM_KINDS

    @property
    def unchanged_name(self) -> str:
        """The name of the forks without a remedy."""
        return f"{NO_CHANGE}, resumed" if self.is_custom else f"{NO_CHANGE}, other data"

    @property
    def fork_steps(self) -> list[int]:
        """The fork steps, ascending."""
        return sorted({tally.fork_step for tally in self.tallies})

    @property
    def names(self) -> list[str]:
        """The names of the remedies, in the order of the trials."""
        return list(dict.fromkeys(tally.name for tally in self.tallies))

    def at(self, name: str, step: int) -> Tally | None:
        """The tally of a remedy at a fork step."""
        return next((tally for tally in self.tallies if (tally.name, tally.fork_step) == (name, step)), None)

    def unchanged_at(self, step: int) -> Tally | None:
        """The tally of the forks without a remedy at a fork step."""
        return next((tally for tally in self.unchanged if tally.fork_step == step), None)

    @property
    def replicates_differ(self) -> bool:
        """Whether other data make another run; if not, replicates repeat each other."""
        several = [tally for tally in self.tallies if tally.tried > 1]
        return any(tally.different > 1 for tally in several) or not several

    @property
    def saving(self) -> list[Tally]:
        """The remedies that save every replicate, and more replicates than other data alone."""
        return [tally for tally in self.tallies if tally.saves_all and self.helped(tally)]

    @property
    def cheapest(self) -> Tally | None:
        """The remedy that saves every replicate from the latest fork, so that the fewest steps are trained again.

        Of several at that step the one with the lowest final loss. None if no remedy saves all.
        """
        return max(self.saving, key=lambda tally: (tally.fork_step, -tally.comparable_loss), default=None)

    @property
    def best(self) -> Tally | None:
        """The remedy that saves every replicate with the lowest final loss, from any step; None if there is none."""
        return min(self.saving, key=lambda tally: (tally.comparable_loss, -tally.fork_step), default=None)

    @property
    def best_partial(self) -> Tally | None:
        """The helpful remedy that saves the largest share of its replicates; None if none saves any."""
        helped = [tally for tally in self.tallies if tally.saved and self.helped(tally)]
        return max(helped, key=lambda tally: (tally.share, tally.fork_step), default=None)

    def helped(self, tally: Tally) -> bool:
        """Whether more of its replicates ended well than of the forks with other data alone and the control.

        A replicate ends well if it is stable, or recovers from a spike that the trial did not recover from.
        """
        alone = self.unchanged_at(tally.fork_step)
        control = self.control is not None and self.control.outcome == "stable"
        well, tried = (self._ended_well(alone), alone.tried) if alone is not None else (0, 0)
        return self._ended_well(tally) / tally.tried > (well + control) / (tried + 1)

    def _ended_well(self, tally: Tally) -> int:
        return tally.saved + (tally.recovered if self.trial.outcome != "spiked" else 0)

    @property
    def spent_steps(self) -> int:
        """Steps trained after the forks, including forks with other data alone."""
        return sum(tally.spent_steps for tally in (*self.tallies, *self.unchanged))

    @property
    def last_helpful_step(self) -> int | None:
        """The last fork step with a remedy that helped; None if none did."""
        return max((tally.fork_step for tally in self.tallies if self.helped(tally)), default=None)

    @property
    def too_late_step(self) -> int | None:
        """The first fork step after the last helpful one; None if there is none."""
        last = self.last_helpful_step
        return None if last is None else next((step for step in self.fork_steps if step > last), None)

    @property
    def agrees(self) -> bool | None:
        """Whether the remedies that the diagnosis calls for helped; None if none was tried, or nothing helped.

        If nothing helped to the end of the run, whether they at least got it past its first spike.
        """
        called_for = [tally for tally in self.tallies if self.is_called_for(tally)]
        if not called_for:
            return None
        if self.last_helpful_step is not None:
            return any(map(self.helped, called_for))
        got_past = [tally for tally in self.tallies if tally.own_passed]
        return any(tally in called_for for tally in got_past) if got_past else None

    def is_called_for(self, tally: Tally) -> bool:
        """Whether a remedy makes one of the moves against the mechanism of the diagnosis."""
        if self.cause is None:
            return False
        moves = {(move.setting, move.direction) for move in MECHANISMS[self.cause].moves}
        return bool(moves & tally.remedy.moves(self.trial.config))


def tallies(rows: Iterable[TrialResult], own: Sequence[Entry] = (), over: int | None = None) -> list[Tally]:
    """The tally of each remedy and fork step of ``rows``, in their order; trials without a result do not count.

    ``own`` are the interventions of the original, whose first spike was ``over`` at that step. The original has no fork
    and no tally. Forks without a remedy have nothing but other data.
    """
    groups: dict[tuple[str, int], list[tuple[Fork, TrialResult]]] = {}
    for row in rows:
        fork = fork_of(own_interventions(row), own)
        if fork is not None and row.is_judged:
            groups.setdefault((fork.remedy.name, fork.step), []).append((fork, row))
    return [_tally(group, over) for group in groups.values()]


def _tally(group: Sequence[tuple[Fork, TrialResult]], over: int | None) -> Tally:
    first, rows = group[0][0], [row for _, row in group]
    middle = median(math.inf if row.final_loss is None else row.final_loss for row in rows)
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

    A fork that only stands still is not saved, nor a fork that ends above the loss with which training began: the
    detector allows a loss that falls over decades to rise by a few.
    """
    first, last = row.initial_loss, row.final_loss
    is_above = first is not None and last is not None and last > first
    return row.outcome == "stable" and not row.is_degraded and not is_above

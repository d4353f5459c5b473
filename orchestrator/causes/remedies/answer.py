"""The answer of the forks: what saved the run, up to which step, and what it costs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.base.trial_result import TrialResult
from orchestrator.base.vocabulary import CUSTOM_KINDS
from orchestrator.causes.mechanisms.catalogue import MECHANISMS
from orchestrator.causes.remedies.repeats import NO_REPEATS, Difference, Repeats
from orchestrator.causes.remedies.tallies import Tally


@dataclass(frozen=True, slots=True)
class Beside:
    """A stable cell next to the trial's in the map: the ``setting`` that differs, its value, and its median loss."""

    setting: str
    value: Any
    final_loss: float | None


@dataclass(frozen=True, slots=True)
class Harm:
    """What a remedy costs where nothing is wrong: its final loss in a stable neighbour, and that neighbour's own."""

    name: str
    fork_step: int
    outcome: str
    final_loss: float | None
    own_loss: float | None


@dataclass(frozen=True, slots=True)
class Remedies:
    """The forks of one trial.

    ``control`` is the trial trained again and left alone; ``control_repeats`` says whether its curve is that of the
    original to the bit, None before it has a result. ``control_differs`` are facts of the process, of the trial and of
    the control, that are not the same. ``tallies`` are of remedies, ``unchanged`` of other data alone.
    ``cause`` is the mechanism of the diagnosis. ``neighbour`` is the stable trial on which ``harms`` were measured.
    ``num_missing`` forks have no result yet. ``control_difference`` says how the control differs from the original.
    ``repeats`` is of a custom trainer, whose forks are resumed; what had no effect there has no tally.
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
    beside: tuple[Beside, ...]
    neighbour: TrialResult | None
    harms: tuple[Harm, ...]
    num_missing: int
    control_difference: Difference | None = None
    repeats: Repeats = NO_REPEATS

    @property
    def is_custom(self) -> bool:
        """Whether a custom trainer made the trial: its forks are resumed from its own checkpoints."""
        return self.trial.objective in CUSTOM_KINDS

    @property
    def fork_steps(self) -> list[int]:
        """The steps at which the run was forked, ascending."""
        return sorted({tally.fork_step for tally in self.tallies})

    @property
    def names(self) -> list[str]:
        """The remedies, in the order in which they were tried."""
        return list(dict.fromkeys(tally.remedy.name for tally in self.tallies))

    def at(self, name: str, step: int) -> Tally | None:
        """The tally of a remedy at a fork step."""
        return next((one for one in self.tallies if one.remedy.name == name and one.fork_step == step), None)

    @property
    def replicates_differ(self) -> bool:
        """Whether other data makes another run: without it, replicates repeat each other."""
        several = [one for one in self.tallies if one.tried > 1]
        return any(one.different > 1 for one in several) or not several

    @property
    def saving(self) -> list[Tally]:
        """What saves every replicate, and more of them than other data alone."""
        return [tally for tally in self.tallies if tally.saves_all and self.helped(tally)]

    @property
    def cheapest(self) -> Tally | None:
        """The remedy that saves every replicate from the latest fork on: the fewest steps are trained again.

        Of several at that step the one with the lowest final loss. None where none saves all.
        """
        return max(self.saving, key=lambda one: (one.fork_step, -loss_of(one)), default=None)

    @property
    def best(self) -> Tally | None:
        """The remedy that saves every replicate with the lowest final loss, from whatever step. None without one."""
        return min(self.saving, key=lambda one: (loss_of(one), -one.fork_step), default=None)

    @property
    def most_saving(self) -> Tally | None:
        """Of what helped, the remedy that saves the largest share of its replicates. None where none saves any."""
        helped = [tally for tally in self.tallies if tally.saved and self.helped(tally)]
        return max(helped, key=lambda one: (one.share, one.fork_step), default=None)

    def helped(self, tally: Tally) -> bool:
        """Whether more of its replicates ended well than of other data alone, with the control, at that step.

        They end well where they are stable, or come back from a spike that the trial did not come back from.
        """
        alone = next((one for one in self.unchanged if one.fork_step == tally.fork_step), None)
        repeats = self.control is not None and self.control.outcome == "stable"
        well, tried = (self._ended_well(alone), alone.tried) if alone is not None else (0, 0)
        return self._ended_well(tally) / tally.tried > (well + repeats) / (tried + 1)

    def _ended_well(self, tally: Tally) -> int:
        return tally.saved + (tally.recovered if self.trial.outcome != "spiked" else 0)

    @property
    def spent_steps(self) -> int:
        """Steps trained after the forks, those with other data alone included."""
        return sum(one.spent_steps for one in (*self.tallies, *self.unchanged))

    @property
    def last_helpful_step(self) -> int | None:
        """The last fork step from which anything helped; None where nothing did."""
        return max((one.fork_step for one in self.tallies if self.helped(one)), default=None)

    @property
    def too_late_step(self) -> int | None:
        """The first fork step after the last helpful one: forks from there on came too late. None without one."""
        last = self.last_helpful_step
        return None if last is None else next((step for step in self.fork_steps if step > last), None)

    @property
    def agrees(self) -> bool | None:
        """Whether the remedies that the diagnosis calls for helped; None where none was tried, or nothing helped.

        Where nothing helped to the end of the run, whether they at least got it past its first spike.
        """
        called_for = [one for one in self.tallies if self.is_called_for(one)]
        if not called_for:
            return None
        if self.last_helpful_step is not None:
            return any(map(self.helped, called_for))
        got_past = [one for one in self.tallies if one.own_passed]
        return any(one in called_for for one in got_past) if got_past else None

    def is_called_for(self, tally: Tally) -> bool:
        """Whether a remedy makes one of the moves against the mechanism that the diagnosis names."""
        if self.cause is None:
            return False
        moves = {(move.setting, move.direction) for move in MECHANISMS[self.cause].moves}
        return bool(moves & tally.remedy.stands_for(self.trial.config))


def loss_of(tally: Tally) -> float:
    """The final loss for a comparison: the worst where it is not finite."""
    return math.inf if tally.final_loss is None else tally.final_loss

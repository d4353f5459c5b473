"""What forks came to: how many replicates each remedy saved, from what step and at what cost; of one trial."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.base.intervals import CONFIDENCE, fisher, holm
from orchestrator.base.query import hidden, reported
from orchestrator.base.trial_result import TrialResult
from orchestrator.base.vocabulary import CUSTOM_KINDS
from orchestrator.causes.mechanisms.catalogue import MECHANISMS
from orchestrator.causes.remedies.remedy import NO_CHANGE
from orchestrator.causes.remedies.tally import Tally


@dataclass(frozen=True, slots=True)
class StableCell:
    """A stable cell near the trial's on the map: the ``setting`` that differs, its value, and its median loss."""

    setting: str
    value: Any
    final_loss: float | None


@dataclass(frozen=True, slots=True)
class Cost:
    """What a remedy does where nothing is wrong: its final loss in a stable ``neighbour``, and the neighbour's own."""

    name: str
    fork_step: int
    outcome: str
    final_loss: float | None
    own_loss: float | None
    neighbour: str = ""

    @property
    def change(self) -> float | None:
        """The relative change of the final loss; None if it is not finite, or without an own one."""
        if self.final_loss is None or not self.own_loss:
            return None
        return (self.final_loss - self.own_loss) / abs(self.own_loss)


@dataclass(frozen=True, slots=True)
class Difference:
    """How two curves differ: the first step with different losses, and the largest relative difference.

    After the onset of an instability any difference grows, so ``largest`` covers only the steps before it.
    """

    step: int
    largest: float


@dataclass(frozen=True, slots=True)
class Resumed:
    """A fork that is resumed at a step and left alone, and how it differs from the trial; None if it repeats it."""

    fork_step: int
    differs: Difference | None


@dataclass(frozen=True, slots=True)
class Ignored:
    """A remedy at a fork step that the trainer ignores when it resumes."""

    name: str
    fork_step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedies:
    """The results of the forks of one trial.

    ``control`` is the trial trained again and left alone. ``control_repeats`` says whether its curve equals the
    original's bit for bit, None without a result; otherwise ``control_differs`` are the facts of the two processes that
    differ, and ``control_difference`` says how the losses differ. ``tallies`` are the remedies, ``unchanged`` the forks
    with nothing but other data, ``fresh`` what named remedies came to with data that had no part in naming them, and
    ``fresh_other_data`` what the same data alone came to from the same steps.
    ``num_tried`` remedies were tried on the trial in all requests. ``cause`` is the mechanism of the diagnosis.
    ``costs`` were measured on the stable trials ``neighbours``, the nearest first. ``num_missing`` forks have no result
    yet. The forks of a custom trainer are resumed: ``resumed`` says how forks that were left alone differ, and remedies
    ``without_effect`` have no tally.
    """

    sweep: str
    trial: TrialResult = hidden()
    onset: int | None = hidden()
    cause: str | None
    stable_cells: tuple[StableCell, ...]
    neighbours: tuple[TrialResult, ...] = hidden(default=())
    control: TrialResult | None = hidden(default=None)
    control_repeats: bool | None = None
    control_differs: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    control_difference: Difference | None = None
    tallies: tuple[Tally, ...] = hidden(default=())
    unchanged: tuple[Tally, ...] = hidden(default=())
    fresh: tuple[Tally, ...] = ()
    fresh_other_data: tuple[Tally, ...] = ()
    num_tried: int = 0
    costs: tuple[Cost, ...] = ()
    num_missing: int = 0
    resumed: tuple[Resumed, ...] = ()
    without_effect: tuple[Ignored, ...] = ()

    @property
    def is_custom(self) -> bool:
        """Whether a custom trainer made the trial: its forks are resumed from its own checkpoints."""
        return self.trial.objective in CUSTOM_KINDS

    @property
    def unchanged_name(self) -> str:
        """The name of the forks without a remedy."""
        return f"{NO_CHANGE}, resumed" if self.is_custom else f"{NO_CHANGE}, other data"

    def costs_of(self, tally: Tally | None) -> list[Cost]:
        """What the remedy of ``tally`` from its step does to each stable neighbour; empty without one."""
        return [cost for cost in self.costs if tally and (cost.name, cost.fork_step) == (tally.name, tally.fork_step)]

    @property
    def fork_steps(self) -> list[int]:
        """The fork steps, ascending."""
        return sorted({tally.fork_step for tally in self.tallies})

    @property
    def names(self) -> list[str]:
        """The names of the remedies, in the order of the trials."""
        return list(self.by_name)

    @property
    def by_name(self) -> dict[str, list[Tally]]:
        """The tallies of each remedy, in the order of the trials."""
        groups: dict[str, list[Tally]] = {}
        for tally in self.tallies:
            groups.setdefault(tally.name, []).append(tally)
        return groups

    @property
    def all_tallies(self) -> tuple[Tally, ...]:
        """The tallies of the remedies, of the forks without one, and of fresh replicates."""
        return (*self.tallies, *self.unchanged, *self.fresh, *self.fresh_other_data)

    def at(self, name: str, step: int) -> Tally | None:
        """The tally at a fork step of a remedy, or of NO_CHANGE."""
        return _at((*self.tallies, *self.unchanged), name, step)

    @reported
    def replicates_differ(self) -> bool:
        """Whether other data make another run; if not, replicates repeat each other."""
        several = [tally for tally in self.all_tallies if tally.tried > 1]
        return any(tally.different > 1 for tally in several) or not several

    @property
    def saving(self) -> list[Tally]:
        """The remedies that help and save every replicate, by fork step."""
        helpful = self.helpful
        saving = [tally for tally in self.tallies if tally.saves_all and tally.name in helpful]
        saving = [tally for tally in saving if self.is_repeated(tally) is not False]
        return sorted(saving, key=lambda tally: tally.fork_step)

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
        """The helpful remedy that saves the largest share of its replicates; None if one saves all, or none any."""
        if self.cheapest is not None:
            return None
        helpful = self.helpful
        helped = [tally for tally in self.tallies if tally.saved and tally.name in helpful]
        helped = [tally for tally in helped if self.is_repeated(tally) is not False]
        return max(helped, key=lambda tally: (tally.share, tally.fork_step), default=None)

    def measured(self, tally: Tally | None) -> Tally | None:
        """The fresh replicates of a named remedy, None without any; the ``tally`` itself if replicates are alike."""
        if tally is None or not self.replicates_differ:
            return tally
        return _at(self.fresh, tally.name, tally.fork_step)

    def fresh_alone(self, tally: Tally) -> Tally | None:
        """What the data of the fresh replicates of ``tally`` alone came to; None if it was not trained."""
        return _at(self.fresh_other_data, NO_CHANGE, tally.fork_step)

    @property
    def shown(self) -> Tally | None:
        """The cheapest remedy, or else the one that saves the largest share."""
        return self.cheapest or self.best_partial

    @property
    def kind(self) -> str | None:
        """The kind of the cheapest remedy; None without one."""
        return None if self.cheapest is None else self.cheapest.remedy.kind

    @property
    def from_onset(self) -> int | None:
        """Steps from the onset to the fork of the ``shown`` remedy, negative before it; None without an onset."""
        return None if self.shown is None or self.onset is None else self.shown.fork_step - self.onset

    @property
    def is_saved_by_lower_lr(self) -> bool:
        """Whether a lower learning rate alone saves every replicate."""
        remedies = [tally.remedy for tally in self.saving if tally.remedy.kind == "lr"]
        return any(("lr", "lower") in remedy.moves(self.trial.config) for remedy in remedies)

    @property
    def alone_loss(self) -> float | None:
        """The final loss of the control; None if it is not finite, or without a control."""
        return None if self.control is None else self.control.final_loss

    def is_lower_alone(self, remedy: Tally | None) -> bool:
        """Whether a spiked trial ends lower if left alone than with ``remedy``; a spike is not a failure."""
        if self.trial.outcome != "spiked" or remedy is None or self.alone_loss is None:
            return False
        return self.alone_loss < remedy.comparable_loss

    @property
    def p_values(self) -> dict[str, float]:
        """For each remedy the chance to end well as often with other data alone, corrected for the number tried.

        Fork steps are pooled. Replicates that were left out after a failure with the trial's own data count as failed.
        """
        planned = max((tally.tried for tally in self.tallies), default=0)
        chances = {name: self._chance(group, planned * len(group)) for name, group in self.by_name.items()}
        untested = [1.0] * (self.num_tried - len(chances))
        corrected = holm([*chances.values(), *untested])
        return {name: p for name, p in zip(chances, corrected, strict=False) if p is not None}

    @property
    def fresh_p_values(self) -> dict[tuple[str, int], float]:
        """By remedy and fork step the chance that fresh data alone ends well as often, corrected for their number."""
        chances = {
            (tally.name, tally.fork_step): fisher(
                self.ended_well(tally), tally.tried, self.ended_well(alone), alone.tried
            )
            for tally in self.fresh
            if (alone := self.fresh_alone(tally)) is not None
        }
        return {key: p for key, p in zip(chances, holm([*chances.values()]), strict=True) if p is not None}

    def is_repeated(self, tally: Tally) -> bool | None:
        """Whether fresh data repeats that a remedy helps from its step, more than chance explains; None if not known.

        From a step where that data alone mostly ends well no remedy can be distinguished from chance.
        """
        if (alone := self.fresh_alone(tally)) is None:
            return None
        known = self.fresh_p_values.get((tally.name, tally.fork_step))
        if known is None:
            at_best = fisher(alone.tried, alone.tried, self.ended_well(alone), alone.tried)
            return None if at_best <= 1 - CONFIDENCE else False
        return known <= 1 - CONFIDENCE

    @property
    def helpful(self) -> frozenset[str]:
        """The names of the remedies that end well more often than chance explains; none if the control is stable.

        Forks from neighbouring steps may share their luck, so what fresh data does not repeat is not helpful. If
        replicates are alike, chance plays no part, and every remedy that saves the run is helpful.
        """
        if self.control is None or self.is_stable_alone:
            return frozenset()
        if not self.replicates_differ:
            return frozenset(tally.name for tally in self.tallies if self.ended_well(tally))
        seems = {name for name, chance in self.p_values.items() if chance <= 1 - CONFIDENCE}
        good = [tally for tally in self.tallies if tally.name in seems and self.ended_well(tally)]
        return frozenset(tally.name for tally in good if self.is_repeated(tally) is not False)

    @property
    def is_stable_alone(self) -> bool:
        """Whether the control is stable, so that there is nothing to remedy."""
        return self.control is not None and self.control.ending == "stable"

    def helped(self, tally: Tally) -> bool:
        """Whether a helpful remedy made a replicate end well from this step."""
        return self.ended_well(tally) > 0 and tally.name in self.helpful

    def _chance(self, tallies: Sequence[Tally], tried: int) -> float:
        """Fisher's p-value of ``tallies`` against the control and other data from the same steps."""
        steps = {tally.fork_step for tally in tallies}
        others = [other for other in self.unchanged if other.fork_step in steps]
        # A resumed trainer that repeats the trial is the control once more.
        copies = {fork.fork_step for fork in self.resumed if fork.differs is None}
        num = sum(other.tried - (other.fork_step in copies) for other in others) + (self.control is not None)
        return fisher(sum(map(self.ended_well, tallies)), tried, sum(map(self.ended_well, others)), num)

    def ended_well(self, tally: Tally) -> int:
        """The replicates that are stable, or recovered from a spike that the trial did not recover from."""
        return tally.saved + (tally.recovered if self.trial.outcome != "spiked" else 0)

    @property
    def num_forks(self) -> int:
        """Forks with a result, including forks with other data alone."""
        return sum(tally.tried for tally in self.all_tallies)

    @property
    def spent_steps(self) -> int:
        """Steps trained after the forks, including forks with other data alone."""
        return sum(tally.spent_steps for tally in self.all_tallies)

    @reported
    def last_helpful_step(self) -> int | None:
        """The last fork step where a remedy is known to help: its fresh replicates alone beat other data.

        If replicates are alike, the last step where a remedy saved the run. None without one.
        """
        if self.replicates_differ:
            known = self.fresh_p_values
            chances = (known.get((t.name, t.fork_step), self._chance([t], t.tried)) for t in self.fresh)
            steps = [t.fork_step for t, chance in zip(self.fresh, chances, strict=True) if chance <= 1 - CONFIDENCE]
        else:
            steps = [tally.fork_step for tally in self.tallies if self.helped(tally)]
        return max(steps, default=None)

    @reported
    def too_late_step(self) -> int | None:
        """The first fork step after ``last_helpful_step``; None if there is none."""
        last = self.last_helpful_step
        return None if last is None else next((step for step in self.fork_steps if step > last), None)

    @property
    def agrees(self) -> bool | None:
        """Whether the remedies that the diagnosis calls for helped; None if none was tried, or nothing helped."""
        called_for, helpful = [tally.name for tally in self.tallies if self.is_called_for(tally)], self.helpful
        return not helpful.isdisjoint(called_for) if called_for and helpful else None

    def is_called_for(self, tally: Tally) -> bool:
        """Whether a remedy makes one of the moves against the mechanism of the diagnosis."""
        if self.cause is None:
            return False
        moves = {(move.setting, move.direction) for move in MECHANISMS[self.cause].moves}
        return bool(moves & tally.remedy.moves(self.trial.config))


def _at(tallies: Sequence[Tally], name: str, step: int) -> Tally | None:
    return next((tally for tally in tallies if (tally.name, tally.fork_step) == (name, step)), None)

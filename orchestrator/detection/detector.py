"""Spike and divergence detection for K members at once: losses in, episodes and verdicts out.

*Episodes* record when a loss left its trend and came back; they never stop a run. The *verdict* says that a run is
lost: its loss or gradient is not finite, or it stays far above its past without recovering, or it never fell below its
initial loss. docs/detection.md gives the reasons and shows real traces.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from orchestrator.detection.config import StoppingConfig
from orchestrator.detection.counters import Counts
from orchestrator.detection.episodes import Episodes
from orchestrator.detection.excursions import Episode
from orchestrator.detection.handled import ROLLED_BACK, Undone, Zeros
from orchestrator.detection.on_trend import Run, may_stay, take
from orchestrator.detection.trend import RECENT, Progress, Trend, Window
from orchestrator.detection.verdicts import Lost, Verdicts

# Spikes that are fewer steps apart count as one departure from the trend.
APART = 100
NEVER = -1_000_000
# Losses that are judged together if they stay on the trend, and one by one before that is tried again.
_FEWEST_TOGETHER, _MOST_TOGETHER, _ALONE = 32, 1024, 8


@dataclass(frozen=True, slots=True)
class MemberRecord:
    """Everything that the detector knows about one member.

    ``lost_step`` is the step of the verdict, ``lost_onset_step`` the onset of what lost the run. A member that trained
    on after its verdict may have recovered: ``is_far`` says whether it was still as high at the end, ``is_away``
    whether it was off its trend, or high, for longer than its patience. ``up_since_step`` is the onset of a slow rise:
    where the loss last rose above half of that height. ``episodes`` are the clear ones, ``faint`` the others, and both
    are empty for a run without a level to compare with. Only the first of many episodes are kept, ``num_episodes``
    counts all. ``off_share`` is the share of the steps off the trend. ``risen_share`` is the share of what it learned
    that a slow rise has given up since ``risen_since_step``, if above a quarter. ``norm_rises`` are the steps where
    the gradient norm had risen (``NormRises``). The last ``num_broken`` gradients were not finite, since
    ``broken_since_step``. ``start_loss`` is the initial loss or, after a start-up blow-up, the level that it came
    back to. The last ``num_zeros`` losses were exactly 0 since ``zero_since_step``, if that is no loss (``Zeros``);
    ``has_norm_at_zero`` says that their gradient norms were finite. ``undone_reason`` and ``undone_since_step`` say
    that a run that ends now was skipped or rolled back to its end (``Undone``). ``worse_share`` is the share of what it
    learned that it slowly lost, if it has been worse than at its best for a third of its losses, ``worse_since_step``.
    ``not_finite_step`` is the step since which it is not finite, also of a run that was lost before.
    """

    num_steps: int
    initial_loss: float | None
    best_loss: float | None
    recent_loss: float | None
    lost: Lost | None
    lost_step: int | None
    lost_onset_step: int | None
    lost_reason: str | None
    is_finite: bool
    is_far: bool
    up_since_step: int | None
    is_away: bool
    episodes: tuple[Episode, ...]
    num_episodes: int = 0
    off_share: float = 0.0
    first_step: int | None = None
    is_signed: bool = False
    has_grown: bool = False
    risen_share: float | None = None
    risen_since_step: int | None = None
    norm_rises: tuple[int, ...] = ()
    num_broken: int = 0
    broken_since_step: int | None = None
    faint: tuple[Episode, ...] = ()
    blew_up: bool = False
    start_loss: float | None = None
    num_zeros: int = 0
    zero_since_step: int | None = None
    has_norm_at_zero: bool = False
    undone_reason: str | None = None
    undone_since_step: int | None = None
    worse_share: float | None = None
    worse_since_step: int | None = None
    not_finite_step: int | None = None
    counts: Counts = field(default_factory=Counts, compare=False)


class _Member:
    """One run: its trend, its progress, its episodes and its verdict."""

    __slots__ = (
        "all_steps", "episodes", "first_step", "latest", "left_step", "level", "num_seen", "num_steps", "progress",
        "together", "trend", "undone", "verdicts", "zeros",
    )  # fmt: skip

    def __init__(self, rules: StoppingConfig, all_steps: float) -> None:
        self.all_steps = all_steps
        self.num_steps = self.num_seen = 0
        self.first_step = -1
        self.left_step = NEVER
        self.latest: list[float] = []  # up to a window of losses, accepted or not
        self.level = Window(RECENT)
        self.trend = Trend(rules)
        self.progress = Progress(rules, self.trend)
        self.episodes = Episodes(rules, self.trend, self.progress)
        self.verdicts = Verdicts(rules, self.progress, self.episodes)
        self.zeros, self.undone = Zeros(), Undone()
        self.together = _FEWEST_TOGETHER  # losses that are tried next

    def update(self, loss: float, norm: float | None, step: int, undone: int) -> bool:
        """Judge one step, and how it was undone, if it was. Return whether the run is lost."""
        verdicts = self.verdicts
        if self.first_step < 0:
            self.first_step = step
        is_seen = undone != ROLLED_BACK or math.isfinite(loss)
        is_finite = (math.isfinite(loss) or not is_seen) and verdicts.is_finite
        verdicts.guard(is_finite, norm is None or undone > 0 or math.isfinite(norm), step)
        if undone or self.undone.num:
            self.undone.follow(undone, step, self.progress.lowest, verdicts.noise_of_level())
            verdicts.guard_undone(self.undone, step)
        if is_seen and is_finite:
            self.zeros.follow(loss, norm, step, self.level.median() if self.num_seen else math.nan)
            if self.zeros.num:
                verdicts.guard_zeros(self.zeros, step, self.num_steps + 1)
            self._judge(loss, step)
        self.num_steps += 1
        return verdicts.lost is not None

    def follow(self, loss_N: np.ndarray, norm_N: np.ndarray | None, step_N: np.ndarray, undone_N: np.ndarray) -> None:
        """Judge many steps as ``update`` would one by one, those on the trend together."""
        losses, steps, undone = loss_N.tolist(), step_N.tolist(), undone_N.tolist()
        norms = [None] * len(losses) if norm_N is None else norm_N.tolist()
        is_plain_N = np.isfinite(loss_N) & (loss_N > 0) & (undone_N == 0)
        is_plain_N &= True if norm_N is None else np.isfinite(norm_N)
        others = [*np.flatnonzero(~is_plain_N).tolist(), len(losses)]
        at = other = 0
        while at < len(losses):
            while others[other] < at:
                other += 1
            end = min(at + self.together, others[other])
            num = self._take(loss_N[at:end], step_N[at:end]) if end - at >= _FEWEST_TOGETHER else 0
            self.together = min(2 * self.together, _MOST_TOGETHER) if at + num == end else _FEWEST_TOGETHER
            at += num
            if at < end or not num:
                for i in range(at, min(at + _ALONE, len(losses))):
                    self.update(losses[i], norms[i], steps[i], undone[i])
                at = min(at + _ALONE, len(losses))

    def _take(self, loss_N: np.ndarray, step_N: np.ndarray) -> int:
        """Take the first finite losses that are on the trend; return how many."""
        run = Run(self.trend, self.progress, self.episodes, self.verdicts)
        if self.undone.num or not self.verdicts.is_finite or not may_stay(run, self.num_seen):
            return 0
        num = take(run, self.level.values, loss_N, step_N, self.num_seen)
        if num:
            losses = loss_N[max(0, num - self.trend.accepted.size) : num].tolist()
            self.latest = [*self.latest, *losses][-self.trend.accepted.size :]
            self.level.reset([*self.level.values, *losses])
            self.zeros.come_back()
            self.num_steps, self.num_seen = self.num_steps + num, self.num_seen + num
        return num

    def _judge(self, loss: float, step: int) -> None:
        trend, episodes, verdicts, latest = self.trend, self.episodes, self.verdicts, self.latest
        if not self.num_seen:
            self.progress.begin(loss)
        self.num_seen += 1
        if len(latest) == trend.accepted.size:
            latest.pop(0)
        latest.append(loss)
        self.level.add(loss)
        excess = episodes.excess(loss)
        episodes.follow(loss, excess, step, self.num_seen, latest, verdicts.is_still_high(latest))
        # Losses half-way off the trend within an excursion must not raise the baseline.
        if excess <= (1.0 if episodes.current is None else 0.5):
            was_early = trend.is_early
            trend.accept(loss)
            self.progress.follow(loss)
            if was_early and not trend.is_early:
                episodes.weigh_start(latest)
        episodes.settle(latest, verdicts.is_far or verdicts.is_sunk, step, self.num_seen)
        episodes.follow_falls(self.num_seen)
        if episodes.current is not None and step - self.left_step >= APART and episodes.is_spike():
            self.left_step = step
        passed = (step - self.first_step) / self.all_steps
        verdicts.judge(loss, self.level.median(), step, self.num_steps, self.num_seen, passed)

    def record(self) -> MemberRecord:
        """Return what is known about the run so far."""

        def number(value: float) -> float | None:
            return value if math.isfinite(value) else None

        verdicts, progress, past = self.verdicts, self.progress, self.episodes
        lost = verdicts.lost
        episodes, faint = map(tuple, past.clear_and_faint())
        # Only the first of many are kept.
        num_episodes = past.num_closed + len(episodes) - len(past.closed)
        num_off = past.num_off + sum(e.num_steps for e in episodes) - sum(e.num_steps for e in past.closed)
        level = self.level.median() if self.num_seen else math.nan
        if verdicts.is_signed or verdicts.has_grown:  # its outcome is unknown: nothing to leave, nothing to recover
            episodes, faint, num_off, num_episodes = (), (), 0, 0
        risen_share = verdicts.risen_share(level) if self.num_seen else None
        are_zeros_told = self.zeros.are_told(progress.initial)
        undone_reason, undone_since_step = self.undone.verdict(self.num_steps)
        worse_share, worse_since_step = verdicts.worse(level, self.num_seen)
        return MemberRecord(
            num_steps=self.num_steps,
            initial_loss=number(progress.initial),
            best_loss=number(progress.best),
            recent_loss=number(level),
            lost=lost,
            lost_step=None if lost is None else verdicts.lost_step,
            lost_onset_step=None if lost is None else verdicts.lost_onset,
            lost_reason=verdicts.reason,
            is_finite=verdicts.is_finite,
            is_far=verdicts.is_far,
            up_since_step=verdicts.up_since if verdicts.is_up else None,
            is_away=verdicts.is_away(self.latest, self.num_steps),
            episodes=episodes,
            faint=faint,
            blew_up=progress.blew_up and bool(episodes),
            start_loss=number(progress.start),
            num_zeros=self.zeros.num if are_zeros_told else 0,
            zero_since_step=self.zeros.since if are_zeros_told else None,
            has_norm_at_zero=are_zeros_told and self.zeros.has_norm,
            undone_reason=undone_reason,
            undone_since_step=undone_since_step,
            worse_share=worse_share,
            worse_since_step=None if worse_share is None else worse_since_step,
            not_finite_step=verdicts.not_finite_step,
            num_episodes=num_episodes,
            off_share=num_off / self.num_steps if self.num_steps else 0.0,
            first_step=None if self.first_step < 0 else self.first_step,
            is_signed=verdicts.is_signed,
            has_grown=verdicts.has_grown,
            risen_share=risen_share,
            risen_since_step=None if risen_share is None else verdicts.risen_since,
            num_broken=verdicts.broken_gradients,
            broken_since_step=verdicts.gradient_since if verdicts.broken_gradients else None,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return plain values for a checkpoint."""
        parts = {name: getattr(self, name).state_dict() for name in ("trend", "progress", "episodes", "verdicts")}
        counts = {name: getattr(self, name) for name in ("num_steps", "num_seen", "first_step", "left_step")}
        own = {"latest": self.latest.copy(), "level": self.level.values.copy(), "zeros": asdict(self.zeros)}
        own["undone"] = asdict(self.undone)
        return {**counts, **own, **parts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a ``state_dict``."""
        self.num_steps, self.num_seen, self.first_step = state["num_steps"], state["num_seen"], state["first_step"]
        self.left_step = state.get("left_step", NEVER)  # checkpoints of earlier versions have none
        self.latest = list(state["latest"])
        self.level.reset(state["level"])
        self.zeros, self.undone = Zeros(**state.get("zeros", {})), Undone(**state.get("undone", {}))  # nor of these
        for name in ("trend", "progress", "episodes", "verdicts"):
            getattr(self, name).load_state_dict(state[name])


class SpikeDetector:
    """Streaming detector for K members. ``update`` takes one step's losses, shape (K,), or a number if K is 1.

    A loss is off its trend if it exceeds the local level by all of: ``spike_sigma`` robust deviations of the noise
    (1.4826 times the median absolute deviation), ``spike_rise`` of the level, 3 % of what was learned, and 2.6 times
    the height of the noise's upper tenth. Such losses never enter the baseline. Before ``min_history`` losses, the
    trend is the highest of the last three. Memory does not grow with the number of steps. Steps may be any increasing
    numbers. ``all_steps`` is how many a run will have from its first step to its last, for all members or one number
    for each; infinite while unknown.
    """

    def __init__(
        self,
        num_members: int = 1,
        config: StoppingConfig | None = None,
        all_steps: float | Sequence[float] = math.inf,
    ) -> None:
        self.config = config or StoppingConfig()
        of_each = all_steps if isinstance(all_steps, Sequence) else [all_steps] * num_members
        self._all_steps = math.inf if isinstance(all_steps, Sequence) else all_steps  # of new members
        self._members = [_Member(self.config, steps) for steps in of_each]

    def update(
        self,
        loss_K: np.ndarray | float,
        grad_norm_K: np.ndarray | float | None = None,
        step_K: np.ndarray | int | None = None,
        *,
        undone_K: np.ndarray | None = None,
    ) -> np.ndarray:
        """Judge the next step of each member. Return the mask (K,) of members whose verdict is lost.

        ``grad_norm_K`` is only checked for being finite and may be omitted. ``step_K`` has the step numbers for the
        record; by default each member counts from 0. ``undone_K`` says of each step whether it was SKIPPED or
        ROLLED_BACK, 0 for neither: its gradient is not judged, nor a loss that is not finite and was rolled back.
        """
        members = self._members
        losses = _as_list(loss_K, len(members))
        norms = None if grad_norm_K is None else _as_list(grad_norm_K, len(members))
        steps = None if step_K is None else _as_list(step_K, len(members))
        undone = None if undone_K is None else undone_K.tolist()
        lost = [
            member.update(
                losses[k],
                None if norms is None else norms[k],
                member.num_steps if steps is None else int(steps[k]),
                0 if undone is None else undone[k],
            )
            for k, member in enumerate(members)
        ]
        return np.array(lost, dtype=bool)

    def follow(
        self,
        loss_N: np.ndarray,
        norm_N: np.ndarray | None = None,
        step_N: np.ndarray | None = None,
        undone_N: np.ndarray | None = None,
    ) -> None:
        """Judge the next steps of a single member, as so many calls of ``update`` would."""
        (member,) = self._members
        steps = np.arange(member.num_steps, member.num_steps + len(loss_N)) if step_N is None else step_N
        member.follow(loss_N, norm_N, steps, np.zeros(len(loss_N)) if undone_N is None else undone_N)

    def record(self, member: int = 0) -> MemberRecord:
        """Return what is known about ``member``, a position in the pack, so far."""
        return self._members[member].record()

    @property
    def is_finite(self) -> np.ndarray:
        """Members whose loss and gradient were finite so far, (K,)."""
        return np.array([member.verdicts.is_finite for member in self._members], dtype=bool)

    @property
    def num_steps(self) -> np.ndarray:
        """Steps of each member so far, (K,)."""
        return np.array([member.num_steps for member in self._members], dtype=np.int64)

    @property
    def left_step(self) -> np.ndarray:
        """The step, (K,), when the latest spike was certain, or NEVER. Spikes within ``APART`` steps count once."""
        return np.array([member.left_step for member in self._members], dtype=np.int64)

    def arrange(self, rows: Sequence[int | None]) -> None:
        """Continue with the members in ``rows``; None starts a new one, and a repeated row continues as two."""
        before, seen = self._members, set[int]()
        self._members = []
        for row in rows:
            kept = _Member(self.config, self._all_steps) if row is None else before[row]
            self._members.append(copy.deepcopy(kept) if row in seen else kept)
            seen |= set() if row is None else {row}

    def state_dict(self) -> dict[str, Any]:
        """Return plain values for a checkpoint."""
        return {"members": [member.state_dict() for member in self._members]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a ``state_dict``, with as many members as it has."""
        self._members = [_Member(self.config, self._all_steps) for _ in state["members"]]
        for member, values in zip(self._members, state["members"], strict=True):
            member.load_state_dict(values)


def _as_list(values: Any, size: int) -> list[float]:
    """Return a number for each member."""
    if isinstance(values, (float, int)):
        return [float(values)] * size
    return np.broadcast_to(np.asarray(values, dtype=np.float64), (size,)).tolist()

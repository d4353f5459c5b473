"""Spike and divergence detection for K members at once: losses in, episodes and verdicts out.

It answers two separate questions. *Episodes* record when a loss left its trend and came back; they never stop a run.
The *verdict* says that a run is lost: its loss or gradient is not finite, or it has stayed far above its past for long
and does not recover, or it never fell below its initial loss. docs/detection.md gives the reasons and shows real
traces.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from orchestrator.detection.baseline import level
from orchestrator.detection.config import LOG_GRADIENT_PATIENCE, LOG_SPIKE_RISE, StoppingConfig
from orchestrator.detection.episodes import Episode, Episodes
from orchestrator.detection.verdicts import LOST, Lost, Verdicts

# Shapes: K members, W losses of a window.

_TINY = 1e-300  # smallest rise, for a baseline that is exactly zero


@dataclass(frozen=True, slots=True)
class MemberRecord:
    """All that the detector knows of one member.

    ``lost_step`` is the step of the verdict, ``lost_onset_step`` the onset of what lost the run. A member that trained
    on after its verdict may have recovered: ``is_far`` says whether it was still as high at the end, ``is_away``
    whether it was off its trend, or high, for longer than its patience. ``up_since_step`` is the onset of
    a slow rise: where the loss last rose above half of that height.
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


class SpikeDetector:
    """Streaming detector for K members; ``update`` takes one step's losses, shape (K,), or a number if K is 1.

    A loss is off its trend when it exceeds the median of the last ``window`` accepted losses by more than
    ``spike_sigma`` robust deviations (1.4826 times the median absolute deviation), by more than ``spike_rise`` of the
    median, and by more than twice the height of the baseline's upper tail. Such losses never enter the baseline. Before
    ``min_history`` losses the trend is that of the last three. Memory does not grow with the number of steps. Steps may
    be any increasing numbers.
    """

    def __init__(self, num_members: int = 1, config: StoppingConfig | None = None) -> None:
        self.config = config = config or StoppingConfig()
        rise = LOG_SPIKE_RISE if config.spike_rise is None else config.spike_rise
        patience = config.gradient_patience or LOG_GRADIENT_PATIENCE
        self._members = m = _fresh_members(num_members, config.window)
        self._episodes = Episodes(m, config, rise)
        self._verdicts = Verdicts(m, config, self._episodes, spike_rise=rise, gradient_patience=patience)

    def update(
        self,
        loss_K: np.ndarray | float,
        grad_norm_K: np.ndarray | float | None = None,
        step_K: np.ndarray | int | None = None,
        *,
        unseen_K: np.ndarray | None = None,
    ) -> np.ndarray:
        """Judge the next step of each member; returns the mask (K,) of members whose verdict is lost.

        ``grad_norm_K`` is only checked for being finite and may be omitted. ``step_K`` gives the step numbers for the
        record; without it each member counts from 0. A loss in ``unseen_K`` is not judged.
        """
        m = self._members
        loss_K = np.atleast_1d(np.asarray(loss_K, dtype=np.float64))
        m.last_step = m.num_steps.copy() if step_K is None else np.broadcast_to(step_K, loss_K.shape).astype(np.int64)
        seen_K = np.ones(len(loss_K), dtype=bool) if unseen_K is None else ~unseen_K
        finite_K = (np.isfinite(loss_K) | ~seen_K) & m.is_finite
        self._verdicts.guard(finite_K, grad_norm_K)
        seen_K &= finite_K
        if seen_K.any():
            with np.errstate(over="ignore"):  # a loss of 1e306 counts as infinitely far away
                self._judge(np.where(seen_K, loss_K, 0.0), seen_K)
        m.num_steps += 1
        return m.lost > 0

    def record(self, member: int = 0) -> MemberRecord:
        """What is known of ``member`` (a position in the pack) so far."""
        m = self._members

        def number(value: float) -> float | None:
            return float(value) if math.isfinite(value) else None

        def step_or_none(value: int) -> int | None:
            return int(value) if m.lost[member] else None

        episodes = list(self._episodes.closed[member])
        is_off_trend = bool(m.in_episode[member] and self._episodes.is_spike()[member])
        if is_off_trend:
            episodes.append(self._episodes.current(member))
        return MemberRecord(
            num_steps=int(m.num_steps[member]),
            initial_loss=number(m.initial[member]),
            best_loss=number(m.best[member]),
            recent_loss=number(m.level[member]),
            lost=LOST[m.lost[member] - 1] if m.lost[member] else None,
            lost_step=step_or_none(m.lost_step[member]),
            lost_onset_step=step_or_none(m.lost_onset[member]),
            lost_reason=self._verdicts.reasons[member],
            is_finite=bool(m.is_finite[member]),
            is_far=bool(m.is_far[member]),
            up_since_step=int(m.up_since[member]) if m.is_up[member] else None,
            is_away=self._verdicts.is_away(member, is_off_trend),
            episodes=tuple(episodes),
        )

    @property
    def is_finite(self) -> np.ndarray:
        """Members whose loss and gradient were finite so far, (K,)."""
        return self._members.is_finite

    def arrange(self, rows: Sequence[int | None]) -> None:
        """Continue with members of ``rows`` (each at most once), None for a new one."""
        fresh, num_members = _fresh_members(1, self.config.window), len(self._members.num_steps)
        continued = [num_members if row is None else row for row in rows]
        for name, values in vars(self._members).items():
            setattr(self._members, name, np.concatenate([values, getattr(fresh, name)])[continued])
        reasons, closed = self._verdicts.reasons, self._episodes.closed
        self._verdicts.reasons = [None if row is None else reasons[row] for row in rows]
        self._episodes.closed = [[] if row is None else closed[row] for row in rows]

    def state_dict(self) -> dict[str, Any]:
        """Arrays and plain values for a checkpoint."""
        arrays = {name: values.copy() for name, values in vars(self._members).items()}
        episodes = [[asdict(episode) for episode in member] for member in self._episodes.closed]
        return {"arrays": arrays, "reasons": list(self._verdicts.reasons), "episodes": episodes}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a ``state_dict`` of a detector with the same members."""
        vars(self._members).update({name: values.copy() for name, values in state["arrays"].items()})
        self._verdicts.reasons = list(state["reasons"])
        self._episodes.closed = [[Episode(**episode) for episode in member] for member in state["episodes"]]

    def _judge(self, loss_K: np.ndarray, seen_K: np.ndarray) -> None:
        m, episodes, verdicts = self._members, self._episodes, self._verdicts
        m.initial = np.where(seen_K & np.isnan(m.initial), loss_K, m.initial)
        seen = np.flatnonzero(seen_K)
        m.raw_W[seen, m.num_seen[seen] % self.config.window] = loss_K[seen]
        m.num_seen += seen_K
        m.level = np.where(seen_K, level(m.raw_W, m.num_seen), m.level)

        trend_K, rise_K = episodes.trend()
        # A loss leaves its trend at excess 1. The very first loss has no trend yet.
        excess_K = np.where(seen_K & (m.num_accepted > 0), (loss_K - trend_K) / np.maximum(rise_K, _TINY), 0.0)
        episodes.follow(loss_K, excess_K, seen_K, trend_K)
        # Losses half-way off the trend within an episode must not raise the baseline.
        episodes.accept(loss_K, seen_K & (excess_K <= np.where(m.in_episode, 0.5, 1.0)))
        episodes.settle(trend_K)
        verdicts.judge_far(loss_K, seen_K)
        verdicts.judge_progress(loss_K, seen_K)


def _fresh_members(num_members: int, window: int) -> SimpleNamespace:
    """The whole state of each member, arrays (K,) or (K, W)."""

    def each(value: float | bool) -> np.ndarray:
        return np.full(num_members, value)

    return SimpleNamespace(
        num_steps=each(0), last_step=each(-1), num_seen=each(0), num_accepted=each(0),
        initial=each(np.nan), best=each(np.nan), level=each(np.nan), best_noise=each(0.0),
        # The verdict: 0 for none, else 1 + its index in LOST.
        lost=each(0), lost_step=each(-1), lost_onset=each(-1),
        is_finite=each(True), broken_gradients=each(0), gradient_since=each(-1),
        is_far=each(False), high_steps=each(0), patience=each(1), excess_before=each(np.inf),
        is_sunk=each(False), is_up=each(False), up_since=each(-1), has_fallen=each(False),
        # The current episode, if any.
        in_episode=each(False), is_start_up=each(False), onset=each(-1), peak=each(-np.inf), peak_step=each(-1),
        age=each(0), off_steps=each(0), mass=each(0.0), calm_steps=each(0), calm_since=each(-1),
        # Candidates that were not spikes: their usual height, and their number per step.
        odd_height=each(0.0), odd_rate=each(0.0),
        raw_W=np.full((num_members, window), np.nan),
        accepted_W=np.full((num_members, window), np.nan),
    )  # fmt: skip

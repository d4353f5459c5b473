"""Spike and divergence detection for K members at once: losses in, episodes and verdicts out.

Two questions are kept apart. *Episodes* say when a loss left its trend and came back: they are a
record and never stop a run. The *verdict* says that a run is lost: its loss or its gradient is not
finite, or it has sat far above its own past for long and is not coming back, or it never got below
the loss it began with. docs/detection.md gives the reasons and shows real traces.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

# Shapes: K members, W losses of a window, R recent losses.

Lost = Literal["not_finite", "far", "no_progress"]
LOST: tuple[Lost, ...] = ("not_finite", "far", "no_progress")

_MAD_TO_DEVIATION = 1.4826  # of a normal distribution
# The median absolute deviation collapses when noise has two levels, so a spike must also rise to twice
# the height of the baseline's own upper tail; that is 3.3 deviations of normal noise and binds rarely.
_UPPER_TAIL, _TAIL_FACTOR = 0.95, 2.0
_FALLING = 0.7  # of the deviation about the median is left about a falling line where there is a descent
_RECENT = 10  # losses in a level: enough to hide an odd batch, few enough to follow a fall
_EARLY = 3  # losses in the trend of a start-up, where each is far below the one before
_EARLY_RISE = 1.0  # what leaves that trend, as a fraction of it
# Where single odd losses are common, what two of them in a row sum up to is no spike.
_ODD_MEMORY, _ODD_COMMON, _ODD_FACTOR = 200, 0.005, 3.0
_AFTER_ONE = 2  # losses after a single high one in which a second must follow
_MASS_LIMIT = 1000.0  # of one loss, in rises
_TINY = 1e-300  # a rise of a baseline that is exactly zero
_COMING_BACK = 0.75  # share of its excess that a run which is coming back has left after half a patience
# What a run must have learned to give it up, as a fraction of its initial loss; and the rise above its
# best, in spikes' rises, below which no drift is a loss of the run.
_LEARNED, _LEAST_RISE = 0.15, 4.0
# What a run has given up, of what it learned, that has sunk: it is waited for twice as long as for a lost
# one. Where no episode tells that from a drift, it must also have risen by 2 spikes' rises.
_SUNK_FRACTION, _SUNK_RISE, _SUNK_PATIENCE = 0.2, 2.0, 2
_ODD_MODE = 0.04  # odd losses a step from which they are a second mode of the noise
# What null stands for on a log of unknown origin; a sweep asks its objective.
_LOG_SPIKE_RISE = 0.1
_LOG_GRADIENT_PATIENCE = 20


class StoppingConfig(BaseModel):
    """The `stopping:` section of a sweep file: how spikes and lost runs are told."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    early_stop: bool = Field(True, description="end a trial once it is lost; false only records the verdict")
    audit: float = Field(
        0.0, ge=0, le=1, description="share of the trials that train on after a verdict, to tell how often it is wrong"
    )
    window: int = Field(50, ge=10, le=10_000, description="accepted losses in the baseline")
    min_history: int = Field(20, ge=3, le=10_000, description="losses before the baseline judges")
    spike_sigma: float = Field(6.0, gt=0, description="deviations above the median that leave the trend")
    spike_rise: float | None = Field(
        None,
        gt=0,
        description="smallest rise that leaves the trend, as a fraction of the median; null for the objective's",
    )
    spike_steps: int = Field(2, ge=1, description="steps off the trend that make a spike; one may be an odd batch")
    spike_mass: float = Field(
        4.0, ge=0, description="summed height of a spike's steps, in rises that leave the trend, that make a spike"
    )
    recovery_steps: int = Field(5, ge=1, description="steps back at the baseline that end a spike")
    lost_fraction: float = Field(0.5, gt=0, le=1, description="share of what was learned that a lost run has given up")
    lost_rise: float = Field(
        10.0, gt=0, description="or the rise above the best level, in spike_rise, that a lost run sits at"
    )
    patience: int | None = Field(
        None,
        ge=1,
        description="steps a run may stay that high; null for the larger of 50 and a quarter of the steps before",
    )
    gradient_patience: int | None = Field(
        None,
        ge=1,
        description="steps in a row with a gradient that is not finite that lose a run whose loss is; "
        "null for 1 with an objective of sweep, and 20 where a loss scaler may skip some",
    )
    stall_drop: float = Field(
        0.05, ge=0, lt=1, description="a run that lowers its loss by a smaller fraction is stalled"
    )
    stall_steps: int = Field(1000, ge=10, description="steps in which one loss must be below the first")

    def resolved(self, spike_rise: float, gradient_patience: int) -> StoppingConfig:
        """The same for a sweep, with its objective's values for the two that are null."""
        own = {"spike_rise": self.spike_rise or spike_rise}
        return self.model_copy(update={**own, "gradient_patience": self.gradient_patience or gradient_patience})


@dataclass(slots=True)
class Episode:
    """A time in which the loss was off its trend, ``num_steps`` of them; no ``recovery_step`` while it lasts."""

    onset_step: int
    peak_step: int
    peak_loss: float
    num_steps: int = 0
    recovery_step: int | None = None


@dataclass(frozen=True, slots=True)
class MemberRecord:
    """All that the detector knows of one member.

    ``lost_step`` is when the verdict fell, ``lost_onset_step`` when that which lost the run began.
    A member that trained on after its verdict may have come back: ``is_far`` says whether it was still as
    high at last, ``is_away`` whether it had been off its trend, or high, for longer than its patience;
    ``up_since_step`` is when it was last half as high.
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
    """Streaming detector for K members; ``update`` takes one step's losses, shape (K,) or a number for one.

    A loss is off its trend when it exceeds the median of the last ``window`` accepted losses by more
    than ``spike_sigma`` robust deviations (1.4826 times the median absolute deviation), by more than
    ``spike_rise`` of the median, and by more than twice the height of the baseline's upper tail. Such
    losses never enter the baseline. Before ``min_history`` losses the trend is that of the last three.
    Memory does not grow with the number of steps. Steps may be any increasing numbers.
    """

    def __init__(self, num_members: int = 1, config: StoppingConfig | None = None) -> None:
        self.config = config = config or StoppingConfig()
        self._spike_rise = _LOG_SPIKE_RISE if config.spike_rise is None else config.spike_rise
        self._gradient_patience = config.gradient_patience or _LOG_GRADIENT_PATIENCE
        self._members = _fresh_members(num_members, config.window)
        self._reasons: list[str | None] = [None] * num_members
        self._episodes: list[list[Episode]] = [[] for _ in range(num_members)]

    def update(
        self,
        loss_K: np.ndarray | float,
        grad_norm_K: np.ndarray | float | None = None,
        step_K: np.ndarray | int | None = None,
    ) -> np.ndarray:
        """Judge the next step of each member; returns the mask (K,) of members whose verdict is lost.

        ``grad_norm_K`` serves the finite guard alone and may be left out. ``step_K`` names the steps in
        the record; without it each member counts its own from 0.
        """
        m = self._members
        loss_K = np.atleast_1d(np.asarray(loss_K, dtype=np.float64))
        m.last_step = m.num_steps.copy() if step_K is None else np.broadcast_to(step_K, loss_K.shape).astype(np.int64)
        finite_K = np.isfinite(loss_K) & m.is_finite
        self._guard(loss_K, finite_K, grad_norm_K)
        if finite_K.any():
            with np.errstate(over="ignore"):  # a loss of 1e306 is as far away as infinity
                self._judge(np.where(finite_K, loss_K, 0.0), finite_K)
        m.num_steps += 1
        return m.lost > 0

    def record(self, member: int = 0) -> MemberRecord:
        """What is known of ``member`` (a position in the pack) by now."""
        m = self._members

        def number(value: float) -> float | None:
            return float(value) if math.isfinite(value) else None

        def step_or_none(value: int) -> int | None:
            return int(value) if m.lost[member] else None

        episodes = list(self._episodes[member])
        is_off_trend = bool(m.in_episode[member] and self._is_spike()[member])
        if is_off_trend:
            episodes.append(self._episode(member, recovery_step=None))
        return MemberRecord(
            num_steps=int(m.num_steps[member]),
            initial_loss=number(m.initial[member]),
            best_loss=number(m.best[member]),
            recent_loss=number(m.level[member]),
            lost=LOST[m.lost[member] - 1] if m.lost[member] else None,
            lost_step=step_or_none(m.lost_step[member]),
            lost_onset_step=step_or_none(m.lost_onset[member]),
            lost_reason=self._reasons[member],
            is_finite=bool(m.is_finite[member]),
            is_far=bool(m.is_far[member]),
            up_since_step=int(m.up_since[member]) if m.is_up[member] else None,
            is_away=self._is_away(member, is_off_trend),
            episodes=tuple(episodes),
        )

    @property
    def is_finite(self) -> np.ndarray:
        """Members whose loss and gradient were finite so far, (K,)."""
        return self._members.is_finite

    def arrange(self, rows: Sequence[int | None]) -> None:
        """Go on with members that continue ``rows`` (each one at most once), None for a fresh one."""
        fresh = _fresh_members(1, self.config.window)
        continued = [len(self._episodes) if row is None else row for row in rows]
        for name, values in vars(self._members).items():
            setattr(self._members, name, np.concatenate([values, getattr(fresh, name)])[continued])
        self._reasons = [None if row is None else self._reasons[row] for row in rows]
        self._episodes = [[] if row is None else self._episodes[row] for row in rows]

    def state_dict(self) -> dict[str, Any]:
        """Arrays and plain values for a checkpoint."""
        arrays = {name: values.copy() for name, values in vars(self._members).items()}
        episodes = [[asdict(episode) for episode in member] for member in self._episodes]
        return {"arrays": arrays, "reasons": list(self._reasons), "episodes": episodes}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a ``state_dict`` of a detector with the same members."""
        self._members = SimpleNamespace(**{name: values.copy() for name, values in state["arrays"].items()})
        self._reasons = list(state["reasons"])
        self._episodes = [[Episode(**episode) for episode in member] for member in state["episodes"]]

    def _guard(self, loss_K: np.ndarray, finite_K: np.ndarray, grad_norm_K: np.ndarray | float | None) -> None:
        """The verdict on what is not finite: a loss at once, a gradient after ``gradient_patience`` steps."""
        m = self._members
        broken_K = np.zeros(len(loss_K), dtype=bool)
        if grad_norm_K is not None:
            broken_K = finite_K & ~np.isfinite(np.atleast_1d(np.asarray(grad_norm_K, dtype=np.float64)))
            m.gradient_since = np.where(broken_K & (m.broken_gradients == 0), m.last_step, m.gradient_since)
            m.broken_gradients = np.where(broken_K, m.broken_gradients + 1, 0)
            broken_K &= m.broken_gradients >= self._gradient_patience
        for member in np.flatnonzero(broken_K):
            self._lose(member, "not_finite", m.gradient_since[member], "the gradient norm is not finite")
        for member in np.flatnonzero(m.is_finite & ~finite_K):
            self._lose(member, "not_finite", m.last_step[member], "the loss is not finite")
        m.is_finite &= finite_K & ~broken_K

    def _lose(self, member: int, kind: Lost, onset: int, reason: str) -> None:
        """Let the verdict fall, once: a run that spiked into it was lost where its last episode began."""
        m = self._members
        if m.lost[member]:
            return
        m.lost[member] = LOST.index(kind) + 1
        m.lost_step[member] = m.last_step[member]
        m.lost_onset[member] = min(onset, m.onset[member]) if m.in_episode[member] else onset
        self._reasons[member] = reason

    def _judge(self, loss_K: np.ndarray, seen_K: np.ndarray) -> None:
        m, config = self._members, self.config
        m.initial = np.where(seen_K & np.isnan(m.initial), loss_K, m.initial)
        seen = np.flatnonzero(seen_K)
        m.raw_W[seen, m.num_seen[seen] % config.window] = loss_K[seen]
        m.num_seen += seen_K
        m.level = np.where(seen_K, _level(m.raw_W, m.num_seen), m.level)

        trend_K, rise_K = self._trend()
        # Excess 1 is where a loss leaves its trend. The first loss of all has no trend yet.
        excess_K = np.where(seen_K & (m.num_accepted > 0), (loss_K - trend_K) / np.maximum(rise_K, _TINY), 0.0)
        self._follow_episodes(loss_K, excess_K, seen_K, trend_K)
        # What is half-way off the trend in an episode must not lift the baseline.
        self._accept(loss_K, seen_K & (excess_K <= np.where(m.in_episode, 0.5, 1.0)))
        self._settle(trend_K, rise_K)
        self._judge_far(loss_K, seen_K)
        self._judge_progress(loss_K, seen_K)

    def _trend(self) -> tuple[np.ndarray, np.ndarray]:
        """The trend's level and the rise above it that leaves it, (K,) each."""
        m, config = self._members, self.config
        last = m.num_accepted[:, None] - 1 - np.arange(_EARLY)
        early_KE = np.take_along_axis(m.accepted_W, last % config.window, axis=1)
        trend_K = np.fmax.reduce(np.where(last >= 0, early_KE, np.nan), axis=1)
        rise_K = _EARLY_RISE * np.abs(trend_K)
        judged_K = m.num_accepted >= config.min_history
        if judged_K.any():
            median_K, deviation_K, tail_K = _robust_trend(m.accepted_W[judged_K], m.num_accepted[judged_K])
            trend_K[judged_K] = median_K
            relative_K = np.maximum(config.spike_sigma * deviation_K, self._spike_rise * np.abs(median_K))
            rise_K[judged_K] = np.maximum(relative_K, _TAIL_FACTOR * tail_K)
        return trend_K, rise_K

    def _accept(self, loss_K: np.ndarray, accepted_K: np.ndarray) -> None:
        """Let the losses of ``accepted_K`` into the baseline."""
        m, window = self._members, self.config.window
        accepted = np.flatnonzero(accepted_K)
        m.accepted_W[accepted, m.num_accepted[accepted] % window] = loss_K[accepted]
        m.num_accepted += accepted_K
        # The best level is a short median, so that one lucky batch does not set it.
        filled_K = accepted_K & (m.num_accepted >= _RECENT)
        level_K = np.where(filled_K, _level(m.accepted_W, m.num_accepted), np.inf)
        better_K = filled_K & ~(level_K >= m.best)
        m.best = np.where(better_K, level_K, m.best)
        if (better := np.flatnonzero(better_K)).size:
            deviation, tail = _noise(m.accepted_W[better], m.num_accepted[better])
            m.best_noise[better] = np.maximum(self.config.spike_sigma * deviation, _TAIL_FACTOR * tail)

    def _follow_episodes(
        self, loss_K: np.ndarray, excess_K: np.ndarray, seen_K: np.ndarray, trend_K: np.ndarray
    ) -> None:
        """Open an episode where a loss leaves its trend; close it after ``recovery_steps`` steps back."""
        m, config = self._members, self.config
        off_K = seen_K & (excess_K > 1)
        opens_K = off_K & ~m.in_episode
        if opens_K.any():
            for name in ("age", "off_steps", "calm_steps", "mass"):
                setattr(m, name, np.where(opens_K, 0, getattr(m, name)))
            m.onset = np.where(opens_K, m.last_step, m.onset)
            m.peak = np.where(opens_K, -np.inf, m.peak)
            # What blows up before it has learned anything is a start-up bump if it comes back.
            early_K = (m.num_accepted < config.min_history) & ~self._has_learned(trend_K, config.stall_drop)
            m.is_start_up = np.where(opens_K, early_K, m.is_start_up)
            m.in_episode |= opens_K
        m.odd_rate *= 1 - 1 / _ODD_MEMORY
        if not m.in_episode.any():
            return
        inside_K = m.in_episode & seen_K
        m.age += inside_K
        m.off_steps += inside_K & (excess_K > 0.5)
        m.mass += np.where(inside_K & (excess_K > 0.5), np.minimum(excess_K, _MASS_LIMIT), 0.0)
        m.calm_since = np.where(inside_K & ~off_K & (m.calm_steps == 0), m.last_step, m.calm_since)
        m.calm_steps = np.where(off_K, 0, m.calm_steps + inside_K)
        # A loss that is back on the trend may be higher, as the trend is measured anew at each step.
        higher_K = off_K & (loss_K > m.peak)
        m.peak, m.peak_step = np.where(higher_K, loss_K, m.peak), np.where(higher_K, m.last_step, m.peak_step)
        over_K = inside_K & (m.calm_steps >= config.recovery_steps)
        over_K |= inside_K & (m.off_steps < config.spike_steps) & (m.calm_steps >= _AFTER_ONE)
        self._close(over_K, m.calm_since)
        odd_K = over_K & ~m.is_start_up & ~self._is_spike()
        m.odd_height = np.where(
            odd_K, np.where(m.odd_height > 0, 0.8 * m.odd_height + 0.2 * m.mass, m.mass), m.odd_height
        )
        m.odd_rate += odd_K / _ODD_MEMORY

    def _is_spike(self) -> np.ndarray:
        """Of the episodes under way, those that count, (K,)."""
        m, config = self._members, self.config
        least_K = np.where(m.odd_rate > _ODD_COMMON, (_ODD_FACTOR + 100 * m.odd_rate) * m.odd_height, 0.0)
        is_high_K = m.mass >= np.maximum(config.spike_mass, least_K)
        return (m.off_steps >= config.spike_steps) & is_high_K & ~m.is_start_up

    def _close(self, over_K: np.ndarray, recovery_K: np.ndarray) -> None:
        m = self._members
        for member in np.flatnonzero(over_K & self._is_spike()):
            self._episodes[member].append(self._episode(member, recovery_step=int(recovery_K[member])))
        m.in_episode &= ~over_K

    def _episode(self, member: int, recovery_step: int | None) -> Episode:
        m = self._members
        return Episode(
            onset_step=int(m.onset[member]),
            peak_step=int(m.peak_step[member]),
            peak_loss=float(m.peak[member]),
            num_steps=int(m.off_steps[member]),
            recovery_step=recovery_step,
        )

    def _settle(self, trend_K: np.ndarray, rise_K: np.ndarray) -> None:
        """Take a plateau that an episode has led to for the new baseline.

        A window of steps into an episode whose losses have become flat, at no level of a lost run, the
        run has settled. Where it settled about as high as it rose, its level has shifted, as after a
        restart of the learning rate, and that was no spike. Where odd losses are common, they belong to
        the noise, and the baseline takes them in.
        """
        m, window = self._members, self.config.window
        mixed_K = (m.odd_rate > _ODD_MODE) & ~m.in_episode & (m.num_seen >= window)
        self._rebase(mixed_K)
        long_K = m.in_episode & (m.age >= window) & ~m.is_far & ~m.is_sunk
        if not long_K.any():
            return
        older_K, newer_K = (_level(m.raw_W, m.num_seen - back, window // 2) for back in (window // 2, 0))
        flat_K = long_K & (np.abs(newer_K - older_K) <= 0.5 * self._spike_rise * np.abs(newer_K))
        if not flat_K.any():
            return
        height_K, progress_K = m.peak - trend_K, m.initial - np.fmin(m.best, m.initial)
        shifted_K = flat_K & (newer_K - trend_K >= 0.5 * height_K) & (height_K < _SUNK_FRACTION * progress_K)
        m.in_episode &= ~shifted_K
        self._close(flat_K & ~shifted_K, m.last_step)
        self._rebase(flat_K)

    def _rebase(self, members_K: np.ndarray) -> None:
        """Let all recent losses of ``members_K``, odd or not, be the baseline."""
        m = self._members
        chosen = np.flatnonzero(members_K)
        m.accepted_W[chosen], m.num_accepted[chosen] = m.raw_W[chosen], m.num_seen[chosen]

    def _judge_far(self, loss_K: np.ndarray, seen_K: np.ndarray) -> None:
        """The verdict on a run that sits far above its own past, longer than its patience, and stays."""
        m = self._members
        self._compare_with_best(loss_K, seen_K)
        is_high_K = m.is_far | m.is_sunk
        starts_K = seen_K & is_high_K & (m.high_steps == 0)
        m.patience = np.where(starts_K, self._patience(m.num_steps), m.patience)
        m.excess_before = np.where(starts_K, np.inf, m.excess_before)
        m.high_steps = np.where(is_high_K, m.high_steps + seen_K, 0)
        half_K = np.maximum(1, m.patience // 2)
        over_K = m.high_steps - m.patience
        is_time_K = (m.high_steps == half_K) | ((over_K >= 0) & (over_K % half_K == 0))
        looks_K = seen_K & is_high_K & is_time_K
        if not looks_K.any():
            return
        excess_K = m.level - np.fmin(m.best, m.initial)
        comes_back_K = excess_K <= _COMING_BACK * m.excess_before
        m.excess_before = np.where(looks_K, excess_K, m.excess_before)
        enough_K = m.high_steps >= np.where(m.is_far, 1, _SUNK_PATIENCE) * m.patience
        for member in np.flatnonzero(looks_K & ~comes_back_K & enough_K):
            reason = f"the loss stayed far above its past for {m.high_steps[member]} losses in a row"
            self._lose(member, "far", m.up_since[member], reason)

    def _compare_with_best(self, loss_K: np.ndarray, seen_K: np.ndarray) -> None:
        """Note who is far above its best level, who has sunk, and since when."""
        m = self._members
        # Outside of an episode a rise must be told from a drift and from the noise at the best level.
        is_spike_K = m.in_episode & self._is_spike()
        rise_K, noise_K = self._spike_rise * np.abs(m.best), m.best_noise
        far_K, progress_K = self._given_up(), m.initial - np.fmin(m.best, m.initial)
        far_K = np.where(is_spike_K, far_K, np.fmax(far_K, np.fmax(_LEAST_RISE * rise_K, noise_K)))
        sunk_K = _SUNK_FRACTION * progress_K
        sunk_K = np.where(is_spike_K, sunk_K, np.fmax(sunk_K, np.fmax(_SUNK_RISE * rise_K, noise_K)))
        above_start_K = m.initial + np.fmax(self.config.lost_fraction * np.abs(m.initial), noise_K)
        has_learned_K = self._has_learned(m.best, _LEARNED)
        far_level_K = np.where(has_learned_K, m.best + far_K, above_start_K)
        m.is_far = np.where(seen_K, m.level > far_level_K, m.is_far)
        m.is_sunk = np.where(seen_K, has_learned_K & (m.level > m.best + sunk_K), m.is_sunk)
        # What lost a run began when its loss was last half as high; a slow divergence has no other onset.
        half_way_K = np.fmin(m.best, m.initial) + np.fmin(self._given_up(), sunk_K) / 2
        is_up_K = np.where(seen_K, loss_K > half_way_K, m.is_up)
        m.up_since = np.where(is_up_K & ~m.is_up, m.last_step, m.up_since)
        m.is_up = is_up_K

    def _is_away(self, member: int, is_off_trend: bool) -> bool:
        """Whether a run that ends now left its trend, or sank, longer ago than its patience."""
        m = self._members
        is_long_sunk = m.is_sunk[member] and m.high_steps[member] >= m.patience[member]
        before = self._patience(m.num_steps[member] - m.age[member])
        return bool(is_long_sunk or (is_off_trend and m.age[member] >= before))

    def _patience(self, num_steps: np.ndarray) -> np.ndarray:
        """Steps that a run may stay high after ``num_steps`` before it."""
        return np.maximum(50, num_steps // 4) if self.config.patience is None else 0 * num_steps + self.config.patience

    def _judge_progress(self, loss_K: np.ndarray, seen_K: np.ndarray) -> None:
        """The verdict on a run of which in ``stall_steps`` steps not one loss was below the first."""
        m = self._members
        m.has_fallen = m.has_fallen | (seen_K & (loss_K < m.initial))
        for member in np.flatnonzero(seen_K & (m.num_seen == self.config.stall_steps) & ~m.has_fallen):
            reason = f"not one of {self.config.stall_steps} losses was below the first"
            self._lose(member, "no_progress", m.last_step[member], reason)

    def _has_learned(self, level_K: np.ndarray, share: float) -> np.ndarray:
        """Whether ``level_K`` is below the initial loss by more than ``share`` of it."""
        m = self._members
        return m.initial - np.fmin(level_K, m.initial) > share * np.abs(m.initial)

    def _given_up(self) -> np.ndarray:
        """The rise above its best at which a run has given up what it learned, (K,)."""
        m, config = self._members, self.config
        progress_K = config.lost_fraction * (m.initial - np.fmin(m.best, m.initial))
        return np.fmin(progress_K, config.lost_rise * self._spike_rise * np.abs(m.best))


def _fresh_members(num_members: int, window: int) -> SimpleNamespace:
    """All that is remembered of each member, arrays (K,) or (K, W)."""

    def each(value: float | bool) -> np.ndarray:
        return np.full(num_members, value)

    return SimpleNamespace(
        num_steps=each(0), last_step=each(-1), num_seen=each(0), num_accepted=each(0),
        initial=each(np.nan), best=each(np.nan), level=each(np.nan), best_noise=each(0.0),
        # The verdict: 0, or one more than its place in LOST.
        lost=each(0), lost_step=each(-1), lost_onset=each(-1),
        is_finite=each(True), broken_gradients=each(0), gradient_since=each(-1),
        is_far=each(False), high_steps=each(0), patience=each(1), excess_before=each(np.inf),
        is_sunk=each(False), is_up=each(False), up_since=each(-1), has_fallen=each(False),
        # The episode under way, if any.
        in_episode=each(False), is_start_up=each(False), onset=each(-1), peak=each(-np.inf), peak_step=each(-1),
        age=each(0), off_steps=each(0), mass=each(0.0), calm_steps=each(0), calm_since=each(-1),
        # Candidates that were no spikes: their usual height, and how many there are a step.
        odd_height=each(0.0), odd_rate=each(0.0),
        raw_W=np.full((num_members, window), np.nan),
        accepted_W=np.full((num_members, window), np.nan),
    )  # fmt: skip


def _level(ring_KW: np.ndarray, num_K: np.ndarray, size: int = _RECENT) -> np.ndarray:
    """Median of the last ``size`` of the ``num_K`` numbers that went into each ring, (K,)."""
    last = num_K[:, None] - 1 - np.arange(size)
    values_KR = np.take_along_axis(ring_KW, last % ring_KW.shape[1], axis=1)
    ordered_KR = np.sort(np.where(last >= 0, values_KR, np.nan), axis=1)
    return _middle(ordered_KR, np.clip(num_K, 1, size))


def _robust_trend(ring_KW: np.ndarray, num_K: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Level, robust deviation and height of the upper tail of the newest numbers in each ring, (K,) each.

    Where the numbers fall, deviation and tail are those of the residuals from a line through the medians of
    both halves, and the level is the median of the newer half: a steep descent must not pass for noise. A
    climb is never taken for a trend.
    """
    width = ring_KW.shape[1]
    size_K = np.minimum(num_K, width)
    back = np.arange(width)  # 0 is the newest
    values_KW = np.take_along_axis(ring_KW, (num_K[:, None] - 1 - back) % width, axis=1)
    half_K = size_K // 2
    is_newer_KW = back < half_K[:, None]
    is_there_KW = back < size_K[:, None]
    newer_K = _middle(np.sort(np.where(is_newer_KW, values_KW, np.nan), axis=1), half_K)
    older_K = _middle(np.sort(np.where(is_there_KW & ~is_newer_KW, values_KW, np.nan), axis=1), size_K - half_K)
    slope_K = np.minimum(0.0, (newer_K - older_K) / (size_K / 2))
    line_KW = newer_K[:, None] + slope_K[:, None] * ((half_K[:, None] - 1) / 2 - back)
    _, *sloped = _spread(np.where(is_there_KW, values_KW - line_KW, np.nan), size_K)
    median_K, *flat = _spread(np.where(is_there_KW, values_KW, np.nan), size_K)
    falls_K = sloped[0] < _FALLING * flat[0]
    deviation_K, tail_K = np.where(falls_K, sloped, flat)
    return np.where(falls_K, newer_K, median_K), deviation_K, tail_K


def _spread(values_KW: np.ndarray, size_K: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Median, robust deviation and height of the upper tail above the median of each row's numbers, (K,) each."""
    ordered_KW = np.sort(values_KW, axis=1)  # NaN last
    middle_K = _middle(ordered_KW, size_K)
    spread_K = _middle(np.sort(np.abs(ordered_KW - middle_K[:, None]), axis=1), size_K)
    tail_K = ordered_KW[np.arange(len(ordered_KW)), (_UPPER_TAIL * (size_K - 1)).astype(np.int64)]
    return middle_K, _MAD_TO_DEVIATION * spread_K, tail_K - middle_K


def _noise(ring_KW: np.ndarray, num_K: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Robust deviation and upper tail of the noise alone, (K,) each.

    Of the steps from each number to the next, the deviation over root two: a slow rise is no noise.
    """
    width = ring_KW.shape[1]
    back = np.arange(width)
    values_KW = np.take_along_axis(ring_KW, (num_K[:, None] - 1 - back) % width, axis=1)
    steps_KW = np.abs(np.diff(values_KW, axis=1))
    size_K = np.minimum(num_K, width) - 1
    ordered_KW = np.sort(np.where(back[:-1] < size_K[:, None], steps_KW, np.nan), axis=1)
    tail_K = ordered_KW[np.arange(len(ordered_KW)), (_UPPER_TAIL * (size_K - 1)).astype(np.int64)]
    return _MAD_TO_DEVIATION * _middle(ordered_KW, size_K) / math.sqrt(2), tail_K


def _middle(ordered_KW: np.ndarray, size_K: np.ndarray) -> np.ndarray:
    """Median of the first ``size_K`` numbers of each ordered row, (K,)."""
    rows = np.arange(len(ordered_KW))
    return (ordered_KW[rows, (size_K - 1) // 2] + ordered_KW[rows, size_K // 2]) / 2

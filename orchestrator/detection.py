"""Spike and divergence detection for K members at once: losses in, episodes and verdicts out.

Two questions are kept apart. *Episodes* say when a loss left its trend and came back: they are a
record and never stop a trial. The *verdict* says that a run is lost: its loss or gradient is not
finite, or it has sat far above what it had learned for a long time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

# Shapes: K members, W accepted losses in the baseline.

_MAD_TO_DEVIATION = 1.4826  # of a normal distribution
# The median absolute deviation collapses when noise has two levels, so a spike must also rise to twice
# the height of the baseline's own upper tail; that is 3.3 deviations of normal noise and binds rarely.
_UPPER_TAIL, _TAIL_FACTOR = 0.95, 2.0
_RECENT_STEPS = 10


class StoppingConfig(BaseModel):
    """The `stopping:` section of a sweep file: how spikes and lost runs are told."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    early_stop: bool = Field(True, description="end a trial once it is lost; false only records the verdict")
    window: int = Field(50, ge=5, le=10_000, description="accepted losses in the baseline")
    min_history: int = Field(20, ge=3, le=10_000, description="losses before spikes are judged")
    spike_sigma: float = Field(6.0, gt=0, description="deviations above the median that make a spike")
    spike_rise: float | None = Field(
        None,
        gt=0,
        description="smallest rise that can be a spike, as a fraction of the median; null for the objective's",
    )
    spike_steps: int = Field(2, ge=1, description="steps off the trend that make a spike; one may be an odd batch")
    recovery_steps: int = Field(5, ge=1, description="steps back at the baseline that end a spike")
    lost_fraction: float = Field(0.5, gt=0, le=1, description="share of what was learned that a lost run has given up")
    patience: int | None = Field(
        None, ge=1, description="steps a run may stay that high; null for the larger of 50 and steps / 4"
    )
    stall_drop: float = Field(
        0.05, ge=0, lt=1, description="a run that lowers its loss by a smaller fraction is stalled"
    )

    def resolved(self, objective_spike_rise: float) -> StoppingConfig:
        """The same with every null that stands for an objective's own value filled in."""
        rise = objective_spike_rise if self.spike_rise is None else self.spike_rise
        return self.model_copy(update={"spike_rise": rise})

    def patience_steps(self, steps: int) -> int:
        """The patience in force for runs of ``steps`` steps."""
        return self.patience if self.patience is not None else max(50, steps // 4)


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
    """All that the detector knows of one member. ``lost_step`` is when the verdict fell."""

    num_steps: int
    initial_loss: float | None
    best_loss: float | None
    recent_loss: float | None
    lost_level: float | None
    lost_step: int | None
    lost_onset_step: int | None
    lost_reason: str | None
    is_finite: bool
    episodes: tuple[Episode, ...]


class SpikeDetector:
    """Streaming detector for K members; ``update`` takes one step's losses, shape (K,). Members count their own steps.

    A loss is off its trend when it exceeds the median of the last ``window`` accepted losses by more
    than ``spike_sigma`` robust deviations (1.4826 times the median absolute deviation), by more than
    ``spike_rise`` of the median, and by more than twice the height of the baseline's upper tail. Such
    losses never enter the baseline. Before ``min_history`` losses the trend is the initial loss.
    """

    def __init__(self, num_members: int, config: StoppingConfig, steps: int) -> None:
        if config.spike_rise is None:
            raise ValueError("spike_rise is null: resolve the config for an objective first")
        self.config = config
        self.patience = config.patience_steps(steps)
        self._window_KW = np.full((num_members, config.window), np.nan)
        self._recent_KR = np.full((num_members, _RECENT_STEPS), np.nan)
        self._num_accepted_K = np.zeros(num_members, dtype=np.int64)
        self._num_steps_K = np.zeros(num_members, dtype=np.int64)
        self._initial_K = np.full(num_members, np.nan)
        self._best_K = np.full(num_members, np.nan)
        self._calm_steps_K = np.zeros(num_members, dtype=np.int64)
        self._high_steps_K = np.zeros(num_members, dtype=np.int64)
        self._high_since_K = np.full(num_members, -1, dtype=np.int64)
        self._in_episode_K = np.zeros(num_members, dtype=bool)
        self._lost_step_K = np.full(num_members, -1, dtype=np.int64)
        self._lost_onset_K = np.full(num_members, -1, dtype=np.int64)
        self._is_finite_K = np.ones(num_members, dtype=bool)
        self._lost_reason: list[str | None] = [None] * num_members
        self._episodes: list[list[Episode]] = [[] for _ in range(num_members)]

    def update(self, loss_K: np.ndarray, grad_norm_K: np.ndarray | None = None) -> np.ndarray:
        """Judge the next step of each member; returns the mask (K,) of members that are lost by now.

        ``grad_norm_K`` serves the finite guard alone and may be left out.
        """
        loss_K = np.asarray(loss_K, dtype=np.float64)
        undecided_K = self._lost_step_K < 0
        finite_K = np.isfinite(loss_K)
        if grad_norm_K is not None:
            finite_K &= np.isfinite(grad_norm_K)
        self._declare_non_finite(loss_K, undecided_K & ~finite_K)
        watched_K = undecided_K & finite_K
        if watched_K.any():
            self._judge(np.where(watched_K, loss_K, 0.0), watched_K)
        self._num_steps_K += undecided_K
        return self._lost_step_K >= 0

    def record(self, member: int) -> MemberRecord:
        """What is known of ``member`` (a position in the pack) by now."""

        def number(value: float) -> float | None:
            return float(value) if math.isfinite(value) else None

        def step_or_none(value: int) -> int | None:
            return int(value) if value >= 0 else None

        seen = self._recent_KR[member][np.isfinite(self._recent_KR[member])]
        return MemberRecord(
            num_steps=int(self._num_steps_K[member]),
            initial_loss=number(self._initial_K[member]),
            best_loss=number(self._best_K[member]),
            recent_loss=number(np.median(seen)) if len(seen) else None,
            lost_level=number(self._lost_level()[member]),
            lost_step=step_or_none(self._lost_step_K[member]),
            lost_onset_step=step_or_none(self._lost_onset_K[member]),
            lost_reason=self._lost_reason[member],
            is_finite=bool(self._is_finite_K[member]),
            episodes=tuple(e for e in self._episodes[member] if e.num_steps >= self.config.spike_steps),
        )

    def arrange(self, rows: Sequence[int | None]) -> None:
        """Go on with members that continue ``rows`` (each one at most once), None for a fresh one."""
        fresh = SpikeDetector(1, self.config, steps=1)
        continued = [len(self._episodes) if row is None else row for row in rows]
        for name, value in vars(self).items():
            if name.endswith(("_K", "_KW", "_KR")):
                setattr(self, name, np.concatenate([value, getattr(fresh, name)])[continued])
        self._lost_reason = [None if row is None else self._lost_reason[row] for row in rows]
        self._episodes = [[] if row is None else self._episodes[row] for row in rows]

    def state_dict(self) -> dict[str, Any]:
        """Arrays and plain values for a checkpoint."""
        arrays = {name: v.copy() for name, v in vars(self).items() if name.endswith(("_K", "_KW", "_KR"))}
        episodes = [[asdict(episode) for episode in member] for member in self._episodes]
        return {"arrays": arrays, "lost_reason": list(self._lost_reason), "episodes": episodes}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a ``state_dict`` of a detector with the same members."""
        for name, value in state["arrays"].items():
            setattr(self, name, value.copy())
        self._lost_reason = list(state["lost_reason"])
        self._episodes = [[Episode(**episode) for episode in member] for member in state["episodes"]]

    def _declare_non_finite(self, loss_K: np.ndarray, broken_K: np.ndarray) -> None:
        self._is_finite_K &= ~broken_K
        for member in np.flatnonzero(broken_K):
            step = int(self._num_steps_K[member])
            # A blow-up that ends in NaN began where its last episode began.
            onset = self._episodes[member][-1].onset_step if self._in_episode_K[member] else step
            what = "loss" if not np.isfinite(loss_K[member]) else "gradient norm"
            self._declare_lost(member, step, onset, f"the {what} is not finite")

    def _declare_lost(self, member: int, step: int, onset: int, reason: str) -> None:
        self._lost_step_K[member] = step
        self._lost_onset_K[member] = onset
        self._lost_reason[member] = reason

    def _judge(self, loss_K: np.ndarray, watched_K: np.ndarray) -> None:
        step_K = self._num_steps_K
        first_K = watched_K & np.isnan(self._initial_K)
        self._initial_K[first_K] = loss_K[first_K]
        self._recent_KR[watched_K, step_K[watched_K] % _RECENT_STEPS] = loss_K[watched_K]

        off_trend_K = watched_K & (loss_K > self._spike_threshold())
        self._track_episodes(loss_K, off_trend_K, watched_K)
        self._accept(loss_K, watched_K & ~off_trend_K)

        high_K = watched_K & (loss_K > self._lost_level())
        started_K = high_K & (self._high_steps_K == 0)
        self._high_since_K[started_K] = step_K[started_K]
        self._high_steps_K = np.where(high_K, self._high_steps_K + 1, 0)
        for member in np.flatnonzero(self._high_steps_K >= self.patience):
            if self._lost_step_K[member] < 0:
                onset = int(self._high_since_K[member])
                if self._in_episode_K[member]:
                    onset = min(onset, self._episodes[member][-1].onset_step)
                reason = f"the loss stayed far above what was learned for {self.patience} steps"
                self._declare_lost(member, int(step_K[member]), onset, reason)

    def _spike_threshold(self) -> np.ndarray:
        """Loss above which a member is off its trend, (K,)."""
        config, initial_K = self.config, self._initial_K
        early_K = initial_K + config.lost_fraction * np.abs(initial_K)
        judged_K = self._num_accepted_K >= config.min_history
        if not judged_K.any():
            return early_K
        window_KW = self._window_KW[judged_K]
        size_K = np.minimum(self._num_accepted_K[judged_K], config.window)
        median_K, deviation_K, tail_K = _robust_level(window_KW, size_K)
        rise_K = np.maximum(config.spike_sigma * deviation_K, config.spike_rise * np.abs(median_K))
        rise_K = np.maximum(rise_K, _TAIL_FACTOR * tail_K)
        threshold_K = early_K.copy()
        threshold_K[judged_K] = median_K + rise_K
        return threshold_K

    def _lost_level(self) -> np.ndarray:
        """Loss that a run must not stay above, (K,).

        A run that learned has lost ``lost_fraction`` of its progress there; one that never did is as
        far above its initial loss.
        """
        progress_K = self._initial_K - np.fmin(self._best_K, self._initial_K)
        learned_K = progress_K > self.config.stall_drop * np.abs(self._initial_K)
        above_start_K = self._initial_K + self.config.lost_fraction * np.abs(self._initial_K)
        given_up_K = self._best_K + self.config.lost_fraction * progress_K
        return np.where(learned_K, given_up_K, above_start_K)

    def _accept(self, loss_K: np.ndarray, accepted_K: np.ndarray) -> None:
        """Let the losses of ``accepted_K`` into the baseline."""
        members = np.flatnonzero(accepted_K)
        slot = self._num_accepted_K[members] % self.config.window
        self._window_KW[members, slot] = loss_K[members]
        self._num_accepted_K[members] += 1
        # The best level is a short median, so that one lucky batch does not set it.
        filled = members[self._num_accepted_K[members] >= _RECENT_STEPS]
        if len(filled):
            last = self._num_accepted_K[filled, None] - 1 - np.arange(min(_RECENT_STEPS, self.config.window))
            level = np.median(self._window_KW[filled[:, None], last % self.config.window], axis=1)
            self._best_K[filled] = np.fmin(self._best_K[filled], level)

    def _track_episodes(self, loss_K: np.ndarray, off_trend_K: np.ndarray, watched_K: np.ndarray) -> None:
        step_K = self._num_steps_K
        self._calm_steps_K = np.where(off_trend_K, 0, self._calm_steps_K + watched_K)
        for member in np.flatnonzero(off_trend_K & ~self._in_episode_K):
            self._episodes[member].append(Episode(int(step_K[member]), int(step_K[member]), float(loss_K[member])))
        self._in_episode_K |= off_trend_K
        for member in np.flatnonzero(off_trend_K):
            episode = self._episodes[member][-1]
            episode.num_steps += 1
            if loss_K[member] > episode.peak_loss:
                episode.peak_loss, episode.peak_step = float(loss_K[member]), int(step_K[member])
        over_K = self._in_episode_K & watched_K & (self._calm_steps_K >= self.config.recovery_steps)
        for member in np.flatnonzero(over_K):
            self._episodes[member][-1].recovery_step = int(step_K[member]) - self.config.recovery_steps + 1
        self._in_episode_K &= ~over_K


def _robust_level(values_KW: np.ndarray, size_K: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Median, robust deviation and height of the upper tail above the median, (K,) each.

    Of the first ``size_K`` numbers in each row, the rest being NaN.
    """
    ordered_KW = np.sort(values_KW, axis=1)  # NaN last
    median_K = _middle(ordered_KW, size_K)
    spread_K = _middle(np.sort(np.abs(values_KW - median_K[:, None]), axis=1), size_K)
    tail_K = ordered_KW[np.arange(len(ordered_KW)), (_UPPER_TAIL * (size_K - 1)).astype(np.int64)]
    return median_K, _MAD_TO_DEVIATION * spread_K, tail_K - median_K


def _middle(ordered_KW: np.ndarray, size_K: np.ndarray) -> np.ndarray:
    """Median of the first ``size_K`` numbers of each ordered row, (K,)."""
    rows = np.arange(len(ordered_KW))
    return (ordered_KW[rows, (size_K - 1) // 2] + ordered_KW[rows, size_K // 2]) / 2

"""The verdict that a run is lost: not finite, far above its past for long, or without any progress."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Literal

import numpy as np

from orchestrator.detection.config import StoppingConfig
from orchestrator.detection.episodes import SUNK_FRACTION, Episodes, has_learned

# Shapes: K members.

Lost = Literal["not_finite", "far", "no_progress"]
LOST: tuple[Lost, ...] = ("not_finite", "far", "no_progress")

_COMING_BACK = 0.75  # a recovering run has at most this share of its excess left after half a patience
# The progress that a run must have made to lose it, as a fraction of its initial loss; and the rise above its best, in
# units of a spike's rise, below which a drift does not lose the run.
_LEARNED, _LEAST_RISE = 0.15, 4.0
# A run that has sunk (given up SUNK_FRACTION of its progress) gets twice the patience of a lost one. Where no episode
# separates this from a drift, it must also have risen by 2 spikes' rises.
_SUNK_RISE, _SUNK_PATIENCE = 2.0, 2


class Verdicts:
    """Judges K members, in the arrays of ``members``, from the trends in ``episodes``.

    ``reasons`` says why a member is lost. A gradient may be non-finite for less than ``gradient_patience`` steps.
    """

    def __init__(
        self,
        members: SimpleNamespace,
        config: StoppingConfig,
        episodes: Episodes,
        *,
        spike_rise: float,
        gradient_patience: int,
    ) -> None:
        self._members, self._config, self._episodes = members, config, episodes
        self._spike_rise, self._gradient_patience = spike_rise, gradient_patience
        self.reasons: list[str | None] = [None] * len(members.num_steps)

    def guard(self, finite_K: np.ndarray, grad_norm_K: np.ndarray | float | None) -> None:
        """The verdict on non-finite values: a loss at once, a gradient after ``gradient_patience`` steps."""
        m = self._members
        broken_K = np.zeros(len(finite_K), dtype=bool)
        if grad_norm_K is not None:
            broken_K = finite_K & ~np.isfinite(np.atleast_1d(np.asarray(grad_norm_K, dtype=np.float64)))
            m.gradient_since = np.where(broken_K & (m.broken_gradients == 0), m.last_step, m.gradient_since)
            m.broken_gradients = np.where(broken_K, m.broken_gradients + 1, 0)
            broken_K &= m.broken_gradients >= self._gradient_patience
        for member in np.flatnonzero(broken_K):
            self._lose(int(member), "not_finite", m.gradient_since[member], "the gradient norm is not finite")
        for member in np.flatnonzero(m.is_finite & ~finite_K):
            self._lose(int(member), "not_finite", m.last_step[member], "the loss is not finite")
        m.is_finite &= finite_K & ~broken_K

    def judge_far(self, loss_K: np.ndarray, seen_K: np.ndarray) -> None:
        """The verdict on a run that stays far above its own past for longer than its patience."""
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
            self._lose(int(member), "far", m.up_since[member], reason)

    def judge_progress(self, loss_K: np.ndarray, seen_K: np.ndarray) -> None:
        """The verdict on a run without one loss below the first in ``stall_steps`` steps."""
        m = self._members
        m.has_fallen = m.has_fallen | (seen_K & (loss_K < m.initial))
        for member in np.flatnonzero(seen_K & (m.num_seen == self._config.stall_steps) & ~m.has_fallen):
            reason = f"not one of {self._config.stall_steps} losses was below the first"
            self._lose(int(member), "no_progress", m.last_step[member], reason)

    def is_away(self, member: int, is_off_trend: bool) -> bool:
        """Whether a run that ends now left its trend, or sank, longer ago than its patience."""
        m = self._members
        is_long_sunk = m.is_sunk[member] and m.high_steps[member] >= m.patience[member]
        before = self._patience(m.num_steps[member] - m.age[member])
        return bool(is_long_sunk or (is_off_trend and m.age[member] >= before))

    def _lose(self, member: int, kind: Lost, onset: int, reason: str) -> None:
        """Record the verdict, once; a run that was lost in an episode has the onset of that episode."""
        m = self._members
        if m.lost[member]:
            return
        m.lost[member] = LOST.index(kind) + 1
        m.lost_step[member] = m.last_step[member]
        m.lost_onset[member] = min(onset, m.onset[member]) if m.in_episode[member] else onset
        self.reasons[member] = reason

    def _compare_with_best(self, loss_K: np.ndarray, seen_K: np.ndarray) -> None:
        """Record which members are far above their best level or have sunk, and since when."""
        m = self._members
        # Outside an episode, a rise must be distinguished from a drift and from the noise at the best level.
        is_spike_K = m.in_episode & self._episodes.is_spike()
        rise_K, noise_K = self._spike_rise * np.abs(m.best), m.best_noise
        far_K, progress_K = self._given_up(), m.initial - np.fmin(m.best, m.initial)
        far_K = np.where(is_spike_K, far_K, np.fmax(far_K, np.fmax(_LEAST_RISE * rise_K, noise_K)))
        sunk_K = SUNK_FRACTION * progress_K
        sunk_K = np.where(is_spike_K, sunk_K, np.fmax(sunk_K, np.fmax(_SUNK_RISE * rise_K, noise_K)))
        above_start_K = m.initial + np.fmax(self._config.lost_fraction * np.abs(m.initial), noise_K)
        has_learned_K = has_learned(m, m.best, _LEARNED)
        far_level_K = np.where(has_learned_K, m.best + far_K, above_start_K)
        m.is_far = np.where(seen_K, m.level > far_level_K, m.is_far)
        m.is_sunk = np.where(seen_K, has_learned_K & (m.level > m.best + sunk_K), m.is_sunk)
        # The onset of a slow divergence, which has no episode: where the loss last rose above half of this height.
        half_way_K = np.fmin(m.best, m.initial) + np.fmin(self._given_up(), sunk_K) / 2
        is_up_K = np.where(seen_K, loss_K > half_way_K, m.is_up)
        m.up_since = np.where(is_up_K & ~m.is_up, m.last_step, m.up_since)
        m.is_up = is_up_K

    def _patience(self, num_steps: np.ndarray) -> np.ndarray:
        """Steps that a run may stay high after ``num_steps`` earlier steps."""
        return (
            np.maximum(50, num_steps // 4) if self._config.patience is None else 0 * num_steps + self._config.patience
        )

    def _given_up(self) -> np.ndarray:
        """The rise above its best at which a run has given up its progress, (K,)."""
        m, config = self._members, self._config
        progress_K = config.lost_fraction * (m.initial - np.fmin(m.best, m.initial))
        return np.fmin(progress_K, config.lost_rise * self._spike_rise * np.abs(m.best))

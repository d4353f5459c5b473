"""Episodes: when the loss of a member leaves its trend and comes back. A record that never stops a run."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np

from orchestrator.detection.baseline import RECENT, TAIL_FACTOR, level, noise, robust_trend
from orchestrator.detection.config import StoppingConfig

# Shapes: K members, W losses of a window, E losses of a start-up trend.

_EARLY = 3  # losses in the trend of a start-up, where each is far below the one before
_EARLY_RISE = 1.0  # rise that leaves that trend, as a fraction of it
# Where single outlying losses are common, two such losses in a row are not a spike.
_ODD_MEMORY, _ODD_COMMON, _ODD_FACTOR = 200, 0.005, 3.0
_AFTER_ONE = 2  # losses after a single high one in which a second must follow
_MASS_LIMIT = 1000.0  # cap on one loss, in units of the rise
_ODD_MODE = 0.04  # outlying losses per step from which they are a second mode of the noise
# The share of its progress that a run which settles after an episode may have given up.
SUNK_FRACTION = 0.2


@dataclass(slots=True)
class Episode:
    """A period in which the loss was off its trend, ``num_steps`` steps; no ``recovery_step`` while it lasts."""

    onset_step: int
    peak_step: int
    peak_loss: float
    num_steps: int = 0
    recovery_step: int | None = None


class Episodes:
    """Follows the trend of K members and their episodes, in the arrays of ``members``.

    ``spike_rise`` is the smallest rise that leaves the trend, as a fraction of the median.
    """

    def __init__(self, members: SimpleNamespace, config: StoppingConfig, spike_rise: float) -> None:
        self._members, self._config, self._spike_rise = members, config, spike_rise
        self.closed: list[list[Episode]] = [[] for _ in members.num_steps]

    def trend(self) -> tuple[np.ndarray, np.ndarray]:
        """The level of the trend and the rise above it that leaves it, (K,) each."""
        m, config = self._members, self._config
        last = m.num_accepted[:, None] - 1 - np.arange(_EARLY)
        early_KE = np.take_along_axis(m.accepted_W, last % config.window, axis=1)
        trend_K = np.fmax.reduce(np.where(last >= 0, early_KE, np.nan), axis=1)
        rise_K = _EARLY_RISE * np.abs(trend_K)
        judged_K = m.num_accepted >= config.min_history
        if judged_K.any():
            median_K, deviation_K, tail_K = robust_trend(m.accepted_W[judged_K], m.num_accepted[judged_K])
            trend_K[judged_K] = median_K
            relative_K = np.maximum(config.spike_sigma * deviation_K, self._spike_rise * np.abs(median_K))
            rise_K[judged_K] = np.maximum(relative_K, TAIL_FACTOR * tail_K)
        return trend_K, rise_K

    def accept(self, loss_K: np.ndarray, accepted_K: np.ndarray) -> None:
        """Add the losses of ``accepted_K`` to the baseline."""
        m, window = self._members, self._config.window
        accepted = np.flatnonzero(accepted_K)
        m.accepted_W[accepted, m.num_accepted[accepted] % window] = loss_K[accepted]
        m.num_accepted += accepted_K
        # The best level is a short median, so that one lucky batch does not set it.
        filled_K = accepted_K & (m.num_accepted >= RECENT)
        level_K = np.where(filled_K, level(m.accepted_W, m.num_accepted), np.inf)
        better_K = filled_K & ~(level_K >= m.best)
        m.best = np.where(better_K, level_K, m.best)
        if (better := np.flatnonzero(better_K)).size:
            deviation, tail = noise(m.accepted_W[better], m.num_accepted[better])
            m.best_noise[better] = np.maximum(self._config.spike_sigma * deviation, TAIL_FACTOR * tail)

    def follow(self, loss_K: np.ndarray, excess_K: np.ndarray, seen_K: np.ndarray, trend_K: np.ndarray) -> None:
        """Open an episode where a loss leaves its trend; close it after ``recovery_steps`` steps back on it."""
        m, config = self._members, self._config
        off_K = seen_K & (excess_K > 1)
        opens_K = off_K & ~m.in_episode
        if opens_K.any():
            for name in ("age", "off_steps", "calm_steps", "mass"):
                setattr(m, name, np.where(opens_K, 0, getattr(m, name)))
            m.onset = np.where(opens_K, m.last_step, m.onset)
            m.peak = np.where(opens_K, -np.inf, m.peak)
            # A rise before the run has learned anything is a start-up bump if it comes back.
            early_K = (m.num_accepted < config.min_history) & ~has_learned(m, trend_K, config.stall_drop)
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
        # A loss that is back on the trend may be higher, since the trend is measured again at each step.
        higher_K = off_K & (loss_K > m.peak)
        m.peak, m.peak_step = np.where(higher_K, loss_K, m.peak), np.where(higher_K, m.last_step, m.peak_step)
        over_K = inside_K & (m.calm_steps >= config.recovery_steps)
        over_K |= inside_K & (m.off_steps < config.spike_steps) & (m.calm_steps >= _AFTER_ONE)
        self._close(over_K, m.calm_since)
        odd_K = over_K & ~m.is_start_up & ~self.is_spike()
        m.odd_height = np.where(
            odd_K, np.where(m.odd_height > 0, 0.8 * m.odd_height + 0.2 * m.mass, m.mass), m.odd_height
        )
        m.odd_rate += odd_K / _ODD_MEMORY

    def settle(self, trend_K: np.ndarray) -> None:
        """Make a plateau that follows an episode the new baseline.

        The run has settled if the losses are flat a window of steps into an episode, not at the level of a lost run. If
        it settled about as high as it rose, the level has shifted, as after a restart of the learning rate, and that
        was not a spike. Where outlying losses are common they belong to the noise and enter the baseline.
        """
        m, window = self._members, self._config.window
        mixed_K = (m.odd_rate > _ODD_MODE) & ~m.in_episode & (m.num_seen >= window)
        self._rebase(mixed_K)
        long_K = m.in_episode & (m.age >= window) & ~m.is_far & ~m.is_sunk
        if not long_K.any():
            return
        older_K, newer_K = (level(m.raw_W, m.num_seen - back, window // 2) for back in (window // 2, 0))
        flat_K = long_K & (np.abs(newer_K - older_K) <= 0.5 * self._spike_rise * np.abs(newer_K))
        if not flat_K.any():
            return
        height_K, progress_K = m.peak - trend_K, m.initial - np.fmin(m.best, m.initial)
        shifted_K = flat_K & (newer_K - trend_K >= 0.5 * height_K) & (height_K < SUNK_FRACTION * progress_K)
        m.in_episode &= ~shifted_K
        self._close(flat_K & ~shifted_K, m.last_step)
        self._rebase(flat_K)

    def is_spike(self) -> np.ndarray:
        """Which current episodes count as spikes, (K,)."""
        m, config = self._members, self._config
        least_K = np.where(m.odd_rate > _ODD_COMMON, (_ODD_FACTOR + 100 * m.odd_rate) * m.odd_height, 0.0)
        is_high_K = m.mass >= np.maximum(config.spike_mass, least_K)
        return (m.off_steps >= config.spike_steps) & is_high_K & ~m.is_start_up

    def current(self, member: int, recovery_step: int | None = None) -> Episode:
        """The current episode of ``member``."""
        m = self._members
        return Episode(
            onset_step=int(m.onset[member]),
            peak_step=int(m.peak_step[member]),
            peak_loss=float(m.peak[member]),
            num_steps=int(m.off_steps[member]),
            recovery_step=recovery_step,
        )

    def _close(self, over_K: np.ndarray, recovery_K: np.ndarray) -> None:
        m = self._members
        for member in np.flatnonzero(over_K & self.is_spike()):
            self.closed[member].append(self.current(int(member), recovery_step=int(recovery_K[member])))
        m.in_episode &= ~over_K

    def _rebase(self, members_K: np.ndarray) -> None:
        """Make all recent losses of ``members_K``, outlying or not, the baseline."""
        m = self._members
        chosen = np.flatnonzero(members_K)
        m.accepted_W[chosen], m.num_accepted[chosen] = m.raw_W[chosen], m.num_seen[chosen]


def has_learned(m: SimpleNamespace, level_K: np.ndarray, share: float) -> np.ndarray:
    """Whether ``level_K`` is below the initial loss by more than ``share`` of it, (K,)."""
    return m.initial - np.fmin(level_K, m.initial) > share * np.abs(m.initial)

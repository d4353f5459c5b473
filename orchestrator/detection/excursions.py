"""Excursions, which leave the trend of a run, and episodes, those that count; how strong they are."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from orchestrator.detection.trend import EARLY, TINY

# An episode is clear if its strength is at least CLEAR, else faint. That of a start-up blow-up is the largest.
CLEAR, _STRONGEST = 12.0, 1000.0
_SHARE = 0.1  # of what was learned, below which the strength shrinks with it


@dataclass(slots=True)
class Episode:
    """A period of ``num_steps`` steps off the trend; ``recovery_step`` is None while it lasts.

    ``level`` is the level of the trend before it. A jump counts only in a regime of jumps. ``strength`` is its height
    in deviations of the noise, times the root of its length, up to 1000.
    """

    onset_step: int
    peak_step: int
    peak_loss: float
    num_steps: int = 0
    recovery_step: int | None = None
    level: float = math.nan
    is_jump: bool = False
    strength: float = _STRONGEST

    @property
    def is_clear(self) -> bool:
        """Whether it counts, else it is faint."""
        return self.strength >= CLEAR


@dataclass(slots=True)
class Excursion:
    """Losses off the trend, which may become an episode."""

    onset: int
    level: float
    is_early: bool
    is_start_up: bool  # begun before the run had learned anything: counts only as a blow-up
    peak: float = -math.inf
    peak_step: int = -1
    highest: float = 0.0  # in rises that leave the trend
    age: int = 0
    num_off: int = 0
    mass: float = 0.0
    calm: int = 0
    calm_since: int = -1
    tallest_of_three: float = -math.inf  # highest median of three losses
    is_scheduled: bool = False
    noise: float = 0.0  # of the trend before it, as a share of the level
    learned: float = 0.0  # by how much the loss had fallen before it
    first: float = math.inf  # loss of the run, for one at its start

    def strength(self, rounding: float) -> float:
        """Return its height in deviations of the noise, times the root of its length.

        A height is the logarithm of a factor of the level. Of a height below a tenth of what was learned only that
        share counts. ``rounding`` is half of the last printed digit.
        """
        if self.is_early:
            return strength_at_start(self.peak, min(self.level, self.first), self.noise, rounding, self.num_off)
        if self.is_scheduled:
            return 0.0
        share = (self.peak - self.level) / max(_SHARE * self.learned, TINY)
        return strength_of(self.peak, self.level, max(self.noise, TINY), rounding, self.num_off * min(1.0, share) ** 2)

    def as_episode(self, recovery_step: int | None, rounding: float) -> Episode:
        """Return its record."""
        strength = self.strength(rounding)
        return Episode(self.onset, self.peak_step, self.peak, self.num_off, recovery_step, self.level, False, strength)


def strength_of(peak: float, level: float, noise: float, rounding: float, num: float) -> float:
    """Return the height in deviations of the ``noise``, a share of the level, times the root of ``num`` losses."""
    level = max(level, rounding, TINY)
    height = math.log(max(peak, level) / level) / max(noise, rounding / level, TINY)
    return min(height * math.sqrt(num), _STRONGEST)


def strength_at_start(peak: float, level: float, noise: float, rounding: float, num: int) -> float:
    """Return the strength of an episode at the start, the largest while the ``noise`` is not known.

    The level before it is known from a few losses: its own noise does not average out in a long episode.
    """
    return strength_of(peak, level, noise, rounding, min(num, EARLY)) if noise else _STRONGEST


def weakened(episode: Episode, least: float) -> Episode:
    """Return an episode that does not stand out as a faint one: on a schedule, or no stronger than ``least``."""
    if not episode.is_clear:
        return episode
    return replace(episode, strength=episode.strength * CLEAR / least if episode.strength < least else 0.0)

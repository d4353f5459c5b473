"""What a run has learned, against which rises are measured."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from orchestrator.detection.config import StoppingConfig, falls_over_decades
from orchestrator.detection.trend import RECENT, TAIL_FACTOR, UPPER_TAIL, Trend, noise

# A start-up blow-up is above twice the initial loss, or 20 points above it. A loss that falls over decades must rise by
# three decades: momentum on a quadratic overshoots by a factor of some hundreds below the edge of stability.
BLOW_UP, BLOW_UP_POINTS, BLOW_UP_FACTOR = 1.0, 20.0, 1000.0
_STATE = ("initial", "start", "early", "best", "_around_best", "_steps_to_start", "blew_up")


class Progress:
    """The initial loss of one run, the level after its start-up, and its best level.

    ``start`` is the initial loss or, after a start-up blow-up, the level that the run came back to: an initial
    blow-up is not what was learned.
    """

    __slots__ = (
        "_around_best", "_noise_at_best", "_rules", "_steps_to_start", "_trend", "best", "blew_up", "early", "initial",
        "learned", "learned_late", "lowest", "num_changes", "start",
    )  # fmt: skip

    def __init__(self, rules: StoppingConfig, trend: Trend) -> None:
        self._rules, self._trend = rules, trend
        self.initial = self.start = math.nan
        self.early = math.inf  # median of the first ``min_history`` accepted losses, once there are as many
        self.best = math.inf  # lowest median of the last RECENT accepted losses, which one lucky batch does not set
        self._around_best: list[float] = []  # the accepted losses then
        self._noise_at_best: float | None = None  # measured on demand
        self.blew_up = False  # at the start
        self._steps_to_start = 0  # accepted losses until ``start`` is measured again
        self.num_changes = 0  # of the numbers below
        self.lowest = math.nan  # the best level, or the start of a run that was never below it
        self.learned = 0.0  # by how much the loss has fallen since the start
        # The same since the first ``min_history`` losses, which may fall by more than all later ones; the measure of
        # spikes.
        self.learned_late = 0.0

    def begin(self, loss: float) -> None:
        """Take the first loss."""
        self.initial = self.start = loss
        self._measure()

    def follow(self, loss: float) -> None:
        """Take a loss that the trend has just accepted."""
        trend = self._trend
        if trend.num_accepted == self._rules.min_history:
            self.early = trend.accepted.median()
            self._measure()
        if self._steps_to_start:
            self._steps_to_start -= 1
            if not self._steps_to_start:
                self.start = min(self.start, trend.recent_median())
                self._measure()
        # Only a loss below the best level can lower the median further.
        if loss < self.best and trend.num_accepted >= RECENT:
            level = trend.recent_median()
            if level < self.best:
                self.best, self._around_best, self._noise_at_best = level, trend.accepted.values.copy(), None
                self._measure()

    def start_again(self) -> None:
        """Note the end of a start-up blow-up: what was learned counts from the level a window of losses later."""
        self.blew_up, self._steps_to_start = True, self._rules.window

    def noise_at_best(self) -> float:
        """Return the rise above the best level that is beyond the noise there."""
        if self._noise_at_best is None:
            spread, tail = noise(self._around_best, UPPER_TAIL)
            self._noise_at_best = max(self._rules.spike_sigma * spread, TAIL_FACTOR * tail)
        return self._noise_at_best

    def has_learned(self, level: float, share: float) -> bool:
        """Return whether ``level`` is below the initial loss by more than this ``share``."""
        return self.initial - min(level, self.initial) > share * abs(self.initial)

    def blow_up_line(self) -> float:
        """Return the loss above which a start-up is a blow-up."""
        base = min(self.initial, self.start)
        if falls_over_decades(self._rules):
            return base + BLOW_UP_FACTOR * abs(base)
        return base + min(BLOW_UP * abs(base), BLOW_UP_POINTS)

    def state_dict(self) -> dict[str, Any]:
        """Return plain values for a checkpoint."""
        return {name: getattr(self, name) for name in _STATE}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a ``state_dict``."""
        for name in _STATE:
            setattr(self, name, state[name])
        self._noise_at_best = None
        self._measure()

    def _measure(self) -> None:
        """Update what follows from the levels."""
        self.num_changes += 1
        self.lowest = min(self.best, self.start)
        self.learned = self.start - self.lowest
        # A share of what was learned means nothing for a loss that falls over decades.
        if not falls_over_decades(self._rules) and self.early < math.inf:
            self.learned_late = max(0.0, min(self.start, self.early) - self.lowest)

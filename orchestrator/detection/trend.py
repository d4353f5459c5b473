"""The trend of a run: its local level, and the rise above it that leaves it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.detection.config import StoppingConfig, rise_of
from orchestrator.detection.windows import Window, deviation, middle, quantile

RECENT = 10  # losses in a level that is reported: enough to average out an odd batch
LOCAL = 8  # accepted losses in the local level: they follow a descent; one odd loss does not move their median
EARLY = 3  # losses in the trend of a start-up, where each is far below the one before
# A second measure of the noise, for losses with two levels, whose deviation collapses: a spike must be 2.6 times as
# high as the upper tenth of the noise. That is 3.3 deviations of normal noise and rarely decides.
UPPER_TAIL, TAIL_FACTOR = 0.9, 2.6
_LOWER_TAIL = 0.2  # where half of the losses are on the upper level, it is the lower ones that show its height
# The share of what was learned that a rise must reach to be an event.
LEAST_SHARE = 0.03
TINY = 1e-300  # smallest rise, for a loss that is exactly zero


class Trend:
    """The accepted losses of one run. A loss that is off the trend is never accepted, so it cannot hide the next one.

    The level is the lower of two medians, of the last LOCAL and of the last ``window`` accepted losses: the first
    follows a descent, the second does not follow a slow rise. The noise is measured on the residuals, each
    accepted loss minus the level before it.
    """

    __slots__ = ("_rules", "_spread", "accepted", "level", "local", "num_accepted", "residuals")

    def __init__(self, rules: StoppingConfig) -> None:
        self._rules = rules
        self.accepted, self.local = Window(rules.window), Window(LOCAL)
        self.residuals: list[float] = []  # as many as there are accepted losses, not sorted: mostly nobody asks
        self.num_accepted, self.level = 0, math.nan
        self._spread: float | None = None  # the noise's part of the rise, once it was measured

    def accept(self, loss: float) -> None:
        """Add a loss on the trend."""
        if self.num_accepted:
            if len(self.residuals) == self.accepted.size:
                self.residuals.pop(0)
            self.residuals.append(loss - self.level)
        self.accepted.add(loss)
        self.local.add(loss)
        self.num_accepted += 1
        self._measure()

    def rebase(self, losses: Sequence[float]) -> None:
        """Continue from ``losses``, whether they were accepted or not."""
        self.accepted.reset(losses)
        self.local.reset(losses)
        self.num_accepted = max(self.num_accepted, len(losses))
        self._measure()

    @property
    def is_early(self) -> bool:
        """Whether there are too few losses to know the noise."""
        return self.num_accepted < self._rules.min_history

    def early_level(self) -> float:
        """The highest of the last accepted losses: a start-up falls too fast for a median."""
        return max(self.accepted.values[-EARLY:])

    def rise(self, learned: float) -> float:
        """The rise above the level that leaves the trend: beyond the noise, and noticeable."""
        if self._spread is None:
            ordered = sorted(self.residuals)
            # Where the noise has two levels, its middle may be far above the lower of two medians.
            center = middle(ordered)
            tail = max(quantile(ordered, UPPER_TAIL) - min(center, 0.0), center - quantile(ordered, _LOWER_TAIL))
            self._spread = max(self._rules.spike_sigma * deviation(ordered), TAIL_FACTOR * tail)
        return max(self._spread, self.least_rise(learned))

    def least_rise(self, learned: float) -> float:
        """The rise that is noticeable: a fraction of the level, and a share of what was ``learned``."""
        return max(rise_of(self._rules) * abs(self.level), LEAST_SHARE * learned, TINY)

    def recent_median(self) -> float:
        """The median of the last RECENT accepted losses."""
        return middle(sorted(self.accepted.values[-RECENT:]))

    def state_dict(self) -> dict[str, Any]:
        """Plain values for a checkpoint."""
        windows = {"accepted": self.accepted.values.copy(), "local": self.local.values.copy()}
        return {**windows, "residuals": self.residuals.copy(), "num_accepted": self.num_accepted}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a ``state_dict``."""
        self.accepted.reset(state["accepted"])
        self.local.reset(state["local"])
        self.residuals, self.num_accepted = list(state["residuals"]), state["num_accepted"]
        if self.num_accepted:
            self._measure()

    def _measure(self) -> None:
        self.level = min(self.local.median(), self.accepted.median())
        self._spread = None

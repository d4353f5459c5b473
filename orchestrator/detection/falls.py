"""Abrupt falls of a loss, which no instability brings: data in blocks of different difficulty rise and fall alike."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from orchestrator.detection.config import rise_of
from orchestrator.detection.noise import middle, relative_noise
from orchestrator.detection.trend import LOCAL, TINY, Progress, Trend

_FALLEN = 3  # losses that are below each of the LOCAL ones before
_CALM = 20  # losses since the last excursion, since a recovery from one is no such fall
# Falls are common from so many on, one in so many losses; more in a window, as of a step of a schedule, are one.
_COMMON, _LOSSES = 4, 1000
_ABOVE = 2.0  # times the tallest fall is the rise of an episode that stands out


@dataclass(slots=True)
class Falls:
    """The falls of one run, as tall as a rise that leaves the trend; heights are logarithms."""

    num: int = 0
    tallest: float = 0.0
    at: int = 0  # number of losses at the last one that was counted
    off_at: int = 0  # number of losses when the run was last off its trend

    def least_height(self, num_losses: int) -> float:
        """Return the height up to which rises are of one kind with the falls, 0 if these are rare."""
        return _ABOVE * self.tallest if self.num >= _COMMON and self.num * _LOSSES >= num_losses else 0.0

    def follow(self, trend: Trend, progress: Progress, num_seen: int) -> None:
        """Take the loss that the trend has just accepted, the number ``num_seen``, outside of an excursion."""
        values = trend.accepted.values
        if len(values) < _FALLEN + LOCAL or values[-1] >= values[-_FALLEN - 1]:
            return
        if self._may_fall(trend, trend.num_accepted, num_seen):
            past = values[-_FALLEN - LOCAL : -_FALLEN]
            if max(values[-_FALLEN:]) < min(past):
                self._judge(middle(sorted(past)), values, trend, progress, num_seen)

    def follow_all(
        self, accepted_M: np.ndarray, past_N: np.ndarray, num: int, trend: Trend, progress: Progress, num_seen: int
    ) -> None:
        """Take the next ``num`` losses as ``follow`` would, after ``num_seen`` earlier ones.

        ``accepted_M`` are the accepted losses with a window before them, and ``past_N`` the medians of LOCAL losses
        before the last _FALLEN at each.
        """
        window, factor = trend.accepted.size, 1 + rise_of(trend.rules)
        for at in np.flatnonzero(accepted_M[window : window + num] * factor < past_N[:num]).tolist():
            values = accepted_M[at + 1 : at + 1 + window]
            is_low = values[-_FALLEN:].max() < values[-_FALLEN - LOCAL : -_FALLEN].min()
            if is_low and self._may_fall(trend, trend.num_accepted + at + 1, num_seen + at + 1):
                self._judge(float(past_N[at]), values.tolist(), trend, progress, num_seen + at + 1)

    def _may_fall(self, trend: Trend, num_accepted: int, num_seen: int) -> bool:
        is_long = trend.accepted.size >= _FALLEN + LOCAL
        return is_long and num_accepted >= 2 * trend.rules.min_history and num_seen - self.off_at > _CALM

    def _judge(self, past: float, accepted: list[float], trend: Trend, progress: Progress, num_seen: int) -> None:
        """Take a loss that is below the level in the ``past``, as the ones just before it are."""
        new = accepted[-_FALLEN:]
        if not 0 < accepted[-1] * (1 + progress.rise_at(past)) < past:
            return
        height = math.log(past / max(middle(sorted(new)), TINY))
        if height <= trend.rules.spike_sigma * max(relative_noise(accepted, trend.rules), trend.rounding / past):
            return
        self.tallest = max(self.tallest, height)
        if not self.num or num_seen - self.at >= trend.accepted.size:
            self.num, self.at = self.num + 1, num_seen

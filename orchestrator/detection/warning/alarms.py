"""When a score is an alarm, and which steps of a run count as unstable.

An alarm predicts an instability within the next ``HORIZON`` steps, and stays active for that long. A run that survives
a score unharmed has shown that it can: until its next instability, only a higher score is another alarm.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

# Shapes: N readings.

HORIZON = 50  # steps


@dataclass(frozen=True, slots=True)
class UnstableSpan:
    """An instability from ``onset`` up to ``end``, the first step after it; it may contain several onsets."""

    onset: int
    end: int


def unstable_spans(
    episodes: Iterable[tuple[int, int | None]], num_steps: int, gap: int = HORIZON
) -> list[UnstableSpan]:
    """Return the instabilities of a run of ``num_steps``: episodes (onset, recovery) closer than ``gap`` steps are one.

    An episode without a recovery lasts to the end of the run.
    """
    merged: list[UnstableSpan] = []
    for onset, recovery in sorted(episodes, key=lambda episode: episode[0]):
        end = num_steps if recovery is None else recovery
        if merged and onset - merged[-1].end < gap:
            merged[-1] = UnstableSpan(merged[-1].onset, max(end, merged[-1].end))
        else:
            merged.append(UnstableSpan(onset, end))
    return merged


def is_calm(step_N: np.ndarray, unstable: Sequence[UnstableSpan]) -> np.ndarray:
    """Return which steps lie outside every instability, (N,)."""
    calm_N = np.ones(len(step_N), dtype=bool)
    for span in unstable:
        calm_N &= (step_N < span.onset) | (step_N >= span.end)
    return calm_N


class AlarmState:
    """Decide reading by reading whether a score of at least ``threshold`` is an alarm."""

    __slots__ = ("_horizon", "_survived", "_threshold", "raised_step")

    def __init__(self, threshold: float, horizon: int = HORIZON) -> None:
        self._threshold, self._horizon = threshold, horizon
        self.reset()

    def reset(self) -> None:
        """Begin anew, as after an instability."""
        self._survived = float("-inf")  # the highest score while an alarm was active
        self.raised_step: int | None = None

    def is_active(self, step: int) -> bool:
        """Return whether an alarm is active at ``step``."""
        return self.raised_step is not None and step - self.raised_step < self._horizon

    def update(self, step: int, score: float) -> bool:
        """Return whether ``score`` at ``step`` raises an alarm; NaN does not. Steps must ascend."""
        if self.is_active(step):
            self._survived = max(self._survived, score if score == score else self._survived)
            return False
        if not (score >= self._threshold and score > self._survived):
            return False
        self.raised_step = step
        self._survived = score
        return True


def alarms(
    step_N: np.ndarray,
    score_N: np.ndarray,
    threshold: float,
    unstable: Sequence[UnstableSpan] = (),
    horizon: int = HORIZON,
) -> list[int]:
    """Return the steps of the alarms that an ``AlarmState`` raises outside instabilities; each resets it."""
    state, raised, left = AlarmState(threshold, horizon), [], [span.end for span in unstable]
    # Scores below the threshold change nothing.
    counts_N = (score_N >= threshold) & is_calm(step_N, unstable)
    for step, score in zip(step_N[counts_N].tolist(), score_N[counts_N].tolist(), strict=True):
        while left and left[0] <= step:
            left.pop(0)
            state.reset()
        if state.update(step, score):
            raised.append(step)
    return raised

"""When a score is an alarm, and which steps of a run count as unstable.

An alarm says: unstable within the next ``HORIZON`` steps, and stands for that long. A run that stands a score without
harm has shown that it can: from then on, and until its next instability, only a higher score is an alarm.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

# Shapes: N readings.

HORIZON = 50  # steps


@dataclass(frozen=True, slots=True)
class Bout:
    """An instability from its onset up to ``end``, the first step at which it is over; it may have several onsets."""

    onset: int
    end: int


def bouts(episodes: Iterable[tuple[int, int | None]], num_steps: int, gap: int = HORIZON) -> list[Bout]:
    """The instabilities of a run of ``num_steps``: episodes (onset, recovery) closer than ``gap`` steps are one.

    One without a recovery lasts to the end of the run.
    """
    found: list[Bout] = []
    for onset, recovery in sorted(episodes, key=lambda episode: episode[0]):
        end = num_steps if recovery is None else recovery
        if found and onset - found[-1].end < gap:
            found[-1] = Bout(found[-1].onset, max(end, found[-1].end))
        else:
            found.append(Bout(onset, end))
    return found


def is_calm(step_N: np.ndarray, unstable: Sequence[Bout]) -> np.ndarray:
    """Which steps lie outside every bout, (N,)."""
    calm_N = np.ones(len(step_N), dtype=bool)
    for bout in unstable:
        calm_N &= (step_N < bout.onset) | (step_N >= bout.end)
    return calm_N


class AlarmBell:
    """Decides reading by reading whether a score is an alarm, at ``threshold`` or more."""

    __slots__ = ("_endured", "_horizon", "_threshold", "raised_step")

    def __init__(self, threshold: float, horizon: int = HORIZON) -> None:
        self._threshold, self._horizon = threshold, horizon
        self.forgive()

    def forgive(self) -> None:
        """Begin anew, as after an instability."""
        self._endured = float("-inf")  # the highest score under which an alarm stood
        self.raised_step: int | None = None

    def stands(self, step: int) -> bool:
        """Whether an alarm stands at ``step``."""
        return self.raised_step is not None and step - self.raised_step < self._horizon

    def rings(self, step: int, score: float) -> bool:
        """Whether ``score`` at ``step`` raises an alarm; a NaN does not. Steps ascend."""
        if self.stands(step):
            self._endured = max(self._endured, score if score == score else self._endured)
            return False
        if not (score >= self._threshold and score > self._endured):
            return False
        self.raised_step = step
        self._endured = score
        return True


def alarms(
    step_N: np.ndarray, score_N: np.ndarray, threshold: float, unstable: Sequence[Bout] = (), horizon: int = HORIZON
) -> list[int]:
    """Steps of the alarms that an ``AlarmBell`` raises outside bouts; it begins anew after each."""
    bell, raised, left = AlarmBell(threshold, horizon), [], [bout.end for bout in unstable]
    # Scores below the threshold change nothing.
    counts_N = (score_N >= threshold) & is_calm(step_N, unstable)
    for step, score in zip(step_N[counts_N].tolist(), score_N[counts_N].tolist(), strict=True):
        while left and left[0] <= step:
            left.pop(0)
            bell.forgive()
        if bell.rings(step, score):
            raised.append(step)
    return raised

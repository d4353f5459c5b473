"""When a score is an alarm, and which steps of a run count as unstable.

An alarm says: unstable within the next ``HORIZON`` steps. It stands for that long; a score that is still over the
threshold when it ends raises the next one. Alarms that follow each other without a gap are one warning.
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


def alarms(
    step_N: np.ndarray, score_N: np.ndarray, threshold: float, unstable: Sequence[Bout] = (), horizon: int = HORIZON
) -> list[int]:
    """Steps of the alarms: scores of at least ``threshold``, outside bouts, while no earlier alarm stands.

    A NaN raises none. An alarm stands until its horizon or the end of the bout that it announced.
    """
    raised: list[int] = []
    ends = [bout.end for bout in unstable]
    for step in step_N[(score_N >= threshold) & is_calm(step_N, unstable)].tolist():
        if not raised or step - raised[-1] >= horizon or any(raised[-1] < end <= step for end in ends):
            raised.append(step)
    return raised


def beginnings(raised: Sequence[int], every: int, horizon: int = HORIZON) -> list[int]:
    """For each alarm the step at which its warning began.

    An alarm that is raised at most ``every`` steps after the one before it ended, at the next reading, continues it.
    """
    began: list[int] = []
    for i, step in enumerate(raised):
        continues = i > 0 and step - raised[i - 1] < horizon + every
        began.append(began[-1] if continues else step)
    return began

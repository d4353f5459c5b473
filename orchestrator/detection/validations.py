"""The validation losses of a run in training: its best one, its plateau, and whether it overfits.

Held-out data are the same at every validation, so that only the weights differ from one to the next.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from orchestrator.detection.config import StoppingConfig, falls_over_decades
from orchestrator.detection.detector import MemberRecord

# Validations after the best one that must all be above it, and the last ones whose median is their end.
_AFTER, _AT_END = 4, 3
# A rise counts above this many deviations of the curve's noise, and above this share of what was learned.
_DEVIATIONS, _LEAST_SHARE = 4.0, 0.02
# It must be this many times the rise of the training loss over its own best: if both rise, it is not overfitting.
_BEYOND_TRAINING = 2.0
# The standard deviation of independent noise, as a share of the median size of its second differences.
_OF_SECOND_DIFFERENCES = 1 / (0.6745 * math.sqrt(6))


@dataclass(slots=True)
class Validations:
    """The finite validation losses of one run with their steps, and the index of the lowest, -1 without any.

    ``plateau_step`` is the first step without an improvement for ``validation_patience`` validations.
    """

    steps: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    best: int = -1
    plateau_step: int | None = None

    def add(self, step: int, loss: float) -> None:
        """Append one validation; a loss that is not finite is ignored."""
        if not math.isfinite(loss):
            return
        if self.best < 0 or loss < self.losses[self.best]:
            self.best = len(self.losses)
        self.steps.append(step)
        self.losses.append(loss)

    @property
    def best_loss(self) -> float | None:
        """The lowest loss, or None without one."""
        return self.losses[self.best] if self.losses else None

    @property
    def best_step(self) -> int | None:
        """The step of the lowest loss, the first of equal ones."""
        return self.steps[self.best] if self.losses else None

    @property
    def num_since_best(self) -> int:
        """Validations after the best one."""
        return max(0, len(self.losses) - 1 - self.best)

    def end_loss(self) -> float:
        """Return the median of the last three losses, or of fewer if there are no more."""
        return median(self.losses[-_AT_END:])

    def overfits(self, record: MemberRecord, stopping: StoppingConfig) -> bool:
        """Return whether the loss rose from its best to the end of the run, and the training loss did not.

        At least four later losses are all above the best, and their end is higher by four deviations of the curve's
        noise, by 2 % of what was learned, and by twice the rise of the training loss above its own best. Squared errors
        are compared on the logarithmic scale.
        """
        trained_to, now = record.best_loss, record.recent_loss
        if self.num_since_best < _AFTER or trained_to is None or now is None:
            return False
        losses, start = np.array(self.losses), max(self.losses[0], record.initial_loss or self.losses[0])
        levels = np.array([self.end_loss(), start, trained_to, now])
        if falls_over_decades(stopping):
            if min(losses.min(), levels.min()) <= 0:
                return False
            losses, levels = np.log(losses), np.log(levels)
        end, start, trained_to, now = levels.tolist()
        best = float(losses[self.best])
        least = max(
            _DEVIATIONS * _noise(losses),
            _LEAST_SHARE * (start - best),
            _BEYOND_TRAINING * max(0.0, now - trained_to),
        )
        return bool(end - best > least) and bool((losses[self.best + 1 :] > best).all())


def _noise(losses: np.ndarray) -> float:
    """Return the standard deviation of one loss about the curve's course, 0 for a straight course."""
    bends = np.abs(np.diff(losses, 2))
    return _OF_SECOND_DIFFERENCES * float(np.median(bends))

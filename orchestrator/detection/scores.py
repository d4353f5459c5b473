"""The scores of a run while it trains: its first and its final one, and whether they have stopped improving."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import median

# The first value is the one before training if it came within this share of the steps.
_AT_START = 0.05
_TAIL = 0.1  # share of the values whose median is the final score: the last of a few, and many of noisy returns


@dataclass(slots=True)
class Scores:
    """The finite values of one run, and the index of the best, -1 without any.

    ``plateau_step`` is the first step after which ``patience`` values in a row were not the best. ``start`` is the
    value before training, if the user says it.
    """

    maximize: bool
    patience: int | None = None
    start: float | None = None
    steps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    best: int = -1
    plateau_step: int | None = None

    def add(self, step: int, value: float) -> None:
        """Append a value; one that is not finite is ignored."""
        if not math.isfinite(value):
            return
        sign = 1 if self.maximize else -1
        if self.best < 0 or sign * value > sign * self.values[self.best]:
            self.best = len(self.values)
        self.steps.append(step)
        self.values.append(value)
        if self.patience is not None and len(self.values) - 1 - self.best >= self.patience:
            self.plateau_step = step if self.plateau_step is None else self.plateau_step

    def initial(self, num_steps: int) -> float | None:
        """Return the value before training, or None if the first one came later in a run of ``num_steps``."""
        if self.start is not None:
            return self.start
        return self.values[0] if self.values and self.steps[0] <= _AT_START * num_steps else None

    @property
    def final(self) -> float | None:
        """The median of the last tenth of the values, or None without any."""
        return median(self.values[-max(1, int(len(self.values) * _TAIL)) :]) if self.values else None

    @property
    def plateau_text(self) -> str:
        """Say where the score had stopped improving; empty if it had not."""
        if self.plateau_step is None:
            return ""
        return f"at step {self.plateau_step} {self.patience} scores in a row had not been the best"

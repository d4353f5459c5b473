"""What a trainer may make of a step that is not finite: skip it, roll it back, or print a loss of 0 in its place."""

from __future__ import annotations

import math
from dataclasses import dataclass

SKIPPED, ROLLED_BACK = 1, 2  # a step that a loss scaler skipped, and one that was not finite and was rolled back
# No loss scaler halves so often: from 2^24 to below the smallest number of float16.
_MOST_IN_A_ROW = 50
_SHARE_AT_END, _LEAST_AT_END = 1 / 3, 10  # of a shorter run, which are as many at its end
_ROLLBACKS = 10  # without a lower level: their cause is not in the data


@dataclass(slots=True)
class Undone:
    """Steps that were skipped or rolled back: nothing against a run, unless it does nothing else."""

    num: int = 0  # in a row, to the last step
    since: int = -1
    rollbacks: int = 0  # since the run was last at a new lowest level
    rollbacks_since: int = -1
    lowest: float = math.inf  # at the first of these

    def follow(self, how: int, step: int, lowest: float, noise: float) -> None:
        """Take a step and ``how`` it was undone, 0 for not. A level is lower by more than the ``noise``."""
        if not how:
            self.num = 0
            return
        if how == ROLLED_BACK and (not self.num or self.rollbacks_since < 0):
            if not self.rollbacks or lowest < self.lowest - noise:
                self.rollbacks, self.rollbacks_since, self.lowest = 0, step, lowest
            self.rollbacks += 1
        self.since = self.since if self.num else step
        self.num += 1

    @property
    def are_all(self) -> bool:
        """Whether they are so many in a row that the run trains no more."""
        return self.num >= _MOST_IN_A_ROW

    def verdict(self, num_steps: int) -> tuple[str | None, int | None]:
        """Return why a run that ends after ``num_steps`` is lost, and since which step; None if it is not."""
        if self.num >= min(_MOST_IN_A_ROW, max(_LEAST_AT_END, _SHARE_AT_END * num_steps)):
            return f"its last {self.num} steps were skipped or rolled back", self.since
        if self.rollbacks >= _ROLLBACKS:
            return f"it was rolled back {self.rollbacks} times and got no lower", self.rollbacks_since
        return None, None


_ZEROED = 0.1  # of the initial loss: one that was higher, and then exactly 0, did not fall there
_STAYED, _STAYED_AGAIN = 5, 10  # zeros in a row; where a loss came after zeros before


@dataclass(slots=True)
class Zeros:
    """Losses of exactly 0, which a trainer may print for one that is not finite."""

    num: int = 0
    since: int = -1
    level: float = math.nan  # of the losses before them
    came_back: bool = False
    has_norm: bool = False  # a gradient that is finite: then the loss of a training is another one

    def follow(self, loss: float, norm: float | None, step: int, level: float) -> None:
        """Take a loss; ``level`` is the one before it."""
        if loss != 0:
            self.come_back()
            return
        if not self.num:
            self.since, self.level, self.has_norm = step, level, norm is not None
        self.num += 1

    def come_back(self) -> None:
        """Take losses other than 0."""
        self.num, self.came_back = 0, self.came_back or self.num > 0

    def are_told(self, initial: float) -> bool:
        """Whether the losses before them were so high that the run did not come down to 0."""
        return self.num >= (_STAYED_AGAIN if self.came_back else _STAYED) and self.level > _ZEROED * initial

"""Increasing steps from the numbers that were printed with the losses, in their order."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

NUM_FIRST = 5  # points that decide whether a counter counts steps


def counts_steps(values: Sequence[float]) -> bool:
    """Whether a counter such as 10/300 with these ``values`` at the first points counts their steps."""
    num_back = sum(after < before for before, after in itertools.pairwise(values))
    return len(set(values)) > 1 and num_back <= 1


class Numbering:
    """Makes steps increase. A counter begins again whenever it goes back, a named step only in a later epoch."""

    def __init__(self, every: int = 1) -> None:
        """``every`` is the distance between points without a number."""
        self._every = every
        self.last: int | None = None
        self._num_dropped = self._num_numbered = 0
        self._first = self._gap = self._offset = 0
        self._epoch = math.inf
        self._value = -math.inf  # the last one that was printed

    def next_step(self, value: float | None, epoch: float | None, *, is_counter: bool = False) -> int | None:
        """Return the step of the next point, or None if it is not greater than the last one.

        A row without an integer step gets the next number. Steps that begin again continue from the last one.
        """
        last = -1 if self.last is None else self.last
        if value is None or not abs(value) + self._offset < 2**53 or abs(value - round(value)) > 1e-6:
            step = 0 if self.last is None else last + self._every
            self._num_numbered += 1
        else:
            step = round(value) + self._offset
            if self.last is None:
                self._first = step
            elif step <= last and self._begins_again(value, epoch, is_counter=is_counter):
                self._offset += last + self._gap - step
                step = last + self._gap
            self._value = value
            if self.last is not None and step <= last:
                self._num_dropped += 1
                return None
        self._gap = 1 if self.last is None else step - last
        self._epoch = math.inf if epoch is None else epoch
        self.last = step
        return step

    def _begins_again(self, value: float, epoch: float | None, *, is_counter: bool) -> bool:
        if is_counter:
            return value < self._value
        return round(value) <= self._first and epoch is not None and epoch > self._epoch

    def notes(self, has_steps: bool) -> Iterator[str]:
        """Yield how steps were changed, if at all."""
        if has_steps and self._num_numbered:
            yield f"{self._num_numbered} points without an integer step were numbered"
        if self._offset:
            yield "steps begin again with each epoch: they continue from the last one"
        if self._num_dropped:
            yield f"{self._num_dropped} points at the same or an earlier step were left out"

"""When control rules read and when they fire: the part that packs and training loops of your own share; free of torch.

A rule reads at the steps ``after``, ``after + every``, and so on, and fires after ``readings`` consecutive readings
above ``above``. It then pauses for ``cool_down`` steps, and ends after ``at_most`` firings.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from objectives.control import Rule

# Shapes: N rules, of one run or of several.

NEVER = np.iinfo(np.int64).max


class RuleClocks:
    """The next reading, the readings in a row and the firings of N rules. Each counts the steps of its own run."""

    def __init__(self, rules: Sequence[Rule], ends: Sequence[float], ages: Sequence[int] = ()) -> None:
        """Start rules that read before the steps ``ends``; runs with ``ages`` begin with the next of their readings."""
        self._above_N = np.array([rule.above for rule in rules])
        self._needed_N, self._every_N, self._at_most_N, self._quiet_N = (
            np.array([getattr(rule, name) for rule in rules], dtype=np.int64)
            for name in ("readings", "every", "at_most", "cool_down")
        )
        self._end_N = np.array(ends, dtype=np.float64)
        after_N = np.array([rule.after for rule in rules], dtype=np.int64)
        age_N = np.array(ages, dtype=np.int64) if len(ages) else np.zeros_like(after_N)
        num_past_N = np.maximum(0, -(-(age_N - after_N) // self._every_N))
        self.next_N = after_N + num_past_N * self._every_N
        self._streak_N, self.num_fired_N = np.zeros_like(after_N), np.zeros_like(after_N)
        self.retire()

    def read(self, due: np.ndarray, step_N: np.ndarray, value_N: np.ndarray) -> list[int]:
        """Count the readings of the rules ``due``, taken at ``step_N``; return positions in ``due`` that should fire.

        A reading that is not finite exceeds nothing.
        """
        is_above_N = np.isfinite(value_N) & (value_N > self._above_N[due])
        self._streak_N[due] = np.where(is_above_N, self._streak_N[due] + 1, 0)
        self.next_N[due] += self._every_N[due] * ((step_N - self.next_N[due]) // self._every_N[due] + 1)
        return np.flatnonzero(self._streak_N[due] >= self._needed_N[due]).tolist()

    def fire(self, n: int) -> None:
        """Count a firing of the rule ``n`` at the reading that it just took, and let it cool down."""
        self._streak_N[n], self.num_fired_N[n] = 0, self.num_fired_N[n] + 1
        every = int(self._every_N[n])
        # Its next reading is the first one, in whole intervals from this one, that is later than the cool-down.
        self.next_N[n] = int(self.next_N[n]) + every * (int(self._quiet_N[n]) // every)

    def retire(self) -> None:
        """Stop the rules that have fired ``at_most`` times, or that would read at or after their end."""
        self.next_N[(self.num_fired_N >= self._at_most_N) | (self.next_N >= self._end_N)] = NEVER

    def take_over(self, here: np.ndarray, before: RuleClocks, there: np.ndarray) -> None:
        """Continue the rules ``there`` of ``before`` as the rules ``here``, which are the same."""
        self.next_N[here], self._streak_N[here] = before.next_N[there], before._streak_N[there]
        self.num_fired_N[here] = before.num_fired_N[there]

    @property
    def counts(self) -> np.ndarray:
        """The whole state, (3, N)."""
        return np.stack([self.next_N, self._streak_N, self.num_fired_N])

    @counts.setter
    def counts(self, counts: np.ndarray) -> None:
        self.next_N, self._streak_N, self.num_fired_N = (row.copy() for row in counts)
        self.retire()

"""Rises of a run's gradient norm by half: a note on a change of regime, never a verdict.

They do not predict spikes (docs/detection.md has the numbers).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

# Shapes: H norms of the past, T steps of a block, K members.

LONG, SHORT = 128, 10  # norms in the two medians
RISEN, CALM = 1.5, 1.25  # short median over the long one: a rise, and below which another one counts
SPARSE = 10.0  # more steps per point let the medians span too much of a run
NOTE = f"the gradient norm has risen by half against its last {LONG} steps"
_EVERY = 10  # points between comparisons
_MOST = 20  # rises that are kept for each member


class NormRises:
    """Rises of the gradient norms of K members: the median of the last SHORT norms against the last LONG ones.

    They are compared at every tenth point of a member, however its points arrive. With more than SPARSE steps per point
    notes are off unless ``is_wanted``; False turns them off always.
    """

    def __init__(self, num_members: int = 1, is_wanted: bool | None = None) -> None:
        self._is_wanted = is_wanted
        self._reset(num_members)

    def _reset(self, num_members: int) -> None:
        self._past_HK = np.full((LONG, num_members), np.inf)
        self._num_points_K = np.zeros(num_members, dtype=np.int64)
        self._first_step_K = np.zeros(num_members, dtype=np.int64)
        self._is_risen_K = np.zeros(num_members, dtype=bool)
        self._rises: list[list[int]] = [[] for _ in range(num_members)]

    def follow(self, norm_TK: np.ndarray, step_TK: np.ndarray | None, length_K: np.ndarray) -> None:
        """Take the next norms of each member; only the first ``length_K`` are present, and NaN was not measured.

        ``step_TK`` are their steps; by default each member counts its points.
        """
        if self._is_wanted is False:
            return
        num_rows = len(norm_TK)
        if step_TK is None:
            step_TK = self._num_points_K + np.arange(num_rows)[:, None]
        is_new_K = self._num_points_K == 0
        self._first_step_K[is_new_K] = step_TK[0, is_new_K]
        norm_TK = np.where(np.isfinite(norm_TK), norm_TK, np.inf)
        known_HK = np.concatenate([self._past_HK, norm_TK])
        num_after_TK = self._num_points_K + np.arange(1, num_rows + 1)[:, None]
        is_due_TK = (num_after_TK % _EVERY == 0) & (num_after_TK >= LONG) & (np.arange(num_rows)[:, None] < length_K)
        for t in np.flatnonzero(is_due_TK.any(axis=1)).tolist():
            due = np.flatnonzero(is_due_TK[t])
            self._compare(known_HK[t + 1 : t + 1 + LONG, due], step_TK[t, due], num_after_TK[t, due], due)
        # A member with fewer points than others has had its last one.
        self._past_HK = known_HK[num_rows:]
        self._num_points_K = self._num_points_K + length_K

    def _compare(self, norm_HD: np.ndarray, step_D: np.ndarray, num_points_D: np.ndarray, due: np.ndarray) -> None:
        if self._is_wanted is None:
            is_dense_D = step_D - self._first_step_K[due] <= SPARSE * (num_points_D - 1)
            norm_HD, step_D, due = norm_HD[:, is_dense_D], step_D[is_dense_D], due[is_dense_D]
        short_D, long_D = np.median(norm_HD[-SHORT:], axis=0), np.median(norm_HD, axis=0)
        is_measured_D = np.isfinite(short_D)
        rises_D = is_measured_D & (short_D >= RISEN * long_D) & (short_D > 0)
        for d in np.flatnonzero(rises_D & ~self._is_risen_K[due]).tolist():
            rises = self._rises[due[d]]
            if len(rises) < _MOST:
                rises.append(int(step_D[d]))
        self._is_risen_K[due] = rises_D | (self._is_risen_K[due] & ~(short_D < CALM * long_D))

    def of(self, member: int) -> tuple[int, ...]:
        """Return the steps where the norm of ``member`` had risen, at most the first 20."""
        return tuple(self._rises[member])

    @property
    def num_risen(self) -> int:
        """Members whose norm is up now."""
        return int(self._is_risen_K.sum())

    def arrange(self, rows: Sequence[int | None]) -> None:
        """Continue with the members in ``rows``; None starts a new one, and a repeated row continues as two."""
        past_HK, num_points_K, first_step_K, is_risen_K, rises = (
            self._past_HK, self._num_points_K, self._first_step_K, self._is_risen_K, self._rises
        )  # fmt: skip
        self._reset(len(rows))
        new = [k for k, row in enumerate(rows) if row is not None]
        old = [row for row in rows if row is not None]
        self._past_HK[:, new] = past_HK[:, old]
        self._num_points_K[new], self._first_step_K[new] = num_points_K[old], first_step_K[old]
        self._is_risen_K[new] = is_risen_K[old]
        for k, row in zip(new, old, strict=True):
            self._rises[k] = rises[row].copy()

    def state_dict(self) -> dict[str, Any]:
        """Return plain values for a checkpoint."""
        return {
            "past": self._past_HK.tolist(),
            "num_points": self._num_points_K.tolist(),
            "first_step": self._first_step_K.tolist(),
            "is_risen": self._is_risen_K.tolist(),
            "rises": [steps.copy() for steps in self._rises],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a ``state_dict``, with as many members as it has."""
        self._past_HK = np.array(state["past"], dtype=np.float64)
        self._num_points_K = np.array(state["num_points"], dtype=np.int64)
        self._first_step_K = np.array(state["first_step"], dtype=np.int64)
        self._is_risen_K = np.array(state["is_risen"], dtype=bool)
        self._rises = [list(steps) for steps in state["rises"]]

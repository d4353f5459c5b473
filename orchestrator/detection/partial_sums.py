"""First losses that may be sums over fewer steps than later ones, divided by the interval of the log all the same.

So begins the log of a trainer that adds up losses and also prints at its first step. A blow-up between the first two
lines may look the same: other trials of the sweep say which of the two it is (``orchestrator.maps.first_losses``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from orchestrator.base.packs import RungThreshold
from orchestrator.detection.config import StoppingConfig
from orchestrator.detection.outcomes import Verdict, judge
from orchestrator.detection.run_monitor import RunMonitor

_LEAST_PART, _MOST_PART = 0.4, 1.2  # of the first loss that follows from the second one


def is_partial_sum(first: float, first_step: int, second: float, every: int) -> bool:
    """Return whether a ``first`` loss may be a sum over fewer steps than ``every``, and was divided by ``every``.

    The ``second`` loss, ``every`` steps later, is then as many times as high, or lower, since a training falls.
    """
    counts = [count for count in (first_step, first_step + 1) if 0 < 5 * count <= every]
    return first > 0 and any(_LEAST_PART < second / first * count / every < _MOST_PART for count in counts)


class TrialMonitor(RunMonitor):
    """Judge a single trial, and let it go on where only a first loss that may be a partial sum says that it is lost."""

    def __init__(
        self,
        stopping: StoppingConfig,
        is_audited: bool,
        rung_thresholds: Sequence[RungThreshold] = (),
        all_steps: float = 1.0,
        wants_norm_rises: bool | None = None,
    ) -> None:
        super().__init__(stopping, [is_audited], wants_norm_rises, rung_thresholds, all_steps)
        self._first: tuple[int, float] | None = None
        self._num_points = 0
        # Judges all but the first loss, if that may be a partial sum.
        self._rest: RunMonitor | None = None
        self._stopping = stopping
        self._new = partial(RunMonitor, stopping, [is_audited], all_steps=all_steps)

    def update_single(self, step: int, row: Mapping[str, float | None]) -> bool:
        """Judge one step from the JUDGED values in ``row``. Return whether the trial ends there."""
        has_ended, loss = super().update_single(step, row), row["loss"]
        assert loss is not None
        self._num_points += 1
        if self._first is None:
            self._first = step, loss
        elif self._num_points == 2 and is_partial_sum(self._first[1], self._first[0], loss, step - self._first[0]):
            self._rest = self._new()
        if self._rest is None:
            return has_ended
        is_lost_too = self._rest.update_single(step, row)
        return has_ended and (is_lost_too or self.record().lost != "far" or self.rung_progress().is_pruned)

    def verdict(self) -> Verdict:
        """Return the outcome if the trial ended now, unknown if it is lost by a first loss that may be a part."""
        judged, first = judge(self.record(), self._stopping), self._first
        if first is None or self._rest is None or judged.outcome != "diverged":
            return judged
        rest = judge(self._rest.record(), self._stopping)
        if rest.outcome in ("diverged", "stalled"):  # also if a loss was not finite
            return judged
        why = (
            f"its first loss, {first[1]:.3g}, may be a sum over fewer steps; without it: {rest.outcome}, {rest.reason}"
        )
        return replace(rest, outcome="unknown", onset_step=None, reason=why)

    def state_dict(self) -> dict[str, Any]:
        """Return arrays and plain values for a checkpoint."""
        rest = None if self._rest is None else self._rest.state_dict()
        return {**super().state_dict(), "first": [self._first, self._num_points, rest]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a ``state_dict``; one of an earlier version is beyond its first losses."""
        super().load_state_dict(state)
        first, self._num_points, rest = state.get("first", [(0, 0.0), 2, None])
        self._first = None if first is None else (first[0], first[1])
        self._rest = None if rest is None else self._new()
        if self._rest is not None:
            self._rest.load_state_dict(rest)

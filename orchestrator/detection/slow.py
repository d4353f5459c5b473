"""Slow trials: their losses compared with the losses of earlier trials after the same number of steps.

A *rung* is a number of steps after which a trial is compared. Each rung has a threshold, and a trial with a loss above
it is slow. The rules follow Optuna's MedianPruner and SuccessiveHalvingPruner (Li et al., arXiv 1810.05934). The
thresholds are computed once, when a pack is sent to a worker, from the trials that have a result then, so that members
of a pack do not influence each other. docs/detection.md gives the reasons.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from orchestrator.base.packs import ReferenceTrial, RungThreshold
from orchestrator.base.words import count
from orchestrator.detection.config import SlowConfig
from orchestrator.detection.detector import MemberRecord

# By default trials are compared from half of their steps on, every tenth of them: earlier on, the order of losses tells
# little of that at the end (benchmarks/pruning.py).
_FIRST, _INTERVALS = 2, 10
_REDUCTION = 4  # Optuna's default
_NO_RUNG = np.iinfo(np.int64).max


def rungs_of(slow: SlowConfig, steps: int) -> tuple[int, ...]:
    """Return the numbers of steps, all below ``steps``, after which trials of ``steps`` are compared."""
    first = slow.warmup_steps or max(1, steps // _FIRST)
    if slow.method == "median":
        return tuple(range(first, steps, slow.interval_steps or max(1, steps // _INTERVALS)))
    rungs = []
    while first < steps:
        rungs.append(first)
        first *= reduction_of(slow)
    return tuple(rungs)


def reduction_of(slow: SlowConfig) -> int:
    """Return how many trials at a rung halving reduces to one."""
    return slow.reduction or _REDUCTION


def rung_thresholds(slow: SlowConfig, steps: int, trials: Sequence[ReferenceTrial]) -> tuple[RungThreshold, ...]:
    """Return the threshold of each rung, infinite without trials to compare with.

    ``trials`` must not contain lost ones: many learn faster than others before they are lost. The median counts only
    trials that ran to their end, halving also pruned ones.
    """
    counted = [trial for trial in trials if trial.ran_to_its_end or slow.method == "halving"]
    thresholds = []
    for rung, rung_steps in enumerate(rungs_of(slow, steps)):
        losses = sorted(trial.losses[rung] for trial in counted if rung < len(trial.losses))
        is_ready = losses and len(counted) >= slow.startup_trials
        threshold = _threshold(slow, losses) if is_ready else math.inf
        thresholds.append(RungThreshold(rung_steps, threshold, len(losses)))
    return tuple(thresholds)


def _threshold(slow: SlowConfig, losses: Sequence[float]) -> float:
    """Return the highest loss that is not slow compared with the sorted ``losses``."""
    if slow.method == "median":
        return float(np.percentile(losses, 50))
    # Of n earlier trials and this one, the best (n + 1) // reduction go on, and always the best one.
    last = max(0, (len(losses) + 1) // reduction_of(slow) - 1)
    return losses[last] if last < len(losses) else math.inf


@dataclass(frozen=True, slots=True)
class RungProgress:
    """Losses of a member at the rungs that it reached, and the step and reason if it was found slow.

    A loss is the median of the last ten, like a final loss. A member that ``is_pruned`` ended at ``slow_step``.
    """

    losses: tuple[float, ...] = ()
    slow_step: int | None = None
    reason: str | None = None
    is_pruned: bool = False


class Rungs:
    """Compare each member with the threshold of a rung when it reaches it."""

    def __init__(self, num_members: int, slow: SlowConfig | None, thresholds: Sequence[RungThreshold]) -> None:
        self._slow, self.thresholds = slow, tuple(thresholds)
        self._progress = [RungProgress()] * num_members
        self._next_K = self._next()

    def due(self, steps_done_K: np.ndarray) -> list[int]:
        """Return the members that have reached their next rung."""
        return np.flatnonzero(steps_done_K >= self._next_K).tolist()

    def reach(self, member: int, step: int, record: MemberRecord, *, may_end: bool) -> bool:
        """Compare ``member`` after ``step``. Return whether it is pruned, which requires ``may_end``.

        A member off its trend is not compared: the detector decides whether it is lost.
        """
        before = self._progress[member]
        if record.recent_loss is None or not record.is_finite:
            self._next_K[member] = _NO_RUNG
            return False
        losses = before.losses
        while len(losses) < len(self.thresholds) and self.thresholds[len(losses)].steps <= step + 1:
            losses = (*losses, record.recent_loss)
        progress = replace(before, losses=losses)
        if self._slow is not None and progress.slow_step is None and is_on_trend(record):
            threshold = self.thresholds[len(losses) - 1]
            best = min(losses) if self._slow.method == "median" else losses[-1]
            if best > threshold.loss:
                reason = _reason(self._slow, best, threshold)
                progress = replace(progress, slow_step=step, reason=reason, is_pruned=may_end)
        self._progress[member] = progress
        self._next_K[member] = self._rung_after(progress)
        return progress.is_pruned

    def of(self, member: int) -> RungProgress:
        """Return the progress of ``member``."""
        return self._progress[member]

    def arrange(self, rows: Sequence[int | None]) -> None:
        """Continue with the members in ``rows``; None starts a new one, and a repeated row continues as two."""
        self._progress = [RungProgress() if row is None else self._progress[row] for row in rows]
        self._next_K = self._next()

    def state_dict(self) -> dict[str, Any]:
        """Return plain values for a checkpoint, with the thresholds, so that a resumed pack decides alike."""
        # Names and order of the values are part of the checkpoints of earlier versions.
        return {
            "bars": [asdict(threshold) for threshold in self.thresholds],
            "climbs": [asdict(progress) for progress in self._progress],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a ``state_dict``, with as many members as it has."""
        self.thresholds = tuple(RungThreshold(*values.values()) for values in state["bars"])
        self._progress = [RungProgress(tuple(losses), *others) for losses, *others in map(dict.values, state["climbs"])]
        self._next_K = self._next()

    def _next(self) -> np.ndarray:
        return np.array([self._rung_after(progress) for progress in self._progress], dtype=np.int64)

    def _rung_after(self, progress: RungProgress) -> int:
        rung = len(progress.losses)
        return self.thresholds[rung].steps if rung < len(self.thresholds) else _NO_RUNG


def is_on_trend(record: MemberRecord) -> bool:
    """Whether a member has neither been found lost nor is in an episode, nor has risen."""
    is_in_episode = bool(record.episodes) and record.episodes[-1].recovery_step is None
    has_risen = record.is_far or record.is_away or record.up_since_step is not None
    return record.lost is None and not is_in_episode and not has_risen


def _reason(slow: SlowConfig, loss: float, threshold: RungThreshold) -> str:
    at = f"slow after {threshold.steps} steps"
    if slow.method == "median":
        median = f"{threshold.loss:.4g}, the median of {count(threshold.num_references, 'trial')}"
        return f"{at}: its best loss {loss:.4g} was above {median}"
    return (
        f"{at}: its loss {loss:.4g} was above {threshold.loss:.4g}, and one in {reduction_of(slow)} "
        f"of {threshold.num_references + 1} trials goes on"
    )

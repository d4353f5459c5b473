"""Which trials are slow: their losses compared with those of earlier trials, after the same number of steps.

A *rung* is a number of steps after which a trial is compared. Each rung has a bar: a trial whose loss is above it is
slow. The rules are those of Optuna's MedianPruner and SuccessiveHalvingPruner (Li et al., arXiv 1810.05934). Bars are
computed once, when a pack is sent to a worker, from the trials that have a result then, so that members of a pack do
not influence each other. docs/detection.md gives the reasons.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from orchestrator.base.messages import Bar, Rival
from orchestrator.detection.config import SlowConfig
from orchestrator.detection.detector import MemberRecord

# By default trials are compared from half of their steps on, every tenth of them: earlier on, the order of losses tells
# little of that at the end (benchmarks/pruning.py).
_FIRST, _INTERVALS = 2, 10
_REDUCTION = 4  # Optuna's default
_NO_RUNG = np.iinfo(np.int64).max


def rungs_of(slow: SlowConfig, steps: int) -> tuple[int, ...]:
    """The numbers of steps after which trials of ``steps`` are compared, all below ``steps``."""
    first = slow.warmup_steps or max(1, steps // _FIRST)
    if slow.method == "median":
        return tuple(range(first, steps, slow.interval_steps or max(1, steps // _INTERVALS)))
    rungs = []
    while first < steps:
        rungs.append(first)
        first *= reduction_of(slow)
    return tuple(rungs)


def reduction_of(slow: SlowConfig) -> int:
    """For halving: of so many trials at a rung, one goes on."""
    return slow.reduction or _REDUCTION


def bars_of(slow: SlowConfig, steps: int, rivals: Sequence[Rival]) -> tuple[Bar, ...]:
    """The bar at each rung, infinite where there is nothing to compare with.

    Trials that were lost are no ``rivals``: many learn faster than others before they are. For the median only those
    that ran to their end count; for halving also those that were pruned themselves.
    """
    counted = [rival for rival in rivals if rival.ran_to_its_end or slow.method == "halving"]
    bars = []
    for rung, rung_steps in enumerate(rungs_of(slow, steps)):
        losses = sorted(rival.losses[rung] for rival in counted if rung < len(rival.losses))
        is_ready = losses and len(counted) >= slow.startup_trials
        bars.append(Bar(rung_steps, _bar(slow, losses) if is_ready else math.inf, len(losses)))
    return tuple(bars)


def _bar(slow: SlowConfig, losses: Sequence[float]) -> float:
    """The highest loss that is not slow beside ``losses``, which are sorted."""
    if slow.method == "median":
        return float(np.percentile(losses, 50))
    # Among n rivals and the trial itself, the best (n + 1) // reduction go on, and always the best one.
    place = max(0, (len(losses) + 1) // reduction_of(slow) - 1)
    return losses[place] if place < len(losses) else math.inf


@dataclass(frozen=True, slots=True)
class Climb:
    """How far a member has come: its loss at each rung, and at which step and why it was found slow, if it was.

    A loss is the median of the last ten, as a final loss is. One that ``is_pruned`` ended there.
    """

    losses: tuple[float, ...] = ()
    slow_step: int | None = None
    reason: str | None = None
    is_pruned: bool = False


class Rungs:
    """Compares members with the ``bars`` as they reach them."""

    def __init__(self, num_members: int, slow: SlowConfig | None, bars: Sequence[Bar]) -> None:
        self._slow, self.bars = slow, tuple(bars)
        self._climbs = [Climb()] * num_members
        self._next_K = self._next()

    def due(self, steps_done_K: np.ndarray) -> list[int]:
        """Members that have reached their next rung."""
        return np.flatnonzero(steps_done_K >= self._next_K).tolist()

    def reach(self, member: int, step: int, record: MemberRecord, *, may_end: bool) -> bool:
        """Compare ``member`` after ``step``; returns whether it is pruned, which one that ``may_end`` can be.

        A member off its trend is not compared: whether it is lost is for the detector to say.
        """
        before = self._climbs[member]
        if record.recent_loss is None or not record.is_finite:
            self._next_K[member] = _NO_RUNG
            return False
        losses = before.losses
        while len(losses) < len(self.bars) and self.bars[len(losses)].steps <= step + 1:
            losses = (*losses, record.recent_loss)
        climb = replace(before, losses=losses)
        if self._slow is not None and climb.slow_step is None and is_on_trend(record):
            bar = self.bars[len(losses) - 1]
            best = min(losses) if self._slow.method == "median" else losses[-1]
            if best > bar.loss:
                reason = _reason(self._slow, best, bar)
                climb = replace(climb, slow_step=step, reason=reason, is_pruned=may_end)
        self._climbs[member] = climb
        self._next_K[member] = self._rung_after(climb)
        return climb.is_pruned

    def of(self, member: int) -> Climb:
        """How far ``member`` has come."""
        return self._climbs[member]

    def arrange(self, rows: Sequence[int | None]) -> None:
        """Continue with members of ``rows``, None for a new one; a row that comes twice goes on as two members."""
        self._climbs = [Climb() if row is None else self._climbs[row] for row in rows]
        self._next_K = self._next()

    def state_dict(self) -> dict[str, Any]:
        """Plain values for a checkpoint; the bars are part of it, so that a resumed pack decides alike."""
        return {"bars": [asdict(bar) for bar in self.bars], "climbs": [asdict(climb) for climb in self._climbs]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a ``state_dict``, with as many members as it has."""
        self.bars = tuple(Bar(**bar) for bar in state["bars"])
        self._climbs = [Climb(**{**climb, "losses": tuple(climb["losses"])}) for climb in state["climbs"]]
        self._next_K = self._next()

    def _next(self) -> np.ndarray:
        return np.array([self._rung_after(climb) for climb in self._climbs], dtype=np.int64)

    def _rung_after(self, climb: Climb) -> int:
        return self.bars[len(climb.losses)].steps if len(climb.losses) < len(self.bars) else _NO_RUNG


def is_on_trend(record: MemberRecord) -> bool:
    """Whether a member has neither been found lost nor is in an episode, nor has risen."""
    is_in_episode = bool(record.episodes) and record.episodes[-1].recovery_step is None
    has_risen = record.is_far or record.is_away or record.up_since_step is not None
    return record.lost is None and not is_in_episode and not has_risen


def _reason(slow: SlowConfig, loss: float, bar: Bar) -> str:
    at = f"slow after {bar.steps} steps"
    if slow.method == "median":
        return f"{at}: its best loss {loss:.4g} was above {bar.loss:.4g}, the median of {bar.num_rivals} trials"
    return (
        f"{at}: its loss {loss:.4g} was above {bar.loss:.4g}, and one in {reduction_of(slow)} "
        f"of {bar.num_rivals + 1} trials goes on"
    )

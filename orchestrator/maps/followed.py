"""A run that is going on, judged point by point as its log grows: the same detector as a replay of the whole log."""

from __future__ import annotations

import math
import operator
import pickle
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np

from orchestrator.base.trial_result import MemberResult
from orchestrator.detection.config import StoppingConfig
from orchestrator.detection.detector import MemberRecord
from orchestrator.detection.outcomes import member_result
from orchestrator.detection.run_monitor import RunMonitor
from orchestrator.logs.columns import LR_NAMES, Columns, first_usual
from orchestrator.logs.point_maker import Point
from orchestrator.logs.steps import first_lines
from orchestrator.logs.tables import Log
from orchestrator.maps.replay import replay_logs

_BETWEEN_STATES = 2000  # points from one kept state of the detector to the next
MOST_POINTS = 400_000  # kept, to which a run may return
_LATELY, _FEWEST_STRIDES = 20, 3  # points that show how often one comes
_PRINTED, _MOST_BEHIND = 1000, 50  # lines that show whether several processes print, and steps between these
_RARE = 0.1  # ways back for each point: more often, a step printed again is of another process
_FEWEST_BACK, _ASKED_EVERY = 3, 20  # ways back after which that is asked, and until it is asked again
_REPLAYED = 100_000  # points that are judged again at the end, within seconds


class FollowedRun:
    """One run, whose points arrive in order. One at an earlier step returns the run to that step.

    So does a trainer that is restarted from its checkpoint. The detector then goes back too, to a state kept before
    that step, and judges the points from there again. ``all_steps`` is how many the run will have.
    """

    def __init__(
        self, config: StoppingConfig, wants_norm_rises: bool | None = None, all_steps: float = math.inf
    ) -> None:
        self._config = config.model_copy(update={"early_stop": False})
        self._wants_norm_rises, self._all_steps = wants_norm_rises, all_steps
        self._lr_name, self._without_lr = "", {""}  # names that have no rate among them
        self.left_step = -1  # from which the run went back last
        self._printed: deque[Point] = deque(maxlen=_PRINTED)  # the latest lines, also those that are left out
        self._num_back = 0
        self._are_several = False  # processes without names, each of which prints each step
        self._start()

    def _start(self) -> None:
        self._steps, self._losses = array("q"), array("d")
        self._norms, self._lrs = array("d"), array("d")  # NaN is none so far
        self._first: int | None = None  # step, of the points that are no longer kept too
        self._num_dropped = 0  # of the first points, which are no longer kept
        self._num_judged = 0  # of those that are kept
        self._states: list[tuple[int, bytes]] = []  # how many points, with the dropped ones, a state has seen
        self._monitor = self._new_monitor()

    def _new_monitor(self) -> RunMonitor:
        return RunMonitor(self._config, (False,), self._wants_norm_rises, all_steps=self._all_steps)

    @property
    def num_points(self) -> int:
        """The number of points of the run so far."""
        return self._num_dropped + len(self._steps)

    @property
    def last_step(self) -> int | None:
        """The step of the last point."""
        return self._steps[-1] if self._steps else None

    @property
    def first_step(self) -> int | None:
        """The step of the first point."""
        return self._first

    @property
    def every(self) -> int | None:
        """The usual number of steps from one point to the next lately; None if there are too few to say."""
        strides = np.diff(np.array(self._steps[-_LATELY:]))
        return None if len(strides) < _FEWEST_STRIDES else int(np.median(strides))

    @property
    def last_loss(self) -> float | None:
        """The loss of the last point."""
        return self._losses[-1] if self._losses else None

    @property
    def last_norm(self) -> float | None:
        """The gradient norm of the last point; None without one."""
        return None if not self._norms or math.isnan(self._norms[-1]) else self._norms[-1]

    @property
    def record(self) -> MemberRecord:
        """What the detector knows about the run so far."""
        return self._monitor.record()

    def share_not_finite(self, num: int = 100) -> float:
        """Return the share of the last ``num`` points whose loss or gradient norm is not finite."""
        losses, norms = self._losses[-num:], self._norms[-num:]
        broken = sum(not math.isfinite(loss) or math.isinf(norm) for loss, norm in zip(losses, norms, strict=True))
        return broken / len(losses) if losses else 0.0

    @property
    def lr(self) -> float | None:
        """The highest learning rate so far; None if the log has none."""
        lr_N = np.array(self._lrs)
        return None if np.isnan(lr_N).all() else float(np.nanmax(lr_N))

    def _lr_of(self, others: Mapping[str, float]) -> float:
        if self._lr_name not in others and others.keys() != self._without_lr:
            self._lr_name = first_usual(LR_NAMES, list(others)) or self._lr_name
            self._without_lr = set() if self._lr_name in others else set(others)
        return others.get(self._lr_name, self._lrs[-1] if self._lrs else math.nan)

    def add(self, points: Sequence[Point]) -> int | None:
        """Take the next points. Return the step that the run went back to, the first one if several times, or None.

        Of several processes that print the same steps, the first line of each step counts.
        """
        back = None
        steps = [point.step for point in points]
        if points and self._steps and all(map(operator.lt, [self._steps[-1], *steps], steps)):
            self._printed.extend(points)
            self._append_all(points)
            points = ()
        for point in points:
            self._printed.append(point)
            if self._steps and point.step <= self._steps[-1]:
                if self._is_of_another_process(point.step):
                    continue
                if point.step < self._steps[-1] or self._num_back < _RARE * len(self._steps):
                    back, self.left_step = point.step if back is None else min(back, point.step), self._steps[-1]
                self._return_to(point.step)
            self._append(point)
        self._judge()
        return back

    def _append(self, point: Point) -> None:
        self._first = point.step if self._first is None else self._first
        self._append_all([point])

    def _append_all(self, points: Sequence[Point]) -> None:
        steps, losses, norms, others = zip(*points, strict=True)
        self._steps.extend(steps)
        self._losses.extend(losses)
        self._norms.extend([math.nan if x is None else math.inf if math.isnan(x) else x for x in norms])
        try:
            self._lrs.extend([of_point[self._lr_name] for of_point in others])
        except KeyError:
            for of_point in others:
                self._lrs.append(self._lr_of(of_point))

    def _is_of_another_process(self, step: int) -> bool:
        """Whether ``step`` was printed by a process that is at most some steps behind another one."""
        self._num_back += 1
        if not self._are_several and self._num_back % _ASKED_EVERY == _FEWEST_BACK:
            first, num = first_lines([point.step for point in self._printed])
            self._are_several = num > 1
            if self._are_several:  # what was taken for ways back was none
                self._return_to(self._printed[first[0]].step)
                for at in first:
                    self._append(self._printed[at])
        return self._are_several and step >= self._steps[-_MOST_BEHIND:][0]

    def result(self, name: str) -> MemberResult:
        """Return the result of the run if it ended now."""
        return member_result(name, self.record, self._config, self.num_points, math.nan)

    def log(self, name: str, columns: Columns) -> Log:
        """Return the points that are kept as a log, without a copy: it must be gone before points are added."""
        norm_N, lr_N = _viewed(self._norms), _viewed(self._lrs)
        is_missing_N = np.isnan(norm_N)
        norms: np.ndarray | None = norm_N
        if is_missing_N.any():
            known = np.flatnonzero(~is_missing_N)
            norms = np.where(is_missing_N, norm_N[known[0]], norm_N) if len(known) else None
        lrs = None if np.isnan(lr_N).all() else lr_N
        return Log(name, columns, _viewed(self._steps), _viewed(self._losses), norms, lr_N=lrs)

    def conclude(self, name: str) -> tuple[MemberRecord, MemberResult]:
        """Return what a replay of the whole log says; of a long run, what the detector has said as it went on."""
        if self._num_dropped or not 0 < len(self._steps) <= _REPLAYED:
            return self.record, self.result(name)
        (judged,) = replay_logs([self.log(name, Columns("step", "loss"))], self._config, self._wants_norm_rises)
        return judged.record, judged.result

    def _judge(self) -> None:
        """Judge the points that were not judged yet, and keep a state now and then."""
        while self._num_judged < len(self._steps):
            first, seen = self._num_judged, self._num_dropped + self._num_judged
            end = min(len(self._steps), first + _BETWEEN_STATES - seen % _BETWEEN_STATES)
            norm_N = np.array(self._norms[first:end])
            known = np.flatnonzero(~np.isnan(norm_N))
            if len(known) and known[0]:  # before the first norm there is no column to judge
                end, norm_N = first + int(known[0]), norm_N[: known[0]]
            columns = {"loss": np.array(self._losses[first:end])[:, None]}
            if not np.isnan(norm_N).all():
                columns["grad_norm"] = norm_N[:, None]
            self._monitor.update(columns, np.array(self._steps[first:end])[:, None])
            self._num_judged = end
            if (self._num_dropped + end) % _BETWEEN_STATES == 0:
                self._states.append((self._num_dropped + end, pickle.dumps(self._monitor.state_dict())))
        if len(self._steps) > MOST_POINTS:
            self._forget(len(self._steps) - MOST_POINTS // 2)

    def _forget(self, num: int) -> None:
        """Drop the first points, and the states to which the run can no longer return."""
        for column in (self._steps, self._losses, self._norms, self._lrs):
            del column[:num]
        self._num_dropped, self._num_judged = self._num_dropped + num, self._num_judged - num
        self._states = [state for state in self._states if state[0] >= self._num_dropped]

    def _return_to(self, step: int) -> None:
        """Drop the points from ``step`` to the end, and what was judged there."""
        num = bisect_left(self._steps, step)
        if not num:
            self._start()
            return
        for column in (self._steps, self._losses, self._norms, self._lrs):
            del column[num:]
        if num >= self._num_judged:
            return
        self._states = [state for state in self._states if state[0] <= self._num_dropped + num]
        self._monitor = self._new_monitor()
        if not self._states and self._num_dropped:
            self._start()  # of a run so long ago nothing is known
            return
        seen = self._num_dropped
        if self._states:
            seen, state = self._states[-1]
            self._monitor.load_state_dict(pickle.loads(state))
        self._num_judged = seen - self._num_dropped


def _viewed(column: array) -> np.ndarray:
    """Return a view of a column, which cannot grow while the view lives."""
    return (
        np.frombuffer(column, dtype=np.int64 if column.typecode == "q" else np.float64) if column else np.array(column)
    )

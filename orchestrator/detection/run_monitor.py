"""The loop that drives the detector, shared by packs, custom trainers, `Watch` and replays.

It hides from the detector what the trainer has already handled, and decides where each member ends:

- A step that a loss scaler skipped (``is_skipped`` is 1) changed nothing: its gradient counts as finite.
- A step that was rolled back (``rolled_back`` is 1) is a step of the run, and its loss is judged. A non-finite loss
  or gradient does not count against the run, which continued from a snapshot.
- A member ends at its verdict. An audited one ends only at a non-finite loss or gradient, since no run recovers from
  that. Without ``early_stop`` no member ends.
- A member that is slow compared with earlier trials is pruned if it would end at a verdict. The same holds for one
  whose validation loss has stopped improving.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from orchestrator.base.packs import RungThreshold
from orchestrator.detection.config import StoppingConfig
from orchestrator.detection.counters import TIMES, Counters
from orchestrator.detection.detector import MemberRecord, SpikeDetector
from orchestrator.detection.handled import ROLLED_BACK, SKIPPED
from orchestrator.detection.slow import RungProgress, Rungs, is_on_trend
from orchestrator.detection.validations import Validations

# Shapes: T steps of an update, K members, H norms of the past, D members that are due.

# Columns of a curve that are judged. All except the loss may be missing; a norm that was not measured counts as finite.
JUDGED = ("loss", "grad_norm", "is_skipped", "rolled_back")
_VALIDATIONS = tuple(field.name for field in fields(Validations))  # in a checkpoint: a list of each, by member


def is_audited(trial_id: str, fraction: float) -> bool:
    """Return whether a trial is in the ``fraction`` that trains on after a verdict, which follows from its id."""
    digest = hashlib.sha256(f"audit {trial_id}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < fraction * 2**64


@dataclass(frozen=True, slots=True)
class Update:
    """The result of some steps: how many count for each member, (K,), and whether it ended at the last one.

    Steps after a member's end do not count.
    """

    num_steps_K: np.ndarray
    has_ended_K: np.ndarray


class RunMonitor:
    """Judge members during training by ``stopping``; members in ``is_audited_K`` train on after a verdict.

    ``wants_norm_rises`` is passed to ``NormRises``, ``all_steps`` to the detector. Members are compared with
    ``rung_thresholds``.
    """

    def __init__(
        self,
        stopping: StoppingConfig,
        is_audited_K: Sequence[bool] = (False,),
        wants_norm_rises: bool | None = None,
        rung_thresholds: Sequence[RungThreshold] = (),
        all_steps: float | Sequence[float] = math.inf,
    ) -> None:
        self._stopping = stopping
        self._norm_rises = NormRises(len(is_audited_K), wants_norm_rises)
        self._counters = Counters(len(is_audited_K))
        self._rungs = Rungs(len(is_audited_K), stopping.slow, rung_thresholds)
        self._validations = [Validations() for _ in is_audited_K]
        self._detector = SpikeDetector(len(is_audited_K), stopping, all_steps)
        self._is_audited_K = np.array(is_audited_K, dtype=bool)
        self._at_end: dict[int, MemberRecord] = {}

    def update(
        self,
        columns: Mapping[str, np.ndarray],
        step_TK: np.ndarray | None = None,
        length_K: np.ndarray | None = None,
    ) -> Update:
        """Judge the next T steps of each member by its ``columns``, named in JUDGED, (T, K) each.

        ``step_TK`` are the step numbers, by default counted from 0. Only the first ``length_K`` steps of a member are
        present, by default all.
        """
        loss_TK, norm_TK, undone_TK = _as_judged(columns)
        length_K = np.full(loss_TK.shape[1], len(loss_TK)) if length_K is None else length_K
        num_steps_K, has_ended_K = length_K.copy(), np.zeros(len(length_K), dtype=bool)
        self._at_end = {}
        rows: Iterable[tuple[int, np.ndarray]] = enumerate(loss_TK)
        if loss_TK.shape[1] == 1 == len(length_K) and length_K[0] == len(loss_TK) and self._never_ends:
            self._follow(loss_TK, norm_TK, step_TK, undone_TK)
            rows = ()
        for t, loss_K in rows:
            step_K = None if step_TK is None else step_TK[t]
            norm_K = None if norm_TK is None else norm_TK[t]
            lost_K = self._detector.update(loss_K, norm_K, step_K, undone_K=None if undone_TK is None else undone_TK[t])
            is_there_K = ~has_ended_K & (t < length_K)
            ends_K = self._ends(lost_K) & is_there_K
            if self._rungs.thresholds:
                ends_K |= self._are_pruned(step_K, is_there_K & ~ends_K)
            num_steps_K[ends_K] = t + 1
            has_ended_K |= ends_K
            # Further updates would change the record of a member that has no more steps.
            for k in np.flatnonzero((num_steps_K == t + 1) & (num_steps_K < len(loss_TK))):
                self._at_end[int(k)] = self._detector.record(int(k))
        if "grad_norm" in columns:
            self._norm_rises.follow(columns["grad_norm"], step_TK, num_steps_K)
        self._counters.follow(columns, num_steps_K)
        return Update(num_steps_K, has_ended_K)

    def update_single(self, step: int, row: Mapping[str, float | None]) -> bool:
        """Judge one step of a single member from the JUDGED values in ``row``. Return whether it ends there."""
        names = [name for name in (*JUDGED, *TIMES) if row.get(name) is not None]
        columns = {name: np.array([[row[name]]], dtype=np.float64) for name in names}
        return bool(self.update(columns, np.array([[step]])).has_ended_K[0])

    def validated(self, member: int, step: int, loss: float) -> bool:
        """Note a validation of ``member`` after its update number ``step``. Return whether it ends there.

        It ends if its validation loss has stopped improving. A member off its trend is left to the detector.
        """
        validations, patience = self._validations[member], self._stopping.validation_patience
        validations.add(step, loss)
        if patience is None or validations.num_since_best < patience or validations.plateau_step is not None:
            return False
        if not is_on_trend(self._detector.record(member)):
            return False
        validations.plateau_step = step
        return self._stopping.early_stop and not bool(self._is_audited_K[member])

    def validations(self, member: int = 0) -> Validations:
        """Return the validations of ``member`` so far."""
        return self._validations[member]

    def record(self, member: int = 0) -> MemberRecord:
        """Return what is known about ``member`` so far, or at its last step in the last update."""
        record = self._at_end[member] if member in self._at_end else self._detector.record(member)
        counts = self._counters.of(member)
        return replace(record, norm_rises=self._norm_rises.of(member), counts=counts)

    def rung_progress(self, member: int = 0) -> RungProgress:
        """Return the progress of ``member`` through the rungs."""
        return self._rungs.of(member)

    def compare_with(self, rung_thresholds: Sequence[RungThreshold]) -> None:
        """Replace the thresholds by ``rung_thresholds`` of the same rungs."""
        self._rungs.thresholds = tuple(rung_thresholds)

    def norm_rises(self) -> tuple[int, ...]:
        """Return the steps where the gradient norm of a single member had risen by half."""
        return self._norm_rises.of(0)

    @property
    def left_step_K(self) -> np.ndarray:
        """The latest step where each member was seen to leave its trend, (K,); see ``SpikeDetector``."""
        return self._detector.left_step

    @property
    def num_risen(self) -> int:
        """Members whose gradient norm is up by half now."""
        return self._norm_rises.num_risen

    @property
    def num_nonfinite(self) -> int:
        """Members with a loss or gradient norm in their last steps that was not finite."""
        return self._counters.num_nonfinite

    def arrange(self, rows: Sequence[int | None], is_audited_K: Sequence[bool]) -> None:
        """Continue with the members in ``rows``; None starts a new one, and a repeated row continues as two."""
        self._detector.arrange(rows)
        self._norm_rises.arrange(rows)
        self._counters.arrange(rows)
        self._rungs.arrange(rows)
        self._validations = [Validations() if row is None else deepcopy(self._validations[row]) for row in rows]
        self._is_audited_K, self._at_end = np.array(is_audited_K, dtype=bool), {}

    def state_dict(self) -> dict[str, Any]:
        """Return arrays and plain values for a checkpoint."""
        return {
            "detector": self._detector.state_dict(),
            "norm_rises": self._norm_rises.state_dict(),
            "counters": self._counters.state_dict(),
            "rungs": self._rungs.state_dict(),
            "validations": {name: [getattr(of, name) for of in deepcopy(self._validations)] for name in _VALIDATIONS},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a ``state_dict`` of as many members; ``arrange`` sets which are audited."""
        self._detector.load_state_dict(state["detector"])
        self._norm_rises.load_state_dict(state["norm_rises"])
        if "counters" in state:  # an older version counted nothing
            self._counters.load_state_dict(state["counters"])
        self._rungs.load_state_dict(state["rungs"])
        columns = (state["validations"][name] for name in _VALIDATIONS)
        self._validations = [
            Validations(list(steps), list(losses), *others) for steps, losses, *others in zip(*columns, strict=True)
        ]

    @property
    def _never_ends(self) -> bool:
        return not self._stopping.early_stop and not self._rungs.thresholds

    def _follow(
        self, loss_T1: np.ndarray, norm_T1: np.ndarray | None, step_T1: np.ndarray | None, undone_T1: np.ndarray | None
    ) -> None:
        """Judge the next steps of a single member that nothing ends."""
        columns = [None if column is None else column[:, 0] for column in (norm_T1, step_T1, undone_T1)]
        self._detector.follow(loss_T1[:, 0], *columns)

    def _ends(self, lost_K: np.ndarray) -> np.ndarray:
        if not self._stopping.early_stop:
            return np.zeros(len(lost_K), dtype=bool)
        return lost_K & (~self._is_audited_K | ~self._detector.is_finite)

    def _are_pruned(self, step_K: np.ndarray | None, is_there_K: np.ndarray) -> np.ndarray:
        """Return which of the present members end because they are slow, (K,)."""
        step_K = self._detector.num_steps - 1 if step_K is None else step_K
        is_pruned_K = np.zeros(len(is_there_K), dtype=bool)
        for k in self._rungs.due(np.where(is_there_K, step_K + 1, 0)):
            may_end = self._stopping.early_stop and not self._is_audited_K[k]
            is_pruned_K[k] = self._rungs.reach(k, int(step_K[k]), self._detector.record(k), may_end=may_end)
        return is_pruned_K


def _as_judged(columns: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
    """Return losses, gradient norms if measured, and how steps were undone if any was, (T, K) each."""
    loss_TK, norm_TK = columns["loss"], columns.get("grad_norm")
    if norm_TK is not None:
        # A trainer that filters non-finite losses reports a loss of exactly zero with a non-finite norm.
        loss_TK = np.where((loss_TK == 0) & ~np.isfinite(norm_TK), np.nan, loss_TK)
    flags = [columns[name] == 1 if name in columns else False for name in ("is_skipped", "rolled_back")]
    if not np.any(flags[0]) and not np.any(flags[1]):
        return loss_TK, norm_TK, None
    is_finite_TK = np.isfinite(loss_TK) if norm_TK is None else np.isfinite(loss_TK) & np.isfinite(norm_TK)
    return loss_TK, norm_TK, np.where(flags[1] & ~is_finite_TK, ROLLED_BACK, np.where(flags[0], SKIPPED, 0))


# --- rising gradient norms -------------------------------------------------------------------------

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
        due_times = np.flatnonzero(is_due_TK.any(axis=1))
        if len(length_K) == 1 and len(due_times):
            norm_DH = sliding_window_view(known_HK[:, 0], LONG)[due_times + 1]
            self._compare_single(norm_DH, step_TK[due_times, 0], num_after_TK[due_times, 0])
            due_times = due_times[:0]
        for t in due_times.tolist():
            due = np.flatnonzero(is_due_TK[t])
            self._compare(known_HK[t + 1 : t + 1 + LONG, due], step_TK[t, due], num_after_TK[t, due], due)
        # A member with fewer points than others has had its last one.
        self._past_HK = known_HK[num_rows:]
        self._num_points_K = self._num_points_K + length_K

    def _compare(self, norm_HD: np.ndarray, step_D: np.ndarray, num_points_D: np.ndarray, due: np.ndarray) -> None:
        if self._is_wanted is None:
            is_dense_D = step_D - self._first_step_K[due] <= SPARSE * (num_points_D - 1)
            norm_HD, step_D, due = norm_HD[:, is_dense_D], step_D[is_dense_D], due[is_dense_D]
        rises_D, is_calm_D = _risen_and_calm(norm_HD.T)
        for d in np.flatnonzero(rises_D & ~self._is_risen_K[due]).tolist():
            self._note(int(due[d]), int(step_D[d]))
        self._is_risen_K[due] = rises_D | (self._is_risen_K[due] & ~is_calm_D)

    def _compare_single(self, norm_DH: np.ndarray, step_D: np.ndarray, num_points_D: np.ndarray) -> None:
        """Compare the norms of a single member at several of its points, which is faster together."""
        if self._is_wanted is None:
            is_dense_D = step_D - self._first_step_K[0] <= SPARSE * (num_points_D - 1)
            norm_DH, step_D = norm_DH[is_dense_D], step_D[is_dense_D]
        rises_D, is_calm_D = _risen_and_calm(norm_DH)
        is_risen = bool(self._is_risen_K[0])
        if not is_risen and not rises_D.any():
            return
        for step, rises, is_calm in zip(step_D.tolist(), rises_D.tolist(), is_calm_D.tolist(), strict=True):
            if rises and not is_risen:
                self._note(0, step)
            is_risen = rises or (is_risen and not is_calm)
        self._is_risen_K[0] = is_risen

    def _note(self, member: int, step: int) -> None:
        if len(self._rises[member]) < _MOST:
            self._rises[member].append(step)

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


def _risen_and_calm(norm_DH: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return where the last norms are up by half, and where they are not far above the others, (D,)."""
    short_D, long_D = _medians(norm_DH[:, -SHORT:]), _medians(norm_DH)
    return np.isfinite(short_D) & (short_D >= RISEN * long_D) & (short_D > 0), short_D < CALM * long_D


def _medians(value_DH: np.ndarray) -> np.ndarray:
    """Return the median of each row, of an even number of values."""
    ordered_DH, half = np.sort(value_DH, axis=1), value_DH.shape[1] // 2
    return (ordered_DH[:, half - 1] + ordered_DH[:, half]) / 2

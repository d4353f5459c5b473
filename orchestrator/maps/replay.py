"""The detector over existing curves: any logs, or a finished sweep under other settings."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from orchestrator.base.packs import Trace
from orchestrator.base.space import Cell
from orchestrator.base.trial_result import RESULT_COLUMNS, MemberResult, TrialResult
from orchestrator.base.vocabulary import CUSTOM_KINDS, PRUNED
from orchestrator.base.words import plural
from orchestrator.detection.config import StoppingConfig
from orchestrator.detection.detector import MemberRecord
from orchestrator.detection.excursions import Episode
from orchestrator.detection.outcomes import ENOUGH_LOSSES, judge, member_result
from orchestrator.detection.partial_sums import TrialMonitor, is_partial_sum
from orchestrator.detection.run_monitor import JUDGED, RunMonitor
from orchestrator.ledger.reader import LedgerReader
from orchestrator.logs.tables import Log

_AT_ONCE = 64
_POINTS_AT_ONCE = 256
_STEPS_TOGETHER = 16_000_000  # of curves in memory at once: 384 MB, more with rollbacks
_MOST_PARTIAL = 5  # first losses of a resumed log that may be no past
_MOST_PART = 1.2  # times the loss that follows is at most what a mean over one step of an interval was the sum of
_FIRST_HIGH, _AS_HIGH = 3, 0.8  # the median of so many losses after them is at least this share of the highest
UNKNOWN = "unknown"
OF_LOSSES = tuple(column.name for column in RESULT_COLUMNS if column.of_losses)


@dataclass(frozen=True, slots=True)
class Curve:
    """Steps of one run and its ``columns`` of JUDGED, (N,) each; and whether it trains on after a verdict.

    ``all_steps`` is how many steps it was to have. ``is_of_trainer`` says that a custom trainer made it, whose first
    loss may be a partial sum.
    """

    step_N: np.ndarray
    columns: Mapping[str, np.ndarray]
    is_audited: bool = False
    all_steps: float = math.inf
    is_of_trainer: bool = False

    @property
    def may_begin_with_a_part(self) -> bool:
        """Whether its first loss may be a sum over fewer steps than the second."""
        if not self.is_of_trainer or len(self.step_N) < 2:
            return False
        (first, second), (loss, next_loss) = self.step_N[:2].tolist(), self.columns["loss"][:2].tolist()
        return is_partial_sum(loss, first, next_loss, second - first)


@dataclass(frozen=True, slots=True)
class Replayed:
    """One complete log and the detector's result on it."""

    log: Log
    record: MemberRecord
    result: MemberResult

    @property
    def is_wrong_stop(self) -> bool:
        """Whether the run recovered after the verdict that would have stopped it."""
        return self.record.lost is not None and self.result.outcome not in ("diverged", "stalled", "unknown")

    @property
    def share_saved(self) -> float:
        """Share of the log's steps that stopping at the verdict would have saved, rightly or wrongly."""
        steps = self.log.step_N
        if self.record.lost_step is None or steps[-1] == steps[0]:
            return 0.0
        return float(steps[-1] - self.record.lost_step) / float(steps[-1] - steps[0])

    def summary(self) -> dict[str, Any]:
        """Return all results of a replay."""
        record, result = self.record, self.result
        return {
            "log": self.log.name,
            "columns": asdict(self.log.columns),
            "num_points": len(self.log.step_N),
            "first_step": int(self.log.step_N[0]),
            "last_step": int(self.log.step_N[-1]),
            "outcome": result.outcome,
            **{name: _finite(getattr(result, name)) for name in OF_LOSSES},
            "final_loss": record.recent_loss,
            "episodes": [_plain(episode) for episode in record.episodes],
            "faint_episodes": [_plain(episode) for episode in record.faint],
            "risen_since_step": None if result.risen_share is None else record.risen_since_step,
            "stop_step": record.lost_step,
            "stop_reason": record.lost_reason,
            "is_wrong_stop": self.is_wrong_stop,
            "share_saved": self.share_saved,
            "notes": list(self.log.notes),
        }


def _plain(episode: Episode) -> dict[str, Any]:
    return {name: _finite(value) for name, value in asdict(episode).items()}


def _finite(value: Any) -> Any:
    """Return ``value``, or None for a number that is not finite."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def replay_logs(logs: Sequence[Log], config: StoppingConfig, wants_norm_rises: bool | None = None) -> list[Replayed]:
    """The detector's result on each complete log; ``wants_norm_rises`` goes to ``NormRises``.

    The partial lines of a log that resumes at a later step are left out, and zeros before a descent.
    """
    logs = [_after(log, num, "are exactly 0 and not judged") if (num := _num_zeros(log)) else log for log in logs]
    logs = [_after(log, num) if _is_resumed(log) and (num := _num_partial(log)) else log for log in logs]
    curves = [
        Curve(
            log.step_N,
            _judged_columns({"loss": log.loss_N, "grad_norm": log.grad_norm_N}),
            all_steps=max(1.0, float(log.step_N[-1] - log.step_N[0])),
        )
        for log in logs
    ]
    records = detect(curves, config.model_copy(update={"early_stop": False}), wants_norm_rises=wants_norm_rises)
    judged = [
        Replayed(log, record, member_result(log.name, record, config, len(log.step_N), math.nan))
        for log, record in zip(logs, records, strict=True)
    ]
    return [one if _has_each_step(one.log) else _unless_resumed(one, config, wants_norm_rises) for one in judged]


def _has_each_step(log: Log) -> bool:
    """Whether the log begins with a loss of a single step, rather than a mean."""
    return log.columns.step is not None and len(log.step_N) > 1 and log.step_N[1] == log.step_N[0] + 1


def _is_resumed(log: Log) -> bool:
    """Whether the log begins later than its training."""
    step_N = log.step_N
    return len(step_N) > 1 and step_N[0] >= 2 * (step_N[1] - step_N[0])


def _num_partial(log: Log) -> int:
    """How many first losses may be partial means: a few, where all of the next ten are twice as high."""
    loss_N = log.loss_N
    for num in range(1, min(_MOST_PARTIAL, len(loss_N) - ENOUGH_LOSSES) + 1):
        if 2 * loss_N[:num].max() < loss_N[num : num + ENOUGH_LOSSES].min():
            return num
    return 0


def _num_zeros(log: Log) -> int:
    """How many first losses are exactly 0, as before anything was measured, if what follows is a descent."""
    loss_N = log.loss_N
    num = int((loss_N[: _MOST_PARTIAL + 1] == 0).argmin()) if len(loss_N) > _MOST_PARTIAL + 2 * ENOUGH_LOSSES else 0
    if not num or loss_N[:num].any():
        return 0
    rest_N = loss_N[num:]
    return num if np.median(rest_N[-ENOUGH_LOSSES:]) < np.median(rest_N[:ENOUGH_LOSSES]) else 0


def _may_be_parts(log: Log, num: int) -> bool:
    """Whether the first losses may be means over one step or more of the interval of the log, if it has steps."""
    every = math.inf if log.columns.step is None else float(log.step_N[num] - log.step_N[num - 1])
    return bool(log.loss_N[num] <= _MOST_PART * every * log.loss_N[num - 1])


def _after(log: Log, num: int, why: str | None = None) -> Log:
    """The log without its ``num`` first lines, which are partial ones or else say ``why`` not."""
    resumes = f"it resumes at step {log.step_N[0]:,}; "
    partial = "are not judged: all that follow are twice as high"
    notes = (*log.notes, f"{resumes if why is None else ''}its first {num} losses {why or partial}")
    norm_N = None if log.grad_norm_N is None else log.grad_norm_N[num:]
    lr_N = None if log.lr_N is None else log.lr_N[num:]
    return replace(log, step_N=log.step_N[num:], loss_N=log.loss_N[num:], grad_norm_N=norm_N, lr_N=lr_N, notes=notes)


def _unless_resumed(judged: Replayed, config: StoppingConfig, wants_norm_rises: bool | None) -> Replayed:
    """The result on a log that leaves out steps: no verdict if it blew up at its start, or resumes with partial lines.

    Both look alike if it is at once as high as it gets, and what follows is a stable training of its own that learns.
    """
    num = _num_partial(judged.log) if judged.result.outcome == "diverged" else 0
    loss_N, start = judged.log.loss_N[num:], float(np.median(judged.log.loss_N[num : num + ENOUGH_LOSSES]))
    if not num or np.median(loss_N[:_FIRST_HIGH]) < _AS_HIGH * loss_N.max() or not _may_be_parts(judged.log, num):
        return judged
    (rest,) = replay_logs([_after(judged.log, num)], config, wants_norm_rises)
    final = rest.result.final_loss
    if rest.result.outcome != "stable" or final is None or start - final <= config.stall_drop * start:
        return judged
    first = f"{num} {plural(num, 'loss', 'losses')}"
    steps = "does not have each step" if judged.log.columns.step else "has no steps"
    reason = (
        f"its first {first} may be the partial lines of a resumed training, or the last before it blew up: all that "
        f"follow are twice as high, and the log {steps}"
    )
    return Replayed(judged.log, rest.record, replace(rest.result, outcome=UNKNOWN, reason=reason))


@dataclass(frozen=True, slots=True)
class ReplayedTrial:
    """A finished trial under other settings; its new outcome is unknown if it was stopped earlier."""

    trial_id: str
    cell: Cell
    seed: int
    outcome: str
    new_outcome: str
    steps_done: int
    new_steps_done: int
    reason: str

    @property
    def is_changed(self) -> bool:
        """Whether the new settings give another result."""
        return self.outcome != self.new_outcome


def replay_sweep(ledger: LedgerReader, config: StoppingConfig) -> list[ReplayedTrial]:
    """Judge the finished trials of a sweep again, from their curves, under ``config``."""
    rows = [row for row in ledger.trials() if row.outcome is not None]
    return [trial for some in in_parts(rows) for trial in _replayed_trials(ledger, some, config)]


def in_parts(rows: Iterable[TrialResult], max_steps: int = _STEPS_TOGETHER) -> Iterator[list[TrialResult]]:
    """Finished trials in batches with curves of at most ``max_steps`` together, or a single longer one."""
    part: list[TrialResult] = []
    num_steps = 0
    for row in rows:
        num_steps += row.steps_done or 0
        if part and (num_steps > max_steps or len(part) == _AT_ONCE):
            yield part
            part, num_steps = [], row.steps_done or 0
        part.append(row)
    if part:
        yield part


def _replayed_trials(
    ledger: LedgerReader, rows: Sequence[TrialResult], config: StoppingConfig
) -> Iterator[ReplayedTrial]:
    was_stopping = json.loads(ledger.facts()["stopping"])["early_stop"]
    curves = [curve_of(row, ledger.trace(row.trial_id, JUDGED)) for row in rows]
    for row, curve, record in zip(rows, curves, detect(curves, config), strict=True):
        yield _replayed_trial(row, curve, record, config, was_stopping=was_stopping)


def curve_of(row: TrialResult, trace: Trace) -> Curve:
    """Return the curve of a trial as the detector saw it."""
    # A flag that is never set would waste memory.
    columns = {
        name: values
        for name, values in trace.items()
        if name in ("loss", "grad_norm") or (name != "step" and (values == 1).any())
    }
    if row.objective in CUSTOM_KINDS and "grad_norm" in columns:
        # NaN is a norm that was not measured.
        columns["grad_norm"] = np.nan_to_num(columns["grad_norm"], nan=1.0, posinf=np.inf, neginf=-np.inf)
    is_of_trainer = row.objective in CUSTOM_KINDS
    return Curve(trace["step"].astype(np.int64), columns, row.is_audited, row.steps, is_of_trainer)


def _replayed_trial(
    row: TrialResult, curve: Curve, record: MemberRecord, config: StoppingConfig, *, was_stopping: bool
) -> ReplayedTrial:
    assert row.outcome is not None, "it has finished"
    assert row.steps_done is not None, "it has finished"
    verdict = judge(record, config)
    outcome: str = verdict.outcome
    reason = verdict.reason
    # A custom trainer chooses its number of steps and its first step.
    is_own = row.objective in CUSTOM_KINDS
    last_step = int(curve.step_N[-1])
    was_stopped = row.steps_done < row.steps
    if is_own:
        was_stopped = was_stopping and not row.is_audited and row.verdict_step == last_step
    would_stop = record.lost is not None and (not record.is_finite or (config.early_stop and not curve.is_audited))
    new_steps_done = row.steps_done - (last_step - int(curve.step_N[record.num_steps - 1]))
    if not is_own and len(curve.step_N) < row.steps_done:
        kept = f"{len(curve.step_N):,} of {row.steps_done:,}"
        outcome, reason = UNKNOWN, f"only {kept} steps were kept (telemetry.curves), and a verdict needs them all"
        new_steps_done = row.steps_done
    elif row.outcome == PRUNED and not would_stop:
        outcome, reason = PRUNED, row.reason or ""
    elif was_stopped and not would_stop and row.plateau_step is None:
        outcome, reason = UNKNOWN, f"would not stop by step {last_step}, where its training was stopped"
    return ReplayedTrial(
        trial_id=row.trial_id,
        cell=row.cell,
        seed=row.seed,
        outcome=row.outcome,
        new_outcome=outcome,
        steps_done=row.steps_done,
        new_steps_done=new_steps_done,
        reason=reason,
    )


def detect(
    curves: Sequence[Curve],
    config: StoppingConfig,
    points_at_once: int = _POINTS_AT_ONCE,
    wants_norm_rises: bool | None = None,
) -> list[MemberRecord]:
    """The detector's record of each curve up to its end under ``config``, computed for many at a time.

    Curves are padded to equal length in pieces of ``points_at_once``, so that a long one costs the others little.
    """
    records = {i: _detect_single(curve, config) for i, curve in enumerate(curves) if curve.may_begin_with_a_part}
    for has_norms in (True, False):  # a norm that was not measured says nothing, so they are not judged together
        alike = [i for i, c in enumerate(curves) if ("grad_norm" in c.columns) == has_norms and i not in records]
        longest_first = sorted(alike, key=lambda i: -len(curves[i].step_N))
        for start in range(0, len(alike), _AT_ONCE):
            chosen = longest_first[start : start + _AT_ONCE]
            there = [curves[i] for i in chosen]
            records |= zip(chosen, _detect_together(there, config, points_at_once, wants_norm_rises), strict=True)
    return [records[i] for i in range(len(curves))]


def _detect_single(curve: Curve, config: StoppingConfig) -> MemberRecord:
    """Judge a curve point by point, as a running trial is judged."""
    monitor = TrialMonitor(config, curve.is_audited, all_steps=curve.all_steps)
    for at, step in enumerate(curve.step_N.tolist()):
        if monitor.update_single(step, {name: float(values[at]) for name, values in curve.columns.items()}):
            break
    return monitor.record()


def _detect_together(
    curves: Sequence[Curve], config: StoppingConfig, points_at_once: int, wants_norm_rises: bool | None
) -> list[MemberRecord]:
    all_steps = [curve.all_steps for curve in curves]
    monitor = RunMonitor(config, [curve.is_audited for curve in curves], wants_norm_rises, all_steps=all_steps)
    records: dict[int, MemberRecord] = {}
    ongoing = list(range(len(curves)))
    first = 0
    while ongoing:
        there = [curves[i] for i in ongoing]
        left_K = np.array([len(curve.step_N) - first for curve in there])
        step_TK, columns = _points(there, first, min(int(left_K.max()), points_at_once))
        update = monitor.update(columns, step_TK, np.minimum(left_K, len(step_TK)))
        first += len(step_TK)
        is_over_K = update.has_ended_K | (left_K <= len(step_TK))
        records |= {ongoing[k]: monitor.record(int(k)) for k in np.flatnonzero(is_over_K)}
        kept = np.flatnonzero(~is_over_K).tolist()
        ongoing = [ongoing[k] for k in kept]
        monitor.arrange(kept, [curves[i].is_audited for i in ongoing])
    return [records[k] for k in range(len(curves))]


def _points(curves: Sequence[Curve], first: int, num_points: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Steps and columns from point ``first`` on, (T, K) each; a missing column counts as healthy."""
    part, shape = slice(first, first + num_points), (num_points, len(curves))
    step_TK = np.zeros(shape, dtype=np.int64)
    names = dict.fromkeys(name for curve in curves for name in curve.columns)
    columns = {name: np.full(shape, 1.0 if name == "grad_norm" else np.nan) for name in names}
    for k, curve in enumerate(curves):
        length = len(curve.step_N[part])
        step_TK[:length, k] = curve.step_N[part]
        for name, values in curve.columns.items():
            columns[name][:length, k] = values[part]
    return step_TK, columns


def _judged_columns(columns: Mapping[str, np.ndarray | None]) -> dict[str, np.ndarray]:
    return {name: values for name, values in columns.items() if values is not None}

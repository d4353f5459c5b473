"""The detector over curves that exist already: anyone's logs, or a finished sweep under other settings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from orchestrator.detection.config import StoppingConfig
from orchestrator.detection.detector import MemberRecord, SpikeDetector
from orchestrator.detection.outcomes import Verdict, judge
from orchestrator.ledger.reader import LedgerReader
from orchestrator.logs.files import Log
from orchestrator.sweepfile.own_trainer import OWN_KINDS

_AT_ONCE = 64
_POINTS_AT_ONCE = 4096
_STEPS_TOGETHER = 16_000_000  # of the curves that are in memory at once: 384 MB
UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Curve:
    """Steps, losses and gradient norms (or None) of one run; with ``stops`` it ends at its verdict."""

    step_N: np.ndarray
    loss_N: np.ndarray
    grad_norm_N: np.ndarray | None
    stops: bool = False


@dataclass(frozen=True, slots=True)
class Replayed:
    """One log and what the detector says of it, having seen all of it."""

    log: Log
    record: MemberRecord
    verdict: Verdict

    @property
    def is_wrong_stop(self) -> bool:
        """Whether the run came back after the verdict that would have stopped it."""
        return self.record.lost is not None and self.verdict.outcome not in ("diverged", "stalled")

    @property
    def share_saved(self) -> float:
        """Share of the log's steps that stopping at the verdict would have saved, right or wrong."""
        steps = self.log.step_N
        if self.record.lost_step is None or steps[-1] == steps[0]:
            return 0.0
        return float(steps[-1] - self.record.lost_step) / float(steps[-1] - steps[0])

    def as_json(self) -> dict[str, Any]:
        """Everything that replay knows, for a JSON file. Numbers are finite or null."""
        record, verdict = self.record, self.verdict
        episodes = [
            {**asdict(e), "peak_loss": e.peak_loss if math.isfinite(e.peak_loss) else None} for e in record.episodes
        ]
        return {
            "log": self.log.name,
            "columns": asdict(self.log.columns),
            "num_points": len(self.log.step_N),
            "first_step": int(self.log.step_N[0]),
            "last_step": int(self.log.step_N[-1]),
            "outcome": verdict.outcome,
            "reason": verdict.reason,
            "onset_step": verdict.onset_step,
            "episodes": episodes,
            "stop_step": record.lost_step,
            "stop_reason": record.lost_reason,
            "is_wrong_stop": self.is_wrong_stop,
            "share_saved": self.share_saved,
            "initial_loss": record.initial_loss,
            "best_loss": record.best_loss,
            "final_loss": record.recent_loss,
            "notes": list(self.log.notes),
        }


def replay_logs(logs: Sequence[Log], config: StoppingConfig) -> list[Replayed]:
    """What the detector says of each log."""
    curves = [Curve(log.step_N, log.loss_N, log.grad_norm_N) for log in logs]
    records = detect(curves, config)
    return [Replayed(log, record, judge(record, config)) for log, record in zip(logs, records, strict=True)]


@dataclass(frozen=True, slots=True)
class ReplayedTrial:
    """A finished trial under other settings; its new outcome is unknown where it was stopped before."""

    trial_id: str
    cell: Mapping[str, Any]
    seed: int
    outcome: str
    new_outcome: str
    steps_done: int
    new_steps_done: int
    reason: str

    @property
    def is_changed(self) -> bool:
        """Whether the new settings tell something else of it."""
        return self.outcome != self.new_outcome


def replay_sweep(ledger: LedgerReader, config: StoppingConfig) -> list[ReplayedTrial]:
    """Judge the finished trials of a sweep again, from their curves, under ``config``."""
    rows = [row for row in ledger.trials() if row["outcome"] is not None]
    return [trial for some in in_parts(rows) for trial in _replayed_trials(ledger, some, config)]


def in_parts(rows: Iterable[Mapping[str, Any]], max_steps: int = _STEPS_TOGETHER) -> Iterator[list[Mapping[str, Any]]]:
    """Finished trials a few at a time, with curves of at most ``max_steps`` together where one alone is not longer."""
    part: list[Mapping[str, Any]] = []
    num_steps = 0
    for row in rows:
        num_steps += row["steps_done"]
        if part and (num_steps > max_steps or len(part) == _AT_ONCE):
            yield part
            part, num_steps = [], row["steps_done"]
        part.append(row)
    if part:
        yield part


def _replayed_trials(
    ledger: LedgerReader, rows: Sequence[Mapping[str, Any]], config: StoppingConfig
) -> Iterator[ReplayedTrial]:
    curves = []
    for row in rows:
        trace = ledger.trace(row["trial_id"], ("loss", "grad_norm"))
        stops = config.early_stop and not row.get("is_audited")
        curves.append(Curve(trace["step"].astype(np.int64), trace["loss"], trace.get("grad_norm"), stops))
    for row, curve, record in zip(rows, curves, detect(curves, config), strict=True):
        yield _replayed_trial(row, record, config, curve.stops or not record.is_finite)


def _replayed_trial(
    row: Mapping[str, Any], record: MemberRecord, config: StoppingConfig, ends_when_lost: bool
) -> ReplayedTrial:
    verdict = judge(record, config)
    outcome, reason = verdict.outcome, verdict.reason
    # A custom trainer decides itself how many steps it takes, and where it counts from.
    is_own = row["objective"] in OWN_KINDS
    was_stopped = row["verdict_step"] is not None if is_own else row["steps_done"] < row["steps"]
    would_stop = record.lost is not None and ends_when_lost
    if was_stopped and not would_stop:
        outcome, reason = UNKNOWN, f"would not stop by step {record.num_steps - 1}, where its training was stopped"
    return ReplayedTrial(
        trial_id=row["trial_id"],
        cell=row["cell"],
        seed=row["seed"],
        outcome=row["outcome"],
        new_outcome=outcome,
        steps_done=row["steps_done"],
        new_steps_done=record.num_steps,
        reason=reason,
    )


def detect(curves: Sequence[Curve], config: StoppingConfig) -> list[MemberRecord]:
    """The detector's record of each curve, many of them at a time."""
    records: dict[int, MemberRecord] = {}
    longest_first = sorted(range(len(curves)), key=lambda i: -len(curves[i].step_N))
    for start in range(0, len(curves), _AT_ONCE):
        chosen = longest_first[start : start + _AT_ONCE]
        records |= zip(chosen, _detect_together([curves[i] for i in chosen], config), strict=True)
    return [records[i] for i in range(len(curves))]


def _detect_together(curves: Sequence[Curve], config: StoppingConfig) -> list[MemberRecord]:
    detector = SpikeDetector(len(curves), config)
    records: dict[int, MemberRecord] = {}
    ongoing = list(range(len(curves)))
    length = np.array([len(curve.step_N) for curve in curves])
    stops = np.array([curve.stops for curve in curves])
    for point in range(length.max(initial=0)):
        row = point % _POINTS_AT_ONCE
        if row == 0:
            step, loss, norm = _points(curves, point)
        lost = detector.update(loss[row, ongoing], norm[row, ongoing], step[row, ongoing])
        is_over = (length[ongoing] == point + 1) | (lost & stops[ongoing])
        if is_over.any():
            for k in np.flatnonzero(is_over):
                records[ongoing[k]] = detector.record(int(k))
            kept = np.flatnonzero(~is_over)
            detector.arrange(kept.tolist())
            ongoing = [ongoing[k] for k in kept]
            if not ongoing:
                break
    return [records[k] for k in range(len(curves))]


def _points(curves: Sequence[Curve], first: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Steps, losses and gradient norms from point ``first`` on, a column for each curve."""
    shape = (_POINTS_AT_ONCE, len(curves))
    step, loss, norm = np.zeros(shape, dtype=np.int64), np.full(shape, np.nan), np.ones(shape)
    for k, curve in enumerate(curves):
        part = slice(first, first + _POINTS_AT_ONCE)
        length = len(curve.step_N[part])
        step[:length, k], loss[:length, k] = curve.step_N[part], curve.loss_N[part]
        if curve.grad_norm_N is not None:
            norm[:length, k] = curve.grad_norm_N[part]
    return step, loss, norm

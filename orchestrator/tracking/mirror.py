"""Ledger -> tracker: what the tracker lacks of a sweep, and the records it gets.

The mirror is idempotent: a trial that the tracker has completely, in the ledger's version, is not written again. The
tracker's store may be deleted and created again at any time.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.columns import TRIAL_COLUMNS, names
from orchestrator.detection.outcomes import OUTCOMES
from orchestrator.files import LEDGER, MIRRORED, atomic_write, open_private
from orchestrator.ledger.reader import LedgerReader
from orchestrator.messages import DEGRADED, TrialRow
from orchestrator.replay.audit import Audit, audit
from orchestrator.space import Trial
from orchestrator.sweepfile.sections import TrackingConfig
from orchestrator.sweepfile.settings import settings_of
from orchestrator.tracking.tracker import Point, SweepRecord, Tracker, TrackingError, TrialRecord, tracker_class

# How long the end of a run waits for a store that does not respond, or for another process that writes.
PATIENCE_S = 30.0
_WRITER_LOCK = "mirror.lock"
_POINTS_PER_CURVE = 50
_RESULTS = names(column for column in TRIAL_COLUMNS if column.is_in_mlflow)
_UNFINISHED = ("planned", "running", "interrupted", "lost")


class Mirror:
    """One sweep's copy in a tracker, written only by the driver."""

    def __init__(
        self,
        folder: Path,
        tracking: TrackingConfig,
        sign_of_life: Callable[[], None] = lambda: None,
        tracker: type[Tracker] | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """Connect to the store; ``sign_of_life`` is called on every response.

        Raises TrackingError when the store cannot be used, or another process writes the sweep for ``patience_s``.
        """
        self.folder, self.tracking = folder, tracking
        make = tracker or tracker_class()
        make.load()
        sign_of_life()
        self._holds = contextlib.ExitStack()
        # Two writers that look for a run and find none would both create it.
        self._holds.enter_context(_only_writer(folder / _WRITER_LOCK, make.title, patience_s))
        try:
            self.tracker = make(folder, tracking, sign_of_life)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let other processes write this sweep."""
        self._holds.close()

    def __enter__(self) -> Mirror:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def mirror_trials(
        self, ledger: LedgerReader, trial_ids: Sequence[str], shares: Mapping[str, Mapping[str, float]] | None = None
    ) -> None:
        """Write these trials from the ledger, with their ``shares`` if known, unless the tracker has them.

        Raises TrackingError.
        """
        for trial_id in trial_ids:
            row = ledger.trial(trial_id)
            if self.tracker.known.get(trial_id) != _version(row):
                own = (shares or {}).get(trial_id, {})
                self.tracker.write_trial(trial_record(ledger, row, self.tracking.every, own))

    def mirror_sweep(self, artifacts: Sequence[Path]) -> None:
        """Write what is missing of all trials, and the sweep as a whole with ``artifacts``. Raises TrackingError."""
        with LedgerReader(self.folder / LEDGER) as ledger:
            statuses = ledger.statuses(removed=True)
            # Planned trials of an interrupted sweep are not in the tracker yet.
            there = [trial for trial, (status, _) in statuses.items() if status != "planned" or trial in self.known]
            sweep = sweep_record(ledger)
            self.mirror_trials(ledger, there, sweep.shares)
            self.tracker.write_sweep(sweep, artifacts)
            state = ledger.state()
        atomic_write(self.folder / MIRRORED, f"{self.tracker.where} {state}")

    @property
    def known(self) -> Mapping[str, str]:
        """Trials that the tracker has."""
        return self.tracker.known


def is_current(folder: Path, tracking: TrackingConfig, tracker: type[Tracker]) -> bool:
    """Whether the store has everything in the ledger, as far as known without connecting."""
    marker = folder / MIRRORED
    if not marker.is_file() or not tracker.is_there(folder, tracking):
        return False
    with LedgerReader(folder / LEDGER) as ledger:
        return marker.read_text() == f"{tracker.shown_store(folder, tracking)} {ledger.state()}"


def trial_record(
    ledger: LedgerReader, row: TrialRow, every: int | str, shares: Mapping[str, float] | None = None
) -> TrialRecord:
    """The tracker's record of the trial of ``row``, with every ``every``-th step of its curves and its ``shares``."""
    is_finished = row.status == "finished"
    trace = ledger.trace(row.trial_id) if is_finished else {}
    tags = {"status": row.status, "outcome": row.outcome, "reason": row.reason}
    tags |= {"audited": "true"} if row.is_audited else {}
    return TrialRecord(
        trial_id=row.trial_id,
        name=Trial(row.trial_id, row.cell, row.seed, row.config).name,
        version=_version(row),
        status=row.status,
        # Settings that do not vary are recorded on the sweep.
        values={**row.cell, "seed": row.seed},
        tags={key: str(value) for key, value in tags.items() if value is not None},
        points=[*_curve(trace, row.steps, every), *(_results(row) if is_finished else ())],
        shares=shares or {},
        started_s=row.started_at,
        finished_s=row.finished_at,
        position=row.position or 0,
    )


def sweep_record(ledger: LedgerReader) -> SweepRecord:
    """The tracker's record of the sweep of ``ledger``."""
    facts, packs, rows = ledger.facts(), ledger.packs(), ledger.trials()
    environment = packs[-1].environment if packs else {}
    tags = {
        "objective": facts.get("objective", ""),
        "sweep_version": facts.get("sweep_version", ""),
        **{f"fixed.{key}": shown_value(value) for key, value in _fixed(rows).items()},
        **{f"environment.{key}": value for key, value in environment.items() if key != "pid"},
    }
    counts: dict[str, float] = {f"num_{outcome}": sum(row.outcome == outcome for row in rows) for outcome in OUTCOMES}
    counts[f"num_{DEGRADED}"] = sum(row.is_degraded for row in rows)
    return SweepRecord(
        tags=tags,
        git_commit=facts.get("git_commit", ""),
        shares={
            row.trial_id: {"learned_share": row.learned_share, DEGRADED: float(row.is_degraded)}
            for row in rows
            if row.learned_share is not None
        },
        counts=counts | {"num_trials": len(rows)} | _audit_counts(audit(rows, None)),
        finished_s=max((row.finished_at or 0 for row in rows), default=0),
        is_over=not any(row.status in _UNFINISHED for row in rows),
    )


def shown_value(value: Any) -> str:
    """The value of a field as text."""
    return "none" if value is None else json.dumps(value) if isinstance(value, list | tuple) else str(value)


@contextlib.contextmanager
def _only_writer(path: Path, title: str, patience_s: float) -> Iterator[None]:
    """Hold the lock file ``path``, waiting a while for other holders. Raises TrackingError on timeout."""
    deadline = time.monotonic() + patience_s
    with open_private(path, "a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TrackingError(f"another process is writing this sweep to {title}") from None
                time.sleep(0.1)
        yield


def _version(row: TrialRow) -> str:
    return f"{row.status}:{row.pack_id}"


def _curve(trace: Mapping[str, Any], num_steps: int, every: int | str) -> list[Point]:
    """Finite numbers of every n-th step; MLflow would store infinity as 1.8e308 and hide NaN."""
    if not trace:
        return []
    step_N = trace["step"]
    stride = every if isinstance(every, int) else max(1, round(num_steps / _POINTS_PER_CURVE))
    is_kept_N = step_N % stride == 0
    return [
        Point(name, float(value), step)
        for name, values in trace.items()
        if name != "step"
        for step, value in zip(step_N[is_kept_N].tolist(), values[is_kept_N].tolist(), strict=True)
        if math.isfinite(value)
    ]


def _results(row: TrialRow) -> list[Point]:
    values = {name: value for name in _RESULTS if (value := getattr(row, name)) is not None}
    values |= {outcome: float(row.outcome == outcome) for outcome in OUTCOMES}
    return [Point(name, float(value), 0) for name, value in values.items()]


def _audit_counts(balance: Audit) -> dict[str, float]:
    """What early stopping saved, and how often it was wrong, where known."""
    counts: dict[str, float] = {
        "num_audited": balance.num_judged,
        "steps_saved": balance.steps_saved,
        "steps_audited": balance.steps_audited,
    }
    if balance.wrong_rate is not None and balance.wrong_interval is not None:
        counts |= {"num_wrong_stops": balance.num_wrong, "wrong_stop_rate": balance.wrong_rate}
        counts |= dict(zip(("wrong_stop_rate_low", "wrong_stop_rate_high"), balance.wrong_interval, strict=True))
    return counts


def _fixed(rows: Sequence[TrialRow]) -> dict[str, Any]:
    """The settings that are not axes and so equal in all trials."""
    if not rows:
        return {}
    settings = settings_of(rows[0].objective, rows[0].config)
    return {key: value for key, value in settings.items() if key not in rows[0].cell}

"""Health of a sweep's mirrors: whether its trackers have what its ledger has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from orchestrator.base.errors import InputError
from orchestrator.base.files import LEDGER, is_locked
from orchestrator.health.finding import Finding
from orchestrator.ledger.reader import LedgerReader
from orchestrator.mirrors.mirror import Mirror, is_current
from orchestrator.mirrors.mlflow_store import runs_without_driver
from orchestrator.mirrors.records import version_of
from orchestrator.mirrors.tracker import Tracker, TrackingError, tracker_class
from orchestrator.sweepfile.sections import TrackingConfig


def examine_trackers(folder: Path, tracking: TrackingConfig) -> Iterator[Finding]:
    """What the trackers in ``tracking`` lack of the sweep in ``folder``, unless a driver is at it."""
    if not tracking.enabled or is_locked(folder):
        return
    for name in tracking.to:
        try:
            tracker = tracker_class(name)
        except InputError as error:
            yield Finding("note", str(error))
            continue
        if name == "mlflow":
            yield from _running(folder, tracking)
        yield from _lacking(folder, tracking, tracker)


def _running(folder: Path, tracking: TrackingConfig) -> Iterator[Finding]:
    """Runs that are RUNNING in MLflow while no driver trains."""
    if count := runs_without_driver(folder, tracking):

        def mirror() -> None:
            with Mirror(folder, tracking) as store:
                store.mirror_sweep([])

        text = f"{count} MLflow runs are RUNNING while no driver trains; the next run or `sweep sync` ends them"
        yield Finding("note", text, mirror)


def _lacking(folder: Path, tracking: TrackingConfig, tracker: type[Tracker]) -> Iterator[Finding]:
    """A tracker that was not brought up to date, or lost trials since then. Connects to no server."""
    place = f"{tracker.title} at {tracker.shown_store(folder, tracking)}"
    remedy = f"`sweep sync {folder.name} --to {tracker.name}` writes what is missing"
    if not is_current(folder, tracking, tracker):
        yield Finding("note", f"{place} does not have all results of the ledger", remedy=remedy)
        return
    try:
        lost = 0 if tracker.name == "mlflow" else _lost(folder, tracking, tracker)
    except TrackingError as error:
        yield Finding("note", str(error), remedy=remedy)
        return
    if lost:
        yield Finding("note", f"{place} has lost {lost} trials", remedy=remedy)
    else:
        yield Finding("ok", f"{place} has all results of the ledger")


def _lost(folder: Path, tracking: TrackingConfig, tracker: type[Tracker]) -> int:
    """Number of trials that are not, or not as in the ledger, among the files of a tracker. Raises TrackingError."""
    known = tracker(folder, tracking, lambda: None).known
    with LedgerReader(folder / LEDGER) as ledger:
        rows = [row for row in ledger.trials(removed=True) if row.status != "planned"]
    return sum(known.get(row.trial_id) != version_of(row) for row in rows)

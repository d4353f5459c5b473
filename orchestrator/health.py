"""Health checks: the environment, one sweep's ledger and files, and its trackers."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from orchestrator.base.environment import install_command, installed_version, is_installed
from orchestrator.base.errors import InputError, StorageError, SweepError
from orchestrator.base.files import (
    CHECKPOINTS,
    FROZEN_SWEEP,
    LEDGER,
    is_locked,
    litter,
    read_checkpoint,
    remove,
    sweep_lock,
    unneeded_checkpoints,
)
from orchestrator.base.processes import end_marked, leftovers, listening
from orchestrator.base.query import hidden, reported
from orchestrator.base.space import trial_id
from orchestrator.base.trial_result import TrialResult
from orchestrator.base.vocabulary import CUSTOM_KINDS
from orchestrator.base.words import count, plural
from orchestrator.ledger.facts import IMPORTED_FACT
from orchestrator.ledger.reader import LedgerReader
from orchestrator.ledger.schema import PackRow
from orchestrator.ledger.writer import LedgerWriter
from orchestrator.mirrors.mirror import Mirror, is_current
from orchestrator.mirrors.mlflow_store import runs_without_driver
from orchestrator.mirrors.records import version_of
from orchestrator.mirrors.tracker import Tracker, TrackingError, tracker_class
from orchestrator.sweepfile.sections import TrackingConfig
from orchestrator.sweepfile.spec import ImportNotAllowed, Sweep, load_sections, load_sweep

Level = Literal["ok", "note", "warning", "fault"]

_LIBRARIES = ("torch", "ray", "optuna", "mlflow", "numpy", "pandas")
# Before these versions torch's weights_only could be bypassed, and Ray let web pages in a browser run code.
_MIN_VERSIONS = {"torch": (2, 10), "ray": (2, 60)}
_MIN_FREE_DISK, _MIN_FREE_MEMORY = 2**30, 2 * 2**30  # bytes
_NUMBERS = ("initial_loss", "best_loss", "final_loss", "peak_loss", "validation_loss")
_FACTS_THAT_FIX_RESULTS = ("torch", "numpy", "platform", "device", "python")


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of a health check, and the ``repair`` that --fix makes.

    A *fault* is damage or a broken invariant. A *warning* is worth knowing before trusting results. A *note* is about
    leftovers of an interrupted run; the next run or `sweep gc` cleans them up.
    """

    level: Level
    text: str
    repair: Callable[[], Any] | None = hidden(default=None)
    remedy: str = ""

    @reported
    def has_repair(self) -> bool:
        """Return whether --fix repairs it."""
        return self.repair is not None


def repair(findings: Sequence[Finding]) -> list[str]:
    """Make all possible repairs; return a line for each success and failure."""
    lines = []
    for finding in findings:
        if finding.repair is not None:
            try:
                finding.repair()
                lines.append(f"repaired: {finding.text}")
            except (SweepError, OSError) as error:
                lines.append(f"not repaired: {finding.text}: {error}")
    return lines


# --- the environment ---


def examine_environment(results: Path) -> Iterator[Finding]:
    """Check versions, memory, disk, GPUs, leftover processes and open ports."""
    versions = {name: version for name in _LIBRARIES if (version := installed_version(name))}
    if missing := [name for name in _LIBRARIES if name not in versions]:
        text = f"not installed: {', '.join(missing)}; this machine can read sweeps, not train them"
        yield Finding("warning", text, remedy=install_command(missing[0]))
    yield Finding("ok", f"Python {sys.version.split()[0]}, " + ", ".join(f"{k} {v}" for k, v in versions.items()))
    for name, minimum in _MIN_VERSIONS.items():
        if tuple(map(int, re.findall(r"\d+", versions.get(name, "9.9"))[:2])) < minimum:
            text = f"{name} {versions[name]} has known vulnerabilities"
            yield Finding("fault", text, remedy=f"install {name} {'.'.join(map(str, minimum))} or newer")
    yield from _disk(
        "results", next(path for path in (results.absolute(), *results.absolute().parents) if path.exists())
    )
    yield from _disk("Ray's shared memory", Path("/dev/shm"))
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    level: Level = "ok" if free > _MIN_FREE_MEMORY else "warning"
    yield Finding(level, f"{os.cpu_count()} cores, {free / 2**30:.1f} GiB of memory free")
    yield Finding("ok", _gpus())
    yield from _processes()


def _disk(name: str, folder: Path) -> Iterator[Finding]:
    if not folder.is_dir():
        return
    free = shutil.disk_usage(folder).free
    level: Level = "ok" if free > _MIN_FREE_DISK else "warning"
    yield Finding(level, f"{name} in {folder}: {free / 2**30:.1f} GiB free")
    if not os.access(folder, os.W_OK):
        yield Finding("fault", f"{folder} is not writable")


def _gpus() -> str:
    if not is_installed("torch"):
        return "GPUs unknown: torch is not installed"
    import torch

    if not torch.cuda.is_available():
        return "no GPU"
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return f"GPUs: {', '.join(names)}"


def _processes() -> Iterator[Finding]:
    if left := leftovers():
        what = count(len(left), "process is", "processes are")
        text = f"{what} left over from a driver that was killed, and ended by the next run"
        yield Finding("note", text, lambda: [end_marked(mark) for mark in set(left.values())])
    listeners = listening()
    for address, name in sorted(listeners.items()):
        yield Finding("ok", f"{name} listens on {address}")
    if not listeners:
        yield Finding("ok", "no process of sweep listens on a port")


# --- the ledger and the files of a sweep ---


def examine_sweep(folder: Path) -> Iterator[Finding]:
    """Check the invariants of the ledger and the files of the sweep in ``folder``, and what its trackers lack."""
    for path in (folder, folder / LEDGER, folder / FROZEN_SWEEP, folder / CHECKPOINTS):
        if path.is_symlink():
            yield Finding("fault", f"{path} is a link to {os.readlink(path)}", remedy="replace it with its target")
    try:
        with LedgerReader(folder / LEDGER) as ledger:
            yield from _ledger(folder, ledger)
    except SweepError as error:
        yield Finding("fault", str(error))


def _ledger(folder: Path, ledger: LedgerReader) -> Iterator[Finding]:
    if problems := ledger.integrity():
        yield from (Finding("fault", f"the ledger is damaged: {problem}") for problem in problems)
        return
    rows, packs = ledger.trials(removed=True), {pack.pack_id: pack for pack in ledger.packs()}
    yield Finding(
        "ok", f"the ledger holds {count(len(rows), 'trial')} in {count(len(packs), 'pack')}, schema {ledger.version}"
    )
    yield from _running_trials(folder, rows)
    for row in rows:
        yield from _trial(row, ledger)
    yield from _mixed_environments(rows, packs)
    yield from _stray_curves(folder, ledger)
    if IMPORTED_FACT in ledger.facts():
        yield Finding("note", "its results are imported: it has no sweep file and nothing to train")
        return
    try:
        sweep = load_sweep(folder / FROZEN_SWEEP)
    except ImportNotAllowed:
        text = f"trials were not compared with {FROZEN_SWEEP}, which would import the code of its objective"
        yield Finding("note", text)
        yield from examine_trackers(folder, load_sections(folder / FROZEN_SWEEP).tracking)
    except SweepError as error:
        yield Finding("fault", f"the frozen sweep cannot be read: {error}", remedy="`sweep run FILE` writes it again")
    else:
        yield from _frozen_sweep(sweep, rows)
        yield from examine_trackers(folder, sweep.tracking)
    yield from _checkpoints(folder, ledger)
    if scraps := litter(folder):
        yield Finding("note", f"{len(scraps)} partial files of interrupted writes", lambda: remove(scraps))


def _rewrite(folder: Path, change: Callable[[LedgerWriter], Any]) -> None:
    with sweep_lock(folder), LedgerWriter(folder / LEDGER) as ledger:
        change(ledger)


def _running_trials(folder: Path, rows: Sequence[TrialResult]) -> Iterator[Finding]:
    running = sum(row.status == "running" for row in rows)
    if is_locked(folder):
        yield Finding("ok", f"a driver is running, {count(running, 'trial is', 'trials are')} in training")
    elif running:
        what = f"{count(running, 'trial was', 'trials were')} in training when their driver died"
        text = f"{what}; the next run resumes {plural(running, 'it', 'them')}"
        yield Finding("note", text, lambda: _rewrite(folder, LedgerWriter.release_abandoned))


def _trial(row: TrialResult, ledger: LedgerReader) -> Iterator[Finding]:
    """Check the numbers, the status and the curve of one trial."""
    name = f"trial {row.trial_id}"
    for column in _NUMBERS:
        value = getattr(row, column)
        if value is not None and not np.isfinite(value):
            yield Finding("fault", f"{name}: {column} = {value} is not finite")
    if (row.status == "finished") != (row.outcome is not None):
        yield Finding("fault", f"{name}: status {row.status}, outcome {row.outcome}")
    if row.status not in ("finished", "running", "interrupted", "lost"):
        return
    try:
        steps = ledger.trace(row.trial_id).get("step", np.array([]))
    except StorageError as error:
        yield Finding("fault", f"{name}: its curve cannot be read: {error}")
        return
    if row.objective in CUSTOM_KINDS:  # a custom trainer may log any steps
        if (np.diff(steps) <= 0).any():
            yield Finding("fault", f"{name}: the steps of its curve do not increase")
    elif not _is_even(steps):
        yield Finding("fault", f"{name}: its curve has missing or duplicate steps")
    elif row.status == "finished" and (covered := int(steps[-1]) + 1 if len(steps) else 0) != row.steps_done:
        yield Finding(
            "fault", f"{name}: {row.steps_done} {plural(row.steps_done or 0, 'step')} done, {covered} in its curve"
        )


def _is_even(steps: np.ndarray) -> bool:
    """Whether a curve has every n-th step from 0, for some n, and possibly its last step."""
    if len(steps) == 0:
        return True
    gaps = np.diff(steps)
    every = gaps[0] if len(gaps) > 1 else 1
    return bool(steps[0] == 0 and (gaps[:-1] == every).all() and (gaps[-1:] > 0).all() and (gaps[-1:] <= every).all())


def _mixed_environments(rows: Sequence[TrialResult], packs: Mapping[str, PackRow]) -> Iterator[Finding]:
    """Count trials that resumed with other versions, or on another device, than they started with."""
    mixed = 0
    for row in rows:
        pack = packs.get(row.pack_id or "")
        while pack is not None and (before := packs.get(pack.resumed_from or "")) is not None:
            now, then = pack.environment, before.environment
            if now and then and any(now.get(key) != then.get(key) for key in _FACTS_THAT_FIX_RESULTS):
                mixed += 1
                break
            pack = before
    if mixed:
        yield Finding(
            "warning", f"{count(mixed, 'trial')} resumed with other versions or on another device (mixed_env)"
        )


def _stray_curves(folder: Path, ledger: LedgerReader) -> Iterator[Finding]:
    if count := ledger.stray_curves():
        text = f"{count} pieces of curves belong to no attempt"
        yield Finding("fault", text, lambda: _rewrite(folder, LedgerWriter.forget_stray_curves))


def _frozen_sweep(sweep: Sweep, rows: Sequence[TrialResult]) -> Iterator[Finding]:
    """Compare the trials of the frozen sweep with the ledger."""
    wanted = [trial.trial_id for trial in sweep.trials]
    planned = [row for row in rows if row.position is not None]
    if sweep.is_open:
        wanted = [row.trial_id for row in planned if sweep.trial_like(row) is not None]
    if wanted != [row.trial_id for row in planned]:
        text = f"{FROZEN_SWEEP} and the ledger list different trials; the next run plans the missing ones"
        yield Finding("note", text)
    known = set(wanted)
    for row in rows:
        if row.trial_id in known and trial_id(row.objective, row.config, row.seed, sweep.rules) != row.trial_id:
            yield Finding("fault", f"trial {row.trial_id}: its configuration does not match its id")


def _checkpoints(folder: Path, ledger: LedgerReader) -> Iterator[Finding]:
    for pack_id in ledger.resumable():
        for checkpoint in ledger.checkpoints(pack_id):
            try:
                read_checkpoint(folder, checkpoint.name, checkpoint.sha256)
            except StorageError as error:
                yield Finding("warning", f"{error}; the trial resumes from an older one, or starts again")
    if unneeded := unneeded_checkpoints(folder, ledger.checkpoint_names()):
        yield Finding("note", f"{len(unneeded)} checkpoints that no run needs", lambda: remove(unneeded))


# --- the trackers of a sweep ---


def examine_trackers(folder: Path, tracking: TrackingConfig) -> Iterator[Finding]:
    """Find what the trackers lack of the sweep in ``folder``; skipped while a driver is running."""
    if not tracking.enabled or is_locked(folder):
        return
    for name in tracking.to:
        try:
            tracker = tracker_class(name)
        except InputError as error:
            yield Finding("note", str(error))
            continue
        if name == "mlflow":
            yield from _abandoned_runs(folder, tracking)
        yield _state(folder, tracking, tracker)


def _abandoned_runs(folder: Path, tracking: TrackingConfig) -> Iterator[Finding]:
    """Count the runs that MLflow shows as RUNNING while no driver trains."""
    if count := runs_without_driver(folder, tracking):

        def mirror() -> None:
            with Mirror(folder, tracking) as store:
                store.mirror_sweep([])

        text = f"{count} MLflow runs are RUNNING while no driver trains; the next run or `sweep sync` ends them"
        yield Finding("note", text, mirror)


def _state(folder: Path, tracking: TrackingConfig, tracker: type[Tracker]) -> Finding:
    """Whether a tracker has all results of the ledger. Connects to no server."""
    store = f"{tracker.title} at {tracker.shown_store(folder, tracking)}"
    remedy = f"`sweep sync {folder.name} --to {tracker.name}` writes what is missing"
    if not is_current(folder, tracking, tracker):
        return Finding("note", f"{store} does not have all results of the ledger", remedy=remedy)
    try:
        lost = 0 if tracker.name == "mlflow" else _num_lost(folder, tracking, tracker)
    except TrackingError as error:
        return Finding("note", str(error), remedy=remedy)
    if lost:
        return Finding("note", f"{store} has lost {count(lost, 'trial')}", remedy=remedy)
    return Finding("ok", f"{store} has all results of the ledger")


def _num_lost(folder: Path, tracking: TrackingConfig, tracker: type[Tracker]) -> int:
    """Number of trials that a tracker's files lack, or hold in an older version. Raises TrackingError."""
    known = tracker(folder, tracking, lambda: None).known
    with LedgerReader(folder / LEDGER) as ledger:
        rows = [row for row in ledger.trials(removed=True) if row.status != "planned"]
    return sum(known.get(row.trial_id) != version_of(row) for row in rows)

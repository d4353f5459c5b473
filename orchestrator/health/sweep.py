"""Health of one sweep: invariants of its ledger and its files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from orchestrator.base.errors import StorageError, SweepError
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
from orchestrator.base.space import trial_id
from orchestrator.base.trial_result import TrialResult
from orchestrator.base.vocabulary import CUSTOM_KINDS
from orchestrator.health.finding import Finding
from orchestrator.health.trackers import examine_trackers
from orchestrator.ledger.imported import FACT
from orchestrator.ledger.reader import LedgerReader, PackRow
from orchestrator.ledger.writer import LedgerWriter
from orchestrator.sweepfile.spec import ImportNotAllowed, Sweep, load_sections, load_sweep

_NUMBERS = ("initial_loss", "best_loss", "final_loss", "peak_loss", "validation_loss")
_SAME_RESULTS = ("torch", "numpy", "platform", "device", "python")


def examine_sweep(folder: Path) -> Iterator[Finding]:
    """Check the invariants of the ledger and the files of the sweep in ``folder``."""
    yield from _links(folder)
    try:
        with LedgerReader(folder / LEDGER) as ledger:
            yield from _examine(folder, ledger)
    except SweepError as error:
        yield Finding("fault", str(error))


def _examine(folder: Path, ledger: LedgerReader) -> Iterator[Finding]:
    problems = ledger.integrity()
    yield from (Finding("fault", f"the ledger is damaged: {problem}") for problem in problems)
    if problems:
        return
    rows, packs = ledger.trials(removed=True), {pack.pack_id: pack for pack in ledger.packs()}
    yield Finding("ok", f"the ledger holds {len(rows)} trials in {len(packs)} packs, schema {ledger.version}")
    yield from _running(folder, rows)
    for row in rows:
        yield from _trial(row, ledger)
    yield from _mixed(rows, packs)
    yield from _stray_curves(folder, ledger)
    if FACT in ledger.facts():
        yield Finding("note", "its results are imported: there is no sweep file, and nothing to train")
        return
    try:
        sweep = load_sweep(folder / FROZEN_SWEEP)
    except ImportNotAllowed:
        yield Finding("note", "trials are not compared with the frozen sweep: that would import its objective's code")
        yield from examine_trackers(folder, load_sections(folder / FROZEN_SWEEP).tracking)
    except SweepError as error:
        yield Finding("fault", f"the frozen sweep cannot be read: {error}", remedy="`sweep run FILE` writes it again")
    else:
        yield from _frozen(sweep, rows)
        yield from examine_trackers(folder, sweep.tracking)
    yield from _checkpoints(folder, ledger)
    if scraps := litter(folder):
        yield Finding("note", f"{len(scraps)} partial files of interrupted writes", lambda: remove(scraps))


def _links(folder: Path) -> Iterator[Finding]:
    for path in (folder, folder / LEDGER, folder / FROZEN_SWEEP, folder / CHECKPOINTS):
        if path.is_symlink():
            yield Finding("fault", f"{path} is a link to {os.readlink(path)}", remedy="replace it with its target")


def _running(folder: Path, rows: Sequence[TrialResult]) -> Iterator[Finding]:
    running = sum(row.status == "running" for row in rows)
    if is_locked(folder):
        yield Finding("ok", f"a driver is running, {running} trials are in training")
    elif running:

        def release() -> None:
            with sweep_lock(folder), LedgerWriter(folder / LEDGER) as ledger:
                ledger.release_abandoned()

        text = f"{running} trials were in training when their driver died; the next run resumes them"
        yield Finding("note", text, release)


def _trial(row: TrialResult, ledger: LedgerReader) -> Iterator[Finding]:
    """Invariants of every trial."""
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
        yield Finding("fault", f"{name}: {row.steps_done} steps done, {covered} in its curve")


def _is_even(steps: np.ndarray) -> bool:
    """Whether a curve has every n-th step from 0 on, for some n, and possibly its last step."""
    if len(steps) == 0:
        return True
    gaps = np.diff(steps)
    every = gaps[0] if len(gaps) > 1 else 1
    return bool(steps[0] == 0 and (gaps[:-1] == every).all() and (gaps[-1:] > 0).all() and (gaps[-1:] <= every).all())


def _mixed(rows: Sequence[TrialResult], packs: Mapping[str, PackRow]) -> Iterator[Finding]:
    """Trials that resumed with other versions or on another device than they started with."""
    mixed = 0
    for row in rows:
        pack = packs.get(row.pack_id or "")
        while pack is not None and (before := packs.get(pack.resumed_from or "")) is not None:
            here, there = pack.environment, before.environment
            if here and there and any(here.get(key) != there.get(key) for key in _SAME_RESULTS):
                mixed += 1
                break
            pack = before
    if mixed:
        yield Finding("warning", f"{mixed} trials resumed with other versions or on another device (mixed_env)")


def _stray_curves(folder: Path, ledger: LedgerReader) -> Iterator[Finding]:
    if count := ledger.stray_curves():

        def forget() -> None:
            with sweep_lock(folder), LedgerWriter(folder / LEDGER) as writable:
                writable.forget_stray_curves()

        yield Finding("fault", f"{count} pieces of curves belong to no attempt", forget)


def _frozen(sweep: Sweep, rows: Sequence[TrialResult]) -> Iterator[Finding]:
    wanted = [trial.trial_id for trial in sweep.trials]
    if sweep.is_open:
        wanted = [row.trial_id for row in rows if row.position is not None and sweep.trial_like(row) is not None]
    if wanted != [row.trial_id for row in rows if row.position is not None]:
        yield Finding(
            "note", f"{FROZEN_SWEEP} and the ledger differ in their trials; the next run plans the missing ones"
        )
    known, judged_by = set(wanted), sweep.rules
    for row in rows:
        identity = trial_id(row.objective, row.config, row.seed, judged_by)
        if row.trial_id in known and identity != row.trial_id:
            yield Finding("fault", f"trial {row.trial_id}: its configuration does not match its id")


def _checkpoints(folder: Path, ledger: LedgerReader) -> Iterator[Finding]:
    for pack_id in ledger.resumable():
        for found in ledger.checkpoints(pack_id):
            try:
                read_checkpoint(folder, found.name, found.sha256)
            except StorageError as error:
                yield Finding("warning", f"{error}; the trial resumes from an older one, or starts again")
    if unneeded := unneeded_checkpoints(folder, ledger.checkpoint_names()):
        yield Finding("note", f"{len(unneeded)} checkpoints that no run needs", lambda: remove(unneeded))

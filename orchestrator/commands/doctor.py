"""Is everything as it should be? The environment, what runs, and one sweep's ledger and files.

A *fault* must not be: a broken promise or something damaged. A *warning* is worth knowing before results are
trusted. A *note* is what faults of the machine leave behind, and the next run or `sweep gc` clears up.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from orchestrator.errors import StorageError, SweepError
from orchestrator.files import (
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
from orchestrator.ledger.reader import LedgerReader
from orchestrator.ledger.writer import LedgerWriter
from orchestrator.processes import end_marked, leftovers, listening
from orchestrator.space import trial_id
from orchestrator.sweepfile.own_trainer import OWN_KINDS
from orchestrator.sweepfile.sections import TrackingConfig
from orchestrator.sweepfile.spec import ImportNotAllowed, Sweep, load_sections, load_sweep

Level = Literal["ok", "note", "warning", "fault"]

_LIBRARIES = ("torch", "ray", "optuna", "mlflow", "numpy", "pandas")
_LITTLE_SPACE = 2**30
_LITTLE_MEMORY = 2 * 2**30
# Below these versions torch's weights_only could be got around, and Ray let pages in a browser run code.
_OLDEST = {"torch": (2, 10), "ray": (2, 60)}
_NUMBERS = ("initial_loss", "best_loss", "final_loss", "peak_loss", "validation_loss")
_SAME_RESULTS = ("torch", "numpy", "platform", "device", "python")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at; ``repair`` is what --fix does about it."""

    level: Level
    text: str
    repair: Callable[[], Any] | None = None
    remedy: str = ""


def examine_environment(results: Path) -> Iterator[Finding]:
    """Versions, memory, disk, GPUs, what listens and what was left behind."""
    versions = {}
    for name in _LIBRARIES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            yield Finding("fault", f"{name} is not installed", remedy="pip install sweep-stability")
    yield Finding("ok", f"Python {sys.version.split()[0]}, " + ", ".join(f"{k} {v}" for k, v in versions.items()))
    for name, oldest in _OLDEST.items():
        found = tuple(map(int, re.findall(r"\d+", versions.get(name, "9.9"))[:2]))
        if found < oldest:
            wanted = ".".join(map(str, oldest))
            yield Finding("fault", f"{name} {versions[name]} has known holes", remedy=f"{name} {wanted} or newer")
    folder = next(path for path in (results.absolute(), *results.absolute().parents) if path.exists())
    yield from _space("results", folder)
    yield from _space("Ray's shared memory", Path("/dev/shm"))
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    level: Level = "ok" if free > _LITTLE_MEMORY else "warning"
    yield Finding(level, f"{os.cpu_count()} cores, {free / 2**30:.1f} GiB of memory free")
    yield Finding("ok", _gpus())
    yield from _processes()


def _space(what: str, folder: Path) -> Iterator[Finding]:
    if not folder.is_dir():
        return
    free = shutil.disk_usage(folder).free
    level: Level = "ok" if free > _LITTLE_SPACE else "warning"
    yield Finding(level, f"{what} in {folder}: {free / 2**30:.1f} GiB free")
    if not os.access(folder, os.W_OK):
        yield Finding("fault", f"{folder} cannot be written")


def _gpus() -> str:
    import torch

    if not torch.cuda.is_available():
        return "no GPU"
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return f"GPUs: {', '.join(names)}"


def _processes() -> Iterator[Finding]:
    left = leftovers()
    if left:
        text = f"{len(left)} processes are left over from a driver that was killed; the next run ends them"
        yield Finding("note", text, lambda: [end_marked(mark) for mark in set(left.values())])
    listeners = listening()
    for address, name in sorted(listeners.items()):
        yield Finding("ok", f"{name} listens on {address}")
    if not listeners:
        yield Finding("ok", "nothing of ours listens")


def examine_sweep(folder: Path) -> Iterator[Finding]:
    """The promises that the ledger and the files of the sweep in ``folder`` keep."""
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
    rows, packs = ledger.trials(removed=True), {pack["pack_id"]: pack for pack in ledger.packs()}
    yield Finding("ok", f"the ledger holds {len(rows)} trials in {len(packs)} packs, schema {ledger.version}")
    yield from _running(folder, rows)
    for row in rows:
        yield from _trial(row, ledger)
    yield from _mixed(rows, packs)
    yield from _stray_curves(folder, ledger)
    try:
        sweep = load_sweep(folder / FROZEN_SWEEP)
    except ImportNotAllowed:
        yield Finding("note", "trials are not compared with the frozen sweep: that would import its objective's code")
        yield from _mirror(folder, load_sections(folder / FROZEN_SWEEP).tracking)
    except SweepError as error:
        yield Finding("fault", f"the frozen sweep cannot be read: {error}", remedy="`sweep run FILE` writes it again")
    else:
        yield from _frozen(sweep, rows)
        yield from _mirror(folder, sweep.tracking)
    yield from _checkpoints(folder, ledger)
    if scraps := litter(folder):
        yield Finding("note", f"{len(scraps)} scraps of interrupted writes", lambda: remove(scraps))


def _links(folder: Path) -> Iterator[Finding]:
    for path in (folder, folder / LEDGER, folder / FROZEN_SWEEP, folder / CHECKPOINTS):
        if path.is_symlink():
            yield Finding("fault", f"{path} is a link to {os.readlink(path)}", remedy="put the real one there")


def _running(folder: Path, rows: list[dict[str, Any]]) -> Iterator[Finding]:
    running = sum(row["status"] == "running" for row in rows)
    if is_locked(folder):
        yield Finding("ok", f"a driver is at work, {running} trials are in training")
    elif running:

        def release() -> None:
            with sweep_lock(folder), LedgerWriter(folder / LEDGER) as ledger:
                ledger.release_abandoned()

        text = f"{running} trials were in training when their driver died; the next run goes on with them"
        yield Finding("note", text, release)


def _trial(row: Mapping[str, Any], ledger: LedgerReader) -> Iterator[Finding]:
    """What must be true of every trial."""
    name = f"trial {row['trial_id']}"
    for column in _NUMBERS:
        if row[column] is not None and not np.isfinite(row[column]):
            yield Finding("fault", f"{name}: {column} = {row[column]} is not finite")
    if (row["status"] == "finished") != (row["outcome"] is not None):
        yield Finding("fault", f"{name}: status {row['status']}, outcome {row['outcome']}")
    if row["status"] not in ("finished", "running", "interrupted", "lost"):
        return
    try:
        steps = ledger.trace(row["trial_id"]).get("step", np.array([]))
    except StorageError as error:
        yield Finding("fault", f"{name}: its curve cannot be read: {error}")
        return
    if row["objective"] in OWN_KINDS:  # which log what steps they like
        if (np.diff(steps) <= 0).any():
            yield Finding("fault", f"{name}: the steps of its curve do not increase")
    elif not _is_even(steps):
        yield Finding("fault", f"{name}: its curve has holes or steps twice")
    elif row["status"] == "finished" and (covered := int(steps[-1]) + 1 if len(steps) else 0) != row["steps_done"]:
        yield Finding("fault", f"{name}: {row['steps_done']} steps done, {covered} in its curve")


def _is_even(steps: np.ndarray) -> bool:
    """Whether a curve has every n-th step from 0 on, for some n, and maybe its last step besides."""
    if len(steps) == 0:
        return True
    gaps = np.diff(steps)
    every = gaps[0] if len(gaps) > 1 else 1
    return bool(steps[0] == 0 and (gaps[:-1] == every).all() and (gaps[-1:] > 0).all() and (gaps[-1:] <= every).all())


def _mixed(rows: list[dict[str, Any]], packs: Mapping[str, dict[str, Any]]) -> Iterator[Finding]:
    """Trials that went on under other versions or on another device than they began with."""
    mixed = 0
    for row in rows:
        pack = packs.get(row["pack_id"] or "")
        while pack is not None and (before := packs.get(pack["resumed_from"] or "")) is not None:
            here, there = pack["environment"], before["environment"]
            if here and there and any(here.get(key) != there.get(key) for key in _SAME_RESULTS):
                mixed += 1
                break
            pack = before
    if mixed:
        yield Finding("warning", f"{mixed} trials went on under other versions or on another device (mixed_env)")


def _stray_curves(folder: Path, ledger: LedgerReader) -> Iterator[Finding]:
    if count := ledger.stray_curves():

        def forget() -> None:
            with sweep_lock(folder), LedgerWriter(folder / LEDGER) as writable:
                writable.forget_stray_curves()

        yield Finding("fault", f"{count} pieces of curves belong to no attempt", forget)


def _frozen(sweep: Sweep, rows: list[dict[str, Any]]) -> Iterator[Finding]:
    wanted = [trial.trial_id for trial in sweep.trials]
    if wanted != [row["trial_id"] for row in rows if row["position"] is not None]:
        yield Finding("note", f"{FROZEN_SWEEP} and the ledger differ in their trials; the next run plans them anew")
    known, judged_by = set(wanted), sweep.stopping.model_dump(exclude={"audit"})
    for row in rows:
        identity = trial_id(row["objective"], row["config"], row["seed"], judged_by)
        if row["trial_id"] in known and identity != row["trial_id"]:
            yield Finding("fault", f"trial {row['trial_id']}: its configuration is not the one of its id")


def _checkpoints(folder: Path, ledger: LedgerReader) -> Iterator[Finding]:
    for pack_id in ledger.resumable():
        for found in ledger.checkpoints(pack_id):
            try:
                read_checkpoint(folder, found["name"], found["sha256"])
            except StorageError as error:
                yield Finding("warning", f"{error}; an older one is used, or the start")
    if unneeded := unneeded_checkpoints(folder, ledger.checkpoint_names()):
        yield Finding("note", f"{len(unneeded)} checkpoints that nobody needs", lambda: remove(unneeded))


def _mirror(folder: Path, tracking: TrackingConfig) -> Iterator[Finding]:
    """Runs that MLflow believes to be under way while nobody trains."""
    from orchestrator.tracking.mlflow import Mirror, runs_without_driver

    if tracking.enabled and not is_locked(folder) and (count := runs_without_driver(folder, tracking)):

        def mirror() -> None:
            with Mirror(folder, tracking) as store:
                store.mirror_sweep([])

        text = f"{count} runs of MLflow are RUNNING though nobody trains; the next run or `sweep sync` ends them"
        yield Finding("note", text, mirror)


def repair(findings: list[Finding]) -> list[str]:
    """Do what can be done about ``findings``; returns what was done or could not be."""
    done = []
    for finding in findings:
        if finding.repair is not None:
            try:
                finding.repair()
                done.append(f"repaired: {finding.text}")
            except (SweepError, OSError) as error:
                done.append(f"not repaired: {finding.text}: {error}")
    return done

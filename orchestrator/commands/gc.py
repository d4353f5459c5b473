"""Removes what can be made again, or what nobody needs: never the ledger, never a result."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from orchestrator.files import (
    DIAGNOSES,
    EXPLANATION,
    EXPORTED,
    LEDGER,
    litter,
    remove,
    sweep_lock,
    unneeded_checkpoints,
)
from orchestrator.ledger.reader import LedgerReader
from orchestrator.pictures.exports import existing_exports
from orchestrator.processes import SCRATCH, is_alive


def clean(folder: Path, *, exports: bool, is_rehearsal: bool) -> Iterator[str]:
    """Clean the folder of a sweep, and scratch folders of dead runs; yields a line for each kind of thing.

    With ``exports`` also maps, pictures and reports, which `sweep report`, `diagnose` and `explain` write again. A
    rehearsal only says what would go. Raises InputError while a driver has the sweep.
    """
    with sweep_lock(folder), LedgerReader(folder / LEDGER) as ledger:
        doomed = {
            "checkpoints that nobody needs": unneeded_checkpoints(folder, ledger.checkpoint_names()),
            "scraps of interrupted writes": litter(folder),
            "exports": [*existing_exports(folder), *folder.glob(EXPORTED)] if exports else [],
            "diagnoses": [*folder.glob(f"{DIAGNOSES}/*"), *folder.glob(EXPLANATION)] if exports else [],
        }
        for what, paths in doomed.items():
            if paths:
                yield _line(what, paths, is_rehearsal)
                if not is_rehearsal:
                    remove(paths)
    if scratch := dead_scratch(os.getuid()):
        yield _line("scratch folders of runs that died", scratch, is_rehearsal)
        if not is_rehearsal:
            for path in scratch:
                shutil.rmtree(path, ignore_errors=True)


def dead_scratch(user_id: int) -> list[Path]:
    """Scratch folders of this user's runs whose process is gone; those of other users are not ours to judge."""
    found = []
    for path in Path("/tmp").glob(f"{SCRATCH}*"):
        pid = path.name.removeprefix(SCRATCH).partition("-")[0]
        is_ours = path.is_dir() and not path.is_symlink() and path.stat().st_uid == user_id
        if is_ours and pid.isdigit() and not is_alive(int(pid)):
            found.append(path)
    return found


def _line(what: str, paths: list[Path], is_rehearsal: bool) -> str:
    size = sum(_size(path) for path in paths)
    return f"{'would remove' if is_rehearsal else 'removed'} {len(paths)} {what}, {size / 2**20:.1f} MiB"


def _size(path: Path) -> int:
    inside = path.rglob("*") if path.is_dir() and not path.is_symlink() else [path]
    return sum(file.lstat().st_size for file in inside if not file.is_dir())

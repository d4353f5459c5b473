"""`sweep gc`: remove files that can be made again or that no run needs; never the ledger or a result."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from orchestrator.base.errors import EXIT_OK
from orchestrator.base.files import (
    DIAGNOSES,
    EDGE_PICTURE,
    EDGE_TABLE,
    EXPLANATION,
    EXPORTED,
    FRONT_PICTURE,
    FRONT_TABLE,
    LEDGER,
    REMEDIES,
    REMEDY_MAP,
    REMEDY_TABLE,
    litter,
    remove,
    sweep_lock,
    unneeded_checkpoints,
)
from orchestrator.base.processes import dead_scratch
from orchestrator.ledger.reader import LedgerReader
from orchestrator.pages.exports import existing_exports
from orchestrator.render.printing import Lines


def gc(folder: Path, exports: bool, dry_run: bool) -> Lines:
    """Clean the folder of a sweep, and scratch folders of dead runs; one line per kind of file.

    With ``exports`` also maps, pictures and reports, which `sweep report`, `diagnose`, `explain`, `remedy` and
    `remedies` write again, and the files of `edge` and `front` that earlier versions wrote there. A dry run only lists
    what would be removed. Raises InputError while a driver has the sweep.
    """
    is_empty = True
    with sweep_lock(folder), LedgerReader(folder / LEDGER) as ledger:
        doomed = {
            "checkpoints that no run needs": unneeded_checkpoints(folder, ledger.checkpoint_names()),
            "partial files of interrupted writes": litter(folder),
            "exports": [*existing_exports(folder), *folder.glob(EXPORTED)] if exports else [],
            "files of the edge": [*folder.glob(EDGE_PICTURE), *folder.glob(EDGE_TABLE)] if exports else [],
            "files of the front": [*folder.glob(FRONT_PICTURE), *folder.glob(FRONT_TABLE)] if exports else [],
            "pictures of remedies": [*folder.glob(f"{REMEDIES}/*/remedies.*")] if exports else [],
            "files of the remedies of all cells": [*folder.glob(REMEDY_MAP), *folder.glob(REMEDY_TABLE)]
            if exports
            else [],
            "diagnoses": [*folder.glob(f"{DIAGNOSES}/*"), *folder.glob(EXPLANATION)] if exports else [],
        }
        for what, paths in doomed.items():
            if paths:
                is_empty = False
                yield _line(what, paths, dry_run)
                if not dry_run:
                    remove(paths)
    if scratch := dead_scratch(os.getuid()):
        is_empty = False
        yield _line("scratch folders of runs that died", scratch, dry_run)
        if not dry_run:
            for path in scratch:
                shutil.rmtree(path, ignore_errors=True)
    if is_empty:
        yield "nothing to remove"
    return EXIT_OK


def _line(what: str, paths: list[Path], dry_run: bool) -> str:
    size = sum(_size(path) for path in paths)
    return f"{'would remove' if dry_run else 'removed'} {len(paths)} {what}, {size / 2**20:.1f} MiB"


def _size(path: Path) -> int:
    inside = path.rglob("*") if path.is_dir() and not path.is_symlink() else [path]
    return sum(file.lstat().st_size for file in inside if not file.is_dir())

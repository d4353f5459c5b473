"""States of weights that a sweep keeps: one file for each trial and step, under `states/` of its results."""

from __future__ import annotations

import os
import re
from pathlib import Path

from orchestrator.base.errors import InputError, Problem
from orchestrator.base.files import atomic_write, check_no_links, remove, storage_errors, write_checkpoint
from orchestrator.base.packs import Report

STATES = "states"
_FILE = re.compile(r"step-(\d+)\.pt")


def write_files(folder: Path, report: Report, last: int | None) -> tuple[str, str] | None:
    """Write the files of ``report``: its checkpoint, whose name and sha256 are returned, and states of weights.

    Of each trial the ``last`` states stay.
    """
    for state in report.states:
        own = folder / STATES / state.trial_id
        check_no_links(folder, folder / STATES, own)
        atomic_write(own / f"step-{state.step}.pt", state.content)
        remove(_path(folder, state.trial_id, step) for step in kept_steps(folder, state.trial_id)[: -(last or 1)])
    return None if report.checkpoint is None else write_checkpoint(folder, report.checkpoint.content)


def kept_steps(folder: Path, trial_id: str) -> list[int]:
    """Return the steps of the states that are kept of a trial, ascending."""
    own = folder / STATES / trial_id
    names = [path.name for path in own.iterdir()] if own.is_dir() else []
    return sorted(int(match[1]) for name in names if (match := _FILE.fullmatch(name)))


def read_state(folder: Path, trial_id: str, step: int) -> bytes:
    """Return the bytes of a state. Raises InputError if it is not kept, StorageError if it cannot be read."""
    path = _path(folder, trial_id, step)
    if step not in (known := kept_steps(folder, trial_id)):
        message = f"has no state of step {step:,}"
        kept = f"these are kept: {', '.join(map(str, known))}" if known else "it kept none"
        remedy = f"{kept}; `keep: {{every: 50, last: 10}}` in the sweep file of a new --name keeps them while it trains"
        raise InputError(Problem(str(folder), trial_id, message, remedy))
    with storage_errors(path), os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        return file.read()


def _path(folder: Path, trial_id: str, step: int) -> Path:
    return folder / STATES / trial_id / f"step-{step}.pt"

"""Write imported runs to the ledger of a results folder, as a whole or not at all."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from orchestrator.base.errors import InputError, Problem
from orchestrator.base.files import LEDGER, sweep_lock
from orchestrator.base.space import Axis, canonical_text, trial_id
from orchestrator.base.vocabulary import IMPORTED
from orchestrator.detection.config import StoppingConfig
from orchestrator.importing.rows import LeftOut
from orchestrator.importing.runs import Run
from orchestrator.ledger.facts import IMPORTED_FACT, Imported, ImportedTrial, imported_fact, imported_of
from orchestrator.ledger.reader import LedgerReader
from orchestrator.ledger.writer import LedgerWriter
from orchestrator.sweepfile.sections import NAME_PATTERN
from orchestrator.version import __version__

_MAX_NAMED = 1000  # rows left out that the ledger names


@dataclass(frozen=True, slots=True)
class Collected:
    """All that an import brings in, in the order of the map, with notes for the user."""

    sources: tuple[str, ...]
    judged_by: str
    columns: Mapping[str, str]
    axes: Sequence[Axis]
    is_scattered: bool
    runs: Sequence[Run] = field(repr=False)
    left_out: Sequence[LeftOut] = field(repr=False)
    stopping: StoppingConfig
    notes: Sequence[str] = ()


def checked_name(name: str) -> str:
    """Return ``name``. Raises InputError if it is not a valid name of a sweep."""
    if not re.fullmatch(NAME_PATTERN, name):
        raise InputError(Problem("--name", name, "is not a valid name of a sweep", "write letters, digits, _ and -"))
    return name


def record(
    folder: Path, name: str, collected: Collected, *, replaces: bool, clock: Callable[[], float] = time.time
) -> bool:
    """Write what was ``collected`` to the ledger in ``folder``; return False if it holds exactly that already.

    Raises InputError if the folder holds trained results, or other imported ones and ``replaces`` is False, and while
    another process writes there.
    """
    trials = [_trial(run) for run in collected.runs]
    digest = _digest(trials, collected)
    if not _is_needed(folder, digest, replaces=replaces):
        return False
    imported = Imported(
        sources=collected.sources,
        judged_by=collected.judged_by,
        columns=collected.columns,
        num_runs=len(trials),
        num_left_out=len(collected.left_out),
        left_out=tuple(map(str, collected.left_out[:_MAX_NAMED])),
        digest=digest,
        imported_at=clock(),
    )
    facts = {
        "name": name,
        "objective": IMPORTED,
        "sweep_version": __version__,
        "axes": canonical_text([{"name": a.name, "scale": a.scale, "ends": a.ends} for a in collected.axes]),
        "ties": "{}",
        "is_sampled": canonical_text(collected.is_scattered),
        "num_spread": "null",
        "stopping": canonical_text(collected.stopping.model_dump()),
        IMPORTED_FACT: imported_fact(imported),
    }
    with sweep_lock(folder), LedgerWriter(folder / LEDGER, clock=clock) as ledger:
        ledger.replace_with_imported(digest[:12], trials, facts)
    return True


def _is_needed(folder: Path, digest: str, *, replaces: bool) -> bool:
    if not (folder / LEDGER).is_file():
        return True
    with LedgerReader(folder / LEDGER) as ledger:
        if not ledger.version:
            return True  # an empty file, from an interrupted import
        known, num_trials = imported_of(ledger.facts()), len(ledger.statuses())
    if known is None:
        message = f"holds a sweep of {num_trials} trials that was not imported, which an import never replaces"
        raise InputError(Problem(str(folder), "", message, "say --name NEW_NAME"))
    if known.digest == digest:
        return False
    if not replaces:
        message = f"holds {num_trials} other runs, imported from {known.source_text}"
        raise InputError(
            Problem(str(folder), "", message, "say --name NEW_NAME, or --replace to put these in their place")
        )
    return True


def _trial(run: Run) -> ImportedTrial:
    settings = run.settings
    config: dict[str, Any] = {**settings.fixed, **settings.cell}
    if settings.steps is not None:
        config["steps"] = settings.steps
    identity = trial_id(IMPORTED, config, run.seed, {})
    result = replace(run.result, trial_id=identity)
    return ImportedTrial(identity, settings.cell, run.seed, config, settings.steps or 0, result, run.curve)


def _digest(trials: Sequence[ImportedTrial], collected: Collected) -> str:
    """Hash runs, results, curves and their description, but not the time."""
    digest = hashlib.sha256()
    description = (collected.sources, collected.judged_by, dict(collected.columns), collected.is_scattered)
    digest.update(repr((description, [(a.name, a.scale, a.ends) for a in collected.axes])).encode())
    digest.update(repr([str(row) for row in collected.left_out]).encode())
    for trial in trials:
        digest.update(repr((trial.trial_id, trial.steps, trial.result)).encode())
        for name, values in (trial.curve or {}).items():
            digest.update(name.encode() + values.tobytes())
    return digest.hexdigest()

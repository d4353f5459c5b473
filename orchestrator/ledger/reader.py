"""Read a ledger: trials, curves, packs and facts. The file is never changed."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import sqlite3
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Self

from objectives.base import Rounding
from orchestrator.base.errors import InputError, Problem
from orchestrator.base.files import LEDGER
from orchestrator.base.packs import Member, ReferenceTrial
from orchestrator.base.resizes import FACT, Resize, resizes_in
from orchestrator.base.trial_result import TrialResult, ending
from orchestrator.base.vocabulary import PRUNED
from orchestrator.ledger.facts import (
    IMPORTED_FACT,
    NUMERICS_FACT,
    PACKED_FACT,
    PackedObjective,
    imported_of,
    long_note,
    packed_from_fact,
    roundings_from_fact,
)
from orchestrator.ledger.schema import (
    SCHEMA,
    CheckpointRow,
    PackRow,
    Schema,
    check_columns,
    closed_on_error,
    connect,
    damage_errors,
    pack_row,
    trial_result,
    upgraded_copy,
    version_of,
)

if TYPE_CHECKING:  # most commands read no curve, and start sooner without numpy
    import numpy as np


CURVES = ("traces", "telemetry")  # tables of pieces of curves
STRAY = "(trial_id, pack_id) NOT IN (SELECT trial_id, pack_id FROM trials WHERE pack_id IS NOT NULL)"


class LedgerReader:
    """The trials of one sweep, their history and their curves.

    In a ``with`` block it reads one state of the file, whatever a run writes meanwhile.
    """

    def __init__(self, path: Path, schema: Schema = SCHEMA) -> None:
        """Open the ledger at ``path``.

        Raises StorageError if it cannot be read, and InputError if it is from a newer version of sweep or from before
        the first release.
        """
        self.path = path
        with damage_errors(path):
            self._db, self.version = self._open(schema)
            self._db.row_factory = sqlite3.Row

    def _open(self, schema: Schema) -> tuple[sqlite3.Connection, int]:
        """Return a connection to the tables of ``schema``, and the schema of the file, 0 for an empty one."""
        db = connect(self.path, "ro")
        with closed_on_error(db):
            version = version_of(db, self.path, schema)
        if 0 < version < schema.version:
            db = upgraded_copy(db, version, schema)
        if version:
            with closed_on_error(db):
                check_columns(db, self.path, schema)
        return db, version

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def __enter__(self) -> Self:
        self._db.execute("BEGIN")
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def trials(self, *, removed: bool = False) -> list[TrialResult]:
        """Return the sweep's trials in order, without results that follow from the others of the sweep.

        ``removed`` adds trials that are no longer in the sweep, after the others.
        """
        where = "" if removed else "WHERE position IS NOT NULL"
        with self._reading():
            rows = self._db.execute(f"SELECT * FROM trials {where} ORDER BY position IS NULL, position")
            return [trial_result(row) for row in rows]  # all rows at once would take as much memory as the trials

    def trial(self, trial_id: str) -> TrialResult:
        """Return one trial, without what follows from the others of its sweep."""
        with self._reading():
            row = self._db.execute("SELECT * FROM trials WHERE trial_id = ?", (trial_id,)).fetchone()
            return trial_result(row)

    def statuses(self, *, removed: bool = False) -> dict[str, tuple[str, int]]:
        """Return status and number of attempts of the sweep's trials, by id, in order.

        ``removed`` adds trials that are no longer in the sweep.
        """
        where = "" if removed else "WHERE position IS NOT NULL"
        query = f"SELECT trial_id, status, num_attempts FROM trials {where} ORDER BY position IS NULL, position"
        with self._reading():
            return {row[0]: (row[1], row[2]) for row in self._db.execute(query)}

    def endings(self) -> dict[str, str]:
        """Return the ``ending`` of each of the sweep's finished trials, by id, in order."""
        query = (
            "SELECT trial_id, outcome, collapsed_step FROM trials"
            " WHERE position IS NOT NULL AND outcome IS NOT NULL ORDER BY position"
        )
        with self._reading():
            return {row[0]: ending(row[1], row[2]) for row in self._db.execute(query)}

    def reference_trials(self, steps: int) -> list[ReferenceTrial]:
        """Return the trials of ``steps`` with which slow ones are compared: finished ones that were not lost."""
        query = (
            "SELECT rung_losses, outcome FROM trials WHERE position IS NOT NULL"
            " AND steps = ? AND outcome IN ('stable', 'spiked', 'pruned') ORDER BY position"
        )
        with self._reading():
            return [
                ReferenceTrial(tuple(json.loads(losses)), outcome != PRUNED)
                for losses, outcome in self._db.execute(query, (steps,))
            ]

    def trace(self, trial_id: str, columns: Collection[str] | None = None) -> dict[str, np.ndarray]:
        """Return the curve of a trial's last attempt: column -> 1-D array, ordered by step; NaN if not reported.

        ``columns`` limits it to the step and existing columns of these, which takes less memory.
        """
        return self._curve("traces", trial_id, columns)

    def telemetry(self, trial_id: str) -> dict[str, np.ndarray]:
        """Return a trial's readings of telemetry in the form of ``trace``; empty without any."""
        return self._curve("telemetry", trial_id)

    def newest_piece(self, trial_id: str) -> dict[str, np.ndarray]:
        """Return the latest piece of the curve of a trial's last attempt, in the form of ``trace``; may be empty."""
        query = (
            "SELECT columns FROM traces JOIN trials USING (trial_id, pack_id) WHERE trial_id = ?"
            " ORDER BY first_step DESC LIMIT 1"
        )
        return self._joined(query, trial_id)

    def _curve(self, table: str, trial_id: str, columns: Collection[str] | None = None) -> dict[str, np.ndarray]:
        query = (
            f"SELECT columns FROM {table} JOIN trials USING (trial_id, pack_id) WHERE trial_id = ? ORDER BY first_step"
        )
        return self._joined(query, trial_id, columns)

    def _joined(self, query: str, trial_id: str, columns: Collection[str] | None = None) -> dict[str, np.ndarray]:
        from orchestrator.ledger.curve_pieces import join_pieces, unpack_piece

        with self._reading():
            pieces = (unpack_piece(row[0]) for row in self._db.execute(query, (trial_id,)))
            if columns is None:
                return join_pieces(list(pieces))
            wanted = {"step", *columns}
            return join_pieces([{name: piece[name] for name in piece if name in wanted} for piece in pieces])

    def integrity(self) -> list[str]:
        """Return problems that SQLite finds in the file and its references; empty for a sound file."""
        with self._reading():
            problems = [row[0] for row in self._db.execute("PRAGMA integrity_check(10)") if row[0] != "ok"]
            references = self._db.execute("PRAGMA foreign_key_check").fetchmany(10)
        return problems + [f"a row of {row[0]} refers to a missing row of {row[2]}" for row in references]

    def stray_curves(self) -> int:
        """Count pieces of curves that do not belong to the last attempt of their trial."""
        with self._reading():
            counts = [self._db.execute(f"SELECT COUNT(*) FROM {table} WHERE {STRAY}").fetchone() for table in CURVES]
            return sum(count for (count,) in counts)

    def facts(self) -> dict[str, str]:
        """Return facts about the sweep as a whole."""
        with self._reading():
            return dict(self._db.execute("SELECT name, value FROM facts").fetchall())

    def packed_objective(self) -> PackedObjective | None:
        """Return the facts of a custom packed objective, or None for any other and in an older ledger."""
        with self._reading():
            fact = self.facts().get(PACKED_FACT)
            return None if fact is None else packed_from_fact(fact)

    def roundings(self) -> dict[str, Rounding] | None:
        """Return what fixes results bit for bit, by structure, or None before the first run and in an older ledger."""
        with self._reading():
            fact = self.facts().get(NUMERICS_FACT)
            return None if fact is None else roundings_from_fact(fact)

    def state(self) -> str:
        """Return a hash of everything that exports and mirrors show: trials, results and facts."""
        digest = hashlib.sha256()
        with self._reading():
            for query in ("SELECT * FROM trials ORDER BY trial_id", "SELECT * FROM facts ORDER BY name"):
                for row in self._db.execute(query):
                    digest.update(repr(tuple(row)).encode())
        return digest.hexdigest()

    def packs(self) -> list[PackRow]:
        """Return every attempt at training a pack, oldest first."""
        with self._reading():
            rows = self._db.execute("SELECT * FROM packs ORDER BY started_at").fetchall()
            return [pack_row(row) for row in rows]

    def resizes(self) -> list[Resize]:
        """Return the restarts of elastic trials with another number of processes, in the order of trials."""
        with self._reading():
            known = self._db.execute(f"SELECT 1 FROM packs WHERE environment LIKE '%\"{FACT}\"%' LIMIT 1").fetchone()
            if known is None:
                return []
            query = "SELECT trial_id, pack_id FROM trials WHERE position IS NOT NULL ORDER BY position"
            last_attempts = self._db.execute(query).fetchall()
        packs = {pack.pack_id: pack for pack in self.packs()}
        found: list[Resize] = []
        for trial_id, pack_id in last_attempts:
            attempts: list[Mapping[str, str]] = []
            pack = packs.get(pack_id)
            while pack is not None:
                attempts.insert(0, pack.environment)
                pack = packs.get(pack.resumed_from or "")
            found += resizes_in(attempts, trial_id)
        return found

    def environment(self, trial_id: str) -> dict[str, str]:
        """Return machine, versions and kernels of a trial's last attempt; empty before it."""
        query = "SELECT environment FROM packs JOIN trials USING (pack_id) WHERE trial_id = ?"
        with self._reading():
            row = self._db.execute(query, (trial_id,)).fetchone()
            return {} if row is None else dict(json.loads(row[0]))

    def resumable(self) -> dict[str, list[str]]:
        """Return lost or interrupted packs that have a checkpoint, with the trials that still wait for them."""
        query = (
            "SELECT trial_id, pack_id FROM trials WHERE status IN ('lost', 'interrupted') AND position IS NOT NULL"
            " AND pack_id IN (SELECT pack_id FROM checkpoints) ORDER BY position"
        )
        waiting: dict[str, list[str]] = {}
        with self._reading():
            for trial_id, pack_id in self._db.execute(query):
                waiting.setdefault(pack_id, []).append(trial_id)
        return waiting

    def checkpoints(self, pack_id: str) -> list[CheckpointRow]:
        """Return a pack's checkpoints, newest first."""
        query = "SELECT name, sha256, ages FROM checkpoints WHERE pack_id = ? ORDER BY number DESC"
        with self._reading():
            return [CheckpointRow(row[0], row[1], json.loads(row[2])) for row in self._db.execute(query, (pack_id,))]

    def checkpoint_names(self) -> set[str]:
        """Return the files of all checkpoints that may be needed."""
        with self._reading():
            return {row[0] for row in self._db.execute("SELECT name FROM checkpoints")}

    def members(self, pack_id: str) -> list[Member]:
        """Return all members of a pack, in its order."""
        with self._reading():
            (text,) = self._db.execute("SELECT trial_ids FROM packs WHERE pack_id = ?", (pack_id,)).fetchone()
            trial_ids = json.loads(text)
        rows = [self.trial(trial_id) for trial_id in trial_ids]
        return [Member(row.trial_id, row.config, row.seed) for row in rows]

    def member_steps_per_second(self) -> float | None:
        """Return the measured speed of one worker over all packs, or None before one was timed."""
        with self._reading():
            steps, seconds = self._db.execute("SELECT SUM(member_steps), SUM(seconds) FROM packs").fetchone()
        return steps / seconds if steps and seconds else None

    def training_seconds(self) -> float:
        """Return the seconds during which any worker trained: overlapping packs count once."""
        with self._reading():
            spans = self._db.execute(
                "SELECT started_at, ended_at FROM packs WHERE ended_at IS NOT NULL ORDER BY started_at, ended_at"
            ).fetchall()
        total, end = 0.0, -math.inf
        for start, stop in spans:
            total += max(0.0, stop - max(start, end))
            end = max(end, stop)
        return total

    def _reading(self) -> contextlib.AbstractContextManager[None]:
        return damage_errors(self.path)


def is_grid(facts: Mapping[str, str]) -> bool:
    """Return whether the cells of a sweep with these ``facts`` are a grid, not scattered."""
    return facts.get("is_sampled") != "true"


def is_imported(folder: Path) -> bool:
    """Return whether the results in ``folder`` were trained elsewhere. Raises StorageError for a damaged ledger."""
    if not (folder / LEDGER).is_file():
        return False
    with LedgerReader(folder / LEDGER) as ledger:
        return bool(ledger.version) and IMPORTED_FACT in ledger.facts()


def origin_notes(*folders: Path) -> Iterator[str]:
    """Yield a line for each of ``folders`` whose results are imported, to be printed below an answer."""
    for folder in folders:
        with LedgerReader(folder / LEDGER) as ledger:
            facts = ledger.facts()
        if (note := long_note(facts)) is not None:
            yield f"note: {facts.get('name', folder.name)} is {note}"


def check_not_imported(folder: Path) -> None:
    """Raise InputError if the results in ``folder`` are imported, which cannot be trained further."""
    if is_imported(folder):
        message = "holds imported results: they were trained elsewhere, and no sweep file says how"
        raise InputError(Problem(str(folder), "", message, "train a sweep of your own under another name"))


def check_has_curves(facts: Mapping[str, str], why: str) -> None:
    """Raise InputError if the results of a sweep were imported without curves; ``why`` says what needs them."""
    imported = imported_of(facts)
    if imported is not None and not imported.has_curves:
        message = f"was imported without curves, and {why}"
        remedy = "import the runs' logs, or a table with a loss in each row (--step, --loss): `sweep import --help`"
        raise InputError(Problem(facts.get("name", ""), "", message, remedy))

"""Write a ledger, as its driver does; each change is atomic."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from orchestrator.base.files import make_folder, make_private
from orchestrator.base.packs import Pack, Report, Trace
from orchestrator.base.space import Trial, canonical_text
from orchestrator.base.trial_result import MemberResult
from orchestrator.base.vocabulary import IMPORTED
from orchestrator.detection.collapse import ROUTER_COLUMNS, collapsed_since, has_router
from orchestrator.ledger.curve_pieces import pack_piece, unpack_piece
from orchestrator.ledger.facts import ImportedTrial
from orchestrator.ledger.reader import CURVES, STRAY, LedgerReader
from orchestrator.ledger.schema import (
    FINISH,
    SCHEMA,
    Schema,
    check_columns,
    closed_on_error,
    connect,
    database_errors,
    make_or_upgrade,
    measured_values,
    version_of,
)

_CHECKPOINTS_KEPT = 2
_PLAN = (
    "INSERT INTO trials (trial_id, position, cell, seed, config, objective, steps, status)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, 'planned')"
    " ON CONFLICT (trial_id) DO UPDATE SET position = excluded.position, cell = excluded.cell"
)


class LedgerWriter(LedgerReader):
    """The ledger of a sweep for its driver, which alone writes to it.

    Opening creates the file if needed and upgrades an older schema.
    """

    def __init__(self, path: Path, schema: Schema = SCHEMA, clock: Callable[[], float] = time.time) -> None:
        """``clock`` gives the time of a record in seconds since 1970."""
        super().__init__(path, schema)
        self._clock, self._is_together = clock, False

    def _open(self, schema: Schema) -> tuple[sqlite3.Connection, int]:
        make_folder(self.path.parent)
        make_private(self.path)
        db = connect(self.path, "rwc")
        with closed_on_error(db):
            version = version_of(db, self.path, schema)
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = FULL")
            make_or_upgrade(db, version, schema)
            check_columns(db, self.path, schema)
        return db, schema.version

    def __enter__(self) -> Self:
        return self

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Commit everything that is recorded inside at once, or nothing: each commit waits for the disk."""
        self._is_together = True
        try:
            with database_errors(self.path), self._db:
                yield
        finally:
            self._is_together = False

    def plan(self, objective: str, trials: Sequence[Trial], facts: Mapping[str, str]) -> None:
        """Make the sweep consist of ``trials``: new ones are planned, others leave the map."""
        with self._transaction() as db:
            db.execute("UPDATE trials SET position = NULL")
            db.executemany(_PLAN, _planned(objective, trials, 0))
            db.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?)", list(facts.items()))

    def propose(self, objective: str, trials: Sequence[Trial]) -> None:
        """Add ``trials`` to the end of the sweep."""
        if not trials:
            return  # a search that waits is asked after each result
        with self._transaction() as db:
            (last,) = db.execute("SELECT COALESCE(MAX(position), -1) FROM trials").fetchone()
            db.executemany(_PLAN, _planned(objective, trials, last + 1))

    def replace_with_imported(self, pack_id: str, trials: Sequence[ImportedTrial], facts: Mapping[str, str]) -> None:
        """Replace the whole content by imported ``trials``, as the results of a single pack."""
        now = self._clock()
        with self._transaction() as db:
            for table in (*CURVES, "checkpoints", "trials", "packs", "facts"):
                db.execute(f"DELETE FROM {table}")
            db.executemany("INSERT INTO facts VALUES (?, ?)", list(facts.items()))
            db.execute(
                "INSERT INTO packs (pack_id, trial_ids, executor, started_at, ended_at, ended)"
                " VALUES (?, ?, ?, ?, ?, 'done')",
                (pack_id, json.dumps([trial.trial_id for trial in trials]), IMPORTED, now, now),
            )
            db.executemany(_PLAN, _planned(IMPORTED, trials, 0))
            db.execute("UPDATE trials SET num_attempts = 1, pack_id = ?", (pack_id,))
            for trial in trials:
                self._finish(db, trial.result)
                if trial.curve is not None:
                    self._add_curves(db, "traces", pack_id, {trial.trial_id: trial.curve()})

    def release_abandoned(self) -> int:
        """Mark trials that a dead driver left running as lost. Return their number."""
        with self._transaction() as db:
            db.execute("UPDATE packs SET ended = 'lost' WHERE ended IS NULL")
            reason = "the driver died while it ran"
            return db.execute(
                "UPDATE trials SET status = 'lost', reason = ? WHERE status = 'running'", (reason,)
            ).rowcount

    def release_errored(self) -> None:
        """Plan errored trials again."""
        with self._transaction() as db:
            db.execute(
                "UPDATE trials SET status = 'planned', num_attempts = 0, error = NULL, reason = NULL"
                " WHERE status = 'errored'"
            )

    def start_pack(self, pack: Pack, executor: str, resumed_from: str | None = None) -> None:
        """Record the start of a pack: a new attempt at each of its trials.

        A resumed pack takes over checkpoints of the attempt ``resumed_from``, and its curves up to where it resumes.
        """
        now = self._clock()
        ages = pack.resumed_ages
        with self._transaction() as db:
            db.execute(
                "INSERT INTO packs (pack_id, trial_ids, executor, started_at, resumed_from) VALUES (?, ?, ?, ?, ?)",
                (pack.pack_id, json.dumps(pack.trial_ids), executor, now, resumed_from),
            )
            if resumed_from is not None:
                db.execute(
                    "INSERT INTO checkpoints SELECT ?, number, name, sha256, ages FROM checkpoints WHERE pack_id = ?",
                    (pack.pack_id, resumed_from),
                )
            for trial_id in pack.trained_ids:
                for table in CURVES:
                    self._cut_curve(db, table, trial_id, resumed_from or "", pack.pack_id, ages.get(trial_id, 0))
            db.executemany(
                "UPDATE trials SET status = 'running', num_attempts = num_attempts + 1, pack_id = ?,"
                " started_at = ?, reason = NULL, error = NULL WHERE trial_id = ? AND status != 'finished'",
                [(pack.pack_id, now, trial_id) for trial_id in pack.trained_ids],
            )
            self._forget_checkpoints(db)

    def _cut_curve(
        self, db: sqlite3.Connection, table: str, trial_id: str, old_pack: str, pack_id: str, age: int
    ) -> None:
        """Move a trial's curve up to step ``age`` to its new attempt, and delete the rest."""
        db.execute(
            f"DELETE FROM {table} WHERE trial_id = ? AND (pack_id != ? OR first_step >= ?)", (trial_id, old_pack, age)
        )
        last = db.execute(
            f"SELECT first_step, columns FROM {table} WHERE trial_id = ? ORDER BY first_step DESC LIMIT 1", (trial_id,)
        ).fetchone()
        if last is not None:
            with self._reading():
                piece = unpack_piece(last["columns"])
            kept = {name: values[piece["step"] < age] for name, values in piece.items()}
            db.execute(
                f"UPDATE {table} SET columns = ? WHERE trial_id = ? AND first_step = ?",
                (pack_piece(kept), trial_id, last["first_step"]),
            )
        db.execute(f"UPDATE {table} SET pack_id = ? WHERE trial_id = ?", (pack_id, trial_id))

    def record(self, report: Report, checkpoint: tuple[str, str] | None = None) -> None:
        """Record one report: curves, results and training time.

        Trials that the pack no longer owns are ignored. The first report after a restart deletes earlier curves.
        ``checkpoint`` is name and sha256 of the file with the report's checkpoint.
        """
        with self._transaction() as db:
            db.execute(
                "UPDATE packs SET member_steps = ?, seconds = ? WHERE pack_id = ?",
                (report.member_steps, report.seconds, report.pack_id),
            )
            if report.environment:
                db.execute(
                    "UPDATE packs SET environment = ? WHERE pack_id = ?",
                    (canonical_text(dict(report.environment)), report.pack_id),
                )
            owned = self._running_in(report.pack_id)
            for table, curves in (("traces", report.traces), ("telemetry", report.telemetry)):
                if report.is_from_start:
                    db.executemany(f"DELETE FROM {table} WHERE trial_id = ?", [(trial_id,) for trial_id in owned])
                owned_curves = {trial_id: curve for trial_id, curve in curves.items() if trial_id in owned}
                self._add_curves(db, table, report.pack_id, owned_curves)
            for result in report.finished:
                if result.trial_id in owned:
                    newest = report.telemetry.get(result.trial_id)
                    self._finish(db, result if newest and not has_router(newest) else self._with_collapse(result))
            if checkpoint is not None and report.checkpoint is not None and owned:
                self._add_checkpoint(db, report.pack_id, *checkpoint, report.checkpoint.ages)

    def _add_curves(self, db: sqlite3.Connection, table: str, pack_id: str, curves: Mapping[str, Trace]) -> None:
        """Add a piece to the curve of each trial; empty pieces are left out."""
        db.executemany(
            f"INSERT OR REPLACE INTO {table} VALUES (?, ?, ?, ?)",
            [
                (trial_id, pack_id, int(curve["step"][0]), pack_piece(curve))
                for trial_id, curve in curves.items()
                if len(curve["step"])
            ],
        )

    def _add_checkpoint(
        self, db: sqlite3.Connection, pack_id: str, name: str, sha256: str, ages: Mapping[str, int]
    ) -> None:
        query = "SELECT COALESCE(MAX(number), 0) FROM checkpoints WHERE pack_id = ?"
        number = 1 + db.execute(query, (pack_id,)).fetchone()[0]
        db.execute(
            "INSERT INTO checkpoints VALUES (?, ?, ?, ?, ?)", (pack_id, number, name, sha256, json.dumps(dict(ages)))
        )
        db.execute("DELETE FROM checkpoints WHERE pack_id = ? AND number <= ?", (pack_id, number - _CHECKPOINTS_KEPT))

    def _forget_checkpoints(self, db: sqlite3.Connection) -> None:
        """Delete checkpoints of packs that are not resumed."""
        db.execute(
            "DELETE FROM checkpoints WHERE NOT EXISTS (SELECT * FROM trials"
            " WHERE trials.pack_id = checkpoints.pack_id AND status IN ('running', 'interrupted', 'lost'))"
        )

    def end_pack(
        self,
        pack_id: str,
        ended: str,
        status: str,
        reason: str,
        error: str | None = None,
        waited: Iterable[str] = (),
    ) -> None:
        """Record the end of a pack. Unfinished trials get ``status``, and ``waited`` ones are planned again."""
        with self._transaction() as db:
            db.executemany(
                "UPDATE trials SET status = 'planned', num_attempts = num_attempts - 1"
                " WHERE trial_id = ? AND pack_id = ? AND status = 'running'",
                [(trial_id, pack_id) for trial_id in waited],
            )
            db.execute("UPDATE packs SET ended = ?, ended_at = ? WHERE pack_id = ?", (ended, self._clock(), pack_id))
            db.execute(
                "UPDATE trials SET status = ?, reason = ?, error = ? WHERE pack_id = ? AND status = 'running'",
                (status, reason, error, pack_id),
            )
            self._forget_checkpoints(db)

    def forget_stray_curves(self) -> None:
        """Delete pieces of curves that do not belong to the last attempt of their trial."""
        with self._transaction() as db:
            for table in CURVES:
                db.execute(f"DELETE FROM {table} WHERE {STRAY}")

    def drop_newest_checkpoint(self, pack_id: str) -> None:
        """Delete the record of a pack's newest checkpoint, which proved unusable."""
        with self._transaction() as db:
            db.execute(
                "DELETE FROM checkpoints WHERE pack_id = ? AND number ="
                " (SELECT MAX(number) FROM checkpoints WHERE pack_id = ?)",
                (pack_id, pack_id),
            )

    def give_up(self, trial_ids: Iterable[str], reason: str) -> None:
        """Mark trials as errored that were lost too often."""
        with self._transaction() as db:
            db.executemany(
                "UPDATE trials SET status = 'errored', reason = ? WHERE trial_id = ?",
                [(reason, trial_id) for trial_id in trial_ids],
            )

    def _with_collapse(self, result: MemberResult) -> MemberResult:
        """Return a result with the step of the router's collapse: its readings of all attempts are here alone."""
        readings = self._curve("telemetry", result.trial_id, ROUTER_COLUMNS)
        return replace(result, collapsed_step=collapsed_since(readings)) if has_router(readings) else result

    def _finish(self, db: sqlite3.Connection, result: MemberResult) -> None:
        values = {**measured_values(result), "trial_id": result.trial_id, "finished_at": self._clock()}
        db.execute(FINISH, values)

    def _running_in(self, pack_id: str) -> set[str]:
        query = "SELECT trial_id FROM trials WHERE pack_id = ? AND status = 'running'"
        return {row[0] for row in self._db.execute(query, (pack_id,))}

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        if self._is_together:
            if not self._db.in_transaction:
                self._db.execute("BEGIN IMMEDIATE")
            yield self._db
            return
        with database_errors(self.path), self._db:
            self._db.execute("BEGIN IMMEDIATE")
            yield self._db


def _planned(objective: str, trials: Sequence[Trial | ImportedTrial], first: int) -> list[tuple[Any, ...]]:
    """Return the values of ``_PLAN`` for each trial; positions begin at ``first``."""
    return [
        (t.trial_id, i, json.dumps(dict(t.cell)), t.seed, canonical_text(t.config), objective, t.steps)
        for i, t in enumerate(trials, first)
    ]

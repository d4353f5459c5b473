"""The SQLite file that says what is true about a sweep. One writer: the driver."""

from __future__ import annotations

import contextlib
import datetime
import functools
import hashlib
import json
import math
import sqlite3
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from orchestrator.errors import InputError, Problem, StorageError
from orchestrator.files import free_space, make_folder, make_private
from orchestrator.ledger.curve_pieces import join_pieces, pack_piece, unpack_piece
from orchestrator.messages import Finished, Member, Pack, Report
from orchestrator.space import Trial, canonical_json, frozen

SCHEMA_VERSION = 6
STATUSES = ("planned", "running", "finished", "interrupted", "lost", "errored")
_BUSY_TIMEOUT_S = 20.0
_CHECKPOINTS_KEPT = 2
_FIRST_TELEMETRY = 5  # schema
_CURVES = ("traces", "telemetry")  # tables of pieces of curves
_STRAY = "(trial_id, pack_id) NOT IN (SELECT trial_id, pack_id FROM trials WHERE pack_id IS NOT NULL)"

_SCHEMA = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE trials (
    trial_id TEXT PRIMARY KEY,
    position INTEGER,              -- order in the sweep; NULL once the sweep no longer has the trial
    cell TEXT NOT NULL,            -- JSON: axis -> value, in the order of the axes
    seed INTEGER NOT NULL,
    config TEXT NOT NULL,          -- JSON: the full resolved configuration
    objective TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN
        ('planned', 'running', 'finished', 'interrupted', 'lost', 'errored')),
    num_attempts INTEGER NOT NULL DEFAULT 0,
    outcome TEXT CHECK (outcome IN ('stable', 'spiked', 'diverged', 'stalled')),
    onset_step INTEGER,
    num_spikes INTEGER,
    steps INTEGER NOT NULL,
    steps_done INTEGER,
    initial_loss REAL,
    best_loss REAL,
    final_loss REAL,
    peak_loss REAL,
    validation_loss REAL,
    verdict_step INTEGER,          -- when it was found lost, if it was
    is_audited INTEGER NOT NULL DEFAULT 0,  -- trains on after that
    episodes TEXT NOT NULL DEFAULT '[]',    -- JSON: [onset, recovery or null] of each time off its trend
    reason TEXT,                   -- why this outcome, or what went wrong
    error TEXT,                    -- tail of the traceback of an errored trial
    pack_id TEXT,
    started_at REAL,               -- seconds since 1970, of the last attempt
    finished_at REAL,
    CHECK ((status = 'finished') = (outcome IS NOT NULL))
);
CREATE INDEX trials_of_packs ON trials (pack_id, status);
CREATE TABLE packs (               -- one row per try at training some trials together
    pack_id TEXT PRIMARY KEY,
    trial_ids TEXT NOT NULL,       -- JSON list
    executor TEXT NOT NULL,
    started_at REAL NOT NULL,
    ended_at REAL,
    ended TEXT,                    -- done, errored, lost or interrupted
    member_steps INTEGER NOT NULL DEFAULT 0,
    seconds REAL NOT NULL DEFAULT 0,
    environment TEXT NOT NULL DEFAULT '{}',
    resumed_from TEXT              -- the earlier attempt whose checkpoint it began with
);
CREATE TABLE checkpoints (         -- the newest two of each pack that may have to go on
    pack_id TEXT NOT NULL REFERENCES packs,
    number INTEGER NOT NULL,
    name TEXT NOT NULL,            -- of the file in checkpoints/
    sha256 TEXT NOT NULL,
    ages TEXT NOT NULL,            -- JSON: trial -> steps behind it
    PRIMARY KEY (pack_id, number)
);
CREATE TABLE traces (              -- curves, in the pieces in which they arrived
    trial_id TEXT NOT NULL REFERENCES trials,
    pack_id TEXT NOT NULL REFERENCES packs,
    first_step INTEGER NOT NULL,
    columns BLOB NOT NULL,         -- a compressed .npy table, a field per column
    PRIMARY KEY (trial_id, pack_id, first_step)
);
CREATE TABLE telemetry (           -- what is read every few steps, as traces are kept
    trial_id TEXT NOT NULL REFERENCES trials,
    pack_id TEXT NOT NULL REFERENCES packs,
    first_step INTEGER NOT NULL,
    columns BLOB NOT NULL,
    PRIMARY KEY (trial_id, pack_id, first_step)
);
"""

# What brings the ledger of schema N to schema N + 1.
_UPGRADES = {
    1: "ALTER TABLE trials ADD COLUMN verdict_step INTEGER;"
    " ALTER TABLE trials ADD COLUMN is_audited INTEGER NOT NULL DEFAULT 0;",
    # New pieces of curves are small tables; the .npz archives of old ones are still read.
    2: " ALTER TABLE trials ADD COLUMN episodes TEXT NOT NULL DEFAULT '[]';",
    3: " ALTER TABLE packs ADD COLUMN resumed_from TEXT;"
    " CREATE TABLE checkpoints (pack_id TEXT NOT NULL REFERENCES packs, number INTEGER NOT NULL, name TEXT NOT NULL,"
    " sha256 TEXT NOT NULL, ages TEXT NOT NULL, PRIMARY KEY (pack_id, number));",
    4: " CREATE TABLE telemetry (trial_id TEXT NOT NULL REFERENCES trials, pack_id TEXT NOT NULL REFERENCES packs,"
    " first_step INTEGER NOT NULL, columns BLOB NOT NULL, PRIMARY KEY (trial_id, pack_id, first_step));",
    5: " CREATE INDEX trials_of_packs ON trials (pack_id, status);",
}


@functools.cache
def _columns() -> dict[str, set[str]]:
    """The columns of each table of this version."""
    with contextlib.closing(sqlite3.connect(":memory:")) as db:
        db.executescript(_SCHEMA)
        tables = [row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {table: {row[1] for row in db.execute(f"PRAGMA table_info({table})")} for table in tables}


class Ledger:
    """The trials of one sweep, what happened to them, and their curves."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        """Open the ledger at ``path``; make it unless ``read_only``.

        Raises StorageError when it cannot be read or written, InputError when a newer version of
        sweep wrote it.
        """
        self.path = path
        with self._errors():
            if not read_only:
                make_folder(path.parent)
                make_private(path)
            uri = f"{path.absolute().as_uri()}?mode={'ro' if read_only else 'rwc'}"
            self._db = sqlite3.connect(uri, uri=True, timeout=_BUSY_TIMEOUT_S)
            try:
                self._prepare(read_only)
            except BaseException:
                self._db.close()
                raise

    def _prepare(self, read_only: bool) -> None:
        """Make or upgrade the tables of a file that may be written."""
        self._db.row_factory = sqlite3.Row
        if not read_only:
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
        version = self._db.execute("PRAGMA user_version").fetchone()[0]
        if version > SCHEMA_VERSION:
            found = f"was written by a newer sweep (schema {version})"
            raise InputError(Problem(str(self.path), "", found, "upgrade sweep"))
        if version == SCHEMA_VERSION:
            self._check_columns()
        if read_only or version == SCHEMA_VERSION:
            return
        script = _SCHEMA if version == 0 else " ".join(_UPGRADES[old] for old in range(version, SCHEMA_VERSION))
        self._db.executescript(f"BEGIN; {script} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;")

    def _check_columns(self) -> None:
        """Raise StorageError when the tables are not those of this version."""
        with self._reading():
            for table, columns in _columns().items():
                found = [row[1] for row in self._db.execute(f"PRAGMA table_info({table})")]
                if set(found) != columns:
                    raise StorageError(f"{self.path}: is damaged: the table {table} has other columns")

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- writing: the driver alone ---------------------------------------------------------------

    def plan(self, objective: str, trials: Sequence[Trial], facts: Mapping[str, str]) -> None:
        """Make the sweep consist of ``trials``: new ones are planned, others leave the map."""
        rows = [
            (t.trial_id, i, json.dumps(dict(t.cell)), t.seed, canonical_json(t.config), objective, t.config["steps"])
            for i, t in enumerate(trials)
        ]
        with self._transaction() as db:
            db.execute("UPDATE trials SET position = NULL")
            db.executemany(
                "INSERT INTO trials (trial_id, position, cell, seed, config, objective, steps, status)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, 'planned')"
                " ON CONFLICT (trial_id) DO UPDATE SET position = excluded.position, cell = excluded.cell",
                rows,
            )
            db.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?)", list(facts.items()))

    def release_abandoned(self) -> int:
        """Mark what a dead driver left running as lost; returns how many trials that were."""
        with self._transaction() as db:
            db.execute("UPDATE packs SET ended = 'lost' WHERE ended IS NULL")
            reason = "the driver died while it ran"
            return db.execute(
                "UPDATE trials SET status = 'lost', reason = ? WHERE status = 'running'", (reason,)
            ).rowcount

    def release_errored(self) -> None:
        """Plan errored trials once more."""
        with self._transaction() as db:
            db.execute(
                "UPDATE trials SET status = 'planned', num_attempts = 0, error = NULL, reason = NULL"
                " WHERE status = 'errored'"
            )

    def start_pack(self, pack: Pack, executor: str, resumed_from: str | None = None) -> None:
        """A pack begins to train: a new attempt of each of its trials.

        With ``pack.resume`` the curves and checkpoints of the attempt ``resumed_from`` are this one's, up to
        where it goes on.
        """
        now = _now()
        ages = pack.resume.ages if pack.resume is not None else {}
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
                for table in _CURVES:
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
        """Give a trial's curve up to step ``age`` to its new attempt, and forget the rest."""
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
        """Take one report in: curves, results and the time it took, all or nothing.

        What comes from a pack that no longer owns a trial is ignored, and what a pack reported before it began
        anew is forgotten. ``checkpoint`` is the name and the sha256 of the file in which the report's checkpoint is.
        """
        with self._transaction() as db:
            db.execute(
                "UPDATE packs SET member_steps = ?, seconds = ? WHERE pack_id = ?",
                (report.member_steps, report.seconds, report.pack_id),
            )
            if report.environment:
                db.execute(
                    "UPDATE packs SET environment = ? WHERE pack_id = ?",
                    (canonical_json(dict(report.environment)), report.pack_id),
                )
            owned = self._running_in(report.pack_id)
            for table, curves in (("traces", report.traces), ("telemetry", report.telemetry)):
                if report.begins_anew:
                    db.executemany(f"DELETE FROM {table} WHERE trial_id = ?", [(trial_id,) for trial_id in owned])
                db.executemany(
                    f"INSERT OR REPLACE INTO {table} VALUES (?, ?, ?, ?)",
                    [
                        (trial_id, report.pack_id, int(curve["step"][0]), pack_piece(curve))
                        for trial_id, curve in curves.items()
                        if trial_id in owned and len(curve["step"])
                    ],
                )
            for finished in report.finished:
                if finished.trial_id in owned:
                    self._finish(db, finished)
            if checkpoint is not None and report.checkpoint is not None and owned:
                self._add_checkpoint(db, report.pack_id, *checkpoint, report.checkpoint.ages)

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
        """Drop those of packs that nobody goes on with."""
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
        """A pack is over; its trials that have not finished get ``status``, those that ``waited`` are planned."""
        with self._transaction() as db:
            db.executemany(
                "UPDATE trials SET status = 'planned', num_attempts = num_attempts - 1"
                " WHERE trial_id = ? AND pack_id = ? AND status = 'running'",
                [(trial_id, pack_id) for trial_id in waited],
            )
            db.execute("UPDATE packs SET ended = ?, ended_at = ? WHERE pack_id = ?", (ended, _now(), pack_id))
            db.execute(
                "UPDATE trials SET status = ?, reason = ?, error = ? WHERE pack_id = ? AND status = 'running'",
                (status, reason, error, pack_id),
            )
            self._forget_checkpoints(db)

    def forget_stray_curves(self) -> None:
        """Delete pieces of curves that do not belong to the last attempt of their trial."""
        with self._transaction() as db:
            for table in _CURVES:
                db.execute(f"DELETE FROM {table} WHERE {_STRAY}")

    def drop_newest_checkpoint(self, pack_id: str) -> None:
        """Forget a pack's newest checkpoint, which turned out to be of no use."""
        with self._transaction() as db:
            db.execute(
                "DELETE FROM checkpoints WHERE pack_id = ? AND number ="
                " (SELECT MAX(number) FROM checkpoints WHERE pack_id = ?)",
                (pack_id, pack_id),
            )

    def give_up(self, trial_ids: Iterable[str], reason: str) -> None:
        """Trials that were lost too often are errored."""
        with self._transaction() as db:
            db.executemany(
                "UPDATE trials SET status = 'errored', reason = ? WHERE trial_id = ?",
                [(reason, trial_id) for trial_id in trial_ids],
            )

    def _finish(self, db: sqlite3.Connection, finished: Finished) -> None:
        db.execute(
            "UPDATE trials SET status = 'finished', outcome = ?, onset_step = ?, num_spikes = ?,"
            " steps_done = ?, initial_loss = ?, best_loss = ?, final_loss = ?, peak_loss = ?,"
            " validation_loss = ?, verdict_step = ?, is_audited = ?, episodes = ?, reason = ?, error = NULL,"
            " finished_at = ? WHERE trial_id = ?",
            (
                finished.outcome,
                finished.onset_step,
                finished.num_spikes,
                finished.steps_done,
                *map(_finite, (finished.initial_loss, finished.best_loss, finished.final_loss)),
                *map(_finite, (finished.peak_loss, finished.validation_loss)),
                finished.verdict_step,
                int(finished.is_audited),
                json.dumps(finished.episodes),
                finished.reason,
                _now(),
                finished.trial_id,
            ),
        )

    def _running_in(self, pack_id: str) -> set[str]:
        query = "SELECT trial_id FROM trials WHERE pack_id = ? AND status = 'running'"
        return {row[0] for row in self._db.execute(query, (pack_id,))}

    # --- reading ---------------------------------------------------------------------------------

    def trials(self, *, removed: bool = False) -> list[dict[str, Any]]:
        """Rows of the sweep's trials in order, ``cell`` and ``config`` as mappings.

        With ``removed`` also those that the sweep no longer has, after the others.
        """
        where = "" if removed else "WHERE position IS NOT NULL"
        with self._reading():
            rows = self._db.execute(f"SELECT * FROM trials {where} ORDER BY position IS NULL, position").fetchall()
            return [_trial(row) for row in rows]

    def trial(self, trial_id: str) -> dict[str, Any]:
        """The row of one trial."""
        with self._reading():
            row = self._db.execute("SELECT * FROM trials WHERE trial_id = ?", (trial_id,)).fetchone()
            return _trial(row)

    def statuses(self, *, removed: bool = False) -> dict[str, tuple[str, int]]:
        """Status and number of attempts of each of the sweep's trials, by id, in order.

        With ``removed`` also of those that the sweep no longer has.
        """
        where = "" if removed else "WHERE position IS NOT NULL"
        query = f"SELECT trial_id, status, num_attempts FROM trials {where} ORDER BY position IS NULL, position"
        with self._reading():
            return {row[0]: (row[1], row[2]) for row in self._db.execute(query)}

    def outcomes(self) -> dict[str, str]:
        """The outcome of each of the sweep's trials that has one, by id, in order."""
        query = (
            "SELECT trial_id, outcome FROM trials WHERE position IS NOT NULL AND outcome IS NOT NULL ORDER BY position"
        )
        with self._reading():
            return dict(self._db.execute(query).fetchall())

    def trace(self, trial_id: str, columns: Collection[str] | None = None) -> dict[str, np.ndarray]:
        """The curve of a trial's last attempt: column -> 1-D array, ordered by step; NaN for what was not said.

        With ``columns`` only the step and those of them that there are, which takes less memory.
        """
        return self._curve("traces", trial_id, columns)

    def telemetry(self, trial_id: str) -> dict[str, np.ndarray]:
        """What was read of a trial every few steps, as ``trace``; nothing where nothing was read."""
        return self._curve("telemetry", trial_id) if self.version >= _FIRST_TELEMETRY else {}

    def _curve(self, table: str, trial_id: str, columns: Collection[str] | None = None) -> dict[str, np.ndarray]:
        query = (
            f"SELECT columns FROM {table} JOIN trials USING (trial_id, pack_id) WHERE trial_id = ? ORDER BY first_step"
        )
        with self._reading():
            pieces = (unpack_piece(row[0]) for row in self._db.execute(query, (trial_id,)))
            if columns is None:
                return join_pieces(list(pieces))
            wanted = {"step", *columns}
            return join_pieces([{name: piece[name] for name in piece if name in wanted} for piece in pieces])

    @property
    def version(self) -> int:
        """The schema of the file."""
        with self._reading():
            return self._db.execute("PRAGMA user_version").fetchone()[0]

    def integrity(self) -> list[str]:
        """What SQLite finds wrong with the file and its references; nothing for a sound one."""
        with self._reading():
            problems = [row[0] for row in self._db.execute("PRAGMA integrity_check(10)") if row[0] != "ok"]
            references = self._db.execute("PRAGMA foreign_key_check").fetchmany(10)
        return problems + [f"a row of {row[0]} refers to {row[2]} that is not there" for row in references]

    def stray_curves(self) -> int:
        """Pieces of curves that do not belong to the last attempt of their trial."""
        with self._reading():
            counts = [self._db.execute(f"SELECT COUNT(*) FROM {table} WHERE {_STRAY}").fetchone() for table in _CURVES]
            return sum(count for (count,) in counts)

    def facts(self) -> dict[str, str]:
        """What is known of the sweep as a whole."""
        with self._reading():
            return dict(self._db.execute("SELECT name, value FROM facts").fetchall())

    def state(self) -> str:
        """A hash of all that exports and mirrors show: trials with their results, and facts of the sweep."""
        digest = hashlib.sha256()
        with self._reading():
            for query in ("SELECT * FROM trials ORDER BY trial_id", "SELECT * FROM facts ORDER BY name"):
                for row in self._db.execute(query):
                    digest.update(repr(tuple(row)).encode())
        return digest.hexdigest()

    def packs(self) -> list[dict[str, Any]]:
        """Every try at training a pack, oldest first."""
        with self._reading():
            rows = self._db.execute("SELECT * FROM packs ORDER BY started_at").fetchall()
            return [{**dict(row), "environment": json.loads(row["environment"])} for row in rows]

    def resumable(self) -> dict[str, list[str]]:
        """Packs that were lost or interrupted and have a checkpoint, with the trials that still wait for them."""
        query = (
            "SELECT trial_id, pack_id FROM trials WHERE status IN ('lost', 'interrupted') AND position IS NOT NULL"
            " AND pack_id IN (SELECT pack_id FROM checkpoints) ORDER BY position"
        )
        found: dict[str, list[str]] = {}
        with self._reading():
            for trial_id, pack_id in self._db.execute(query):
                found.setdefault(pack_id, []).append(trial_id)
        return found

    def checkpoints(self, pack_id: str) -> list[dict[str, Any]]:
        """Name, sha256 and ages of a pack's checkpoints, newest first."""
        query = "SELECT name, sha256, ages FROM checkpoints WHERE pack_id = ? ORDER BY number DESC"
        with self._reading():
            return [{**dict(row), "ages": json.loads(row["ages"])} for row in self._db.execute(query, (pack_id,))]

    def checkpoint_names(self) -> set[str]:
        """Files of all checkpoints that may be needed."""
        with self._reading():
            return {row[0] for row in self._db.execute("SELECT name FROM checkpoints")}

    def members(self, pack_id: str) -> list[Member]:
        """All members of a pack, in its order."""
        with self._reading():
            (found,) = self._db.execute("SELECT trial_ids FROM packs WHERE pack_id = ?", (pack_id,)).fetchone()
            trial_ids = json.loads(found)
        rows = [self.trial(trial_id) for trial_id in trial_ids]
        return [Member(row["trial_id"], row["config"], row["seed"]) for row in rows]

    def member_steps_per_second(self) -> float | None:
        """Measured speed of one worker over all packs, or None before one was timed."""
        with self._reading():
            steps, seconds = self._db.execute("SELECT SUM(member_steps), SUM(seconds) FROM packs").fetchone()
        return steps / seconds if steps and seconds else None

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """What is in the file may be anything: damage must look like damage, not like a fault of ours."""
        try:
            with self._errors():
                yield
        except (ValueError, TypeError, LookupError, EOFError, zlib.error) as error:
            raise StorageError(f"{self.path}: is damaged: {str(error)[:200]}") from error

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._errors(), self._db:
            self._db.execute("BEGIN IMMEDIATE")
            yield self._db

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.DatabaseError, OSError) as error:
            raise StorageError(f"{self.path}: {error}{free_space(self.path)}") from error


def _trial(row: sqlite3.Row) -> dict[str, Any]:
    """A row of the table of trials; values of its cell can be keys."""
    cell = {name: frozen(value) for name, value in json.loads(row["cell"]).items()}
    return {**dict(row), "cell": cell, "config": json.loads(row["config"])}


def _now() -> float:
    return datetime.datetime.now(datetime.UTC).timestamp()


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None

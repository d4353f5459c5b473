"""The tables of a ledger, their version number, and how a file gets them."""

from __future__ import annotations

import contextlib
import functools
import sqlite3
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.base.errors import InputError, Problem, StorageError
from orchestrator.base.files import free_space

# SQLite's mark of the application that a file belongs to. Ledgers from before the first release lack it and have their
# own numbers: without the mark, their schemas 1 to 6 would be confused with those of today.
APPLICATION_ID = int.from_bytes(b"swep")

_TABLES = """
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
    outcome TEXT CHECK (outcome IN ('stable', 'spiked', 'diverged', 'stalled', 'unknown', 'pruned')),
    onset_step INTEGER,
    num_spikes INTEGER,
    steps INTEGER NOT NULL,
    steps_done INTEGER,
    initial_loss REAL,
    best_loss REAL,
    final_loss REAL,
    peak_loss REAL,
    peak_factor REAL,              -- tallest episode, as a factor of the level before it
    off_share REAL,                -- share of the steps off the trend
    risen_share REAL,              -- of what it learned, given up in a slow rise
    validation_loss REAL,
    best_validation_loss REAL,     -- lowest of its validations
    best_validation_step INTEGER,
    overfit_step INTEGER,          -- from where on its validation loss rose and its training loss did not
    verdict_step INTEGER,          -- when it was found lost, if it was
    slow_step INTEGER,             -- when it was found slow beside others, if it was
    plateau_step INTEGER,          -- when its validation loss had stopped improving, if it had
    is_audited INTEGER NOT NULL DEFAULT 0,  -- trains on after any of these
    episodes TEXT NOT NULL DEFAULT '[]',    -- JSON: [onset, recovery or null] of each time off its trend
    norm_rises TEXT NOT NULL DEFAULT '[]',  -- JSON: steps at which the gradient norm had risen by half
    curve_digest TEXT,             -- of steps and losses, where a custom trainer may repeat a run
    rung_losses TEXT NOT NULL DEFAULT '[]', -- JSON: its loss at each rung that it reached, where slow ones are pruned
    reason TEXT,                   -- why this outcome, or what went wrong
    error TEXT,                    -- tail of the traceback of an errored trial
    pack_id TEXT,
    started_at REAL,               -- seconds since 1970, of the last attempt
    finished_at REAL,
    fired TEXT NOT NULL DEFAULT '[]',       -- JSON: what the rules of its control did, and why
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


@dataclass(frozen=True, slots=True)
class Schema:
    """The tables of one version of the ledger. The SQL ``upgrades[n]`` turns schema n into n + 1."""

    version: int
    tables: str = field(repr=False)
    upgrades: Mapping[int, str] = field(default_factory=dict, repr=False, hash=False)


SCHEMA = Schema(2, _TABLES, {1: "ALTER TABLE trials ADD COLUMN fired TEXT NOT NULL DEFAULT '[]';"})


def version_of(db: sqlite3.Connection, path: Path, schema: Schema) -> int:
    """The schema of a file, 0 for an empty one.

    Raises InputError for a file from a newer version of sweep, or from before the first release.
    """
    with db:
        db.execute("BEGIN")  # a consistent state of the file, even while another process creates its tables
        (owner,) = db.execute("PRAGMA application_id").fetchone()
        (version,) = db.execute("PRAGMA user_version").fetchone()
        (num_tables,) = db.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
    if owner == 0 and num_tables == 0:
        return 0
    if owner != APPLICATION_ID:
        found = "is a ledger from before version 0.1.0, which this version of sweep does not read"
        remedy = "run the sweep again under another name, or move its folder away"
        raise InputError(Problem(str(path), "", found, remedy))
    if version > schema.version:
        raise InputError(Problem(str(path), "", f"was written by a newer sweep (schema {version})", "upgrade sweep"))
    return version


def make_or_upgrade(db: sqlite3.Connection, version: int, schema: Schema) -> None:
    """Upgrade a file of schema ``version`` to ``schema``, atomically."""
    if version == schema.version:
        return
    upgrades = (schema.upgrades[old] for old in range(version, schema.version)) if version else (schema.tables,)
    numbers = f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {schema.version};"
    db.executescript(f"BEGIN; {' '.join(upgrades)} {numbers} COMMIT;")


def check_columns(db: sqlite3.Connection, path: Path, schema: Schema) -> None:
    """Raise StorageError when the tables do not have the columns of ``schema``."""
    for table, columns in _columns(schema.tables).items():
        if {row[1] for row in db.execute(f"PRAGMA table_info({table})")} != columns:
            raise StorageError(f"{path}: is damaged: the table {table} has other columns")


@functools.cache
def _columns(script: str) -> dict[str, set[str]]:
    """The columns of each table that ``script`` creates."""
    with contextlib.closing(sqlite3.connect(":memory:")) as db:
        db.executescript(script)
        tables = [row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {table: {row[1] for row in db.execute(f"PRAGMA table_info({table})")} for table in tables}


@contextlib.contextmanager
def database_errors(path: Path) -> Iterator[None]:
    """Turn errors of SQLite and the system into a StorageError that names path, cause and free space."""
    try:
        yield
    except (sqlite3.DatabaseError, OSError) as error:
        raise StorageError(f"{path}: {error}{free_space(path)}") from error


@contextlib.contextmanager
def damage_errors(path: Path) -> Iterator[None]:
    """Report anything unexpected in the file as damage, not as a bug of the program."""
    try:
        with database_errors(path):
            yield
    except (ValueError, TypeError, LookupError, EOFError, zlib.error) as error:
        raise StorageError(f"{path}: is damaged: {str(error)[:200]}") from error

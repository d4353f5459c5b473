"""The tables of a ledger, their rows as objects, the number of their schema, and how a file gets them."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import sqlite3
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, get_origin

from orchestrator.base.errors import InputError, Problem, StorageError
from orchestrator.base.files import free_space
from orchestrator.base.space import Cell, to_hashable
from orchestrator.base.trial_result import MEASURED, RESULT_COLUMNS, Column, MemberResult, TrialResult

# SQLite's mark of the application that a file belongs to. Ledgers from before the first release lack it and have other
# schemas with the numbers 1 to 6.
APPLICATION_ID = int.from_bytes(b"swep")
BUSY_TIMEOUT_S = 20.0  # wait for a file that another process is writing to

# The order of schema 2 in the file. Columns of later schemas follow: SQLite adds a column at the end.
_ORDER = (
    "trial_id", "position", "cell", "seed", "config", "objective", "status", "num_attempts", "outcome", "onset_step",
    "num_spikes", "steps", "steps_done", "initial_loss", "best_loss", "final_loss", "peak_loss", "peak_factor",
    "off_share", "risen_share", "validation_loss", "best_validation_loss", "best_validation_step", "overfit_step",
    "verdict_step", "slow_step", "plateau_step", "is_audited", "episodes", "norm_rises", "curve_digest", "rung_losses",
    "reason", "error", "pack_id", "started_at", "finished_at", "fired",
)  # fmt: skip
_STORED = {column.name: column for column in RESULT_COLUMNS if column.is_stored}
# The columns of the table of trials, in the order of the file.
TRIAL_FIELDS = tuple(
    _STORED[name] for name in dict.fromkeys([*_ORDER, *sorted(_STORED, key=lambda name: _STORED[name].since)])
)
_SQL_TYPES = {int: "INTEGER", bool: "INTEGER", float: "REAL"}  # others are texts, or JSON


def _definition(column: Column) -> str:
    """Return the SQL that defines ``column``."""
    parts = [column.name, _SQL_TYPES.get(column.type, "TEXT")]
    if column.name == "trial_id":
        parts.append("PRIMARY KEY")
    elif not column.is_optional:
        parts.append("NOT NULL")
        if column.default is not MISSING:
            default = column.default
            parts.append(f"DEFAULT {int(default) if column.type in _SQL_TYPES else repr(json.dumps(default))}")
    if column.values:
        parts.append(f"CHECK ({column.name} IN ({', '.join(map(repr, column.values))}))")
    return " ".join(parts)


_LINES = "\n".join(f"    {_definition(column)},  -- {column.meaning}" for column in TRIAL_FIELDS)
_TRIALS = f"CREATE TABLE trials (\n{_LINES}\n    CHECK ((status = 'finished') = (outcome IS NOT NULL))\n);"
_TABLES = f"""{_TRIALS}
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE INDEX trials_of_packs ON trials (pack_id, status);
CREATE TABLE packs (               -- one row per attempt at training some trials together
    pack_id TEXT PRIMARY KEY,
    trial_ids TEXT NOT NULL,       -- JSON list
    executor TEXT NOT NULL,
    started_at REAL NOT NULL,
    ended_at REAL,
    ended TEXT,                    -- done, errored, lost or interrupted
    member_steps INTEGER NOT NULL DEFAULT 0,
    seconds REAL NOT NULL DEFAULT 0,
    environment TEXT NOT NULL DEFAULT '{{}}',
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
CREATE TABLE traces (              -- curves, in pieces as they arrived
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
    """The SQL of the tables of schema ``version``; ``upgrades[n]`` turns schema n into n + 1."""

    version: int
    tables: str = field(repr=False)
    upgrades: Mapping[int, str] = field(default_factory=dict, repr=False, hash=False)


def _upgrade(version: int) -> str:
    """Return the SQL that turns schema ``version`` into the next one: the columns that it added."""
    added = [column for column in TRIAL_FIELDS if column.since == version + 1]
    return " ".join(f"ALTER TABLE trials ADD COLUMN {_definition(column)};" for column in added)


_VERSION = max(column.since for column in TRIAL_FIELDS)
SCHEMA = Schema(_VERSION, _TABLES, {version: _upgrade(version) for version in range(1, _VERSION)})


# Records what a worker measured, see ``measured_values``, as the result of a trial.
FINISH = (
    f"UPDATE trials SET status = 'finished', {', '.join(f'{name} = :{name}' for name in MEASURED)}, error = NULL,"
    " finished_at = :finished_at WHERE trial_id = :trial_id"
)


def measured_values(result: MemberResult) -> dict[str, Any]:
    """Return what a worker measured, by column; numbers that are not finite become NULL."""
    return {name: _stored(getattr(result, name)) for name in MEASURED}


def _stored(value: Any) -> Any:
    if isinstance(value, tuple):
        return json.dumps(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value


def trial_result(row: sqlite3.Row) -> TrialResult:
    """Return the trial of a row; the values of its cell are hashable."""
    values = {column.name: row[column.name] for column in TRIAL_FIELDS}
    for name, load in _LOADED.items():
        values[name] = load(values[name])
    return TrialResult(**values)


def _shared(text: str | None) -> str | None:
    """Return a text of many trials as one object: a sweep may have hundreds of thousands."""
    return None if text is None else sys.intern(text)


def _config(text: str) -> dict[str, Any]:
    return {sys.intern(name): value for name, value in json.loads(text).items()}


def _entries(text: str) -> tuple[Any, ...]:
    """Return a JSON list, which is empty in most rows, as a tuple; lists in it too."""
    return () if text == "[]" else tuple(tuple(item) if isinstance(item, list) else item for item in json.loads(text))


def _cell(text: str) -> Cell:
    return Cell((sys.intern(name), to_hashable(value)) for name, value in json.loads(text).items())


# How values are loaded that SQLite stores in another form.
_LOADED: Mapping[str, Callable[[Any], Any]] = {
    **{column.name: _entries for column in TRIAL_FIELDS if get_origin(column.type) is tuple},
    **{column.name: bool for column in TRIAL_FIELDS if column.type is bool},
    **dict.fromkeys(("status", "outcome", "objective", "pack_id"), _shared),
    "cell": _cell,
    "config": _config,
}


@dataclass(frozen=True, slots=True)
class PackRow:
    """The ledger's record of one attempt at training some trials together."""

    pack_id: str
    trial_ids: tuple[str, ...]
    executor: str
    started_at: float  # seconds since 1970
    ended_at: float | None
    ended: str | None  # done, errored, lost or interrupted; None while it runs
    member_steps: int
    seconds: float
    environment: Mapping[str, str] = field(repr=False)
    resumed_from: str | None  # the earlier attempt whose checkpoint it resumed


def pack_row(row: sqlite3.Row) -> PackRow:
    """Return the pack of a row."""
    values = {column.name: row[column.name] for column in fields(PackRow)}
    values |= {"trial_ids": tuple(json.loads(row["trial_ids"])), "environment": json.loads(row["environment"])}
    return PackRow(**values)


@dataclass(frozen=True, slots=True)
class CheckpointRow:
    """A file in ``checkpoints/``, and the steps that each trial has completed in it."""

    name: str
    sha256: str
    ages: Mapping[str, int]


def connect(path: Path, mode: str) -> sqlite3.Connection:
    """Return a connection to the file at ``path``; ``mode`` is SQLite's: ro to read, rwc to write or create it.

    In a folder that cannot be written, SQLite reads a file without journal only if it is said not to change.
    """
    is_fixed = mode == "ro" and not os.access(path.parent, os.W_OK) and not Path(f"{path}-wal").exists()
    address = f"{path.absolute().as_uri()}?mode={mode}{'&immutable=1' if is_fixed else ''}"
    return sqlite3.connect(address, uri=True, timeout=BUSY_TIMEOUT_S)


@contextlib.contextmanager
def closed_on_error(db: sqlite3.Connection) -> Iterator[None]:
    """Close ``db`` when the block raises an error."""
    try:
        yield
    except BaseException:
        db.close()
        raise


def upgraded_copy(db: sqlite3.Connection, version: int, schema: Schema) -> sqlite3.Connection:
    """Return a copy of ``db`` in ``schema``, in a file that SQLite deletes on closing. Closes ``db``.

    So a reader handles a single schema, and the file stays unchanged.
    """
    copy = sqlite3.connect("")
    with closed_on_error(copy), contextlib.closing(db):
        db.backup(copy)
        make_or_upgrade(copy, version, schema)
    return copy


def version_of(db: sqlite3.Connection, path: Path, schema: Schema) -> int:
    """Return the schema of a file, 0 for an empty one.

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
        message = "is a ledger from before version 0.1.0, which this version of sweep does not read"
        remedy = "run the sweep again under another name, or move its folder away"
        raise InputError(Problem(str(path), "", message, remedy))
    if version > schema.version:
        raise InputError(Problem(str(path), "", f"was written by a newer sweep (schema {version})", "upgrade sweep"))
    return version


def make_or_upgrade(db: sqlite3.Connection, version: int, schema: Schema) -> None:
    """Bring a file from schema ``version`` to ``schema``, atomically; 0 is an empty file."""
    if version == schema.version:
        return
    upgrades = (schema.upgrades[old] for old in range(version, schema.version)) if version else (schema.tables,)
    numbers = f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {schema.version};"
    db.executescript(f"BEGIN; {' '.join(upgrades)} {numbers} COMMIT;")


def check_columns(db: sqlite3.Connection, path: Path, schema: Schema) -> None:
    """Raise StorageError if the tables do not have the columns of ``schema``."""
    for table, columns in _columns(schema.tables).items():
        if {row[1] for row in db.execute(f"PRAGMA table_info({table})")} != columns:
            raise _damaged(path, f"the table {table} has other columns")


@functools.cache
def _columns(script: str) -> dict[str, set[str]]:
    """Return the columns of each table that ``script`` creates."""
    with contextlib.closing(sqlite3.connect(":memory:")) as db:
        db.executescript(script)
        tables = [row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {table: {row[1] for row in db.execute(f"PRAGMA table_info({table})")} for table in tables}


@contextlib.contextmanager
def database_errors(path: Path) -> Iterator[None]:
    """Turn errors of SQLite and the system into a StorageError: damage with a remedy, others with the free space."""
    try:
        yield
    except (sqlite3.DatabaseError, OSError) as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise _damaged(path, str(error)) from error
        if str(error).startswith("no such table") and _has_no_table(path):
            message = f"{path}: is empty: a run or an import has just begun, or was cut off before it wrote anything"
            raise StorageError(f"{message}\n    remedy: wait, or start it again; or move its folder away") from error
        raise StorageError(f"{path}: {error}{free_space(path)}") from error


def _has_no_table(path: Path) -> bool:
    with contextlib.suppress(sqlite3.Error, OSError), contextlib.closing(connect(path, "ro")) as db:
        return db.execute("SELECT COUNT(*) FROM sqlite_master").fetchone() == (0,)
    return False


def _damaged(path: Path, what: object) -> StorageError:
    remedy = "put a copy of the file in its place, or move its folder away and start again"
    return StorageError(f"{path}: is damaged: {str(what)[:200]}\n    remedy: {remedy}")


@contextlib.contextmanager
def damage_errors(path: Path) -> Iterator[None]:
    """Report anything unexpected in the file as damage, not as a bug of the program."""
    try:
        with database_errors(path):
            yield
    except (ValueError, TypeError, LookupError, EOFError, zlib.error) as error:
        raise _damaged(path, error) from error

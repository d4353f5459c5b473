"""Whose file it is, which schema it has, and what brings it to the one of today."""

import contextlib
import sqlite3
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from old_ledgers import SCHEMA_2
from sweep_cases import finished, ledger_at, record, sweep_of

from orchestrator.base.errors import InputError, StorageError
from orchestrator.base.packs import Report
from orchestrator.driver.packing import make_packs
from orchestrator.ledger.reader import LedgerReader
from orchestrator.ledger.schema import APPLICATION_ID, SCHEMA, TRIAL_FIELDS, Schema
from orchestrator.ledger.writer import LedgerWriter
from orchestrator.maps.table import read_table

SIX = "seeds: [0, 1]\naxes: {lr: {values: [0.1, 0.2, 0.3]}}\n"
LABELS = ["stable", "diverged", "spiked", "errored", "planned", "stable"]

# Two schemas that nobody has written: what an upgrade does is tried on them.
_COLUMN = "ALTER TABLE trials ADD COLUMN shape TEXT NOT NULL DEFAULT 'round';"
_TABLE = "CREATE TABLE notes (trial_id TEXT PRIMARY KEY, text TEXT); CREATE INDEX trials_by_seed ON trials (seed);"
SECOND = Schema(SCHEMA.version + 1, SCHEMA.tables + _COLUMN, {SCHEMA.version: _COLUMN})
THIRD = Schema(SECOND.version + 1, SECOND.tables + _TABLE, {**SECOND.upgrades, SECOND.version: _TABLE})


def asked(path: Path, query: str) -> list[tuple]:
    with contextlib.closing(sqlite3.connect(path)) as database:
        return database.execute(query).fetchall()


def told(path: Path, script: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.executescript(script)


@pytest.fixture
def ledger_file(tmp_path: Path) -> Path:
    """The ledger of six trials, as this version writes it."""
    with ledger_at(tmp_path) as ledger:
        record(ledger, sweep_of(SIX), LABELS)
    return tmp_path / "ledger.db"


def test_a_new_ledger_says_whose_it_is_and_has_the_present_schema(tmp_path: Path) -> None:
    with ledger_at(tmp_path) as ledger:
        assert ledger.version == 6
    with LedgerReader(tmp_path / "ledger.db") as ledger:
        assert ledger.version == 6
    assert asked(tmp_path / "ledger.db", "PRAGMA user_version") == [(6,)]
    assert asked(tmp_path / "ledger.db", "PRAGMA application_id") == [(APPLICATION_ID,)]


@pytest.mark.parametrize("opened", [LedgerReader, LedgerWriter])
@pytest.mark.parametrize("number", [1, 3, 6])
def test_a_ledger_from_before_the_first_release_is_refused_and_left_as_it_is(
    ledger_file: Path, number: int, opened: type[LedgerReader]
) -> None:
    """Those had numbers from 1 to 6, and no mark of whose file it is."""
    told(ledger_file, f"PRAGMA application_id = 0; PRAGMA user_version = {number};")
    before = ledger_file.read_bytes()
    with pytest.raises(InputError) as refusal:
        opened(ledger_file)
    message, remedy = str(refusal.value).splitlines()
    assert message == f"{ledger_file}: is a ledger from before version 0.1.0, which this version of sweep does not read"
    assert remedy == "    remedy: run the sweep again under another name, or move its folder away"
    assert ledger_file.read_bytes() == before


@pytest.mark.parametrize("opened", [LedgerReader, LedgerWriter])
def test_a_ledger_of_a_newer_version_is_refused(ledger_file: Path, opened: type[LedgerReader]) -> None:
    told(ledger_file, "PRAGMA user_version = 99")
    with pytest.raises(InputError, match=r"written by a newer sweep \(schema 99\)"):
        opened(ledger_file)


@pytest.mark.parametrize("opened", [LedgerReader, LedgerWriter])
def test_tables_with_other_columns_are_damage(ledger_file: Path, opened: type[LedgerReader]) -> None:
    told(ledger_file, "ALTER TABLE packs DROP COLUMN resumed_from")
    with pytest.raises(StorageError, match="is damaged: the table packs has other columns"):
        opened(ledger_file)


def test_an_axis_that_cannot_be_read_is_damage(ledger_file: Path) -> None:
    told(ledger_file, "UPDATE facts SET value = '[{' WHERE name = 'axes'")
    with LedgerReader(ledger_file) as ledger, pytest.raises(StorageError, match="is damaged"):
        read_table(ledger)


def test_a_file_whose_tables_are_still_on_their_way_can_be_opened(tmp_path: Path) -> None:
    """A driver creates the file before its tables; a reader in between gets an error that says so."""
    told(tmp_path / "ledger.db", "PRAGMA journal_mode = WAL")
    with LedgerReader(tmp_path / "ledger.db") as ledger:
        assert ledger.version == 0
        with pytest.raises(StorageError, match="is empty: a run or an import has just begun"):
            ledger.trials()


@pytest.mark.parametrize("version", [1, 2])
def test_a_ledger_of_an_earlier_version_gets_the_columns_of_today(tmp_path: Path, version: int) -> None:
    """Schema 1 had no column of what rules did. Schema 2 was written out; now it follows from the fields of a trial."""
    lines = [line for line in SCHEMA_2.splitlines() if version == 2 or not line.startswith("    fired ")]
    for name, schema in (("old.db", Schema(version, "\n".join(lines))), ("new.db", SCHEMA)):
        LedgerWriter(tmp_path / name, schema).close()
    with LedgerWriter(tmp_path / "old.db") as ledger:
        assert ledger.version == SCHEMA.version
    for table in ("trials", "packs", "checkpoints", "traces", "telemetry", "facts"):
        query = f"PRAGMA table_info({table})"
        assert asked(tmp_path / "old.db", query) == asked(tmp_path / "new.db", query)


def test_a_ledger_of_schema_2_is_read_and_written_as_one_of_today(tmp_path: Path) -> None:
    rows = []
    for name in ("old.db", "new.db"):
        with LedgerWriter(tmp_path / name, clock=lambda: 1e9) as ledger:
            record(ledger, sweep_of(SIX), LABELS[:3] + ["planned"] * 3)
        if name == "old.db":
            lacking = [column.name for column in TRIAL_FIELDS if column.since > 2]
            downgrade = "".join(f"ALTER TABLE trials DROP COLUMN {column};" for column in lacking)
            told(tmp_path / name, f"{downgrade} PRAGMA user_version = 2;")
        with LedgerWriter(tmp_path / name, clock=lambda: 2e9) as ledger:
            record(ledger, sweep_of(SIX), ["planned"] * 3 + LABELS[3:])
        with LedgerReader(tmp_path / name) as ledger:
            rows.append([replace(trial, pack_id=None) for trial in read_table(ledger).trials])
    assert rows[0] == rows[1]
    assert [row.label for row in rows[0]] == LABELS


@pytest.mark.parametrize("schema", [SECOND, THIRD])
def test_an_upgrade_on_writing_keeps_all_there_was_and_makes_what_a_new_ledger_has(
    tmp_path: Path, ledger_file: Path, schema: Schema
) -> None:
    with LedgerReader(ledger_file) as ledger:
        expected, others = ledger.trials(), (ledger.facts(), ledger.packs())
        traces = {trial.trial_id: ledger.trace(trial.trial_id) for trial in sweep_of(SIX).trials}
    LedgerWriter(tmp_path / "new.db", schema).close()
    for _ in range(2):
        with LedgerWriter(ledger_file, schema) as ledger:
            assert ledger.version == schema.version
            assert ledger.trials() == expected
            for trial_id, trace in traces.items():
                np.testing.assert_equal(ledger.trace(trial_id), trace)
            assert (ledger.facts(), ledger.packs()) == others
    for query in (
        "PRAGMA user_version",
        "PRAGMA application_id",
        "PRAGMA table_info(trials)",
        "SELECT type, name, tbl_name FROM sqlite_master ORDER BY name",
    ):
        assert asked(ledger_file, query) == asked(tmp_path / "new.db", query)


def test_an_upgraded_ledger_takes_results(ledger_file: Path) -> None:
    with LedgerWriter(ledger_file, THIRD) as ledger:
        (trial,) = (t for t in sweep_of(SIX).trials if ledger.statuses()[t.trial_id][0] == "planned")
        (pack,) = make_packs(sweep_of(SIX), [trial], 1)
        ledger.start_pack(pack, "test")
        result = finished(trial.trial_id, "spiked", verdict_step=12)
        ledger.record(Report(pack.pack_id, 5, 0, 1.0, finished=(result,)))
        assert ledger.endings()[trial.trial_id] == "spiked"


def test_an_upgrade_that_fails_at_its_second_step_leaves_the_file_as_it_was(ledger_file: Path) -> None:
    before = asked(ledger_file, "SELECT * FROM trials"), asked(ledger_file, "SELECT sql FROM sqlite_master")
    broken = replace(THIRD, upgrades={**THIRD.upgrades, SECOND.version: "CREATE TABLE notes (a); SELECT nonsense;"})
    for opened in (LedgerReader, LedgerWriter):
        with pytest.raises(StorageError, match="nonsense"):
            opened(ledger_file, broken)
        after = asked(ledger_file, "SELECT * FROM trials"), asked(ledger_file, "SELECT sql FROM sqlite_master")
        assert after == before
        assert asked(ledger_file, "PRAGMA user_version") == [(SCHEMA.version,)]


def test_who_only_looks_at_an_older_ledger_sees_the_tables_of_today_and_does_not_touch_it(ledger_file: Path) -> None:
    with LedgerReader(ledger_file) as ledger:
        trial_id = ledger.trials()[0].trial_id
        trace, state = ledger.trace(trial_id), ledger.facts()
    before = ledger_file.read_bytes()
    with LedgerReader(ledger_file, THIRD) as ledger:
        assert ledger.version == SCHEMA.version, "that of the file"
        assert ledger._db.execute("SELECT DISTINCT shape FROM trials").fetchone()[0] == "round"
        np.testing.assert_equal(ledger.trace(trial_id), trace)
        assert ledger.facts() == state
        assert ledger.integrity() == []
    assert ledger_file.read_bytes() == before


@pytest.mark.parametrize("damage", ["text", "half", "hole", "empty", "without tables"])
def test_a_damaged_ledger_has_a_remedy_and_no_free_space(ledger_file: Path, damage: str) -> None:
    whole = ledger_file.read_bytes()
    contents = {"text": b"hello" * 999, "half": whole[: len(whole) // 2], "empty": b""}
    ledger_file.write_bytes(contents.get(damage, whole[:4096] + bytes(len(whole) - 4096)))
    if damage == "without tables":
        ledger_file.unlink()
        with contextlib.closing(sqlite3.connect(ledger_file)) as db:
            db.execute("PRAGMA journal_mode = WAL")
    with pytest.raises(StorageError, match=r"(is damaged|is empty): .*\n    remedy: ") as error:
        with LedgerReader(ledger_file) as ledger:
            ledger.trials()
    assert "MiB free" not in str(error.value)

from __future__ import annotations

import io
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sweep_cases import finished, ledger_at, record, sweep_of

from orchestrator.commands.run import show_status
from orchestrator.driver.packing import make_packs
from orchestrator.errors import InputError, StorageError
from orchestrator.files import FROZEN_SWEEP
from orchestrator.ledger.ledger import SCHEMA_VERSION, Ledger
from orchestrator.messages import Checkpoint, Report
from orchestrator.pictures.exports import export_all, export_heatmap

THREE = "axes: {lr: {values: [0.1, 0.2, 0.3]}}\n"


def begin(ledger: Ledger, sweep, trials=None):
    (pack,) = make_packs(sweep, trials or sweep.trials, 1)
    ledger.start_pack(pack, "test")
    return pack


def report(pack, **changes) -> Report:
    return Report(**({"pack_id": pack.pack_id, "member_steps": 5, "steps_in_hand": 5, "seconds": 1.0} | changes))


def test_planning_twice_changes_nothing_and_a_removed_cell_stays_outside_the_map(tmp_path: Path) -> None:
    with ledger_at(tmp_path) as ledger:
        record(ledger, sweep_of(THREE), ["stable", "diverged", "planned"])
        rows = ledger.trials()
        ledger.plan("quadratic", sweep_of(THREE).trials, {})
        assert ledger.trials() == rows
        fewer = sweep_of("axes: {lr: {values: [0.2, 0.4]}}\n")
        ledger.plan("quadratic", fewer.trials, {})
        assert [(row["cell"]["lr"], row["status"]) for row in ledger.trials()] == [(0.2, "finished"), (0.4, "planned")]
        assert len(ledger.trials(removed=True)) == 4


def test_curves_come_back_as_they_were_in_one_piece_with_what_is_not_finite(tmp_path: Path) -> None:
    sweep = sweep_of("")
    loss = np.array([1.0, np.inf, -np.inf, np.nan, 5e-324, 1 / 3])
    with ledger_at(tmp_path) as ledger:
        ledger.plan("quadratic", sweep.trials, {})
        pack = begin(ledger, sweep)
        for low, high in ((0, 2), (2, 6)):
            piece = {"step": np.arange(low, high), "loss": loss[low:high]}
            ledger.record(report(pack, traces={pack.trial_ids[0]: piece}))
        found = ledger.trace(pack.trial_ids[0])
        np.testing.assert_array_equal(found["loss"], loss)
        np.testing.assert_array_equal(found["step"], np.arange(6))
        begin(ledger, sweep)
        assert ledger.trace(pack.trial_ids[0]) == {}, "a new attempt begins a new curve"


def test_some_columns_of_a_curve_are_those_of_the_whole(tmp_path: Path) -> None:
    sweep = sweep_of("")
    with ledger_at(tmp_path) as ledger:
        ledger.plan("quadratic", sweep.trials, {})
        pack = begin(ledger, sweep)
        for low, names in ((0, ["loss", "lr"]), (3, ["loss", "grad_norm"])):
            piece = {"step": np.arange(low, low + 3), **{name: np.full(3, low + len(name)) for name in names}}
            ledger.record(report(pack, traces={pack.trial_ids[0]: piece}))
        whole = ledger.trace(pack.trial_ids[0])
        for columns in ((), ("grad_norm",), ("lr", "loss"), ("other",)):
            kept = {name: values for name, values in whole.items() if name in ("step", *columns)}
            np.testing.assert_equal(ledger.trace(pack.trial_ids[0], columns), kept)


def test_numbers_that_are_not_finite_become_null_with_a_reason(tmp_path: Path) -> None:
    sweep = sweep_of("")
    with ledger_at(tmp_path) as ledger:
        ledger.plan("quadratic", sweep.trials, {})
        pack = begin(ledger, sweep)
        bad = finished(pack.trial_ids[0], "diverged", final_loss=float("nan"), peak_loss=float("inf"))
        ledger.record(report(pack, finished=(bad,)))
        (row,) = ledger.trials()
        assert (row["final_loss"], row["peak_loss"], row["reason"]) == (None, None, "because")


def test_reports_of_a_pack_that_no_longer_owns_a_trial_are_ignored(tmp_path: Path) -> None:
    sweep = sweep_of("")
    with ledger_at(tmp_path) as ledger:
        ledger.plan("quadratic", sweep.trials, {})
        zombie = begin(ledger, sweep)
        ledger.end_pack(zombie.pack_id, "lost", "lost", "it was killed")
        heir = begin(ledger, sweep)
        curve = {"step": np.arange(2), "loss": np.ones(2)}
        late = report(zombie, finished=(finished(zombie.trial_ids[0], "stable"),), traces={zombie.trial_ids[0]: curve})
        ledger.record(late)
        (row,) = ledger.trials()
        assert (row["status"], row["pack_id"], row["num_attempts"]) == ("running", heir.pack_id, 2)
        assert ledger.trace(row["trial_id"]) == {}


def test_what_a_dead_driver_left_running_is_lost_and_results_stay(tmp_path: Path) -> None:
    sweep = sweep_of(THREE)
    with ledger_at(tmp_path) as ledger:
        ledger.plan("quadratic", sweep.trials, {})
        pack = begin(ledger, sweep)
        ledger.record(report(pack, finished=(finished(pack.trial_ids[0], "stable"),)))
        assert ledger.release_abandoned() == 2
        assert [row["status"] for row in ledger.trials()] == ["finished", "lost", "lost"]
        assert ledger.packs()[0]["ended"] == "lost"


def test_speed_is_that_of_one_worker_over_all_packs(tmp_path: Path) -> None:
    with ledger_at(tmp_path) as ledger:
        assert ledger.member_steps_per_second() is None
        record(ledger, sweep_of(THREE), ["stable"] * 3)
        assert ledger.member_steps_per_second() == 40.0


def test_a_ledger_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    ledger_at(tmp_path).close()
    with sqlite3.connect(tmp_path / "ledger.db") as database:
        database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(InputError, match="newer"):
        ledger_at(tmp_path)


def test_a_file_that_is_no_ledger_is_a_storage_fault_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "ledger.db").write_bytes(b"not a database at all" * 50)
    with pytest.raises(StorageError, match=r"ledger\.db"):
        ledger_at(tmp_path)
    with pytest.raises(StorageError, match=r"missing\.db"):
        Ledger(tmp_path / "missing.db", read_only=True)


# --- ledgers of older versions -------------------------------------------------------------------

# As version 0.1.0 made them.
SCHEMA_1 = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE trials (
    trial_id TEXT PRIMARY KEY,
    position INTEGER,
    cell TEXT NOT NULL,
    seed INTEGER NOT NULL,
    config TEXT NOT NULL,
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
    reason TEXT,
    error TEXT,
    pack_id TEXT,
    started_at REAL,
    finished_at REAL,
    CHECK ((status = 'finished') = (outcome IS NOT NULL))
);
CREATE TABLE packs (
    pack_id TEXT PRIMARY KEY,
    trial_ids TEXT NOT NULL,
    executor TEXT NOT NULL,
    started_at REAL NOT NULL,
    ended_at REAL,
    ended TEXT,
    member_steps INTEGER NOT NULL DEFAULT 0,
    seconds REAL NOT NULL DEFAULT 0,
    environment TEXT NOT NULL DEFAULT '{}'
);
CREATE TABLE traces (
    trial_id TEXT NOT NULL REFERENCES trials,
    pack_id TEXT NOT NULL REFERENCES packs,
    first_step INTEGER NOT NULL,
    columns BLOB NOT NULL,
    PRIMARY KEY (trial_id, pack_id, first_step)
);
"""
LABELS = ["stable", "diverged", "spiked", "errored", "planned", "stable"]
SIX = "seeds: [0, 1]\naxes: {lr: {values: [0.1, 0.2, 0.3]}}\n"


def write_old(old: Path, new: Path) -> None:
    """The content of the ledger ``new`` in the schema of version 1."""
    old.parent.mkdir(exist_ok=True)
    database = sqlite3.connect(old)
    database.execute("PRAGMA journal_mode = WAL")
    database.executescript(f"BEGIN; {SCHEMA_1} PRAGMA user_version = 1; COMMIT;")
    database.execute("ATTACH ? AS new", (str(new),))
    with database:
        for table in ("facts", "trials", "packs", "traces"):
            names = ", ".join(row[1] for row in database.execute(f"PRAGMA main.table_info({table})"))
            database.execute(f"INSERT INTO main.{table} ({names}) SELECT {names} FROM new.{table}")
    with Ledger(new, read_only=True) as ledger, database:
        for trial_id, count in database.execute("SELECT trial_id, COUNT(*) FROM main.traces GROUP BY 1").fetchall():
            assert count == 1, "pieces would have to be written one by one"
            archive = io.BytesIO()
            np.savez_compressed(archive, **ledger.trace(trial_id))
            database.execute("UPDATE main.traces SET columns = ? WHERE trial_id = ?", (archive.getvalue(), trial_id))
    database.close()


def schema_of(path: Path) -> int:
    database = sqlite3.connect(path)
    try:
        return database.execute("PRAGMA user_version").fetchone()[0]
    finally:
        database.close()


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """Folder of a sweep that version 1 left, beside the folder `new` of the same sweep of today."""
    sweep = sweep_of(SIX)
    with ledger_at(tmp_path / "new") as ledger:
        record(ledger, sweep, LABELS)
    write_old(tmp_path / "old" / "ledger.db", tmp_path / "new" / "ledger.db")
    for name in ("old", "new"):
        (tmp_path / name / FROZEN_SWEEP).write_text(sweep.text)
    return tmp_path / "old"


def test_a_ledger_of_version_1_is_upgraded_on_writing_and_keeps_all_it_had(old: Path) -> None:
    with Ledger(old.parent / "new" / "ledger.db", read_only=True) as ledger:
        expected = [dict(sorted(row.items())) for row in ledger.trials()]
        traces = [ledger.trace(row["trial_id"]) for row in expected]
        others = ledger.facts(), ledger.packs()
    for _ in range(2):
        with ledger_at(old) as ledger:
            assert [dict(sorted(row.items())) for row in ledger.trials()] == expected
            for row, trace in zip(expected, traces, strict=True):
                np.testing.assert_equal(ledger.trace(row["trial_id"]), trace)
            assert (ledger.facts(), ledger.packs()) == others
        assert schema_of(old / "ledger.db") == schema_of(old.parent / "new" / "ledger.db") == SCHEMA_VERSION
    assert {(row["verdict_step"], row["is_audited"]) for row in expected} == {(None, 0)}


def test_an_upgraded_ledger_takes_results_as_a_new_one_does(old: Path) -> None:
    rows = []
    for folder in (old, old.parent / "new"):
        with ledger_at(folder) as ledger:
            (trial,) = (t for t in sweep_of(SIX).trials if ledger.trial(t.trial_id)["status"] == "planned")
            pack = begin(ledger, sweep_of(SIX), [trial])
            lost = finished(trial.trial_id, "spiked", verdict_step=12, is_audited=True)
            ledger.record(report(pack, finished=(lost,)))
            rows.append({k: v for k, v in ledger.trial(trial.trial_id).items() if not k.endswith(("_at", "pack_id"))})
    assert rows[0] == rows[1]
    assert (rows[0]["outcome"], rows[0]["verdict_step"], rows[0]["is_audited"]) == ("spiked", 12, 1)


def test_an_upgrade_that_is_cut_off_leaves_the_old_ledger_as_it_was(old: Path) -> None:
    code = """
import os, sys
from pathlib import Path
from orchestrator.ledger import ledger
ledger._UPGRADES[1] += " SELECT die();"
connect = ledger.sqlite3.connect
def connected(*arguments, **options):
    database = connect(*arguments, **options)
    database.create_function("die", 0, lambda: os._exit(9))
    return database
ledger.sqlite3.connect = connected
ledger.Ledger(Path(sys.argv[1]))
"""
    assert subprocess.run([sys.executable, "-c", code, str(old / "ledger.db")]).returncode == 9
    assert schema_of(old / "ledger.db") == 1
    with ledger_at(old) as ledger:
        assert [row["is_audited"] for row in ledger.trials()] == [0] * len(LABELS)


def test_a_ledger_of_version_1_can_be_looked_at_without_being_touched(old: Path, capsys) -> None:
    before = (old / "ledger.db").read_bytes()
    shown = []
    for folder in (old, old.parent / "new"):
        code = show_status(folder)
        picture = export_heatmap(folder, "png", output=folder / "map.png").read_bytes()
        written = [path.read_bytes() for path in export_all(folder)]
        shown.append((code, capsys.readouterr().out, picture, written))
    assert shown[0] == shown[1], "status, map, tables and report are those of the same sweep of today"
    assert b"Early stopping" in shown[0][3][-1]
    assert (old / "ledger.db").read_bytes() == before
    assert schema_of(old / "ledger.db") == 1


@pytest.mark.parametrize("attempt", range(3))
def test_kill_9_in_the_middle_of_writing_loses_no_acknowledged_result(tmp_path: Path, attempt: int) -> None:
    code = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from sweep_cases import *
from orchestrator.driver.packing import make_packs
sweep = sweep_of("axes: {lr: {linear: [0.1, 1], num: 400}}\\nresources: {pack: 1}\\n")
with ledger_at(Path(sys.argv[1])) as ledger:
    ledger.plan("quadratic", sweep.trials, {})
    for trial in sweep.trials:
        (pack,) = make_packs(sweep, [trial], 1)
        ledger.start_pack(pack, "test")
        ledger.record(Report(pack.pack_id, 1, 1, 1.0, {}, (finished(pack.trial_ids[0], "stable"),), True))
        print(pack.trial_ids[0], flush=True)
"""
    tests = str(Path(__file__).parents[2])
    child = subprocess.Popen([sys.executable, "-c", code, str(tmp_path), tests], stdout=subprocess.PIPE, text=True)
    with child:
        acknowledged = [child.stdout.readline().strip() for _ in range(5 + 20 * attempt)]
        child.kill()
        acknowledged += [line.strip() for line in child.stdout if len(line.strip()) == 16]
    with ledger_at(tmp_path) as ledger:
        done = {row["trial_id"] for row in ledger.trials() if row["status"] == "finished"}
        assert set(acknowledged) <= done
        assert len(done) <= len(acknowledged) + 1


def test_a_ledger_that_version_3_wrote_is_read_and_upgraded(tmp_path: Path) -> None:
    """A file of that time, not one that today's code makes look old."""
    frozen = Path(__file__).parents[2] / "data/ledgers/schema3.db"
    (tmp_path / "ledger.db").write_bytes(frozen.read_bytes())
    with Ledger(tmp_path / "ledger.db", read_only=True) as ledger:
        before = ledger.trials()
        assert [row["outcome"] for row in before] == ["stable", "diverged", None]
        assert ledger.version == 3
    with ledger_at(tmp_path) as ledger:
        assert ledger.trials() == before
        assert ledger.version == SCHEMA_VERSION
        assert ledger.trace(before[0]["trial_id"])["loss"][[0, -1]].tolist() == [2.0, 1.0]
        assert (ledger.resumable(), ledger.checkpoint_names()) == ({}, set())
        assert [pack["resumed_from"] for pack in ledger.packs()] == [None, None]


def test_what_happens_to_a_pack_never_reads_all_trials(tmp_path: Path) -> None:
    sweep = sweep_of(THREE)
    statements: list[str] = []
    with ledger_at(tmp_path) as ledger:
        ledger.plan("quadratic", sweep.trials, {})
        ledger._db.set_trace_callback(statements.append)
        pack = begin(ledger, sweep)
        done = finished(pack.trial_ids[0], "stable")
        curve = {"step": np.arange(2), "loss": np.ones(2)}
        checkpoint = Checkpoint(b"", dict.fromkeys(pack.trial_ids, 2))
        told = report(pack, finished=(done,), traces={pack.trial_ids[0]: curve}, checkpoint=checkpoint)
        ledger.record(told, ("a.pt", "0" * 64))
        ledger.end_pack(pack.pack_id, "lost", "lost", "it was killed", waited=[pack.trial_ids[1]])
        ledger._db.set_trace_callback(None)
        asked = [text for text in statements if text.split()[0] in ("SELECT", "UPDATE", "DELETE", "INSERT")]
        steps = [(row[3], text) for text in asked for row in ledger._db.execute(f"EXPLAIN QUERY PLAN {text}")]
        assert ledger.checkpoint_names() == {"a.pt"}
    assert len(asked) > 10
    assert [step for step in steps if step[0].startswith("SCAN trials")] == []


def test_statuses_and_outcomes_are_those_of_the_rows(old: Path) -> None:
    for folder in (old, old.parent / "new"):
        with Ledger(folder / "ledger.db", read_only=True) as ledger:
            rows = ledger.trials()
            assert ledger.outcomes() == {row["trial_id"]: row["outcome"] for row in rows if row["outcome"]}
            assert list(ledger.statuses()) == [row["trial_id"] for row in rows]
    with ledger_at(old) as ledger:
        ledger.plan("quadratic", sweep_of(SIX).trials[2:], {})
        for removed in (False, True):
            rows = ledger.trials(removed=removed)
            expected = {row["trial_id"]: (row["status"], row["num_attempts"]) for row in rows}
            assert ledger.statuses(removed=removed) == expected
            assert len(rows) == 6 - 2 * (not removed)


def indexes_of(path: Path) -> set[tuple[str, str]]:
    database = sqlite3.connect(path)
    try:
        return set(database.execute("SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL"))
    finally:
        database.close()


def test_an_upgraded_ledger_has_the_indexes_of_a_new_one(old: Path) -> None:
    ledger_at(old).close()
    assert indexes_of(old / "ledger.db") == indexes_of(old.parent / "new" / "ledger.db") != set()

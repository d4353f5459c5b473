import os
import sqlite3
from pathlib import Path

import pytest
from sweep_cases import ledger_at, record, sweep_of

from orchestrator import health
from orchestrator.api.upkeep import gc
from orchestrator.base.errors import InputError
from orchestrator.base.files import CHECKPOINTS, FROZEN_SWEEP, LEDGER, sweep_lock, write_checkpoint
from orchestrator.base.packs import Checkpoint, Member, Report
from orchestrator.driver.packing import pack_of
from orchestrator.health import Finding, examine_environment, examine_sweep, repair
from orchestrator.ledger.reader import LedgerReader
from orchestrator.ledger.writer import LedgerWriter
from orchestrator.pages.report import export_all

SWEEP = sweep_of("axes: {lr: {values: [0.1, 0.2]}}\ntracking: {enabled: false}\n")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A finished sweep."""
    with ledger_at(tmp_path) as ledger:
        record(ledger, SWEEP, ["stable", "diverged"])
    (tmp_path / FROZEN_SWEEP).write_text(SWEEP.text)
    return tmp_path


@pytest.fixture
def interrupted(tmp_path: Path) -> Path:
    """A sweep whose driver died while two trials were in training, with a checkpoint."""
    with ledger_at(tmp_path) as ledger:
        record(ledger, SWEEP, ["planned", "planned"])
        pack = pack_of(SWEEP, [Member(t.trial_id, t.config, t.seed) for t in SWEEP.trials], 0)
        ledger.start_pack(pack, "test")
        checkpoint = Checkpoint(b"state", dict.fromkeys(pack.trial_ids, 0))
        saved = write_checkpoint(tmp_path, checkpoint.content)
        ledger.record(Report(pack.pack_id, 0, 0, 0.0, checkpoint=checkpoint), saved)
    (tmp_path / FROZEN_SWEEP).write_text(SWEEP.text)
    return tmp_path


def bad(folder: Path, *levels: str) -> list[Finding]:
    return [finding for finding in examine_sweep(folder) if finding.level in (levels or ("fault", "warning", "note"))]


def change(folder: Path, statement: str) -> None:
    with sqlite3.connect(folder / LEDGER) as database:
        database.execute("PRAGMA ignore_check_constraints = ON")
        database.execute(statement)
    database.close()


def test_a_finished_sweep_is_sound(folder: Path) -> None:
    assert bad(folder) == []


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("UPDATE trials SET final_loss = 9e999", "final_loss = inf is not finite"),
        ("UPDATE trials SET outcome = NULL", "status finished, outcome None"),
        ("UPDATE traces SET first_step = 7, columns = x'00'", "curve cannot be read"),
        ("DELETE FROM traces", "20 steps done, 0 in its curve"),
        ("UPDATE trials SET steps_done = 19", "19 steps done, 20 in its curve"),
        ("UPDATE trials SET config = replace(config, '0.1', '0.3')", "configuration does not match its id"),
        ("UPDATE traces SET pack_id = 'nobody'", "refers to a missing row of packs"),
    ],
)
def test_a_broken_invariant_is_a_fault_that_names_the_trial(folder: Path, statement: str, words: str) -> None:
    change(folder, statement)
    assert any(words in finding.text for finding in bad(folder, "fault")), bad(folder)


def test_curves_of_no_attempt_are_a_fault_that_can_be_repaired(folder: Path) -> None:
    change(folder, "INSERT INTO traces SELECT trial_id, (SELECT MAX(pack_id) FROM packs p WHERE p.pack_id !="
                   " traces.pack_id), 99, columns FROM traces")  # fmt: skip
    (finding,) = bad(folder)
    assert "belong to no attempt" in finding.text
    assert repair([finding]) == [f"repaired: {finding.text}"]
    assert bad(folder) == []


def test_a_ledger_that_is_not_a_database_is_a_fault(folder: Path) -> None:
    (folder / LEDGER).write_bytes(b"nothing" * 1000)
    assert [finding.level for finding in bad(folder)] == ["fault"]


def test_what_a_dead_driver_left_in_training_is_a_note_and_can_be_released(interrupted: Path) -> None:
    (finding,) = bad(interrupted)
    assert finding.level == "note"
    assert "2 trials were in training when their driver died" in finding.text
    repair([finding])
    assert bad(interrupted) == []
    with LedgerReader(interrupted / LEDGER) as ledger:
        assert {status for status, _ in ledger.statuses().values()} == {"lost"}
        assert len(ledger.resumable()) == 1, "its checkpoint is still there"


def test_while_a_driver_is_at_work_nothing_is_wrong(interrupted: Path) -> None:
    with sweep_lock(interrupted):
        assert bad(interrupted) == []
        with pytest.raises(InputError, match="in use by"):
            list(gc(interrupted, exports=False, dry_run=False))


def test_a_damaged_checkpoint_is_a_warning(interrupted: Path) -> None:
    repair(bad(interrupted))
    (path,) = (interrupted / CHECKPOINTS).iterdir()
    path.write_bytes(b"stage")
    (finding,) = bad(interrupted)
    assert (finding.level, "damaged" in finding.text) == ("warning", True)


def test_another_torch_after_a_restart_is_a_warning(interrupted: Path) -> None:
    with LedgerWriter(interrupted / LEDGER) as ledger:
        (pack,) = ledger.packs()
        ledger.release_abandoned()
        again = pack_of(SWEEP, ledger.members(pack.pack_id), 0)
        ledger.start_pack(again, "test", pack.pack_id)
        ledger.record(Report(again.pack_id, 0, 0, 0.0, environment={"torch": "2.13.0"}))
        ledger.end_pack(again.pack_id, "interrupted", "interrupted", "stopped")
    assert bad(interrupted) == [], "nothing is known of the first attempt"
    change(interrupted, f"UPDATE packs SET environment = '{{\"torch\": \"2.12.0\"}}' WHERE pack_id = '{pack.pack_id}'")
    (finding,) = bad(interrupted)
    assert (finding.level, "mixed_env" in finding.text) == ("warning", True)


def test_links_in_place_of_results_are_faults(folder: Path) -> None:
    (folder / "real.db").write_bytes((folder / LEDGER).read_bytes())
    (folder / LEDGER).unlink()
    (folder / LEDGER).symlink_to("real.db")
    assert "is a link" in bad(folder)[0].text


def test_gc_removes_what_nobody_needs_and_no_result(interrupted: Path) -> None:
    kept = {path: path.read_bytes() for path in interrupted.rglob("*") if path.is_file()}
    write_checkpoint(interrupted, b"of nobody")
    (interrupted / ".map.csv.abc123").write_text("half")
    (interrupted / CHECKPOINTS / ".x.pt.tmp").write_text("half")
    outside = interrupted.parent / "outside"
    outside.write_text("precious")
    (interrupted / CHECKPOINTS / "link.pt").symlink_to(outside)
    said = list(gc(interrupted, exports=False, dry_run=True))
    assert any("would remove 3 checkpoints" in line for line in said)
    assert len(list(interrupted.rglob("*"))) > len(kept) + 2, "a rehearsal removes nothing"
    list(gc(interrupted, exports=False, dry_run=False))
    left = {path for path in interrupted.rglob("*") if path.is_file() and not path.name.startswith(("lock", LEDGER))}
    assert left == {path for path in kept if path.name != LEDGER}
    assert all(path.read_bytes() == kept[path] for path in left)
    assert bad(interrupted, "fault", "warning") == []
    assert outside.read_text() == "precious"


def test_gc_takes_exports_only_when_asked_and_they_can_be_made_again(folder: Path) -> None:
    written = export_all(folder)
    list(gc(folder, exports=False, dry_run=False))
    before = {path: path.read_bytes() for path in written}
    list(gc(folder, exports=True, dry_run=False))
    assert not any(path.exists() for path in written)
    export_all(folder)
    assert {path: path.read_bytes() for path in written} == before
    assert bad(folder) == []


def test_the_environment_is_described(tmp_path: Path) -> None:
    findings = list(examine_environment(tmp_path))
    assert not [finding for finding in findings if finding.level == "fault"]
    text = "\n".join(finding.text for finding in findings)
    for word in ("torch", "ray", "mlflow", "cores", "GPU", "GiB free"):
        assert word in text


def test_an_old_torch_is_a_fault(tmp_path: Path, monkeypatch) -> None:
    version = health.installed_version
    monkeypatch.setattr(health, "installed_version", lambda name: "2.5.1" if name == "torch" else version(name))
    (finding,) = [finding for finding in examine_environment(tmp_path) if finding.level == "fault"]
    assert "torch 2.5.1 has known vulnerabilities" in finding.text


def test_a_folder_that_cannot_be_written_is_a_fault(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert any("is not writable" in finding.text for finding in examine_environment(tmp_path))

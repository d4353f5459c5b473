import time
from pathlib import Path

from sweep_cases import ledger_at, record, sweep_of

from orchestrator import load
from orchestrator.base import files


def test_a_status_that_is_watched_ends_with_the_run_and_its_last_state(tmp_path: Path, monkeypatch) -> None:
    with ledger_at(tmp_path / "case") as ledger:
        record(ledger, sweep_of("axes: {lr: {values: [0.1, 1]}}\n"), ["stable", "diverged"])
    held, waits = [True, True, True], []
    monkeypatch.setattr(files, "is_locked", lambda folder: bool(held) and held.pop())
    monkeypatch.setattr(time, "sleep", waits.append)
    watched = load(tmp_path / "case").status(watch=True)
    assert watched == load(tmp_path / "case").status()
    assert waits

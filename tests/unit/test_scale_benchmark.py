"""The simulated workers of the benchmark of scale: what many report at once is recorded at once."""

import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.scale_workers import SimulatedWorkers, slope, sweep_of
from orchestrator.base.files import LEDGER
from orchestrator.driver.runner import run_sweep
from orchestrator.ledger.reader import LedgerReader
from orchestrator.ledger.writer import LedgerWriter


def test_what_ten_workers_report_in_one_poll_is_one_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each commit waits for the disk, and a hundred workers report faster than that."""
    statements: list[str] = []
    opened = LedgerWriter._open

    def traced(*arguments: Any) -> tuple[sqlite3.Connection, int]:
        db, version = opened(*arguments)
        db.set_trace_callback(statements.append)
        return db, version

    monkeypatch.setattr(LedgerWriter, "_open", traced)
    commits = []
    for workers in (1, 10):
        statements.clear()
        sweep = sweep_of(100)
        summary = run_sweep(sweep, tmp_path / str(workers), lambda workers=workers: SimulatedWorkers(workers))
        assert summary.trained == len(sweep.trials)
        commits.append(statements.count("COMMIT"))
        with LedgerReader(tmp_path / str(workers) / LEDGER) as ledger:
            curves = [ledger.trace(trial.trial_id) for trial in sweep.trials]
            assert {status for status, _ in ledger.statuses().values()} == {"finished"}
            assert {len(curve["step"]) for curve in curves} == {sweep.steps}
    assert commits[1] < commits[0] / 5


def test_a_quantity_in_proportion_to_the_trials_has_a_slope_of_one() -> None:
    assert slope({"trials": 100, "run": 2.0}, {"trials": 1000, "run": 20.0}, "run") == pytest.approx(1.0)
    assert slope({"trials": 100, "run": 2.0}, {"trials": 1000, "run": 200.0}, "run") == pytest.approx(2.0)

import time
from dataclasses import replace
from pathlib import Path

from sweep_cases import finished, ledger_at, record, sweep_of

from orchestrator import load
from orchestrator.base import files
from orchestrator.base.packs import Completed, Lost, Report
from orchestrator.base.resizes import Resize
from orchestrator.driver.facts import driver_facts
from orchestrator.driver.packing import make_packs
from orchestrator.maps.table import read_table
from orchestrator.pages.data import report_data


def test_a_status_that_is_watched_ends_with_the_run_and_its_last_state(tmp_path: Path, monkeypatch) -> None:
    with ledger_at(tmp_path / "case") as ledger:
        record(ledger, sweep_of("axes: {lr: {values: [0.1, 1]}}\n"), ["stable", "diverged"])
    held, waits = [True, True, True], []
    monkeypatch.setattr(files, "is_locked", lambda folder: bool(held) and held.pop())
    monkeypatch.setattr(time, "sleep", waits.append)
    watched = load(tmp_path / "case").status(watch=True)
    assert watched == load(tmp_path / "case").status()
    assert waits


def test_restarts_with_another_number_of_processes_are_said_and_marked_on_the_curve(tmp_path: Path) -> None:
    sweep = sweep_of("fixed: {lr: 0.1}\nseeds: [0, 1]\n")
    trial_id = sweep.trials[0].trial_id
    changes = [Resize(trial_id, step, before, after) for step, before, after in ((5, 4, 2), (8, 2, 2), (12, 2, 4))]
    with ledger_at(tmp_path / "case") as ledger:
        ledger.plan(sweep.objective.name, sweep.trials, driver_facts(sweep))
        assert ledger.resizes() == []
        (pack,) = make_packs(sweep, sweep.trials[:1], 1)
        for number, facts in enumerate([{}, *(change.facts for change in changes)]):
            is_last = number == len(changes)
            ledger.start_pack(replace(pack, pack_id=f"p{number}"), "test", f"p{number - 1}" if number else None)
            done = (finished(trial_id, "stable"),) if is_last else ()
            ending = Completed() if is_last else Lost("a process was killed")
            ledger.record(Report(f"p{number}", 5, 0, 0.5, {}, done, ending, environment=facts))
        marks = report_data(read_table(ledger))["trials"]["marks"]
    status = load(tmp_path / "case").status()
    assert list(status.resizes) == [changes[0], changes[2]]
    assert [line for line in status.lines() if line.startswith("resized")] == [
        f"resized {trial_id} after step 5: workers 4 to 2",
        f"resized {trial_id} after step 12: workers 2 to 4",
    ]
    assert marks == [[(5, "workers 4 to 2"), (12, "workers 2 to 4")], []]

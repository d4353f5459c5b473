"""One of the processes that share the batches of a trial is killed."""

import json
import os
import signal
from pathlib import Path

import numpy as np
import psutil
import pytest
from fault_kit import assert_sound, can_go_on, results_of, run, start, wait_until, write_sweep

from orchestrator.base.files import LEDGER
from orchestrator.ledger.reader import LedgerReader

pytestmark = pytest.mark.faults
SHARED = """
name: edge
objective: gpt
steps: 200
axes: {lr: {values: [0.001, 0.01]}}
fixed: {batch_size: 4, width: 16, context: 16, depth: 1, validation_batches: 2}
resources: {workers: 2, parallel: 1}
checkpoint: {every_s: null, every_steps: 20}
tracking: {enabled: false}
"""
ELASTIC = (
    SHARED.replace("steps: 200", "steps: 600")
    .replace("workers: 2", "workers: {min: 1, max: 2}")
    .replace("[0.001, 0.01]", "[0.0001]")
    .replace("width: 16, context: 16", "width: 64, context: 64")
)


def ranks_of(driver: psutil.Process) -> list[psutil.Process]:
    """The processes below the driver that compute for another one."""
    found = []
    for process in driver.children(recursive=True):
        try:
            found += [process] if "orchestrator.worker.rank" in process.cmdline() else []
        except psutil.Error:
            continue
    return found


def kept_steps(folder: Path) -> int:
    """The steps in the newest checkpoint of the last attempt; 0 before it has one of its own."""
    with LedgerReader(folder / "results/edge" / LEDGER) as ledger:
        packs = ledger.packs()
        names = [{checkpoint.name for checkpoint in ledger.checkpoints(pack.pack_id)} for pack in packs]
        earlier = set().union(*names[:-1])
        own = [checkpoint for checkpoint in ledger.checkpoints(packs[-1].pack_id) if checkpoint.name not in earlier]
        return max((age for checkpoint in own for age in checkpoint.ages.values()), default=0)


def workers_of(folder: Path) -> list[str]:
    """The processes of each attempt that has started."""
    with LedgerReader(folder / "results/edge" / LEDGER) as ledger:
        return [pack.environment["workers"] for pack in ledger.packs() if pack.environment]


def test_an_elastic_trial_loses_a_process_with_its_place_and_gets_another_one_later(tmp_path: Path) -> None:
    cores = sorted(os.sched_getaffinity(0))
    assert len(cores) > 1, "a place is a core, and one is taken away"
    here, there = tmp_path / "disturbed", tmp_path / "undisturbed"
    for folder in (here, there):
        folder.mkdir()
        write_sweep(folder, ELASTIC)
    driver = start(here, "--executor", "inline")
    tree = psutil.Process(driver.pid)
    wait_until(lambda: can_go_on(here) and ranks_of(tree), "checkpoint and rank")
    tree.cpu_affinity(cores[:1])
    os.kill(ranks_of(tree)[0].pid, signal.SIGKILL)
    wait_until(lambda: workers_of(here) == ["2", "1"] and kept_steps(here), "checkpoint of one process")
    driver.terminate()
    output, _ = driver.communicate()
    assert workers_of(here) == ["2", "1"], output
    code, output = run(here, "run", "edge.yaml", "--executor", "inline")
    assert code == 0, output
    assert_sound(here)
    assert workers_of(here) == ["2", "1", "2"]
    with LedgerReader(here / "results/edge" / LEDGER) as ledger:
        (row,), resizes = ledger.trials(), ledger.resizes()
        found = ledger.trace(row.trial_id)["loss"]
    assert [(resize.trial_id, resize.before, resize.after) for resize in resizes] == [
        (row.trial_id, 2, 1), (row.trial_id, 1, 2),
    ]  # fmt: skip
    run(here, "status", "edge", "--json", "status.json")
    said = json.loads((here / "status.json").read_text())["resizes"]
    assert [resize["step"] for resize in said] == [resize.step for resize in resizes]
    code, output = run(there, "run", "edge.yaml", "--executor", "inline")
    assert code == 0, output
    with LedgerReader(there / "results/edge" / LEDGER) as ledger:
        assert not ledger.resizes()
        np.testing.assert_allclose(found, ledger.trace(row.trial_id)["loss"], rtol=2e-4)


@pytest.mark.parametrize("executor", ["inline", "ray"])
def test_a_killed_rank_costs_the_steps_since_the_checkpoint(tmp_path: Path, executor: str) -> None:
    here, there = tmp_path / "disturbed", tmp_path / "undisturbed"
    for folder in (here, there):
        folder.mkdir()
        write_sweep(folder, SHARED)
    driver = start(here, "--executor", executor)
    tree = psutil.Process(driver.pid)
    wait_until(lambda: can_go_on(here) and ranks_of(tree), "checkpoint and rank")
    os.kill(ranks_of(tree)[0].pid, signal.SIGKILL)
    output, _ = driver.communicate()
    assert driver.returncode == 0, output
    with LedgerReader(here / "results/edge" / LEDGER) as ledger:
        packs = ledger.packs()
        assert [pack.ended for pack in packs].count("lost") == 1
        assert len([pack for pack in packs if pack.resumed_from]) == 1
        assert {pack.environment.get("workers") for pack in packs} == {"2"}
    assert_sound(here)
    code, output = run(there, "run", "edge.yaml", "--executor", "inline")
    assert code == 0, output
    assert results_of(here) == results_of(there)

"""One of the processes that share the batches of a trial is killed."""

import os
import signal
from pathlib import Path

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


def ranks_of(driver: psutil.Process) -> list[psutil.Process]:
    """The processes below the driver that compute for another one."""
    found = []
    for process in driver.children(recursive=True):
        try:
            found += [process] if "orchestrator.worker.rank" in process.cmdline() else []
        except psutil.Error:
            continue
    return found


@pytest.mark.parametrize("executor", ["inline", "ray"])
def test_a_killed_rank_costs_the_steps_since_the_checkpoint(tmp_path: Path, executor: str) -> None:
    here, there = tmp_path / "disturbed", tmp_path / "undisturbed"
    for folder in (here, there):
        folder.mkdir()
        write_sweep(folder, SHARED)
    driver = start(here, "--executor", executor)
    tree = psutil.Process(driver.pid)
    wait_until(lambda: can_go_on(here) and ranks_of(tree), "checkpoint and rank", 120)
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

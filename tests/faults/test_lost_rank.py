"""One of the processes that share the batches of a trial is killed."""

import json
import os
import signal
from pathlib import Path

import numpy as np
import psutil
import pytest
from fault_kit import (
    ELASTIC,
    SHARED,
    assert_sound,
    can_go_on,
    losses_and_resizes,
    results_of,
    run,
    start,
    wait_until,
    workers_of,
    write_sweep,
)

from orchestrator.base.files import LEDGER
from orchestrator.ledger.reader import LedgerReader

pytestmark = pytest.mark.faults


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
    tree.cpu_affinity(cores)
    output, _ = driver.communicate()
    assert driver.returncode == 0, output
    assert_sound(here)
    assert workers_of(here) == ["2", "1", "2"]
    found, resizes = losses_and_resizes(here)
    assert [(resize.before, resize.after) for resize in resizes] == [(2, 1), (1, 2)]
    run(here, "status", "edge", "--json", "status.json")
    said = json.loads((here / "status.json").read_text())["resizes"]
    assert [resize["step"] for resize in said] == [resize.step for resize in resizes]
    code, output = run(there, "run", "edge.yaml", "--executor", "inline")
    assert code == 0, output
    expected, none = losses_and_resizes(there)
    assert not none
    np.testing.assert_allclose(found, expected, rtol=2e-4)


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

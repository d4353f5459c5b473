"""A custom trainer of several processes loses one, and goes on from its own checkpoint with fewer, then with more."""

import json
import os
import signal
from pathlib import Path

import numpy as np
import psutil
import pytest
from elastic_cases import (
    ROUNDING,
    advance_until,
    at_its_end,
    has_checkpoint,
    processes_of,
    set_limit,
    undisturbed_losses,
    write_elastic_trainer,
)
from fault_kit import run, start, wait_until, workers_of

pytestmark = pytest.mark.faults


@pytest.mark.parametrize("executor", ["inline", "ray"])
def test_a_trainer_that_loses_a_process_and_its_place_gets_another_one_later(tmp_path: Path, executor: str) -> None:
    cores = sorted(os.sched_getaffinity(0))
    assert len(cores) > 1, "a place is a core, and one is taken away"
    here = tmp_path / "disturbed"
    here.mkdir()
    write_elastic_trainer(here)
    set_limit(here, 50)
    driver = start(here, "--executor", executor)
    tree = psutil.Process(driver.pid)
    wait_until(lambda: has_checkpoint(here) and workers_of(here), "checkpoint")
    tree.cpu_affinity(cores[:1])
    os.kill(processes_of(tree)["1"].pid, signal.SIGKILL)
    fewer = ["2", "1"] if executor == "inline" else ["2", "2"]  # a private Ray keeps the place of a process
    wait_until(lambda: workers_of(here) == fewer, "restart", 120)
    tree.cpu_affinity(cores)
    if executor == "inline":
        advance_until(here, 50, lambda: workers_of(here) == ["2", "1", "2"])
    found, resizes = at_its_end(driver, here)
    assert [(resize.before, resize.after) for resize in resizes] == ([(2, 1), (1, 2)] if executor == "inline" else [])
    assert all(0 < resize.step < 400 for resize in resizes)
    run(here, "status", "edge", "--json", "status.json")
    said = json.loads((here / "status.json").read_text())["resizes"]
    assert [resize["step"] for resize in said] == [resize.step for resize in resizes]
    np.testing.assert_allclose(found, undisturbed_losses(tmp_path / "undisturbed"), rtol=ROUNDING)

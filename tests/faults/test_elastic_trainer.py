"""A custom trainer of several processes loses one, and goes on from its own checkpoint with fewer, then with more."""

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest
from fault_kit import (
    assert_sound,
    losses_and_resizes,
    run,
    set_limit,
    start,
    wait_until,
    workers_of,
    write_elastic_trainer,
)

pytestmark = pytest.mark.faults
ROUNDING = 1e-6  # of a loss of about one: sums of eight rows in another order, over 400 steps of SGD


def processes_of(driver: psutil.Process) -> dict[str, psutil.Process]:
    """The trainer's processes below the driver, by rank."""
    found = {}
    for process in driver.children(recursive=True):
        try:
            if "elastic.py" in process.cmdline():
                found[process.environ()["RANK"]] = process
        except (psutil.Error, KeyError):
            continue
    return found


def has_checkpoint(folder: Path) -> bool:
    return bool(list(folder.glob("results/edge/trials/*/checkpoint.pt")))


def advance_until(folder: Path, step: int, is_over: Callable[[], bool]) -> None:
    """Let the trainer go on from ``step``, a step in half a second, so that ``is_over`` comes long before its end."""
    began = time.monotonic()

    def goes_on() -> bool:
        set_limit(folder, step + int(2 * (time.monotonic() - began)))
        return is_over()

    wait_until(goes_on, "change of the number of processes", 120)


def undisturbed_losses(folder: Path) -> np.ndarray:
    folder.mkdir()
    write_elastic_trainer(folder)
    code, output = run(folder, "run", "edge.yaml", "--executor", "inline")
    assert code == 0, output
    losses, resizes = losses_and_resizes(folder)
    assert not resizes
    return losses


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
    (here / "limit").unlink()
    output, _ = driver.communicate()
    assert driver.returncode == 0, output
    assert_sound(here)
    found, resizes = losses_and_resizes(here)
    assert [(resize.before, resize.after) for resize in resizes] == ([(2, 1), (1, 2)] if executor == "inline" else [])
    assert all(0 < resize.step < 400 for resize in resizes)
    run(here, "status", "edge", "--json", "status.json")
    said = json.loads((here / "status.json").read_text())["resizes"]
    assert [resize["step"] for resize in said] == [resize.step for resize in resizes]
    np.testing.assert_allclose(found, undisturbed_losses(tmp_path / "undisturbed"), rtol=ROUNDING)

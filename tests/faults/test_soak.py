"""Two hundred random faults over a sweep of fifty trials, again and again until they are used up."""

import os
import random
import shutil
import signal
import subprocess
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from fault_kit import assert_goes_on, assert_sound, results_of, run, start, wait_until, write_sweep

from orchestrator.base.files import LEDGER
from orchestrator.base.processes import all_marked, marked
from orchestrator.ledger.reader import LedgerReader

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3 * 3600)]
NUM_FAULTS = 200
FIFTY = """
name: edge
objective: quadratic
steps: 2500
seeds: [0, 1, 2, 3, 4]
axes:
  lr: {values: [0.1, 0.5, 1.0, 2.0, 3.0]}
  beta1: {values: [0.0, 0.5]}
fixed: {optimizer: sgd, noise: 0.1}
resources: {pack: 5, stall_timeout_s: 300}
checkpoint: {every_s: 0.2}
tracking: {enabled: false}
"""
# What is hit, and how often of ten.
VICTIMS = ("driver",) * 4 + ("worker",) * 2 + ("raylet", "gcs_server", "go-between", "a signal")


def trains(folder: Path, driver: subprocess.Popen, since: float) -> bool:
    """Whether this driver, not one before it, has made a checkpoint, or is over."""
    if driver.poll() is not None:
        return True
    with suppress(OSError):  # files come and go
        return any(path.stat().st_mtime > since for path in (folder / "results/edge/checkpoints").glob("*.pt"))
    return False


def pids(driver: subprocess.Popen, folder: Path, victim: str) -> list[int]:
    """The processes to hit."""
    mark = next((mark for mark in all_marked().values() if mark.startswith(f"{driver.pid}.")), "")
    if victim == "worker" and (folder / "results/edge" / LEDGER).is_file():
        with LedgerReader(folder / "results/edge" / LEDGER) as ledger:
            found = [pack.environment.get("pid") for pack in ledger.packs() if pack.ended is None]
        return [int(pid) for pid in found if pid][:1]
    if victim == "go-between":
        return [pid for pid in marked(mark) if "executors.subprocess_executor" in title(pid, "cmdline")]
    return [pid for pid in marked(mark) if title(pid, "comm").strip() == victim]


def title(pid: int, kind: str) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/{kind}").read_text()
    return ""


def test_two_hundred_random_faults_cost_no_result(tmp_path: Path) -> None:
    write_sweep(tmp_path, FIFTY)
    assert run(tmp_path, "run", "edge.yaml", "--executor", "inline")[0] == 0
    undisturbed = results_of(tmp_path)
    assert len(undisturbed) == 50
    shutil.rmtree(tmp_path / "results")
    dice, hit, completed, began = random.Random(2026), Counter(), 0, time.monotonic()
    while hit.total() < NUM_FAULTS:
        executor = dice.choice(("ray",) + ("inline",) * 8)
        victim = dice.choice(VICTIMS) if executor == "ray" else dice.choice(("driver", "driver", "a signal"))
        since = time.time()
        driver = start(tmp_path, "--executor", executor)
        if victim not in ("driver", "a signal") or dice.random() < 0.5:
            wait_until(lambda: trains(tmp_path, driver, since), "training")  # noqa: B023
            time.sleep(dice.uniform(0.0, 1.0))
        else:
            time.sleep(dice.uniform(0.5, 4.0))  # while it starts
        if driver.poll() is None:
            if victim == "driver":
                driver.kill()
                hit[f"driver ({executor})"] += 1
            elif victim == "a signal":
                driver.send_signal(dice.choice((signal.SIGINT, signal.SIGTERM, signal.SIGHUP)))
                hit[f"a signal ({executor})"] += 1
            else:
                for pid in pids(driver, tmp_path, victim):
                    with suppress(ProcessLookupError):  # it may just have ended
                        os.kill(pid, signal.SIGKILL)
                        hit[victim] += 1
        print(f"{hit.total()} of {NUM_FAULTS} faults, {completed} sweeps completed", end="\r", flush=True)
        output, _ = driver.communicate()
        # Python itself says so where Ctrl-C comes while it imports.
        assert "Traceback" not in output or output.rstrip().endswith("KeyboardInterrupt"), output
        if (tmp_path / "results/edge" / LEDGER).is_file():
            assert_sound(tmp_path)
        if driver.returncode == 0:
            assert results_of(tmp_path) == undisturbed
            completed += 1
            shutil.rmtree(tmp_path / "results")
    assert_goes_on(tmp_path, undisturbed)
    minutes = (time.monotonic() - began) / 60
    print(
        f"{hit.total()} faults in {minutes:.0f} min: {dict(hit)}; {completed + 1} sweeps of 50 trials, 0 results lost"
    )

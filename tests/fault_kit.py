"""What tests of faults share: a sweep that takes seconds, its results, and whether all is sound."""

import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sweep_cases import QUADRATIC

from orchestrator.base.errors import StorageError
from orchestrator.base.files import LEDGER
from orchestrator.base.resizes import Resize
from orchestrator.health import examine_sweep
from orchestrator.ledger.reader import LedgerReader

# Twelve trials, four seconds together, some beyond the edge. Checkpoints go by steps, so that every pack
# has written one long before its end however fast the machine is.
SWEEP = (
    QUADRATIC.replace("steps: 60", "steps: 1000").replace("optimizer: sgd", "optimizer: sgd, noise: 0.1")
    + "resources: {pack: 4}\ncheckpoint: {every_s: null, every_steps: 100}\n"
)
SEARCH = (  # two batches of eight trials each, the second after the results of the first
    SWEEP.replace("lr: {values: [0.1, 1.0, 3.0]}", "lr: {log: [0.1, 30.0]}").replace(
        "beta1: {values: [0.0, 0.5]}", "beta1: {linear: [0.0, 0.6]}"
    )
    + "search: {method: METHOD, trials: 24, batch: 8}\n"
)
LONGER = SWEEP.replace("steps: 1000", "steps: 3000")
DRIVERS: list[subprocess.Popen[str]] = []  # all that tests have started
# The batches of a trial are shared by two processes, or by as many as have places.
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

_INSTALL = {"strace": "strace", "ss": "iproute2", "ip": "iproute2", "unshare": "util-linux", "mount": "mount"}
_NUMBERS = (
    "status", "outcome", "onset_step", "num_spikes", "steps_done", "initial_loss", "best_loss", "final_loss",
    "peak_loss", "validation_loss", "verdict_step", "episodes", "reason",
)  # fmt: skip


def need(*tools: str) -> None:
    """Fail loudly where a tool is missing: a fault that is not injected is not survived."""
    for tool in tools:
        if shutil.which(tool) is None:
            pytest.fail(f"{tool} is missing, and these faults cannot be made: apt-get install {_INSTALL[tool]}")


def write_sweep(folder: Path, text: str = SWEEP) -> Path:
    """The sweep file in ``folder``."""
    path = folder / "edge.yaml"
    path.write_text(text)
    return path


def command(*arguments: str) -> list[str]:
    """`sweep` with ``arguments``."""
    return [sys.executable, "-m", "orchestrator.cli", *arguments]


def start(folder: Path, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    """`sweep run edge.yaml` in ``folder``, with what it prints in a pipe."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "cwd": folder} | options
    driver = subprocess.Popen(command("run", "edge.yaml", *arguments), **options)
    DRIVERS.append(driver)
    return driver


def end_drivers() -> None:
    """Kill what a failed test left running, so that no later test pays for it."""
    for driver in DRIVERS:
        if driver.returncode is None:
            driver.kill()
            driver.communicate()


def run(folder: Path, *arguments: str) -> tuple[int, str]:
    """Exit code and output of `sweep` in ``folder``."""
    done = subprocess.run(command(*arguments), cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.returncode, done.stdout


def results_of(folder: Path, name: str = "edge") -> dict[str, tuple]:
    """All that a sweep found, without times and attempts: numbers of each trial and its whole curve."""
    found = {}
    with LedgerReader(folder / "results" / name / LEDGER) as ledger:
        for row in ledger.trials():
            trace = ledger.trace(row.trial_id)
            curve = hashlib.sha256(b"".join(trace[column].tobytes() for column in sorted(trace))).hexdigest()
            found[row.trial_id] = (*(getattr(row, column) for column in _NUMBERS), curve)
    return found


def statuses(folder: Path, name: str = "edge") -> list[str]:
    """Status of each trial; none before there is a ledger."""
    path = folder / "results" / name / LEDGER
    if not path.is_file():
        return []
    with suppress(StorageError), LedgerReader(path) as ledger:  # its tables may be on their way
        return [row.status for row in ledger.trials()]
    return []


def assert_sound(folder: Path, name: str = "edge") -> None:
    """What `sweep doctor --strict` asks of a sweep's ledger and files."""
    bad = [
        finding.text for finding in examine_sweep(folder / "results" / name) if finding.level in ("fault", "warning")
    ]
    assert bad == []


def assert_goes_on(folder: Path, undisturbed: Any, *arguments: str) -> str:
    """`sweep run` ends soundly and finds what a sweep finds that nobody disturbed; returns what it prints."""
    code, output = run(folder, "run", "edge.yaml", *arguments)
    assert code == 0, output
    assert_sound(folder)
    assert results_of(folder) == undisturbed
    return output


def kill_at_random_moments(folder: Path, seed: int, most_kills: int, longest_s: float) -> None:
    """Kill drivers while they train, at least two, until one ends before its kill."""
    moments, killed = random.Random(seed), 0
    for _ in range(most_kills):
        driver = start(folder, "--executor", "inline")
        wait_until(lambda: is_training(folder) or driver.poll() is not None, "training")  # noqa: B023
        time.sleep(moments.uniform(0.0, longest_s))
        driver.kill()
        driver.communicate()
        if driver.returncode != -signal.SIGKILL:
            break
        killed += 1
        assert_sound(folder)
    assert killed >= 2


def wait_until(condition: Callable[[], object], what: str, timeout_s: float = 600.0) -> None:
    """Wait for ``condition``, which may raise nothing."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"no {what} within {timeout_s:g} s"
        time.sleep(0.05)


def is_training(folder: Path) -> bool:
    """Whether a checkpoint of the sweep is on disk."""
    return any((folder / "results" / "edge" / "checkpoints").glob("*.pt"))


def can_go_on(folder: Path) -> bool:
    """Whether the ledger has a checkpoint of a pack that has not ended."""
    path = folder / "results" / "edge" / LEDGER
    if not path.is_file():
        return False
    with suppress(StorageError), LedgerReader(path) as ledger:  # its tables may be on their way
        return bool(ledger.checkpoint_names())
    return False


def workers_of(folder: Path) -> list[str]:
    """The processes of each attempt that has started."""
    with LedgerReader(folder / "results/edge" / LEDGER) as ledger:
        return [pack.environment["workers"] for pack in ledger.packs() if pack.environment]


def losses_and_resizes(folder: Path) -> tuple[np.ndarray, list[Resize]]:
    """The losses of the only trial, and its changes of the number of processes."""
    with LedgerReader(folder / "results/edge" / LEDGER) as ledger:
        (row,) = ledger.trials()
        return ledger.trace(row.trial_id)["loss"], ledger.resizes()


def undisturbed_results(folder: Path, text: str) -> dict[str, tuple]:
    """What the sweep of ``text`` finds in ``folder`` when nothing goes wrong."""
    write_sweep(folder, text)
    code, output = run(folder, "run", "edge.yaml", "--executor", "inline")
    assert code == 0, output
    assert_sound(folder)
    found = results_of(folder)
    assert {numbers[1] for numbers in found.values()} >= {"stable", "diverged"}
    return found


def environment(**changes: str) -> dict[str, str]:
    """The environment of a process, changed."""
    return {**os.environ, **changes}


def assert_ends_as_any_other(lines: list[str]) -> None:
    """What follows a warning: nothing but the sentence of a run with its next command, or of a shell its status."""
    said = [line for line in lines if line.strip() and not line.startswith("exit ")]
    assert len(said) <= 1, said
    assert all("; next: `sweep " in line for line in said)

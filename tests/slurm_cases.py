"""What tests of Slurm jobs share: scripts that can be caught in the act, executors, drivers that are killed."""

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from custom_cases import SWEEP, sweep_in
from fault_kit import wait_until

from orchestrator.base.packs import Event, Report
from orchestrator.base.processes import is_alive
from orchestrator.driver.runner import run_sweep
from orchestrator.executors.slurm import SlurmExecutor
from orchestrator.executors.slurm_cluster import Pace
from orchestrator.ledger.reader import LedgerReader
from orchestrator.sweepfile.spec import Sweep

LOCAL = {"cluster": "local"}
ONE = SWEEP.replace("[0.1, 1.0, 3.0]", "[0.1]").replace("[0, 1]", "[0]")
TWO = SWEEP.replace("[0.1, 1.0, 3.0]", "[0.1, 3.0]").replace("[0, 1]", "[0]")
SLEEPS = (
    'import os, sys, time\nprint("step 0 loss 3.0", flush=True)\n'
    'open("pid.new", "w").write(str(os.getpid()))\nos.rename("pid.new", f"pid-{sys.argv[1]}")\ntime.sleep(120)\n'
)
# Slow enough to be caught in the act; writes its checkpoint when it is asked to end, like a good citizen.
POLITE = """
import os, signal, sys, time
folder, resume = sys.argv[1], "--resume" in sys.argv
first, x = eval(open(folder + "/ckpt").read()) if resume else (0, 2.0)
def end(*_):
    print(f"step {step} loss {x * x / 2 + 1:.9g} norm {x:.9g}", flush=True)
    open(folder + "/ckpt.new", "w").write(repr((step + 1, x - 0.1 * x)))
    os.rename(folder + "/ckpt.new", folder + "/ckpt")
    sys.exit(0)
for step in range(first, 60):
    if step == 15 and not resume:
        time.sleep(0.8)  # so that the curve comes in two pieces
    if step == 30 and not resume:
        signal.signal(signal.SIGTERM, end)
        open("waits", "w").close()
        time.sleep(120)
    print(f"step {step} loss {x * x / 2 + 1:.9g} norm {x:.9g}", flush=True)
    x -= 0.1 * x
"""
# Has no checkpoint, and takes its time where it begins anew.
FORGETFUL = """
import os, time
x, is_new = 2.0, not os.path.exists("waits")
for step in range(60):
    if step in ((15, 25) if is_new else (5,)):
        time.sleep(0.8)
    if step == 30 and is_new:
        open("waits", "w").close()
        time.sleep(120)
    print(f"step {step} loss {x * x / 2 + 1:.9g} norm {x:.9g}", flush=True)
    x -= 0.1 * x
"""
RESUMES = ONE.replace(
    '"{lr}", "{steps}", "{seed}"]',
    '"{folder}"]\n  environment: {LR: "{lr}"}\n  resume: {checkpoint: "{folder}/ckpt", arguments: [--resume]}',
)
# What two runs of a sweep have in common.
NUMBERS = (
    "trial_id", "status", "outcome", "onset_step", "num_spikes", "steps_done", "initial_loss", "best_loss",
    "final_loss", "peak_loss", "verdict_step", "episodes",
)  # fmt: skip


QUICK = Pace(reads_s=0.1, checks_s=0.3, submissions_s=0.1, reports_s=0.5, late_s=0.5)


def executor_for(folder: Path, parallel: int | None = 2, **options: str) -> SlurmExecutor:
    pace = QUICK if options and options.get("cluster") != "local" else None
    return SlurmExecutor(folder, cpus=1, gpus=0.0, workers=1, parallel=parallel, options=options or LOCAL, pace=pace)


@contextlib.contextmanager
def closing(executor: SlurmExecutor) -> Iterator[SlurmExecutor]:
    try:
        yield executor
    finally:
        executor.close()


def rows_of(
    sweep: Sweep, folder: Path, observers=(), parallel: int | None = 2, **options: str
) -> list[SimpleNamespace]:
    """Rows of the ledger after the sweep was run as jobs."""
    run_sweep(sweep, folder, lambda: executor_for(folder, parallel, **options), observers)
    with LedgerReader(folder / "ledger.db") as ledger:
        return [SimpleNamespace(**asdict(row), curve=ledger.trace(row.trial_id)) for row in ledger.trials()]


def assert_same(rows: list[SimpleNamespace], expected: list[SimpleNamespace]) -> None:
    for row, other in zip(rows, expected, strict=True):
        assert [getattr(row, name) for name in NUMBERS] == [getattr(other, name) for name in NUMBERS]
        assert row.curve.keys() == other.curve.keys()
        for name, values in row.curve.items():
            np.testing.assert_array_equal(values, other.curve[name])


def events_until(executor: SlurmExecutor, is_over: Callable[[list[Event]], object]) -> list[Event]:
    events: list[Event] = []
    deadline = time.monotonic() + 600
    while not is_over(events):
        assert time.monotonic() < deadline, events
        events += executor.poll(0.2)
    return events


def has_last(events: list[Event]) -> bool:
    return any(isinstance(event, Report) and event.ending is not None for event in events)


class Watching:
    """An observer that keeps the number of steps over time."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def began(self, progress) -> None:
        self.steps.append(progress.member_steps)

    changed = ended = lambda self, progress, *_: self.steps.append(progress.member_steps)


@contextlib.contextmanager
def meanwhile(action: Callable[[], None]) -> Iterator[None]:
    """Do something in a thread while the run goes on in this one."""
    failures: list[BaseException] = []

    def act() -> None:
        try:
            action()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=act)
    thread.start()
    yield
    thread.join()
    assert failures == []


def job_process(script: int) -> int:
    """The job's process, of which a trial's is a child."""
    return int(Path(f"/proc/{script}/stat").read_text().rpartition(")")[2].split()[1])


def script_in(folder: Path) -> int:
    """The process of the trial that runs in ``folder``."""
    (found,) = [
        int(process.name)
        for process in Path("/proc").glob("[0-9]*")
        if str(folder) in _cwd(process) and "train.py" in _command(process)
    ]
    return found


def _cwd(process: Path) -> str:
    with contextlib.suppress(OSError):
        return os.readlink(process / "cwd")
    return ""


def _command(process: Path) -> str:
    with contextlib.suppress(OSError):
        return (process / "cmdline").read_text()
    return ""


DRIVER = """
import sys
from pathlib import Path
from orchestrator.executors.slurm import SlurmExecutor
from orchestrator.driver.runner import run_sweep
from orchestrator.sweepfile.spec import load_sweep
folder = Path("results")
options = dict(option.split("=") for option in sys.argv[1:])
run_sweep(load_sweep(Path("mine.yaml")), folder, lambda: SlurmExecutor(folder, 1, 0.0, 1, 2, options))
"""


def killed_driver(folder: Path, **options: str) -> int:
    """Starts a driver, kills it, and returns the process of its trial, which goes on."""
    sweep_in(folder, SLEEPS, ONE)
    arguments = [f"{key}={value}" for key, value in options.items()]
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, *arguments], cwd=folder)
    try:
        wait_until((folder / "pid-0.1").exists, "trial", 30)
    finally:
        driver.kill()
        driver.wait()
    script = int((folder / "pid-0.1").read_text())
    assert is_alive(script)
    return script

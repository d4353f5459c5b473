"""The driver's cost of a trial, in time and memory, in sweeps of 100, 1,000 and 10,000 trivial trials.

    python benchmarks/scale.py [--trials 100 1000 10000] [--executor inline] [--report 100 1000000]

Each sweep is one `sweep run` in a process of its own, without MLflow. A trial is two steps of a quadratic, so
nearly all of the time is what the project adds: plan, packs, detector, ledger, exports. Memory is the
largest that the process held, with everything that it loads; inline that includes torch and the training.

With --report it is one `sweep report` of so many trials with curves of so many steps each, all of them noise.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from orchestrator.base.files import FROZEN_SWEEP, LEDGER
from orchestrator.base.packs import Report
from orchestrator.base.trial_result import MemberResult
from orchestrator.driver.facts import driver_facts
from orchestrator.driver.packing import make_packs
from orchestrator.ledger.reader import LedgerReader
from orchestrator.ledger.writer import LedgerWriter
from orchestrator.sweepfile.spec import build_sweep
from orchestrator.sweepfile.strict_yaml import parse_document

_PIECE = 50_000  # steps recorded at once

SWEEP = """
name: scale
objective: quadratic
steps: 2
seeds: [0]
axes:
  lr: {{linear: [0.1, 1.0], num: {wide}}}
  beta1: {{linear: [0.0, 0.9], num: {high}}}
fixed: {{optimizer: sgd}}
tracking: {{enabled: false}}
"""


def measure(num_trials: int, executor: str) -> tuple[float, float, int]:
    """Seconds, largest memory in MiB, and trials finished of one sweep."""
    high = max(1, round(num_trials**0.5 / 2))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "scale.yaml").write_text(SWEEP.format(wide=num_trials // high, high=high))
        seconds, memory = _watched(folder, "run", "scale.yaml", "--executor", executor)
        with LedgerReader(folder / "results" / "scale" / LEDGER) as ledger:
            finished = sum(status == "finished" for status, _ in ledger.statuses().values())
        return seconds, memory, finished


def measure_report(num_trials: int, num_steps: int) -> tuple[float, float]:
    """Seconds and largest memory in MiB of the report of a sweep with curves of ``num_steps`` steps."""
    sweep = build_sweep(parse_document(SWEEP.format(wide=num_trials, high=1), "scale.yaml"))
    values = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "results" / "scale"
        with LedgerWriter(folder / LEDGER) as ledger:
            ledger.plan(sweep.objective.name, sweep.trials, driver_facts(sweep))
            for trial in sweep.trials:
                (pack,) = make_packs(sweep, [trial], 1)
                ledger.start_pack(pack, "none")
                for first in range(0, num_steps, _PIECE):
                    steps = np.arange(first, min(first + _PIECE, num_steps))
                    columns = {column: 2 + values.standard_normal(len(steps)) for column in ("loss", "grad_norm")}
                    curve = {trial.trial_id: {"step": steps, **columns}}
                    is_last = len(steps) + first == num_steps
                    done = (_finished(trial.trial_id, num_steps),) if is_last else ()
                    ledger.record(Report(pack.pack_id, first + len(steps), 0, 0.0, curve, done))
        (folder / FROZEN_SWEEP).write_text(sweep.text)
        return _watched(Path(name), "report", "scale")


def _finished(trial_id: str, num_steps: int) -> MemberResult:
    return MemberResult(
        trial_id=trial_id, outcome="stable", num_spikes=0, steps_done=num_steps, initial_loss=2.0, best_loss=2.0,
        final_loss=2.0, reason="",
    )  # fmt: skip


def _watched(folder: Path, *arguments: str) -> tuple[float, float]:
    """Seconds and largest memory in MiB of one `sweep` command."""
    command = [sys.executable, "-m", "orchestrator.cli", *arguments]
    began = time.perf_counter()
    driver = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, env=_environment())
    largest: list[int] = [0]
    watcher = threading.Thread(target=_watch, args=(driver, largest))
    watcher.start()
    if driver.wait() != 0:
        raise SystemExit(f"`sweep {' '.join(arguments)}` ended with exit code {driver.returncode}")
    seconds = time.perf_counter() - began
    watcher.join()
    return seconds, largest[0] / 1024


def _watch(driver: subprocess.Popen[bytes], largest: list[int]) -> None:
    """Track the peak of the driver's own memory, in KiB, during its lifetime."""
    while driver.poll() is None:
        try:
            status = Path(f"/proc/{driver.pid}/status").read_text()
        except OSError:
            return
        for line in status.splitlines():
            if line.startswith("VmHWM"):
                largest[0] = max(largest[0], int(line.split()[1]))
        time.sleep(0.1)


def _environment() -> dict[str, str]:
    root = str(Path(__file__).parents[1])
    return {**os.environ, "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}


def main() -> None:
    """Print a row for each size."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trials", type=int, nargs="+", default=[100, 1000, 10_000])
    parser.add_argument("--executor", default="ray", choices=("ray", "inline"))
    parser.add_argument("--report", type=int, nargs=2, metavar=("TRIALS", "STEPS"))
    options = parser.parse_args()
    if options.report:
        seconds, memory = measure_report(*options.report)
        print("| trials | steps of each | seconds of the report | its memory, MiB |\n| --- | --- | --- | --- |")
        print(f"| {options.report[0]:,} | {options.report[1]:,} | {seconds:.1f} | {memory:.0f} |")
        return
    print("| trials | seconds | more per trial, ms | driver's memory, MiB |\n| --- | --- | --- | --- |")
    before: tuple[int, float] | None = None
    for num_trials in options.trials:
        seconds, memory, finished = measure(num_trials, options.executor)
        more = f"{1000 * (seconds - before[1]) / (finished - before[0]):.1f}" if before else ""
        print(f"| {finished:,} | {seconds:.1f} | {more} | {memory:.0f} |", flush=True)
        before = (finished, seconds)


if __name__ == "__main__":
    main()

"""What a trial costs the driver, in time and in memory, in sweeps of 100, 1,000 and 10,000 trivial trials.

    python benchmarks/scale.py [--trials 100 1000 10000] [--executor inline]

Each sweep is one `sweep run` in a process of its own, without MLflow. A trial is two steps of a quadratic, so
nearly all of the time is what the project adds: plan, packs, detector, ledger, exports. Memory is the
largest that the process held, with everything that it loads; inline that includes torch and the training.
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

from orchestrator.files import LEDGER
from orchestrator.ledger import Ledger

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
        command = [sys.executable, "-m", "orchestrator.cli", "run", "scale.yaml", "--executor", executor]
        began = time.perf_counter()
        driver = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, env=_environment())
        largest: list[int] = [0]
        watcher = threading.Thread(target=_watch, args=(driver, largest))
        watcher.start()
        if driver.wait() != 0:
            raise SystemExit(f"the sweep of {num_trials} trials ended with exit code {driver.returncode}")
        seconds = time.perf_counter() - began
        watcher.join()
        with Ledger(folder / "results" / "scale" / LEDGER, read_only=True) as ledger:
            finished = sum(status == "finished" for status, _ in ledger.statuses().values())
        return seconds, largest[0] / 1024, finished


def _watch(driver: subprocess.Popen[bytes], largest: list[int]) -> None:
    """Keep the high-water mark of the driver's own memory, in KiB, as long as it lives."""
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
    options = parser.parse_args()
    print("| trials | seconds | more per trial, ms | driver's memory, MiB |\n| --- | --- | --- | --- |")
    before: tuple[int, float] | None = None
    for num_trials in options.trials:
        seconds, memory, finished = measure(num_trials, options.executor)
        more = f"{1000 * (seconds - before[1]) / (finished - before[0]):.1f}" if before else ""
        print(f"| {finished:,} | {seconds:.1f} | {more} | {memory:.0f} |", flush=True)
        before = (finished, seconds)


if __name__ == "__main__":
    main()

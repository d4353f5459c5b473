"""What mirroring to MLflow costs a sweep: `python benchmarks/tracking.py`.

The same sweep runs with its mirror and without one, in turns, each time in a fresh folder with a fresh store. Its
commands are timed from Enter to the end, so the start of MLflow and its last writes count.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

# From a checkout, installed or not.
sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.machine import machine_facts
from orchestrator.base.files import atomic_write

ROOT = Path(__file__).parents[1]
ARMS = {"without a mirror": "false", "with MLflow": "true"}


def seconds_of(sweep_file: Path, is_tracked: str) -> float:
    """Seconds of ``sweep run`` in an empty folder."""
    with tempfile.TemporaryDirectory() as folder:
        program = [sys.executable, "-c", "from orchestrator.cli import main; main()", "run", str(sweep_file.resolve())]
        options = ["--set", f"tracking.enabled={is_tracked}"]
        began = time.perf_counter()
        subprocess.run([*program, *options], cwd=folder, check=True, capture_output=True)
        return time.perf_counter() - began


def main() -> None:
    """Time both arms in turns, and print the share of the mirror."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", type=Path, default=ROOT / "sweeps" / "beta2_eps.yaml", help="the sweep")
    parser.add_argument("--rounds", type=int, default=3, help="times that each arm runs")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    given = parser.parse_args()
    seconds: dict[str, list[float]] = {arm: [] for arm in ARMS}
    for number in range(given.rounds):
        for arm in list(ARMS) if number % 2 else list(reversed(ARMS)):
            seconds[arm].append(seconds_of(given.file, ARMS[arm]))
            print(f"{arm}: {seconds[arm][-1]:.1f} s", flush=True)
    plain, tracked = (seconds[arm] for arm in ARMS)
    # Of pairs that ran one after the other, since machines drift.
    share = median(b / a - 1 for a, b in zip(plain, tracked, strict=True))
    print(f"the mirror adds {100 * share:.1f} % to {median(plain):.1f} s (medians of {given.rounds} pairs)")
    if given.json:
        numbers = {"machine": machine_facts(), "sweep": given.file.name, "seconds": seconds}
        atomic_write(given.json, json.dumps(numbers, indent=2))


if __name__ == "__main__":
    main()

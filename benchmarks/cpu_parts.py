"""Where the processor time of a whole sweep goes: the driver, Ray, workers, mirrors and exports.

    python -m benchmarks.cpu_parts [SWEEP.yaml] [--parallel 2] [--trials N]

Each process is read several times a second, by the kernel's count, so other work on the machine changes little. What a
process used after the last reading is missing.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import yaml

from benchmarks.sweep_files import thinned_text
from orchestrator.sweepfile.spec import load_sweep

ROOT = Path(__file__).parents[1]
_EVERY_S = 0.1
# The first of these words in a command names its part.
_PARTS = {
    "ray::ImplicitFunc": "workers",
    "ray::": "Ray's agents and idle workers",
    "default_worker.py": "Ray's agents and idle workers",
    "gcs_server": "Ray",
    "raylet": "Ray",
    "ray/": "Ray",
    "mirror": "mirrors",
    "export": "exports",
    "subprocess_executor": "driver of Ray",
    "run": "driver",
}


def part_of(command: str) -> str:
    """Return the part that a command belongs to."""
    return next((part for word, part in _PARTS.items() if word in command), command[:60])


def used_by(running: psutil.Process) -> Iterator[tuple[tuple[int, float], str, float]]:
    """Iterate over a process and its descendants: what identifies each, its command, and its CPU seconds so far."""
    with contextlib.suppress(psutil.Error):
        for process in [running, *running.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                yield (process.pid, process.create_time()), " ".join(process.cmdline()), times.user + times.system


def measure(command: list[str], folder: Path) -> tuple[float, dict[str, float], dict[str, float]]:
    """Return wall seconds, CPU seconds of each part, and when each part was first there."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "SWEEP_CACHE": str(folder / "cache")}
    began = time.monotonic()
    used: dict[tuple[int, float], tuple[str, float]] = {}
    first: dict[str, float] = {}
    with open(folder / "said", "w") as said:
        running = psutil.Popen(command, cwd=folder, env=environment, stdout=said, stderr=subprocess.STDOUT)
        while running.poll() is None:
            for process, words, seconds in used_by(running):
                if words:
                    used[process] = part_of(words), seconds
                    first.setdefault(part_of(words), time.monotonic() - began)
            time.sleep(_EVERY_S)
    sums: dict[str, float] = collections.defaultdict(float)
    for part, seconds in used.values():
        sums[part] += seconds
    return time.monotonic() - began, dict(sums), first


def main() -> None:
    """Print a row for each part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweep", nargs="?", type=Path, default=ROOT / "sweeps" / "short_memory.yaml")
    parser.add_argument("--parallel", type=int, default=2)
    parser.add_argument("--trials", type=int)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="parts-") as scratch:
        folder = Path(scratch)
        path = options.sweep.absolute()
        if options.trials is not None:
            sweep = load_sweep(path)
            values = {axis.name: axis.values for axis in sweep.axes}
            (folder / "sweep.yaml").write_text(thinned_text(yaml.safe_load(sweep.text), values, options.trials))
            path = folder / "sweep.yaml"
        entry = "import sys; from orchestrator.cli import main; sys.exit(main())"
        command = [sys.executable, "-c", entry, "run", str(path), "--results", "results"]
        wall_s, sums, first = measure([*command, "--parallel", str(options.parallel)], folder)
        print((folder / "said").read_text()[-600:])
    print(f"wall {wall_s:.1f} s, CPU {sum(sums.values()):.1f} s")
    for part, seconds in sorted(sums.items(), key=lambda item: -item[1]):
        print(f"{seconds:7.1f} s  from {first[part]:5.1f} s  {part}")


if __name__ == "__main__":
    main()

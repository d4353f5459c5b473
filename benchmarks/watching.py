"""What `sweep watch` costs: CPU time and memory on a log of a million lines that grows by a thousand lines a second.

    python -m benchmarks.watching [--lines 1000000] [--seconds 60] [--log text json]

CPU time is that of the process by the kernel's count, so other work on the machine does not change it much.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RATE = 1000  # lines a second
LOGS = {"text 1 of 100": 100, "text 1 of 10": 10, "text": 1, "json": 1, "flat": 1}  # lines from one loss to the next
OTHER = "2026-11-26 09:00:00,123 INFO loader.py:88 worker 3 has read shard {} of 100000 in 12 ms\n"


def line(number: int, log: str) -> str:
    """Return the line ``number`` of a log; a flat one never falls below its first loss for long."""
    if number % LOGS[log]:
        return OTHER.format(number)
    step, norm = number // LOGS[log], random.gauss(1, 0.1)
    loss = 2 + (0 if log == "flat" else 8 * math.exp(-number / 1e5)) + random.gauss(0, 0.05)
    if log == "json":
        return json.dumps({"step": step, "loss": loss, "grad_norm": norm, "lr": 3e-4}) + "\n"
    return f"step {step} | loss {loss:.4f} | grad_norm {norm:.3f} | lr 3.00e-04\n"


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_megabytes(pid: int) -> float:
    """Return the most memory that a process has had."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def measure(name: str, num_lines: int, seconds: float, folder: Path) -> tuple[float, float, float]:
    """Return CPU seconds to catch up, the share of a core afterwards, and the peak memory in MB."""
    log = folder / f"{name}.log"
    log.write_text("".join(line(number, name) for number in range(num_lines)))
    command = [str(Path(sys.executable).with_name("sweep")), "watch", str(log)]
    with open(folder / "said", "w") as said, subprocess.Popen(command, stdout=said) as watch:
        try:
            while "episodes" not in (folder / "said").read_text():
                time.sleep(0.2)
            time.sleep(1.0)
            caught_up, began, number = cpu_seconds(watch.pid), time.monotonic(), num_lines
            while (passed := time.monotonic() - began) < seconds:
                with open(log, "a") as file:
                    end = num_lines + int(passed * RATE)
                    file.writelines(line(each, name) for each in range(number, end))
                number = end
                time.sleep(0.1)
            share = (cpu_seconds(watch.pid) - caught_up) / passed
            return caught_up, share, peak_megabytes(watch.pid)
        finally:
            watch.kill()


def main() -> None:
    """Print a row for each kind of log."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--log", nargs="+", choices=LOGS, default=list(LOGS))
    options = parser.parse_args()
    print("log            CPU s to catch up  share of a core  peak MB")
    with tempfile.TemporaryDirectory() as folder:
        for name in options.log:
            caught_up, share, peak = measure(name, options.lines, options.seconds, Path(folder))
            print(f"{name:13s}  {caught_up:17.1f}  {share:15.2%}  {peak:7.0f}")


if __name__ == "__main__":
    main()

"""What it costs to start a trial of a custom trainer, and to start Ray: `python benchmarks/starts.py`.

The trials import torch and report 20 losses without training. Three ways take turns in one run: sweep with forks of a
process that has imported torch, sweep with a program for each trial, and a plain loop that starts the program. Then
whole commands take turns: 8 trials of 60 steps by Ray and in the driver's own process.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# From a checkout, installed or not.
sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.machine import machine_facts
from orchestrator.base.files import atomic_write
from orchestrator.driver.runner import run_sweep
from orchestrator.executors.inline import InlineExecutor
from orchestrator.sweepfile.spec import load_sweep

TRAIN = """
import sys
import torch
for step in range(20):
    print(f"step {step} loss {3.0 - step / 100 - torch.tensor(float(sys.argv[1])).item():.6f}")
"""
SWEEP = """
name: starts
objective: {{command: [python, train.py, "{{lr}}"], preload: {preload}}}
steps: 20
axes: {{lr: {{linear: [0.0, 1.0], num: {trials}}}}}
tracking: {{enabled: false}}
"""
OBJECTIVE = """
name: starts_{executor}
objective: gpt
steps: 60
seeds: [0, 1]
axes: {{lr: {{values: [0.001, 0.01, 0.1, 1.0]}}}}
"""
EXECUTORS = ("ray", "inline")
WAYS = {"sweep, forks": "auto", "sweep, programs": "false", "a plain loop": None}


def seconds_of(preload: str | None, trials: int) -> float:
    """Seconds to run ``trials`` trials, one after the other, with all that happens around them but pictures."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(TRAIN)
        (folder / "starts.yaml").write_text(SWEEP.format(preload=preload, trials=trials))
        sweep = load_sweep(folder / "starts.yaml")
        began = time.perf_counter()
        if preload is None:
            for trial in sweep.trials:
                program = [sys.executable, "train.py", str(trial.config["lr"])]
                subprocess.run(program, cwd=folder, check=True, capture_output=True)
        else:
            run_sweep(sweep, folder / "results", InlineExecutor)
        return time.perf_counter() - began


def seconds_of_a_command(executor: str) -> float:
    """Seconds of ``sweep run`` from Enter to its end."""
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "starts.yaml").write_text(OBJECTIVE.format(executor=executor))
        command = [sys.executable, "-c", "from orchestrator.cli import main; main()", "run", "starts.yaml"]
        began = time.perf_counter()
        subprocess.run([*command, "--executor", executor], cwd=name, check=True, capture_output=True)
        return time.perf_counter() - began


def middle_of(values: list[float]) -> float:
    """The median of an odd number of values, or the larger of the two in the middle."""
    return sorted(values)[len(values) // 2]


def main() -> None:
    """Measure each way with few and with more trials; the difference is the cost of a trial."""
    parser = argparse.ArgumentParser(description="Measure what it costs to start a trial of a custom trainer.")
    parser.add_argument("--trials", type=int, default=24, help="trials of the longer runs; default 24")
    parser.add_argument("--rounds", type=int, default=3, help="rounds over the three ways; default 3")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was measured")
    chosen = parser.parse_args()
    few = 4
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    first: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(chosen.rounds):
        for way, preload in WAYS.items():
            short, long = seconds_of(preload, few), seconds_of(preload, chosen.trials)
            found[way].append((long - short) / (chosen.trials - few))
            first[way].append(short - few * found[way][-1])
    middle = {way: middle_of(values) for way, values in found.items()}
    for way in WAYS:
        ratio, once = middle[way] / middle["a plain loop"], middle_of(first[way])
        print(f"{way:16} {1000 * middle[way]:7.0f} ms a trial, {ratio:5.2f} of a plain loop; {once:5.1f} s once")
    commands: dict[str, list[float]] = {executor: [] for executor in EXECUTORS}
    seconds_of_a_command("inline")  # the fastest width of packs is measured once
    for _ in range(chosen.rounds):
        for executor in EXECUTORS:
            commands[executor].append(seconds_of_a_command(executor))
    for executor in EXECUTORS:
        ratio = middle_of(commands[executor]) / middle_of(commands["inline"])
        print(f"{executor:16} {middle_of(commands[executor]):7.1f} s for 8 trials of 60 steps, {ratio:5.2f} of inline")
    if chosen.json is not None:
        measured = {"machine": machine_facts(), "seconds": found, "once_s": first, "commands_s": commands}
        atomic_write(chosen.json, json.dumps(measured, indent=1))


if __name__ == "__main__":
    main()

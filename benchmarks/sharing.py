"""What sharded states would save a `gpt` in several processes, and what its exchange costs beside DDP and FSDP2.

    python benchmarks/sharing.py [--widths 64 256 512] [--millions 1 10]

Memory is that of one process that trains two steps, beyond its memory before; states are weights, gradient and the two
moments of Adam, 16 bytes a weight, which FSDP2 divides by the number of processes. Times are of two processes on gloo:
per step, the weights that rank 0 sends and the gradient that it gets; the all-reduce of DDP; and the two gathers and
the scattered reduction of FSDP2. Seconds are of the CPU, both processes together, the median of ten steps.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

# From a checkout, installed or not.
sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import torch.distributed as dist

from objectives.base import load_objective
from objectives.models.facts.sizes import num_weights
from objectives.protocol import ExecutionPlan
from orchestrator.worker.torchrun import free_port, torchrun_environments

NUM_STEPS, NUM_BYTES = 10, 16


def train(width: int) -> dict[str, float]:
    """Return the weights of a `gpt` of this width, and what two of its steps took of memory, in MiB."""
    objective = load_objective("gpt", "")
    config = objective.config_of({"steps": 2, "width": width, "depth": 8, "context": 64, "batch_size": 8})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    trainer = objective.start([config], [0], "cpu", ExecutionPlan(1))
    for _ in range(2):
        trainer.step()
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"weights": num_weights(config) or 0, "mib": (after - before) / 1024, "before_mib": before / 1024}


def exchange(way: str, num: int) -> float:
    """Return the CPU seconds that one of two processes spends in a step's exchange of ``num`` weights."""
    dist.init_process_group("gloo")
    full, part = torch.zeros(num), torch.zeros(num // dist.get_world_size())

    def own() -> None:
        dist.broadcast(full, 0)
        dist.reduce(full, 0)

    def fsdp() -> None:
        for _ in range(2):  # before the forward pass and before the backward pass
            dist.all_gather_single(full, part)
        dist.reduce_scatter_single(part, full)

    ways: dict[str, Callable[[], object]] = {"own": own, "DDP": lambda: dist.all_reduce(full), "FSDP2": fsdp}
    seconds = []
    for _ in range(NUM_STEPS):
        began = time.process_time()
        ways[way]()
        seconds.append(time.process_time() - began)
    dist.destroy_process_group()
    return median(seconds)


def asked(environments: list[dict[str, str]], *arguments: object) -> list[dict[str, float]]:
    """Return what this file prints in processes of its own."""
    command = [sys.executable, __file__, *map(str, arguments)]
    running = [
        subprocess.Popen(command, env={**os.environ, **variables}, stdout=subprocess.PIPE, text=True)
        for variables in environments
    ]
    printed = [process.communicate()[0] for process in running]
    assert all(process.returncode == 0 for process in running), "its error is above"
    return [json.loads(text) for text in printed]


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 256, 512])
    parser.add_argument("--millions", type=int, nargs="+", default=[1, 10])
    parser.add_argument("--train", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--exchange", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train is not None:
        print(json.dumps(train(options.train)))
        return
    if options.exchange is not None:
        print(json.dumps({"seconds": exchange(options.exchange[0], int(options.exchange[1]))}))
        return
    print("width  weights (millions)  memory (MiB)  states (MiB)  saved by two shards")
    for width in options.widths:
        (found,) = asked([{}], "--train", width)
        states = found["weights"] * NUM_BYTES / 2**20
        saved = states / 2 / (found["mib"] + found["before_mib"])
        print(f"{width:5}  {found['weights'] / 1e6:18.2f}  {found['mib']:12.0f}  {states:12.0f}  {saved:18.0%}")
    print("weights (millions)  own (ms)  DDP (ms)  FSDP2 (ms)")
    for millions in options.millions:
        row = []
        for way in ("own", "DDP", "FSDP2"):
            environments = torchrun_environments(["here"] * 2, "127.0.0.1", free_port())
            both = asked(environments, "--exchange", way, millions * 10**6)
            row.append(1000 * sum(found["seconds"] for found in both))
        print(f"{millions:18}  {row[0]:8.1f}  {row[1]:8.1f}  {row[2]:10.1f}")


if __name__ == "__main__":
    main()

"""What telemetry costs: the same pack of transformers trained with and without it, in turns, in one process.

    python benchmarks/telemetry.py [--rounds N] [--steps N] [--members N] [--json FILE]

Each arm's time is divided by that of the arm without telemetry in the same round; the median of these ratios is the
cost. What a sweep does besides (workers that start, the mirror, pictures) is left out, and would make them smaller.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from objectives.base import OBJECTIVES, GptConfig
from orchestrator.detection import StoppingConfig
from orchestrator.reports import Member, Pack, Telemetry
from orchestrator.worker import run_pack

ARMS: Mapping[str, Telemetry] = {
    "none": Telemetry(),
    "readings every 10 steps (the default)": Telemetry(every=10),
    "readings every step": Telemetry(every=1),
    "and curvature every 50 steps, 4 products": Telemetry(every=10, curvature=50, products=4),
    "and curvature every 50 steps, 3 products": Telemetry(every=10, curvature=50, products=3),
    "and curvature every 20 steps, 4 products": Telemetry(every=10, curvature=20, products=4),
}


def pack_of(members: int, steps: int) -> Pack:
    """Members at the defaults of the main sweep, which are stable."""
    stopping = StoppingConfig().resolved(OBJECTIVES["gpt"].spike_rise, 1)
    configs = [GptConfig(steps=steps, lr=1e-2, warmup=10, beta2=0.95 + 0.001 * k).model_dump() for k in range(members)]
    trials = tuple(Member(f"trial{k}", config, k % 3) for k, config in enumerate(configs))
    return Pack("pack", "gpt", steps, trials, stopping.model_dump(), members, 0)


def seconds(pack: Pack) -> float:
    """CPU time of this process to train ``pack`` on one thread. Raises RuntimeError where it errs."""
    began = time.process_time()
    for report in run_pack(pack):
        if report.error:
            raise RuntimeError(report.error)
    return time.process_time() - began


def costs(rounds: int, members: int, steps: int) -> dict[str, float]:
    """Median over the rounds of each arm's time over that without telemetry."""
    pack = pack_of(members, steps)
    for telemetry in ARMS.values():  # imports and first allocations
        seconds(replace(pack, steps=20, telemetry=telemetry))
    ratios: dict[str, list[float]] = {name: [] for name in ARMS}
    for _ in range(rounds):
        taken = {name: seconds(replace(pack, telemetry=telemetry)) for name, telemetry in ARMS.items()}
        for name, value in taken.items():
            ratios[name].append(value / taken["none"])
    return {name: statistics.median(values) for name, values in ratios.items()}


def main() -> None:
    """Print the costs as a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--members", type=int, default=16)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    found = costs(arguments.rounds, arguments.members, arguments.steps)
    for name, ratio in found.items():
        print(f"{ratio:6.3f}  {name}")
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

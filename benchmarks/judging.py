"""The cost of judging: what detection adds to the steps of a pack, and how long a log takes.

    python benchmarks/judging.py [--rounds N] [--json FILE]

The share of a pack's time alternates steps that are judged with steps that are not, in one process on one thread; the
times are medians of CPU time over the rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.telemetry import seconds
from orchestrator.detection.config import StoppingConfig
from orchestrator.detection.detector import SpikeDetector
from orchestrator.detection.run_monitor import RunMonitor
from orchestrator.maps.replay import Curve, detect
from orchestrator.worker.machine import prepare_process

_PACKS = (("gpt", 16), ("gpt", 64), ("function_fit", 64), ("function_fit", 512), ("quadratic", 512))
_STEPS = 20  # between two looks
_LOG = 200_000


def losses(num_points: int, num_members: int) -> np.ndarray:
    """Losses that fall, with noise, (T, K)."""
    rng = np.random.default_rng(0)
    fall_T = 2 + 3 * np.exp(-np.arange(num_points) / 300)
    return fall_T[:, None] + 0.05 * rng.standard_normal((num_points, num_members))


def judged_share(objective: str, members: int, rounds: int) -> float:
    """Time of judging the steps of a pack, as a share of the time of the steps."""
    import torch

    from objectives.base import OBJECTIVES, ExecutionPlan

    torch.set_num_threads(1)
    kind = OBJECTIVES[objective]
    configs = [kind.config_class(steps=100_000, lr=1e-3)] * members
    trainer = kind.start(configs, list(range(members)), "cpu", ExecutionPlan(members))
    monitor = RunMonitor(StoppingConfig(), [False] * members)
    loss_TK = losses(_STEPS * (rounds + 4), members)
    trained, judged = [], []
    for i in range(rounds + 4):
        columns = {"loss": loss_TK[i * _STEPS : (i + 1) * _STEPS], "grad_norm": np.ones((_STEPS, members))}
        trained.append(seconds(lambda: [trainer.step() for _ in range(_STEPS)]))
        judged.append(seconds(lambda columns=columns: monitor.update(columns)))
    return statistics.median(judged[4:]) / statistics.median(trained[4:])  # the first ones warm up


def microseconds_an_update(rounds: int) -> float:
    """Of one run, in a loop."""
    detector, values = SpikeDetector(), losses(2000 * rounds, 1)[:, 0].tolist()
    began = time.process_time()
    for value in values:
        detector.update(value)
    return 1e6 * (time.process_time() - began) / len(values)


def main() -> None:
    """Print the share of each pack, the cost of an update, and the time of a log."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    prepare_process()
    found: dict[str, float] = {}
    for objective, members in _PACKS:
        share = found[f"{objective} {members}"] = judged_share(objective, members, options.rounds)
        print(f"{objective}, {members} members: judging adds {share:.1%} to the steps")
    found["update_us"] = microseconds_an_update(options.rounds)
    print(f"one run: {found['update_us']:.1f} microseconds an update")
    curve = Curve(np.arange(_LOG), {"loss": losses(_LOG, 1)[:, 0], "grad_norm": np.ones(_LOG)})
    found["log_s"] = seconds(lambda: detect([curve], StoppingConfig()))
    print(f"a log of {_LOG:,} points: {found['log_s']:.1f} s")
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()

"""The cost of a checkpoint for a worker: the pause of training, and the work in parallel to it.

    python benchmarks/checkpoints.py [--widths 16 32 64 128]

For each width of a transformer a pack of 16 is trained on one core, and its checkpoints are made as a worker makes
them. The share is that of copy and writing in the default interval of 30 seconds; where it exceeds 1 %,
the worker waits longer.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from objectives.base import OBJECTIVES, ExecutionPlan
from orchestrator.detection.detector import SpikeDetector
from orchestrator.worker.checkpoints import CheckpointWriter, random_states

_MEMBERS = 16
_INTERVAL_S = 30.0


def measure(width: int) -> tuple[float, float, float]:
    """Size in MiB, pause in ms, and parallel work in ms, medians of five."""
    objective = OBJECTIVES["gpt"]
    configs = [objective.config_class(steps=1000, width=width, lr=1e-3)] * _MEMBERS
    trainer = objective.start(configs, list(range(_MEMBERS)), "cpu", ExecutionPlan(_MEMBERS))
    detector = SpikeDetector(_MEMBERS)
    trial_ids = [f"trial{k}" for k in range(_MEMBERS)]
    writer = CheckpointWriter(trial_ids, _INTERVAL_S, None)
    pauses, works, size = [], [], 0
    for _ in range(5):
        metrics = trainer.step()
        detector.update(metrics["loss"].numpy(), metrics["grad_norm"].numpy())
        began = time.perf_counter()
        state = lambda: {"trainer": trainer.state_dict(), "detector": detector.state_dict(), "random": random_states()}  # noqa: E731
        writer.begin(state, dict.fromkeys(trial_ids, 0))
        paused = time.perf_counter()
        checkpoint = writer.take(wait=True)
        pauses.append(paused - began)
        works.append(time.perf_counter() - paused)
        size = len(checkpoint.content)
    writer.close()
    trainer.close()
    return size / 2**20, 1000 * statistics.median(pauses), 1000 * statistics.median(works)


def main() -> None:
    """Print a row for each width."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--widths", type=int, nargs="+", default=[16, 32, 64, 128])
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| width | size, MiB | pause, ms | beside, ms | share of 30 s |\n| --- | --- | --- | --- | --- |")
    for width in options.widths:
        size, pause, work = measure(width)
        print(
            f"| {width} | {size:.1f} | {pause:.1f} | {work:.1f} | {(pause + work) / 10 / _INTERVAL_S:.2f} % |",
            flush=True,
        )


if __name__ == "__main__":
    main()

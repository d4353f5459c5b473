"""The cost of telemetry and of validations: observed steps alternating with plain ones, in one process on one thread.

    python benchmarks/telemetry.py [--rounds N] [--members N] [--kernels default] [--json FILE]
    python benchmarks/telemetry.py --agreement RESULTS FORWARDS

The times are medians of CPU time over the rounds, so that a machine that is faster now than a minute ago does not
matter. The first measurement of a process, which imports what it needs for a second, is left out.

With --agreement it compares the curvature by products with the one by forward passes, from two results folders with the
same sweeps, the second one run with `--set telemetry.by=forwards`.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from objectives.base import Kernels
from orchestrator.worker.machine import prepare_process

AGREEMENT = Path(__file__).parents[1] / "results" / "reference" / "warning" / "agreement.csv"
_PLAIN = 4  # plain steps between two that are observed
_PRODUCTS = (2, 3, 4, 6)
_EVERY = 10  # steps between two readings, the default
_VALIDATED_EVERY = 50


def extra_steps(rounds: int, members: int, kernels: Kernels) -> dict[str, float]:
    """The extra cost of a reading, of a measurement with each number of products, and of a validation, in steps."""
    import torch

    from objectives.base import OBJECTIVES, ExecutionPlan, GptConfig

    torch.set_num_threads(1)
    config = GptConfig(steps=100_000, lr=1e-2, warmup=10, beta2=0.95)
    everyone = list(range(members))
    trainer = OBJECTIVES["gpt"].start([config] * members, everyone, "cpu", ExecutionPlan(members, kernels=kernels))
    kinds: dict[str, Callable[[], Any]] = {"reading": lambda: trainer.observed_step(everyone, [], 1)}
    for number in _PRODUCTS:
        kinds[f"{number} products"] = lambda number=number: trainer.observed_step(everyone, everyone, number)
    kinds["forward passes"] = lambda: trainer.observed_step(everyone, everyone, 0)
    plain: list[float] = []
    validations: list[float] = []
    taken: dict[str, list[float]] = {name: [] for name in kinds}
    for step in kinds.values():
        step()
    for _ in range(rounds):
        for name, step in kinds.items():
            plain += [seconds(trainer.step) for _ in range(_PLAIN)]
            taken[name].append(seconds(step))
        validations.append(seconds(lambda: trainer.validate(everyone)))
    one = statistics.median(plain)
    extra = {name: statistics.median(times) / one - 1 for name, times in taken.items()}
    return extra | {"validation": statistics.median(validations) / one}


def agreement(products: Path, forwards: Path) -> list[dict[str, str]]:
    """How the curvature along the update, by forward passes, agrees with those by products, for each sweep.

    Rank correlations over all readings of a sweep with all three, and the medians over the threshold 2 / lr.
    """
    import numpy as np
    from scipy.stats import spearmanr

    from orchestrator.ledger.reader import LedgerReader

    rows = []
    for path in sorted(products.glob("*/ledger.db")):
        parts = []
        with LedgerReader(path) as ours, LedgerReader(forwards / path.parent.name / path.name) as others:
            for trial in ours.trials():
                read, by_forwards = ours.telemetry(trial.trial_id), others.telemetry(trial.trial_id)
                if "lambda_max" in read and "lambda_crit" in by_forwards:
                    _, own, other = np.intersect1d(read["step"], by_forwards["step"], return_indices=True)
                    columns = (by_forwards["lambda_crit"][other], read["lambda_max"][own], read["lambda_grad"][own])
                    parts.append(np.stack(columns) / read["curvature_threshold"][own])
        if not parts:
            continue
        ratio_3N = np.concatenate(parts, axis=1)
        ratio_3N = ratio_3N[:, np.isfinite(ratio_3N[1])]
        is_known_N = np.isfinite(ratio_3N).all(axis=0)
        crit_N, max_N, grad_N = ratio_3N[:, is_known_N]
        rows.append(
            {
                "sweep": path.parent.name,
                "readings": str(ratio_3N.shape[1]),
                "known": f"{is_known_N.mean():.3f}",
                "rank_with_lambda_max": f"{spearmanr(crit_N, max_N).statistic:.2f}",
                "rank_with_lambda_grad": f"{spearmanr(crit_N, grad_N).statistic:.2f}",
                "rank_max_with_grad": f"{spearmanr(max_N, grad_N).statistic:.2f}",
                **{
                    f"median_{name}": f"{np.median(value_N):.3g}"
                    for name, value_N in (("crit", crit_N), ("max", max_N), ("grad", grad_N))
                },
            }
        )
    return rows


def seconds(run: Callable[[], Any]) -> float:
    """CPU time of this process for ``run``."""
    began = time.process_time()
    run()
    return time.process_time() - began


def main() -> None:
    """Print each cost in steps, and the time of a pack relative to one without telemetry."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--members", type=int, default=16)
    parser.add_argument("--kernels", choices=("native", "default"), default="native")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--agreement", type=Path, nargs=2, metavar="RESULTS")
    arguments = parser.parse_args()
    if arguments.agreement:
        rows = agreement(*arguments.agreement)
        with AGREEMENT.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        return
    prepare_process()
    found = extra_steps(arguments.rounds, arguments.members, arguments.kernels)
    for name, steps in found.items():
        print(f"{steps:6.2f} steps: {name}")
    read = found["reading"]
    print(f"{1 + read / _EVERY:6.3f} times the time of a pack without telemetry: readings every {_EVERY} steps")
    for every in (20, 50, 100):
        # A measured step is read too.
        ratio = 1 + read * (1 / _EVERY - 1 / every) + found["4 products"] / every
        print(f"{ratio:6.3f} times: and the curvature every {every} steps, 4 products")
    ratio = 1 + found["validation"] / _VALIDATED_EVERY
    print(f"{ratio:6.3f} times the time of a pack that is validated at its end: every {_VALIDATED_EVERY} steps")
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Whether P(stable) of longer runs comes true: short runs predict them, then they are trained.

    python benchmarks/longer.py FOLDER

Trains, or finds in FOLDER, runs of 300 steps of two objectives, and the same runs of 1,200 and 3,000 steps. Each size
alone predicts along the learning rate, as `sweep predict --at steps=...` does. A line for each tenth of the predicted
probability says what share of the long runs was stable to that step.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from orchestrator import run  # noqa: E402
from orchestrator.base.files import LEDGER  # noqa: E402
from orchestrator.ledger.reader import LedgerReader  # noqa: E402
from orchestrator.maps.lifetimes import lifetime  # noqa: E402
from orchestrator.maps.prediction import predict  # noqa: E402
from orchestrator.maps.table import SweepTable, read_table  # noqa: E402

SHORT = 300


@dataclass(frozen=True)
class Case:
    """A sweep along lr and one other axis, how long its long runs are, and the steps that are predicted."""

    sweep: dict[str, Any]
    axis: str
    longest: int
    predicted: tuple[int, ...]


CASES = (
    Case(
        {
            "objective": "gpt",
            "seeds": [0, 1, 2],
            "axes": {"lr": {"log": [2e-3, 0.128], "num": 10}, "width": {"values": [32, 64]}},
            "fixed": {
                "norm": "none", "init": "fan_in", "beta2": 0.95, "warmup": 10, "clip": None, "batch_size": 8,
            },
        },
        "width", 1200, (600, 1200),
    ),
    Case(
        {
            "objective": "function_fit",
            "seeds": [0, 1, 2, 3],
            "axes": {"lr": {"log": [0.003, 1.0], "num": 12}, "beta2": {"values": [0.9, 0.98, 0.995, 0.999]}},
            "fixed": {"warmup": 10},
        },
        "beta2", 3000, (1200, 3000),
    ),
)  # fmt: skip


def trained(case: Case, steps: int, folder: Path) -> SweepTable:
    """Return the runs of a case; trained unless the folder has them."""
    name = f"{case.sweep['objective']}_{steps}"
    if not (folder / name / LEDGER).is_file():
        run({**case.sweep, "name": name, "steps": steps}, results=folder, executor="inline")
    return read_table(LedgerReader(folder / name / LEDGER))


def outcomes(case: Case, folder: Path) -> list[tuple[float, bool]]:
    """Return the predicted probability of each long run, and whether it was stable that long."""
    short, long = (trained(case, steps, folder) for steps in (SHORT, case.longest))
    found = []
    for value in case.sweep["axes"][case.axis]["values"]:
        kept = short.where("--where", {case.axis: value})
        for steps in case.predicted:
            shares: dict[float, float | None] = {}
            for trial in long.where("--where", {case.axis: value}).runs:
                rate = trial.cell["lr"]
                if rate not in shares:
                    shares[rate] = predict(kept, {"steps": steps}, rate=rate, is_far=True).p_stable
                life = lifetime(trial)
                found.append((float(shares[rate] or 0.0), not life.has_onset or life.steps > steps))
    return found


def main() -> None:
    """Print the share of stable runs by predicted probability."""
    folder = Path(sys.argv[1])
    tenths = defaultdict(list)
    for case in CASES:
        for share, is_stable in outcomes(case, folder):
            tenths[min(9, int(10 * share))].append((share, is_stable))
    print("| P(stable) | runs | predicted | stable |\n| --- | --- | --- | --- |")
    for tenth, runs in sorted(tenths.items()):
        predicted, stable = np.mean(runs, axis=0)
        print(f"| {tenth / 10:.1f} to {(tenth + 1) / 10:.1f} | {len(runs)} | {predicted:.2f} | {stable:.2f} |")


if __name__ == "__main__":
    main()

"""Whether P(stable) of longer runs comes true: short runs predict them, then they are trained.

    python benchmarks/longer.py FOLDER

Trains, or finds in FOLDER, runs of 300 steps of two objectives and of `longer_trainer.py`, a training of one's own, and
the same runs of 1,200 and 3,000 steps. Each size
alone predicts along the learning rate, as `sweep predict --at steps=...` does. A line for each tenth of the predicted
probability says what share of the long runs was stable to that step.
"""

from __future__ import annotations

import math
import sys
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
    Case(
        {
            "objective": {"python": "longer_trainer:train", "folder": str(ROOT / "benchmarks")},
            "seeds": [0, 1, 2],
            "axes": {"lr": {"log": [0.02, 1.0], "num": 12}, "width": {"values": [32, 64]}},
            "facts": {"schedule": "constant", "warmup": 10},
        },
        "width", 3000, (1200, 3000),
    ),
)  # fmt: skip


def name_of(case: Case) -> str:
    """Return the objective, or the module of a training of one's own."""
    objective = case.sweep["objective"]
    return objective if isinstance(objective, str) else objective["python"].partition(":")[0]


def trained(case: Case, steps: int, folder: Path) -> SweepTable:
    """Return the runs of a case; trained unless the folder has them."""
    name = f"{name_of(case)}_{steps}"
    if not (folder / name / LEDGER).is_file():
        run({**case.sweep, "name": name, "steps": steps}, results=folder, executor="inline", allow_import=True)
    return read_table(LedgerReader(folder / name / LEDGER))


def outcomes(case: Case, folder: Path) -> list[tuple[float, bool]]:
    """Return the predicted probability of each long run, and whether it was stable that long."""
    short, long = (trained(case, steps, folder) for steps in (SHORT, case.longest))
    found = []
    for value in case.sweep["axes"][case.axis]["values"]:
        kept = short.where("--where", {case.axis: value})
        for steps in case.predicted:
            prediction = predict(kept, {"steps": steps}, is_far=True)
            target = prediction.law.at(np.log([float(steps)]))
            for trial in long.where("--where", {case.axis: value}).runs:
                life = lifetime(trial)
                is_stable = not life.has_onset or life.steps > steps
                found.append((target.p_stable(math.log(trial.cell["lr"])), is_stable))
    return found


def main() -> None:
    """Print the share of stable runs by predicted probability, of all trainers and of each."""
    folder = Path(sys.argv[1])
    of_case = {name_of(case): np.array(outcomes(case, folder), float) for case in CASES}
    run_N2 = np.concatenate(list(of_case.values()))
    print("| P(stable) | runs | predicted | stable |\n| --- | --- | --- | --- |")
    tenth_N = np.minimum(9, 10 * run_N2[:, 0]).astype(int)
    for tenth in np.unique(tenth_N):
        here_N2 = run_N2[tenth_N == tenth]
        predicted, stable = here_N2.mean(axis=0)
        print(f"| {tenth / 10:.1f} to {(tenth + 1) / 10:.1f} | {len(here_N2)} | {predicted:.2f} | {stable:.2f} |")
    print("\n| trainer, between 0.1 and 0.9 | runs | predicted | stable |\n| --- | --- | --- | --- |")
    for name, found_N2 in {**of_case, "all": run_N2}.items():
        open_N2 = found_N2[(found_N2[:, 0] > 0.1) & (found_N2[:, 0] < 0.9)]
        predicted, stable = open_N2.mean(axis=0)
        print(f"| {name} | {len(open_N2)} | {predicted:.2f} | {stable:.2f} |")


if __name__ == "__main__":
    main()

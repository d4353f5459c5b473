"""Our search beside BoTorch's look-ahead for level sets: the error of the edge, and processor seconds for each trial.

    python benchmarks/engines.py --json FILE [--seeds N] [--widths WIDTH ...]

Needs botorch. Planted edges of five shapes in 32 x 32 cells. BoTorch's trials are judged twice: by its own model, and
by the surface that sweep fits. They are chosen one at a time and ours in batches of four, so it sees more results
before it chooses.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import numpy as np
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.search_arms import ours
from benchmarks.search_botorch import Engine
from benchmarks.search_truths import SHAPES, Truth, synthetic

BUDGETS = (64, 96, 128)


@dataclass(frozen=True)
class Run:
    """One engine on one truth: errors in cells by number of trials, and processor seconds to choose and fit a trial."""

    engine: str
    case: str
    seed: int
    errors: dict[int, float]
    seconds: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Run both engines on all cases, and write the runs so far after each; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", required=True, help="write all runs")
    parser.add_argument("--seeds", type=int, default=3, help="seeds of each engine on each case (3)")
    parser.add_argument("--widths", type=float, nargs="+", default=[0.15, 0.6], help="of the transition, in cells")
    chosen = parser.parse_args(arguments)
    runs: list[Run] = []
    for seed, width, shape in itertools.product(range(chosen.seeds), chosen.widths, SHAPES):
        runs += compared(synthetic(shape, width), seed)
        chosen.json.write_text(json.dumps([asdict(one) for one in runs], indent=1) + "\n")
    _show(runs)
    return 0


def compared(truth: Truth, seed: int) -> Iterator[Run]:
    """The runs of each engine on a truth."""

    def errors(found: dict[int, np.ndarray]) -> dict[int, float]:
        return {num: float(np.mean(np.abs(edge_R - truth.edge_R))) for num, edge_R in found.items()}

    start = time.process_time()
    found = ours(truth, BUDGETS, seed)
    yield Run("sweep", truth.name, seed, errors(found), (time.process_time() - start) / max(BUDGETS))
    engine, own, refitted, spent = Engine(truth, seed), {}, {}, 0.0
    while engine.trials.num < max(BUDGETS):
        start = time.process_time()
        engine.train_next()
        spent += time.process_time() - start
        if engine.trials.num in BUDGETS:
            own[engine.trials.num], refitted[engine.trials.num] = engine.edges(), engine.trials.edges()
    yield Run("botorch", truth.name, seed, errors(own), spent / max(BUDGETS))
    yield Run("botorch, our fit", truth.name, seed, errors(refitted), spent / max(BUDGETS))


def _show(runs: Sequence[Run]) -> None:
    table = Table("case", "engine", *(f"{num} trials" for num in BUDGETS), "s / trial", title="Median errors in cells")
    for case in dict.fromkeys(one.case for one in runs):
        for engine in dict.fromkeys(one.engine for one in runs):
            mine = [one for one in runs if (one.case, one.engine) == (case, engine)]
            figures = [f"{median(one.errors[num] for one in mine):.2f}" for num in BUDGETS]
            table.add_row(case, engine, *figures, f"{median(one.seconds for one in mine):.3f}")
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())

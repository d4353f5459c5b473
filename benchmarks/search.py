"""How many trials a search needs to find the edge of stability, compared to a full grid and to other ways.

    python benchmarks/search.py --json FILE [--quick] [--workers N] [--cases CASES ...] [--arms ARM ...]
    python benchmarks/search.py --table FILE.csv --along AXIS [--log AXIS ...] [--log1m AXIS ...]

The truth is known: 32 x 32 cells with five shapes of edge, each with six widths of transition (flat); 16 x 16 x 16
cells (3-D) and edges drawn at random (random), with the first three widths; or trained outcomes (tables), of which a
part is held out for the edge of reference, so that the grid is not judged by its own trials (search_tables.py). The
error is the mean distance of the edge that is found from the true one, in cells along the searched axis. `grid3` has
three seeds, or as many as a table trains with.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table as PrintedTable

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.search_arms import ARMS, DEFAULT_ARMS, Trials, grid
from benchmarks.search_tables import TABLES, Table, read_table
from benchmarks.search_truths import SHAPES, WIDTHS, Truth, in_three_dimensions, random_edge, synthetic
from orchestrator.base.errors import SweepError

CASES = ("flat", "3-D", "random", "tables")
BUDGETS = (48, 64, 96, 128, 192)
BUDGETS_3D = (100, 200, 300, 400)
SLOW_IN_3D = ("tpe",)  # hundreds of surfaces, each of hundreds of trials
_FEW_WIDTHS = WIDTHS[:3]
_EVERY = 4  # trials between two measurements of ours


@dataclass(frozen=True)
class Case:
    """A truth by the function and the arguments that make it, so that another process can make it too."""

    make: Callable[..., Truth]
    arguments: tuple[Any, ...]
    budgets: tuple[int, ...]
    arms: tuple[str, ...]

    def truth(self) -> Truth:
        """The truth itself."""
        return self.make(*self.arguments)


@dataclass(frozen=True)
class Task:
    """One arm, or a grid, on one case with one seed."""

    case: Case
    arm: str
    seed: int


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the arms on the cases; returns the exit code."""
    chosen = _parser().parse_args(arguments)
    try:
        cases = _cases(chosen)
        names = [case.truth().name for case in cases]
    except SweepError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    seeds = range(chosen.seeds or (2 if chosen.quick else 20))
    tasks = [Task(case, arm, seed) for case in cases for arm in (*case.arms, "grid") for seed in seeds]
    try:
        results = dict(zip(tasks, track(_results(tasks, chosen.workers), "Searching", total=len(tasks)), strict=True))
    except SweepError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    figures = summary(dict(zip(names, cases, strict=True)), results)
    _show(figures)
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(figures, indent=2) + "\n")
        print(f"wrote {chosen.json}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures")
    parser.add_argument("--quick", action="store_true", help="two shapes, one width, two seeds, few trials")
    parser.add_argument("--seeds", type=int, help="seeds of each arm on each case (20)")
    parser.add_argument("--budgets", type=int, nargs="+", metavar="N", help="numbers of trials to measure at")
    parser.add_argument("--widths", type=float, nargs="+", default=WIDTHS, help="of the transition, of flat cases")
    parser.add_argument("--workers", type=int, default=1, help="processes")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=DEFAULT_ARMS)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=["flat", "3-D", "tables"])
    parser.add_argument("--table", type=Path, metavar="FILE", help="outcomes of a trained grid, instead of these cases")
    parser.add_argument("--along", help="the axis of the table along which training turns unstable")
    parser.add_argument("--log", nargs="*", default=[], metavar="AXIS", help="axes of the table on a log scale")
    parser.add_argument("--log1m", nargs="*", default=[], metavar="AXIS", help="axes of the table on a scale of 1 - x")
    return parser


def _cases(chosen: argparse.Namespace) -> list[Case]:
    arms = tuple(chosen.arms)
    flat, deep = (tuple(chosen.budgets or budgets) for budgets in (BUDGETS, BUDGETS_3D))
    if chosen.table is not None:
        table = Table(chosen.table, chosen.along or "", tuple(chosen.log), tuple(chosen.log1m))
        return [Case(read_table, (table,), flat, arms)]
    if chosen.quick:
        return [Case(synthetic, (shape, 0.15), (24, 32), arms) for shape in ("linear", "step")]
    cases = []
    if "flat" in chosen.cases:
        cases += [Case(synthetic, (shape, width), flat, arms) for width in chosen.widths for shape in SHAPES]
    if "random" in chosen.cases:
        cases += [Case(random_edge, (number, width), flat, arms) for width in _FEW_WIDTHS for number in range(8)]
    if "3-D" in chosen.cases:
        some = tuple(arm for arm in arms if arm not in SLOW_IN_3D)
        cases += [Case(in_three_dimensions, (width,), deep, some) for width in _FEW_WIDTHS]
    if "tables" in chosen.cases:
        cases += [Case(read_table, (table,), flat, arms) for table in TABLES]
    return cases


def _results(tasks: Sequence[Task], workers: int) -> Iterable[dict[str, float]]:
    if workers == 1:
        yield from map(run, tasks)
        return
    with ProcessPoolExecutor(workers) as pool:
        yield from pool.map(run, tasks)


def run(task: Task) -> dict[str, float]:
    """The error of one arm at each budget, or of the grid by its shares and by its brackets, in cells."""
    truth = task.case.truth()

    def error(edge_R: np.ndarray) -> float:
        return float(np.mean(np.abs(edge_R - truth.edge_R)))

    if task.arm == "grid":
        trials = Trials(truth, task.seed)
        grids = grid(trials, min(3, truth.num_seeds))
        return {name: error(edge_R) for name, edge_R in grids.items()}
    budgets = task.case.budgets
    if task.arm == "ours":
        budgets = tuple(sorted({*budgets, *range(_EVERY * 6, max(budgets) + 1, _EVERY)}))
    return {str(num): error(edge_R) for num, edge_R in sorted(ARMS[task.arm](truth, budgets, task.seed).items())}


def summary(cases: dict[str, Case], results: dict[Task, dict[str, float]]) -> dict[str, Any]:
    """Medians over seeds, the worst of ours, and the trials from which on ours is as good as the grid."""
    arms = list(dict.fromkeys(arm for case in cases.values() for arm in case.arms))

    def over_seeds(case: Case, arm: str, of: Callable[[list[float]], float]) -> dict[str, float]:
        runs = [errors for task, errors in results.items() if task.case == case and task.arm == arm]
        return {key: of([errors[key] for errors in runs]) for key in runs[0]}

    def at_budgets(case: Case, errors: dict[str, float]) -> dict[str, float]:
        return {str(num): errors[str(num)] for num in case.budgets}

    def each(arm: str, of: Callable[[list[float]], float]) -> dict[str, dict[str, float]]:
        mine = {name: case for name, case in cases.items() if arm in case.arms}
        return {name: at_budgets(case, over_seeds(case, arm, of)) for name, case in mine.items()}

    grids = {name: over_seeds(case, "grid", median) for name, case in cases.items()}
    ours = {name: over_seeds(case, "ours", median) for name, case in cases.items() if "ours" in case.arms}
    return {
        "error": {arm: each(arm, median) for arm in arms},
        "worst": {arm: each(arm, max) for arm in arms},
        "grid3": {name: grids[name]["grid3"] for name in cases},
        "grid1": {name: grids[name]["grid1"] for name in cases},
        "grid3_brackets": {name: grids[name]["grid3_brackets"] for name in cases},
        "trials_to_match_grid3": {name: first_as_good(errors, grids[name]["grid3"]) for name, errors in ours.items()},
    }


def first_as_good(errors: dict[str, float], limit: float) -> int | None:
    """The number of trials from which on no error is above ``limit``."""
    above = [int(num) for num, error in errors.items() if error > limit]
    return min((int(num) for num in errors if int(num) > max(above, default=0)), default=None)


def _show(figures: dict[str, Any]) -> None:
    table = PrintedTable("case", "grid, 3 seeds", "as good from", title="Median error of the edge in cells")
    arms = list(figures["error"])
    for arm in arms:
        table.add_column(arm)
    for name, limit in figures["grid3"].items():
        found = [" ".join(f"{error:.2f}" for error in figures["error"][arm].get(name, {}).values()) for arm in arms]
        table.add_row(name, f"{limit:.2f}", str(figures["trials_to_match_grid3"].get(name)), *found)
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())

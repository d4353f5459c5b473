"""What a mean of trials gains over the best of them: forks with other batches, learning rates, and seeds.

``python -m benchmarks.merge_forks results/merge_forks > results/reference/merge_forks/merges.csv`` after ``sweep run
results/reference/merge_forks/sweep.yaml``. Losses are of the half of the held-out text that chose nothing.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import groupby
from pathlib import Path
from typing import Literal, TextIO

from orchestrator.answers._merging import merged
from orchestrator.base.files import LEDGER
from orchestrator.base.space import Cell
from orchestrator.base.trial_result import TrialResult
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.table import read_table

SEEDS_AT = 0.005  # the learning rate at which seeds are merged


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """The mean of some trials: ``change`` of the loss from the best of them, the largest ``barrier`` of two."""

    differ_in: Literal["batches", "lr", "seed"]
    experts: int
    lr: float | None
    seed: int | None
    trials: int
    best_single: float
    mean: float
    change: float
    barrier: float


def merge(folder: Path, trials: Sequence[TrialResult], differ_in: Literal["batches", "lr", "seed"]) -> Merge:
    """Merge trials that differ in one thing."""
    found = merged(folder, trials, "linear", anyway=differ_in == "seed")
    single, mean = found.best_single.held_out_loss, found.chosen.held_out_loss
    barriers = [path.barrier for path in found.paths if path.barrier is not None]
    if single is None or mean is None or len(barriers) < len(found.paths):
        raise ValueError(f"a loss of {trials[0].name} or of its merge is not finite")
    return Merge(
        differ_in=differ_in,
        experts=trials[0].cell["experts"],
        lr=None if differ_in == "lr" else trials[0].cell["lr"],
        seed=None if differ_in == "seed" else trials[0].seed,
        trials=len(trials),
        best_single=single,
        mean=mean,
        change=mean - single,
        barrier=max(barriers),
    )


def merges(folder: Path) -> Iterator[Merge]:
    """Merge the forks of each cell and seed, then the rates of each seed, then the seeds at one rate."""
    with LedgerReader(folder / LEDGER) as ledger:
        trials = read_table(ledger).trials
    unforked = [trial for trial in trials if not trial.cell["interventions"]]
    for _, forks in _grouped(trials, "interventions"):
        yield merge(folder, forks, "batches")
    for _, rates in _grouped(unforked, "lr"):
        yield merge(folder, rates, "lr")
    at_one = [trial for trial in unforked if trial.cell["lr"] == SEEDS_AT]
    for _, seeds in groupby(sorted(at_one, key=_experts), key=_experts):
        yield merge(folder, list(seeds), "seed")


def _experts(trial: TrialResult) -> int:
    return int(trial.cell["experts"])


def _grouped(trials: Sequence[TrialResult], axis: str) -> Iterator[tuple[tuple[Cell, int], list[TrialResult]]]:
    """Trials that differ in one axis alone, for each setting of the others and each seed."""
    groups: dict[tuple[Cell, int], list[TrialResult]] = {}
    for trial in trials:
        groups.setdefault((trial.cell.without({axis}), trial.seed), []).append(trial)
    yield from groups.items()


def write(rows: Sequence[Merge], file: TextIO) -> None:
    """Write the merges as CSV, losses with four digits after the point."""
    table = csv.writer(file, lineterminator="\n")
    names = [field.name for field in fields(Merge)]
    table.writerow(names)
    for row in rows:
        values = [getattr(row, name) for name in names]
        table.writerow(
            [f"{value:.4f}" if name in names[5:] else value for name, value in zip(names, values, strict=True)]
        )


if __name__ == "__main__":
    write(list(merges(Path(sys.argv[1]))), sys.stdout)

"""Made-up forks of a trial, as the ledger would have them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from diagnosis_cases import row_of

from orchestrator.base.space import Cell
from orchestrator.base.trial_result import TrialResult
from orchestrator.causes.remedies.cells import CellRemedies, Region
from orchestrator.causes.remedies.reading import current_remedies, tallies
from orchestrator.causes.remedies.remedy import FIRST_FRESH, Entry, Fork, Remedy
from orchestrator.causes.remedies.request import RemedyRequest
from orchestrator.causes.remedies.results import Remedies
from orchestrator.causes.remedies.training import (
    diagnose_unstable,
    region_to_remedy,
    remedies_after,
    train_remedies,
)
from orchestrator.executors.inline import InlineExecutor

LOWER = Remedy(({"at": 0, "set": {"lr": "x0.5"}},))
SKIP = Remedy(({"at": 0, "skip": 5},))
CLIP = Remedy(({"at": 0, "set": {"clip": 0.3}},))


def forked(
    remedy: Remedy,
    step: int,
    outcomes: Sequence[str],
    losses: Sequence[float] | None = None,
    own: Sequence[Entry] = (),
    first: int | None = None,
) -> list[TrialResult]:
    """A row for each replicate of a remedy from a step; other data alone starts with the replicate 1."""
    first = first if first is not None else 0 if remedy.entries else 1
    rows = []
    for k, outcome in enumerate(outcomes, first):
        changes: dict[str, Any] = {"config": {"interventions": Fork(remedy, step, k).interventions(own)}}
        loss = losses[k - first] if losses else 1.0
        onset = None if outcome == "stable" else 50
        rows.append(row_of(outcome, onset, final_loss=loss if outcome != "diverged" else None, **changes))
    return rows


def answer(rows: Sequence[TrialResult], cause: str | None = None, onset: int | None = 100, **changes: Any) -> Remedies:
    """The answer of these forks of a trial that diverged."""
    trial = row_of("diverged", onset, final_loss=None)
    counted = tallies(rows, over=None if onset is None else onset + 10)
    found = Remedies(
        sweep="case",
        trial=trial,
        onset=onset,
        cause=cause,
        control=trial,
        control_repeats=True,
        control_differs={},
        tallies=tuple(tally for tally in counted if tally.remedy.entries and not tally.is_fresh),
        fresh=tuple(tally for tally in counted if tally.remedy.entries and tally.is_fresh),
        fresh_other_data=tuple(tally for tally in counted if not tally.remedy.entries and tally.is_fresh),
        unchanged=tuple(tally for tally in counted if not tally.remedy.entries and not tally.is_fresh),
        stable_cells=(),
        neighbours=(),
        costs=(),
        num_missing=0,
        num_tried=len({tally.name for tally in counted if tally.remedy.entries}),
    )
    return replace(found, **changes)


def in_cell(found: Remedies, lr: float) -> Remedies:
    """An answer as that of the cell with this learning rate."""
    return replace(found, trial=replace(found.trial, cell=Cell(lr=lr, beta2=0)))


def all_cells(cells: Sequence[Remedies]) -> CellRemedies:
    """The answers of all unstable cells of a map that has two stable ones and one that is not known."""
    return CellRemedies(Region("case", tuple(cell.trial for cell in cells), len(cells) + 2, 1), tuple(cells))


ALL, NONE = ["stable"] * 3, ["diverged"] * 3
# Enough replicates to tell a remedy from chance.
TEN, NINE, LOST = ["stable"] * 10, ["diverged", *["stable"] * 9], ["diverged"] * 10


def others(*steps: int) -> list[TrialResult]:
    """Forks with other data alone, which are all lost, each at another step."""
    forks = (enumerate(forked(Remedy(), step, LOST)) for step in steps)
    return [replace(row, steps_done=400 - k) for rows in forks for k, row in rows]


def fresh(remedy: Remedy, step: int, outcomes: Sequence[str], loss: float = 1.0) -> list[TrialResult]:
    """Replicates of a named remedy that chose nothing."""
    return forked(remedy, step, outcomes, [loss] * len(outcomes), first=FIRST_FRESH)


def three_cells() -> CellRemedies:
    """A cell that clipping saves and a lower rate too, one that only spikes, and one that nothing saves for certain."""
    first = answer([*forked(CLIP, 100, ALL, [1.0] * 3), *forked(LOWER, 100, ALL, [2.0] * 3), *forked(SKIP, 100, NONE)])
    skipped = [*forked(SKIP, 90, TEN, [3.0] * 10), *fresh(SKIP, 90, NINE, 3.0)]
    second = answer([*skipped, *forked(LOWER, 90, LOST), *others(90)], trial=row_of("spiked", 100))
    third = answer([*forked(LOWER, 90, NINE), *fresh(LOWER, 90, NINE), *others(90)])
    return all_cells(
        [
            in_cell(first, 1),
            in_cell(replace(second, control=row_of("spiked", 100, final_loss=2.9)), 2),
            in_cell(third, 3),
        ]
    )


def find_remedies(folder: Path, trial_id: str | None, cell: Mapping[str, Any], request: RemedyRequest) -> Remedies:
    """The remedies of a trial, whose missing forks are trained in this process."""
    diagnosis = diagnose_unstable(folder, trial_id, cell)
    for _, summary in train_remedies(folder, diagnosis, request, InlineExecutor, ()):
        assert summary.stopped_by is None
    return current_remedies(folder, diagnosis)


def find_cell_remedies(folder: Path, where: Mapping[str, Any], request: RemedyRequest) -> CellRemedies:
    """The remedies of each unstable cell, whose missing forks are trained in this process."""
    region, cells = region_to_remedy(folder, where, request), []
    for trial in region.trials:
        diagnosis = diagnose_unstable(folder, trial.trial_id, {})
        summaries = [summary for _, summary in train_remedies(folder, diagnosis, request, InlineExecutor, ())]
        cells.append(remedies_after(folder, diagnosis, summaries))
    return CellRemedies(region, tuple(cells))

"""Made-up forks of a trial, as the ledger would have them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from diagnosis_cases import row_of

from orchestrator.base.cell import Cell
from orchestrator.base.trial_result import TrialResult
from orchestrator.causes.remedies.cells import CellRemedies, CellRemedy, Region, cell_remedy
from orchestrator.causes.remedies.remedy import Entry, Fork, Remedy
from orchestrator.causes.remedies.results import Remedies, tallies

LOWER = Remedy(({"at": 0, "set": {"lr": "x0.5"}},))
SKIP = Remedy(({"at": 0, "skip": 5},))
CLIP = Remedy(({"at": 0, "set": {"clip": 0.3}},))


def forked(
    remedy: Remedy, step: int, outcomes: Sequence[str], losses: Sequence[float] | None = None, own: Sequence[Entry] = ()
) -> list[TrialResult]:
    """A row for each replicate of a remedy from a step on; other data alone starts with the replicate 1."""
    first = 0 if remedy.entries else 1
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
        tallies=tuple(one for one in counted if one.remedy.entries),
        unchanged=tuple(one for one in counted if not one.remedy.entries),
        stable_cells=(),
        neighbour=None,
        costs=(),
        num_missing=0,
    )
    return replace(found, **changes)


def in_cell(found: Remedies, lr: float) -> CellRemedy:
    """An answer as that of the cell with this learning rate."""
    return cell_remedy(replace(found, trial=replace(found.trial, cell=Cell(lr=lr, beta2=0))))


def told(cells: Sequence[CellRemedy]) -> CellRemedies:
    """The answers of all unstable cells of a map that has two stable ones and one that is not known."""
    return CellRemedies(Region("case", tuple(one.trial for one in cells), len(cells) + 2, 1), tuple(cells))

"""The trials of a run: from the ledger and from the sweep's search; and a search that refines a finished sweep."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.base.columns import RESULTS
from orchestrator.base.errors import InputError, Problem
from orchestrator.base.files import FROZEN_SWEEP, LEDGER
from orchestrator.base.space import Cell, Trial
from orchestrator.base.trial_result import TrialResult
from orchestrator.ledger.reader import LedgerReader, check_not_imported
from orchestrator.maps.table import with_relative_results
from orchestrator.search.protocol import CellResult, SeedResult
from orchestrator.sweepfile.overrides import Overrides, refined
from orchestrator.sweepfile.searches import proposed_trials
from orchestrator.sweepfile.spec import Sweep, build_sweep
from orchestrator.sweepfile.strict_yaml import read_document

if TYPE_CHECKING:  # a plan writes no ledger
    from orchestrator.ledger.writer import LedgerWriter

# Room for a search that proposes all of its trials at once.
_UNLIMITED = 10**9
_MAX_TRIALS = 10_000  # a sweep file with so many is valid without further settings


class Proposer:
    """The trials of one run, in the order of the sweep; new ones are in the ledger before they are trained."""

    def __init__(self, sweep: Sweep, ledger: LedgerWriter) -> None:
        self._sweep, self._ledger = sweep, ledger
        self._is_over = False  # whether the search has nothing more to propose
        self.trials: dict[str, Trial] = {}

    def begin(self, facts: Mapping[str, str]) -> None:
        """Make the sweep in the ledger consist of its recorded trials and of the search's next ones."""
        self.trials = {trial.trial_id: trial for trial in self._recorded()}
        room = len(self._sweep.trials) if self._sweep.is_open else _UNLIMITED
        new = self._proposed(room) if not self._is_waiting() else []
        order = {trial.trial_id: i for i, trial in enumerate(self._sweep.trials)}
        trials = sorted([*self.trials.values(), *new], key=lambda trial: order.get(trial.trial_id, len(order)))
        self.trials = {trial.trial_id: trial for trial in trials}
        self._ledger.plan(self._sweep.objective.name, trials, facts)

    def more(self, room: int) -> list[Trial]:
        """Return further trials, recorded in the ledger; none while the search waits or when it is over."""
        if not self._sweep.is_open:
            return []
        new = self._proposed(room)
        if new:
            self._ledger.propose(self._sweep.objective.name, new)
            self.trials |= {trial.trial_id: trial for trial in new}
        return new

    def _proposed(self, room: int) -> list[Trial]:
        proposals = None if self._is_over else self._sweep.search.propose(self._cell_results(), room)
        self._is_over = proposals is None
        if not self._sweep.is_open:
            return [] if proposals is None else [t for t in self._sweep.trials if t.trial_id not in self.trials]
        made = proposed_trials(proposals or [], self._sweep.maker)
        return [trial for trial in made if trial.trial_id not in self.trials]

    def _recorded(self) -> list[Trial]:
        """The sweep's trials in the ledger, including trials of an earlier version of its file."""
        listed = {trial.trial_id: trial for trial in self._sweep.trials}
        if not self._sweep.is_open:
            return [listed[trial_id] for trial_id in self._ledger.statuses(removed=True) if trial_id in listed]
        rows = self._ledger.trials(removed=True)
        return [trial for row in rows if (trial := listed.get(row.trial_id) or self._sweep.trial_like(row))]

    def _is_waiting(self) -> bool:
        """Whether an open search has trials without a result."""
        statuses = self._ledger.statuses(removed=True)
        over = ("finished", "errored")
        return self._sweep.is_open and any(statuses[trial_id][0] not in over for trial_id in self.trials)

    def _cell_results(self) -> list[CellResult]:
        """All cells so far, in the order of their proposals."""
        seeds: dict[Cell, list[SeedResult]] = {}
        results = self._seed_results() if self._sweep.is_open else {}
        for trial in self.trials.values():
            seeds.setdefault(trial.cell, []).append(results.get(trial.trial_id, SeedResult(trial.seed, None, False)))
        order = {seed: i for i, seed in enumerate(self._sweep.seeds)}
        return [
            CellResult(cell, tuple(sorted(of_cell, key=lambda result: order[result.seed])))
            for cell, of_cell in seeds.items()
        ]

    def _seed_results(self) -> dict[str, SeedResult]:
        return {
            row.trial_id: SeedResult(
                seed=row.seed,
                outcome=row.outcome,
                is_over=row.status in ("finished", "errored"),
                metrics={
                    name: float(value)
                    for name in RESULTS
                    if (value := getattr(row, name)) is not None and math.isfinite(value)
                },
            )
            for row in self._trial_results()
        }

    def _trial_results(self) -> list[TrialResult]:
        """Return all trials, with the results that follow from others if they are still in the sweep."""
        rows = self._ledger.trials(removed=True)
        present = [row for row in rows if row.position is not None]
        return with_relative_results(present, self._ledger.facts()) + rows[len(present) :]


def missing_trials(trials: Iterable[Trial], statuses: Mapping[str, tuple[str, int]]) -> list[Trial]:
    """Return the ``trials`` that a run would train: planned, interrupted or lost, and not given up."""
    again = ("planned", "interrupted", "lost")
    return [trial for trial in trials if statuses.get(trial.trial_id, ("planned", 0))[0] in again]


def refining_sweep(
    folder: Path, along: str | None, num_more: int, factor: float, overrides: Overrides, allow_import: bool
) -> Sweep:
    """Return the search that continues from the trials in ``folder`` and adds at most ``num_more``.

    Raises InputError if ``folder`` has imported results or no trials of these axes.
    """
    check_not_imported(folder)
    document = read_document(folder / FROZEN_SWEEP)
    # The axes decide which trials count, so the sweep is built twice.
    search = build_sweep(refined(document, along, _MAX_TRIALS, factor), overrides, allow_import=allow_import)
    with LedgerReader(folder / LEDGER) as ledger:
        num_known = sum(search.trial_like(row) is not None for row in ledger.trials(removed=True))
    if not num_known:
        raise InputError(Problem(str(folder), "", "has no trial to begin with", "`sweep run` it first"))
    return build_sweep(refined(document, along, num_known + num_more, factor), overrides, allow_import=allow_import)

"""The trials of a run: what the ledger has of the sweep, and what the sweep's search proposes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from orchestrator.base.columns import RESULTS
from orchestrator.base.space import Trial
from orchestrator.search.listed import cell_key
from orchestrator.search.protocol import CellResult, SeedResult
from orchestrator.sweepfile.searches import proposed_trials
from orchestrator.sweepfile.spec import Sweep

if TYPE_CHECKING:  # a plan writes no ledger
    from orchestrator.ledger.writer import LedgerWriter

# The room for a search that proposes all at once.
_UNLIMITED = 10**9


class Proposer:
    """Keeps the trials of one run, in the order of the sweep; new ones are in the ledger before they are trained."""

    def __init__(self, sweep: Sweep, ledger: LedgerWriter) -> None:
        self._sweep, self._ledger = sweep, ledger
        self._is_over = False  # whether the search has nothing more to propose
        self.trials: dict[str, Trial] = {}

    def begin(self, facts: Mapping[str, str]) -> None:
        """Make the sweep in the ledger consist of what it has already and of the search's next trials."""
        self.trials = {trial.trial_id: trial for trial in self._recalled()}
        room = len(self._sweep.trials) if self._sweep.is_open else _UNLIMITED
        new = self._proposed(room) if not self._under_way() else []
        order = {trial.trial_id: place for place, trial in enumerate(self._sweep.trials)}
        trials = sorted([*self.trials.values(), *new], key=lambda trial: order.get(trial.trial_id, len(order)))
        self.trials = {trial.trial_id: trial for trial in trials}
        self._ledger.plan(self._sweep.objective.name, trials, facts)

    def more(self, room: int) -> list[Trial]:
        """Further trials, recorded in the ledger; none where the search waits or is over."""
        if not self._sweep.is_open:
            return []
        new = self._proposed(room)
        if new:
            self._ledger.propose(self._sweep.objective.name, new)
            self.trials |= {trial.trial_id: trial for trial in new}
        return new

    def _proposed(self, room: int) -> list[Trial]:
        proposals = None if self._is_over else self._sweep.search.propose(self._known(), room)
        self._is_over = proposals is None
        if not self._sweep.is_open:
            return [] if proposals is None else [t for t in self._sweep.trials if t.trial_id not in self.trials]
        made = proposed_trials(proposals or [], self._sweep.maker)
        return [trial for trial in made if trial.trial_id not in self.trials]

    def _recalled(self) -> list[Trial]:
        """The trials in the ledger that are of the sweep, also those of an earlier version of its file."""
        listed = {trial.trial_id: trial for trial in self._sweep.trials}
        if not self._sweep.is_open:
            return [listed[trial_id] for trial_id in self._ledger.statuses(removed=True) if trial_id in listed]
        rows = self._ledger.trials(removed=True)
        return [trial for row in rows if (trial := listed.get(row.trial_id) or self._sweep.trial_like(row))]

    def _under_way(self) -> bool:
        """Whether an open search has trials that wait for their result."""
        statuses = self._ledger.statuses(removed=True)
        over = ("finished", "errored")
        return self._sweep.is_open and any(statuses[trial_id][0] not in over for trial_id in self.trials)

    def _known(self) -> list[CellResult]:
        """All cells so far, in the order in which they were proposed."""
        seeds: dict[tuple[Any, ...], list[SeedResult]] = {}
        cells: dict[tuple[Any, ...], Mapping[str, Any]] = {}
        results = self._results() if self._sweep.is_open else {}
        for trial in self.trials.values():
            key = cell_key(trial.cell)
            cells.setdefault(key, trial.cell)
            seeds.setdefault(key, []).append(results.get(trial.trial_id, SeedResult(trial.seed, None, False)))
        order = {seed: place for place, seed in enumerate(self._sweep.seeds)}
        return [
            CellResult(cell, tuple(sorted(seeds[key], key=lambda result: order[result.seed])))
            for key, cell in cells.items()
        ]

    def _results(self) -> dict[str, SeedResult]:
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
            for row in self._ledger.trials(removed=True)
        }


def missing_trials(trials: Iterable[Trial], statuses: Mapping[str, tuple[str, int]]) -> list[Trial]:
    """Those of ``trials`` that a run would train: planned, interrupted or lost, and not given up."""
    again = ("planned", "interrupted", "lost")
    return [trial for trial in trials if statuses.get(trial.trial_id, ("planned", 0))[0] in again]

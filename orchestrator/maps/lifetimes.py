"""How long each run was stable, as far as it was watched."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from orchestrator.base.space import Cell
from orchestrator.base.trial_result import TrialResult
from orchestrator.base.vocabulary import OUTCOMES


@dataclass(frozen=True, slots=True)
class Lifetime:
    """How many ``steps`` a run was watched: to its first step off the trend, to the collapse of its router, or to its
    end without either (censored).

    A run is stable to step t if its onset is later.
    """

    cell: Cell
    steps: int
    has_onset: bool


def lifetimes(runs: Iterable[TrialResult]) -> list[Lifetime]:
    """The lifetimes of the runs whose outcome is known."""
    return [lifetime(run) for run in runs if run.outcome in OUTCOMES]


def lifetime(trial: TrialResult) -> Lifetime:
    """Return how long a run was stable. Of one that diverged the first episode counts: it was not stable after that."""
    watched = max(1, trial.steps_done or 0)
    onsets = [onset for onset, _ in trial.episodes]
    onsets += [step for step in (trial.onset_step, trial.collapsed_step) if step is not None]
    if trial.ending == "stable" or not onsets:
        return Lifetime(trial.cell, watched, has_onset=False)
    return Lifetime(trial.cell, max(1, min(min(onsets) + 1, watched)), has_onset=True)

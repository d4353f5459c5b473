"""Trains the forks of a trial from the latest step back, until a remedy saves every replicate: the cheapest one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.base.errors import InputError, Problem
from orchestrator.base.files import LEDGER
from orchestrator.causes.diagnosis import Diagnosis
from orchestrator.causes.remedies.answer import Remedies
from orchestrator.causes.remedies.asking import fork_steps_of, remedies_of
from orchestrator.causes.remedies.cells import CellRemedies, Region, cell_remedy, unstable_region
from orchestrator.causes.remedies.custom import is_custom, refuse_unforkable
from orchestrator.causes.remedies.derived import accepted, refuse_forks
from orchestrator.causes.remedies.remedy import Fork
from orchestrator.causes.remedies.training import (
    Asked,
    answer_of,
    asked_steps,
    to_remedy,
    train_remedies,
    tried_remedies,
)
from orchestrator.driver.progress import Observer, Summary
from orchestrator.executors import Executor
from orchestrator.ledger.reader import LedgerReader


def train_latest_first(
    folder: Path, found: Diagnosis, asked: Asked, make_executor: Callable[[], Executor], observers: Sequence[Observer]
) -> Iterator[Summary]:
    """Train forks at the latest of the asked steps, then at earlier ones too while nothing saves every replicate.

    Pairs of remedies come last. All steps of a custom trainer come at once, as its control keeps their checkpoints.
    Ends after a part that was stopped. Running it again trains nothing. Raises InputError as ``train_remedies`` does.
    """
    steps = asked_steps(found, asked)
    places = [0] if is_custom(found.trial) and steps else reversed(range(len(steps)))
    for place in places:
        at = [str(step) for step in steps[place:]]
        now = replace(asked, at=at, pairs=asked.pairs and place == 0)
        if not is_custom(found.trial) and not tried_remedies(folder, found, now, steps[place:]):
            continue  # so late in the run nothing acts any more
        for _, summary in train_remedies(folder, found, now, make_executor, observers):
            yield summary
            if summary.stopped_by is not None:
                return
        if answer_of(folder, found).cheapest is not None:
            return


def latest_answer(folder: Path, found: Diagnosis, summaries: Sequence[Summary]) -> Remedies:
    """What the forks say of which ``train_latest_first`` gave ``summaries``.

    Without one nothing of the question can be tried in this trial, and the forks there are of an earlier question.
    """
    answer = answer_of(folder, found)
    return answer if summaries else replace(answer, tallies=(), unchanged=(), num_missing=0)


def is_stopped(summaries: Sequence[Summary]) -> bool:
    """Whether a signal stopped one of the parts."""
    return any(one.stopped_by is not None for one in summaries)


def region_to_remedy(folder: Path, where: Mapping[str, Any], asked: Asked) -> Region:
    """The unstable cells of the map of the sweep in ``folder``, of those with the values of ``where``.

    Raises InputError where there is none, and for a remedy or a step that none of their trials takes.
    """
    with LedgerReader(folder / LEDGER) as ledger:
        region = unstable_region(ledger, where)
    if not region.trials:
        known = f"none of its {region.num_known} known cells is unstable" if region.num_known else "no cell is known"
        raise InputError(
            Problem(folder.name, "", f"{known}: there is nothing to remedy", "`sweep status` lists outcomes")
        )
    first = region.trials[0]
    refuse_unforkable(folder, first)
    for remedy in remedies_of(asked.tried):
        forks = [Fork(remedy, 0, 0)]
        if not any(accepted(folder, trial, forks, allow_import=asked.allow_import) for trial in region.trials):
            refuse_forks(folder, first, forks, allow_import=asked.allow_import)
    steps = [fork_steps_of(asked.at, one.onset_step, one.steps, leaves_out=True) for one in region.trials]
    if asked.at and not any(steps):
        fork_steps_of(asked.at, first.onset_step, first.steps)
    return region


def find_cell_remedies(folder: Path, where: Mapping[str, Any], asked: Asked) -> CellRemedies:
    """The cheapest remedy of each unstable cell, with forks that are trained in this process where they are missing.

    Raises InputError.
    """
    from orchestrator.executors.inline import InlineExecutor

    region, cells = region_to_remedy(folder, where, asked), []
    for trial in region.trials:
        found = to_remedy(folder, trial.trial_id, {})
        summaries = list(train_latest_first(folder, found, asked, InlineExecutor, ()))
        if is_stopped(summaries):
            raise KeyboardInterrupt
        cells.append(cell_remedy(latest_answer(folder, found, summaries)))
    return CellRemedies(region, tuple(cells))

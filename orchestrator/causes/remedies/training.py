"""Trains the forks of a trial: remedies alone, pairs where none is enough, and the cost on a stable neighbour."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from orchestrator.base.errors import InputError, Problem
from orchestrator.base.files import LEDGER
from orchestrator.base.trial_result import TrialResult
from orchestrator.causes.diagnosis import Diagnosis, diagnose
from orchestrator.causes.remedies.acting import acting, refuse_idle
from orchestrator.causes.remedies.answer import Beside, Remedies
from orchestrator.causes.remedies.asking import fork_steps_of
from orchestrator.causes.remedies.asking import remedies_of as asked_remedies
from orchestrator.causes.remedies.beside import stable_beside
from orchestrator.causes.remedies.custom import (
    is_custom,
    nearest,
    refuse_unforkable,
    replicates_of,
    resumes_there,
    unanswered,
)
from orchestrator.causes.remedies.derived import accepted, fork_sweep, objective_of, refuse_forks
from orchestrator.causes.remedies.pairs import pairs
from orchestrator.causes.remedies.reading import NEIGHBOUR, forks_folder, remedies_of
from orchestrator.causes.remedies.remedy import Fork, Remedy
from orchestrator.causes.remedies.tallies import Tally
from orchestrator.causes.remedies.usual import few_remedies, usual_remedies, usual_steps
from orchestrator.driver.checks import check_runnable
from orchestrator.driver.progress import Observer, Summary
from orchestrator.driver.runner import run_sweep
from orchestrator.executors import Executor
from orchestrator.ledger.reader import LedgerReader

MOST_FORKS = 5000


@dataclass(frozen=True, slots=True)
class Asked:
    """What to try: texts of `--try` and `--at`, none for the usual; ``replicates`` of each; ``pairs`` of two.

    ``of_each_cell`` asks it of many trials: fewer remedies are usual, what one of them does not take is left out
    instead of refused, a remedy that fails with the trial's own data is not tried with other data, and costs on stable
    neighbours are not measured.
    """

    tried: Sequence[str] = ()
    at: Sequence[str] = ()
    replicates: int = 3
    pairs: bool = True
    allow_import: bool = False
    of_each_cell: bool = False


def train_remedies(
    folder: Path, found: Diagnosis, asked: Asked, make_executor: Callable[[], Executor], observers: Sequence[Observer]
) -> Iterator[tuple[str, Summary]]:
    """Train what is missing of the forks of the diagnosed trial, part by part: what was trained, and how it ended.

    Ends after a part that was stopped. Running it again trains nothing. Raises InputError for a remedy or a step that
    the trial does not have.
    """
    trial, allow_import = found.trial, asked.allow_import
    asked = replace(asked, replicates=replicates_of(trial, asked.replicates))

    def train(forks: Iterable[Fork], of: TrialResult, there: Path, steps: Sequence[int] = ()) -> Summary:
        sweep = fork_sweep(folder, of, forks, allow_import=allow_import, there=there, steps=steps)
        check_runnable(sweep, there)
        return run_sweep(sweep, there, make_executor, observers, retry_errored=True)

    there = forks_folder(folder, trial.trial_id)
    if is_custom(trial):
        tried_remedies(folder, found, asked, [0])  # what is refused, is refused before the control trains
        if steps := unanswered(there, asked_steps(found, asked)):
            summary = train([], trial, there, steps)
            yield f"the control, which keeps checkpoints for {len(steps)} steps", summary
            if summary.stopped_by is not None:
                return
    singles = single_forks(folder, found, asked)
    if asked.of_each_cell and asked.replicates > 1:
        first = [fork for fork in singles if fork.replicate == 0 or not fork.remedy.entries]
        summary = train(first, trial, there)
        yield f"{len(first)} forks and the control", summary
        if summary.stopped_by is not None:
            return
        promising = {(one.remedy.name, one.fork_step) for one in answer_of(folder, found).tallies if one.saved}
        singles = [fork for fork in singles if fork in first or (fork.remedy.name, fork.step) in promising]
    summary = train(singles, trial, there)
    yield f"{len(singles)} forks and the control", summary
    if summary.stopped_by is not None:
        return
    if asked.pairs:
        both = [Fork(*pair, k) for pair in pairs(answer_of(folder, found)) for k in range(asked.replicates)]
        both = accepted(folder, trial, both, allow_import=allow_import)
        if both:
            summary = train([*singles, *both], trial, there)
            yield f"{len(both)} forks of two remedies", summary
            if summary.stopped_by is not None:
                return
    if asked.of_each_cell:
        return
    answer = answer_of(folder, found)
    neighbour, saving = answer.neighbour, last_saving(answer)
    if neighbour is not None and saving:
        forks = [Fork(tally.remedy, tally.fork_step, 0) for tally in saving]
        forks = accepted(folder, neighbour, forks, allow_import=allow_import)
        if is_custom(neighbour):
            if steps := unanswered(there / NEIGHBOUR, {fork.step for fork in forks}):
                summary = train([], neighbour, there / NEIGHBOUR, steps)
                yield "the control of a stable neighbour", summary
                if summary.stopped_by is not None:
                    return
            forks = [fork for fork in forks if resumes_there(there / NEIGHBOUR, fork.step)]
        yield f"{len(forks)} remedies on a stable neighbour", train(forks, neighbour, there / NEIGHBOUR)


def find_remedies(folder: Path, trial_id: str | None, cell: Mapping[str, Any], asked: Asked) -> Remedies:
    """The answer of a trial's forks, which are trained in this process where they are missing. Raises InputError."""
    from orchestrator.executors.inline import InlineExecutor

    found = to_remedy(folder, trial_id, cell)
    for _, summary in train_remedies(folder, found, asked, InlineExecutor, ()):
        if summary.stopped_by is not None:
            raise KeyboardInterrupt
    return answer_of(folder, found)


def to_remedy(folder: Path, trial_id: str | None, cell: Mapping[str, str]) -> Diagnosis:
    """The diagnosis of the trial to fork: as `sweep diagnose` chooses it. Raises InputError for a stable one."""
    with LedgerReader(folder / LEDGER) as ledger:
        found = diagnose(ledger, trial_id, cell)
    if found is None or found.evidence.outcome == "stable":
        what = "all its trials are stable" if found is None else f"the trial {found.trial.trial_id} is stable"
        raise InputError(
            Problem(folder.name, "", f"{what}: there is nothing to remedy", "`sweep status` lists outcomes")
        )
    refuse_unforkable(folder, found.trial)
    return found


def answer_of(folder: Path, found: Diagnosis) -> Remedies:
    """What the forks of the diagnosed trial of the sweep in ``folder`` say so far."""
    with LedgerReader(folder / LEDGER) as ledger:
        return remedies_of(ledger, found)


def single_forks(folder: Path, found: Diagnosis, asked: Asked) -> list[Fork]:
    """The forks of one remedy each, and of other data alone; without those that do not act. Raises InputError."""
    trial, steps = found.trial, asked_steps(found, asked)
    if is_custom(trial):
        steps = nearest(forks_folder(folder, trial.trial_id), steps, trial)
    tried = tried_remedies(folder, found, asked, steps)
    if not tried:
        raise InputError(
            Problem("--at", "", "no remedy fits between these steps and the end of the run", "fork earlier")
        )
    if (num := len(tried) * asked.replicates) > MOST_FORKS:
        message = f"{num} forks are more than {MOST_FORKS}"
        raise InputError(Problem("--replicates", str(asked.replicates), message, "try fewer remedies or steps"))
    # The fork of a packed objective that is left alone is the control; a trainer that is resumed may not repeat it.
    alone = [
        Fork(Remedy(), step, k)
        for step in steps
        for k in range(0 if is_custom(trial) and step > 0 else 1, asked.replicates)
    ]
    forks = [Fork(fork.remedy, fork.step, k) for fork in tried for k in range(asked.replicates)]
    return sorted([*alone, *forks], key=lambda fork: fork.step)  # side by side in a pack, forks share their past


def asked_steps(found: Diagnosis, asked: Asked) -> list[int]:
    """The steps to fork at, ascending. Raises InputError."""
    evidence = found.evidence
    if not asked.at:
        return usual_steps(evidence)
    return fork_steps_of(asked.at, evidence.onset, found.trial.steps, leaves_out=asked.of_each_cell)


def tried_remedies(folder: Path, found: Diagnosis, asked: Asked, steps: Sequence[int]) -> list[Fork]:
    """The forks of one remedy each with the data of the trial; without those that do not act. Raises InputError."""
    trial = found.trial
    if asked.tried:
        remedies = asked_remedies(asked.tried)
    else:
        usual = few_remedies if asked.of_each_cell else usual_remedies
        remedies = usual(found.evidence, _beside(folder, trial))
    refuses = bool(asked.tried) and not asked.of_each_cell
    fit = [(remedy, step) for step in steps for remedy in remedies if step + remedy.last_start < trial.steps]
    tried = [Fork(remedy, step, 0) for remedy, step in fit]
    if refuses:
        refuse_forks(folder, trial, tried, allow_import=asked.allow_import)
    else:
        tried = accepted(folder, trial, tried, allow_import=asked.allow_import)
    if not is_custom(trial):
        objective = objective_of(folder, trial, allow_import=asked.allow_import)
        return (refuse_idle if refuses else acting)(objective, trial, tried)
    if not tried and not asked.tried:
        message = "the trainer is passed none of the settings that are tried by default, such as {lr}"
        raise InputError(Problem("sweep remedy", trial.trial_id, message, "say what to try: --try FIELD=x0.5"))
    return tried


def _beside(folder: Path, trial: TrialResult) -> list[Beside]:
    with LedgerReader(folder / LEDGER) as ledger:
        return stable_beside(ledger, ledger.trials(), trial)


def last_saving(found: Remedies) -> list[Tally]:
    """Each remedy that saved every replicate, at the last step at which it did."""
    last: dict[str, Tally] = {}
    for tally in sorted(found.tallies, key=lambda one: one.fork_step):
        if tally.saves_all:
            last[tally.remedy.name] = tally
    return list(last.values())

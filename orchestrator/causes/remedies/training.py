"""Train the forks of a trial: single remedies, pairs if none is enough, and the cost on a stable neighbour."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.base.errors import InputError, Problem
from orchestrator.base.files import LEDGER
from orchestrator.base.trial_result import TrialResult
from orchestrator.base.words import count
from orchestrator.causes.diagnosis import Diagnosis, diagnose
from orchestrator.causes.remedies.cells import Region
from orchestrator.causes.remedies.forking import (
    accepted_forks,
    acting_forks,
    check_forkable,
    checkpoint_steps,
    fork_sweep,
    is_custom,
    objective_of,
    replicates_of,
    resumes_at,
    unknown_steps,
)
from orchestrator.causes.remedies.reading import (
    current_remedies,
    forks_folder,
    nearest_stable_cells,
    neighbour_folder,
    unstable_region,
)
from orchestrator.causes.remedies.remedy import FIRST_FRESH, Fork, Remedy, distinct, own_interventions
from orchestrator.causes.remedies.request import (
    RemedyRequest,
    core_remedies,
    parse_fork_steps,
    parse_remedies,
    usual_remedies,
    usual_steps,
)
from orchestrator.causes.remedies.results import Remedies
from orchestrator.causes.remedies.tally import Tally
from orchestrator.driver.planning import check_runnable
from orchestrator.driver.progress import Observer, Summary
from orchestrator.driver.runner import run_sweep
from orchestrator.executors import Executor
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.table import read_table

MAX_FORKS = 5000
_MAX_PAIRS = 3
_NUM_FRESH = 10  # replicates of a remedy that is named
# Forks of a trial to train in a folder; a custom trainer's control keeps checkpoints for the steps.
_Part = tuple[str, TrialResult, Path, Sequence[Fork], Sequence[int]]


# --- one trial ---


def train_remedies(
    folder: Path,
    diagnosis: Diagnosis,
    request: RemedyRequest,
    make_executor: Callable[[], Executor],
    observers: Sequence[Observer],
) -> Iterator[tuple[str, Summary]]:
    """Train the missing forks of the diagnosed trial part by part; yield what was trained and how it ended.

    Ends after a part that was stopped. Running it again trains nothing. Raises InputError for a remedy or a step that
    the trial does not have.
    """
    for name, trial, target, forks, steps in _parts(folder, diagnosis, request):
        sweep = fork_sweep(folder, trial, forks, allow_import=request.allow_import, target=target, steps=steps)
        check_runnable(sweep, target)
        summary = run_sweep(sweep, target, make_executor, observers, retry_errored=True)
        yield name, summary
        if summary.stopped_by is not None:
            return


def _parts(folder: Path, diagnosis: Diagnosis, request: RemedyRequest) -> Iterator[_Part]:
    """What to train; later parts depend on the results of the earlier ones."""
    steps = requested_steps(diagnosis, request)
    if request.each_cell and not (
        (is_custom(diagnosis.trial) and steps) or forks_to_try(folder, diagnosis, request, steps)
    ):
        return  # too late in the run for anything to act
    trial, allow_import = diagnosis.trial, request.allow_import
    request = replace(request, replicates=replicates_of(trial, request.replicates))
    target = forks_folder(folder, trial.trial_id)
    if is_custom(trial):
        forks_to_try(folder, diagnosis, request, [0])  # refuses what has to be refused before the control trains
        if steps := unknown_steps(target, steps):
            yield f"the control, which keeps checkpoints for {count(len(steps), 'step')}", trial, target, (), steps
    singles = single_forks(folder, diagnosis, request)
    if request.each_cell and request.replicates > 1:
        first = [fork for fork in singles if fork.replicate == 0 or not fork.remedy.entries]
        yield f"{count(len(first), 'fork')} and the control", trial, target, first, ()
        tallies = current_remedies(folder, diagnosis).tallies
        promising = {(tally.name, tally.fork_step) for tally in tallies if tally.saved}
        singles = [fork for fork in singles if fork in first or (fork.remedy.name, fork.step) in promising]
    yield f"{count(len(singles), 'fork')} and the control", trial, target, singles, ()
    if request.pairs:
        pairs = best_pairs(current_remedies(folder, diagnosis))
        both = [Fork(*pair, replicate) for pair in pairs for replicate in range(request.replicates)]
        both = accepted_forks(folder, trial, both, allow_import=allow_import)
        if both:
            singles = [*singles, *both]
            yield f"{count(len(both), 'fork')} of two remedies", trial, target, singles, ()
    fresh: list[Fork] = []
    # If fresh data does not repeat what a remedy did, the next best is trained with it.
    while more := [fork for fork in fresh_forks(current_remedies(folder, diagnosis), request) if fork not in fresh]:
        fresh += more
        if not (more := accepted_forks(folder, trial, more, allow_import=allow_import)):
            break  # a custom trainer without a placeholder for other data
        yield f"{count(len(more), 'fork')} with fresh data", trial, target, [*singles, *fresh], ()
    remedies = current_remedies(folder, diagnosis)
    for number, neighbour in enumerate(remedies.neighbours):
        yield from _on_neighbour(folder, remedies, neighbour, request, is_nearest=number == 0)


def _on_neighbour(
    folder: Path, remedies: Remedies, neighbour: TrialResult, request: RemedyRequest, *, is_nearest: bool
) -> Iterator[_Part]:
    """Named remedies on a stable trial; of a single trial on the nearest one all that save every replicate."""
    chosen = _named(remedies, request)
    if is_nearest and not request.each_cell:
        by_step = sorted(remedies.tallies, key=lambda tally: tally.fork_step)
        saving = {tally.name: tally for tally in by_step if tally.saves_all}.values()  # from the last step where it did
        chosen |= {(tally.name, tally.fork_step): tally for tally in saving}
    forks = [Fork(tally.remedy, tally.fork_step, 0) for tally in chosen.values() if tally.fork_step < neighbour.steps]
    forks = accepted_forks(folder, neighbour, forks, allow_import=request.allow_import)
    if not forks:
        return
    target = neighbour_folder(folder, remedies.trial.trial_id, neighbour)
    if is_custom(neighbour):
        if steps := unknown_steps(target, {fork.step for fork in forks}):
            yield "the control of a stable neighbour", neighbour, target, (), steps
        forks = [fork for fork in forks if resumes_at(target, fork.step)]
    yield f"{count(len(forks), 'remedy', 'remedies')} on the stable {neighbour.cell.name}", neighbour, target, forks, ()


def diagnose_unstable(folder: Path, trial_id: str | None, cell: Mapping[str, str]) -> Diagnosis:
    """Diagnose the trial to fork, which `sweep diagnose` would choose. Raises InputError for a stable trial."""
    with LedgerReader(folder / LEDGER) as ledger:
        diagnosis = diagnose(read_table(ledger), trial_id, cell)
    if diagnosis is None or diagnosis.evidence.outcome == "stable":
        what = "all its trials are" if diagnosis is None else f"the trial {diagnosis.trial.trial_id} is"
        message = f"{what} stable: nothing became unstable"
        raise InputError(Problem(folder.name, "", message, "`sweep status` lists outcomes"))
    check_forkable(folder, diagnosis.trial)
    return diagnosis


def single_forks(folder: Path, diagnosis: Diagnosis, request: RemedyRequest) -> list[Fork]:
    """The forks with one remedy or with other data alone, without forks that would change nothing.

    Raises InputError.
    """
    trial, steps = diagnosis.trial, requested_steps(diagnosis, request)
    if is_custom(trial):
        steps = checkpoint_steps(forks_folder(folder, trial.trial_id), steps, trial)
    tried = forks_to_try(folder, diagnosis, request, steps)
    if not tried:
        message = "no remedy fits between these steps and the end of the run"
        raise InputError(Problem("--fork", "", message, "fork earlier, a mean later"))
    if (num := len(tried) * request.replicates) > MAX_FORKS:
        message = f"{num} forks are more than {MAX_FORKS}"
        raise InputError(Problem("--replicates", str(request.replicates), message, "try fewer remedies or steps"))
    # A packed objective's fork that is left alone is the control; a trainer that is resumed may not repeat it.
    alone = [
        Fork(Remedy(), step, replicate)
        for step in steps
        for replicate in range(0 if is_custom(trial) and step > 0 else 1, request.replicates)
    ]
    forks = [Fork(fork.remedy, fork.step, replicate) for fork in tried for replicate in range(request.replicates)]
    return sorted([*alone, *forks], key=lambda fork: fork.step)  # neighbours in a pack share their past


def requested_steps(diagnosis: Diagnosis, request: RemedyRequest) -> list[int]:
    """The steps to fork at, ascending. Raises InputError."""
    evidence = diagnosis.evidence
    if not request.at:
        return usual_steps(evidence)
    return parse_fork_steps(request.at, evidence.ending_onset, diagnosis.trial.steps, leaves_out=request.each_cell)


def forks_to_try(folder: Path, diagnosis: Diagnosis, request: RemedyRequest, steps: Sequence[int]) -> list[Fork]:
    """One fork for each remedy and step, with the trial's data, without forks that would change nothing.

    Raises InputError.
    """
    trial = diagnosis.trial
    if request.tried:
        remedies = parse_remedies(request.tried)
    else:
        with LedgerReader(folder / LEDGER) as ledger:
            stable_cells = nearest_stable_cells(ledger, read_table(ledger).trials, trial)
        remedies = (core_remedies if request.each_cell else usual_remedies)(diagnosis.evidence, stable_cells)
    remedies = distinct(remedies, trial.config, own_interventions(trial))
    refuses = bool(request.tried) and not request.each_cell
    fitting = ((remedy, step) for step in steps for remedy in remedies if step >= remedy.reach)
    forks = [Fork(remedy, step, 0) for remedy, step in fitting if step + remedy.last_start < trial.steps]
    forks = accepted_forks(folder, trial, forks, refuses=refuses, allow_import=request.allow_import)
    if not is_custom(trial):
        objective = objective_of(folder, trial, allow_import=request.allow_import)
        return acting_forks(objective, trial, forks, refuses=refuses)
    if not forks and not request.tried:
        message = "the trainer takes none of the settings that are tried by default, such as {lr}"
        raise InputError(Problem("sweep remedy", trial.trial_id, message, "say what to try: --try FIELD=x0.5"))
    return forks


def fresh_forks(remedies: Remedies, request: RemedyRequest) -> list[Fork]:
    """Forks of the named remedies, and of none from the same steps, with data that had no part in naming them."""
    numbers = range(FIRST_FRESH, FIRST_FRESH + _NUM_FRESH if remedies.replicates_differ else FIRST_FRESH)
    forks = [(tally.remedy, tally.fork_step) for tally in _named(remedies, request).values()]
    forks += [(Remedy(), step) for step in sorted({step for _, step in forks})]
    return [Fork(remedy, step, number) for remedy, step in forks for number in numbers]


def _named(remedies: Remedies, request: RemedyRequest) -> dict[tuple[str, int], Tally]:
    """The remedies that the answer names, by name and fork step."""
    named = [remedies.shown, *([] if request.each_cell else [remedies.best])]
    return {(tally.name, tally.fork_step): tally for tally in named if tally is not None}


def best_pairs(remedies: Remedies) -> Iterator[tuple[Remedy, int]]:
    """Pairs of the best single remedies, with each fork step before the onset; none if a single one is named.

    Later forks have left their trend already.
    """
    if remedies.cheapest is not None or remedies.is_stable_alone:
        return

    def order(group: Sequence[Tally]) -> tuple[float, float]:
        tried = sum(tally.tried for tally in group)
        return -sum(tally.saved for tally in group) / tried, -sum(tally.recovered for tally in group) / tried

    ranked = [group[0].remedy for group in sorted(remedies.by_name.values(), key=order)]
    steps = [step for step in remedies.fork_steps if remedies.onset is None or step < remedies.onset]
    yield from ((pair, step) for step in steps for pair in _first_pairs(ranked))


def _first_pairs(ranked: Sequence[Remedy]) -> list[Remedy]:
    """The first few pairs that change different things, pairs of the best remedies first."""
    combined = (ranked[i].combined_with(ranked[j]) for j in range(1, len(ranked)) for i in range(j))
    return [pair for pair in combined if pair is not None][:_MAX_PAIRS]


# --- each unstable cell of a map ---


def remedies_after(folder: Path, diagnosis: Diagnosis, summaries: Sequence[Summary]) -> Remedies:
    """The results after ``train_remedies`` yielded ``summaries``.

    Without summaries nothing that was requested can be tried on this trial, and any forks belong to earlier requests.
    """
    remedies = current_remedies(folder, diagnosis)
    return remedies if summaries else replace(remedies, tallies=(), unchanged=(), num_missing=0)


def is_stopped(summaries: Sequence[Summary]) -> bool:
    """Whether a signal stopped one of the parts."""
    return any(summary.stopped_by is not None for summary in summaries)


def region_to_remedy(folder: Path, where: Mapping[str, Any], request: RemedyRequest) -> Region:
    """The unstable cells of the map of the sweep in ``folder`` that match ``where``.

    Raises InputError if there are none, and for a remedy or a step that none of their trials accepts.
    """
    with LedgerReader(folder / LEDGER) as ledger:
        region = unstable_region(ledger, where)
    if not region.trials:
        known = f"none of its {region.num_known} known cells is unstable" if region.num_known else "no cell is known"
        message = f"{known}: there is nothing to remedy"
        raise InputError(Problem(folder.name, "", message, "`sweep status` lists outcomes"))
    first = region.trials[0]
    check_forkable(folder, first)
    for remedy in parse_remedies(request.tried):
        forks = [Fork(remedy, remedy.reach, 0)]
        if not any(accepted_forks(folder, trial, forks, allow_import=request.allow_import) for trial in region.trials):
            accepted_forks(folder, first, forks, refuses=True, allow_import=request.allow_import)
    steps = [parse_fork_steps(request.at, trial.ending_step, trial.steps, leaves_out=True) for trial in region.trials]
    if request.at and not any(steps):
        parse_fork_steps(request.at, first.ending_step, first.steps)
    return region

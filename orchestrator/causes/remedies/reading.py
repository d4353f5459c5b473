"""From the ledger of a trial's forks to the answer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from orchestrator.base.files import LEDGER, REMEDIES
from orchestrator.base.trial_result import TrialResult
from orchestrator.causes.diagnosis import Diagnosis
from orchestrator.causes.remedies.answer import Harm, Remedies
from orchestrator.causes.remedies.beside import stable_beside, stable_neighbour
from orchestrator.causes.remedies.custom import is_custom
from orchestrator.causes.remedies.derived import own_interventions
from orchestrator.causes.remedies.remedy import NO_CHANGE, fork_of
from orchestrator.causes.remedies.repeats import NO_REPEATS, control_difference, repeats_of
from orchestrator.causes.remedies.tallies import tallies
from orchestrator.ledger.reader import LedgerReader

# Of what is recorded of a process.
_RESULTS_DEPEND_ON = ("host", "platform", "device", "torch", "numpy", "kernels", "compiled")
NEIGHBOUR = "neighbour"  # folder of the remedies on a stable neighbour


def forks_folder(folder: Path, trial_id: str) -> Path:
    """Where the forks of a trial of the sweep in ``folder`` are."""
    return folder / REMEDIES / trial_id


def has_remedies(folder: Path, trial_id: str) -> bool:
    """Whether forks of the trial were trained."""
    return (forks_folder(folder, trial_id) / LEDGER).is_file()


def remedies_of(ledger: LedgerReader, found: Diagnosis) -> Remedies:
    """What the forks of the diagnosed trial of ``ledger`` say so far; nothing where there are none."""
    trial, folder = found.trial, ledger.path.parent
    own, rows = own_interventions(trial), ledger.trials()
    beside = stable_beside(ledger, rows, trial)
    control, repeats, forks, differs = None, None, [], {}
    by_losses, of_forks = None, NO_REPEATS
    if has_remedies(folder, trial.trial_id):
        with LedgerReader(forks_folder(folder, trial.trial_id) / LEDGER) as trained:
            forks = trained.trials()
            control = _unforked(forks, trial)
            if control is not None:
                repeats = same_curve(ledger, trial.trial_id, trained, control.trial_id)
                both = ledger.environment(trial.trial_id), trained.environment(control.trial_id)
                differs = {} if repeats else different_facts(*both)
                by_losses = None if repeats else control_difference(ledger, trial, trained, control)
            if is_custom(trial):
                of_forks = repeats_of(ledger, trial, trained, forks)
    neighbour = stable_neighbour(rows, trial, beside)
    all_tallies = tallies(forks, own, first_spike_over(trial))
    asked = {(one.remedy.name, one.fork_step) for one in all_tallies}
    harms = () if neighbour is None else _harms(forks_folder(folder, trial.trial_id) / NEIGHBOUR, neighbour)
    return Remedies(
        sweep=found.sweep,
        trial=trial,
        onset=found.evidence.onset,
        cause=None if found.cause is None else found.cause.mechanism,
        control=control,
        control_repeats=repeats,
        control_differs=differs,
        tallies=tuple(
            one
            for one in all_tallies
            if one.remedy.name != NO_CHANGE and (one.remedy.name, one.fork_step) not in of_forks.without_effect
        ),
        unchanged=tuple(one for one in all_tallies if one.remedy.name == NO_CHANGE),
        beside=tuple(beside),
        neighbour=neighbour,
        harms=tuple(one for one in harms if (one.name, one.fork_step) in asked),  # earlier ones had other questions
        num_missing=sum(row.outcome is None for row in forks),
        control_difference=by_losses,
        repeats=of_forks,
    )


def same_curve(a: LedgerReader, a_id: str, b: LedgerReader, b_id: str) -> bool:
    """Whether the losses and gradient norms of two trials are equal to the bit."""
    first, second = (ledger.trace(trial_id, ("loss", "grad_norm")) for ledger, trial_id in ((a, a_id), (b, b_id)))
    return first.keys() == second.keys() and all(
        np.array_equal(first[name], second[name], equal_nan=True) for name in first
    )


def different_facts(before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Facts of two processes that are not the same and that results may depend on, each with both values."""
    if "kernels" not in before:  # of a ledger that another version wrote
        return {"kernels": ("not recorded", now.get("kernels", "not recorded"))}
    both = {name: (before[name], now[name]) for name in _RESULTS_DEPEND_ON if name in before and name in now}
    return {name: (was, is_now) for name, (was, is_now) in both.items() if was != is_now}


def first_spike_over(trial: TrialResult) -> int | None:
    """The step at which the first spike of a trial was over; None for one that never came back, or left no trend."""
    return trial.episodes[0][1] if trial.episodes else None


def _unforked(rows: list[TrialResult], trial: TrialResult) -> TrialResult | None:
    """The finished control among the rows of a trial's forks."""
    own = own_interventions(trial)
    alone = (row for row in rows if fork_of(own_interventions(row), own) is None)
    return next((row for row in alone if row.outcome is not None), None)


def _harms(folder: Path, neighbour: TrialResult) -> tuple[Harm, ...]:
    if not (folder / LEDGER).is_file():
        return ()
    own = own_interventions(neighbour)
    with LedgerReader(folder / LEDGER) as trained:
        rows = trained.trials()
    control, found = _unforked(rows, neighbour), []
    for row in rows:
        fork = fork_of(own_interventions(row), own)
        if fork is not None and control is not None and row.outcome is not None:
            found.append(Harm(fork.remedy.name, fork.step, row.label, row.final_loss, control.final_loss))
    return tuple(found)

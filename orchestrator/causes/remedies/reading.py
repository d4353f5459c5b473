"""Read what the forks of a trial came to from their ledger, and the stable cells around the trial."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from orchestrator.base.files import LEDGER, REMEDIES
from orchestrator.base.space import Axis, on_natural_scale
from orchestrator.base.trial_result import TrialResult
from orchestrator.causes.diagnosis import Diagnosis
from orchestrator.causes.remedies.custom import is_custom
from orchestrator.causes.remedies.remedy import NO_CHANGE, fork_of, own_interventions
from orchestrator.causes.remedies.repeats import NO_REPEATS, Ignored, control_difference, repeats_of
from orchestrator.causes.remedies.results import Cost, Remedies, StableCell, tallies
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.neighbours import above, below, neighbours, trials_of
from orchestrator.maps.table import axes_of, with_relative_results
from orchestrator.sweepfile.forked_values import INTERVENTIONS

# Recorded facts of a process that results depend on.
_FACTS = ("host", "platform", "device", "torch", "numpy", "kernels", "compiled")
NEIGHBOUR = "neighbour"  # folder of the remedies on a stable neighbour


def forks_folder(folder: Path, trial_id: str) -> Path:
    """The folder of the forks of a trial of the sweep in ``folder``."""
    return folder / REMEDIES / trial_id


def has_remedies(folder: Path, trial_id: str) -> bool:
    """Whether forks of the trial were trained."""
    return (forks_folder(folder, trial_id) / LEDGER).is_file()


def current_remedies(folder: Path, diagnosis: Diagnosis) -> Remedies:
    """Read the results so far of the forks of the diagnosed trial of the sweep in ``folder``."""
    with LedgerReader(folder / LEDGER) as ledger:
        return read_remedies(ledger, diagnosis)


def read_remedies(ledger: LedgerReader, diagnosis: Diagnosis) -> Remedies:
    """Read the results so far of the forks of the diagnosed trial of ``ledger``; empty without forks."""
    trial, folder = diagnosis.trial, ledger.path.parent
    rows, forks = _trials(ledger), forks_folder(folder, trial.trial_id)
    stable_cells = nearest_stable_cells(ledger, rows, trial)
    neighbour = stable_neighbour(rows, trial, stable_cells)
    control, is_repeated, fork_rows, differs = None, None, [], {}
    losses_differ, repeats = None, NO_REPEATS
    if has_remedies(folder, trial.trial_id):
        with LedgerReader(forks / LEDGER) as trained:
            fork_rows = _trials(trained)
            control = _control(fork_rows, trial)
            if control is not None:
                is_repeated = same_curve(ledger, trial.trial_id, trained, control.trial_id)
            if control is not None and not is_repeated:
                facts = ledger.environment(trial.trial_id), trained.environment(control.trial_id)
                differs = different_facts(*facts)
                losses_differ = control_difference(ledger, trial, trained, control)
            if is_custom(trial):
                repeats = repeats_of(ledger, trial, trained, fork_rows)
    by_fork = {
        (tally.name, tally.fork_step): tally
        for tally in tallies(fork_rows, own_interventions(trial), first_spike_over(trial))
    }
    costs = () if neighbour is None else _costs(forks / NEIGHBOUR, neighbour)
    return Remedies(
        sweep=diagnosis.sweep,
        trial=trial,
        onset=diagnosis.evidence.onset,
        cause=None if diagnosis.cause is None else diagnosis.cause.mechanism,
        control=control,
        control_repeats=is_repeated,
        control_differs=differs,
        tallies=tuple(
            tally
            for fork, tally in by_fork.items()
            if tally.name != NO_CHANGE and Ignored(*fork) not in repeats.without_effect
        ),
        unchanged=tuple(tally for tally in by_fork.values() if tally.name == NO_CHANGE),
        stable_cells=tuple(stable_cells),
        neighbour=neighbour,
        costs=tuple(cost for cost in costs if (cost.name, cost.fork_step) in by_fork),  # not of earlier requests
        num_missing=sum(row.outcome is None for row in fork_rows),
        control_difference=losses_differ,
        repeats=repeats,
    )


def same_curve(a: LedgerReader, a_id: str, b: LedgerReader, b_id: str) -> bool:
    """Whether the losses and gradient norms of two trials are equal bit for bit."""
    first, second = (ledger.trace(trial_id, ("loss", "grad_norm")) for ledger, trial_id in ((a, a_id), (b, b_id)))
    return first.keys() == second.keys() and all(
        np.array_equal(first[name], second[name], equal_nan=True) for name in first
    )


def different_facts(before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """The facts of two processes that results may depend on and that differ, each with both values."""
    if "kernels" not in before:  # the ledger of another version
        return {"kernels": ("not recorded", now.get("kernels", "not recorded"))}
    both = {name: (before[name], now[name]) for name in _FACTS if name in before and name in now}
    return {name: (old, new) for name, (old, new) in both.items() if old != new}


def first_spike_over(trial: TrialResult) -> int | None:
    """The step when the first spike of a trial was over; None if it never recovered or never spiked."""
    return trial.episodes[0][1] if trial.episodes else None


def _control(rows: Sequence[TrialResult], trial: TrialResult) -> TrialResult | None:
    """The finished control among the rows of a trial's forks."""
    own = own_interventions(trial)
    controls = (row for row in rows if fork_of(own_interventions(row), own) is None)
    return next((row for row in controls if row.outcome is not None), None)


def _costs(folder: Path, neighbour: TrialResult) -> tuple[Cost, ...]:
    if not (folder / LEDGER).is_file():
        return ()
    own = own_interventions(neighbour)
    with LedgerReader(folder / LEDGER) as trained:
        rows = _trials(trained)
    control, costs = _control(rows, neighbour), []
    for row in rows:
        fork = fork_of(own_interventions(row), own)
        if fork is not None and control is not None and row.outcome is not None:
            costs.append(Cost(fork.remedy.name, fork.step, row.label, row.final_loss, control.final_loss))
    return tuple(costs)


def _trials(ledger: LedgerReader) -> list[TrialResult]:
    return with_relative_results(ledger.trials(), ledger.facts())


def nearest_stable_cells(ledger: LedgerReader, rows: Sequence[TrialResult], trial: TrialResult) -> list[StableCell]:
    """The nearest stable cell on either side of the trial along each axis, the nearest of all first."""
    by_distance: list[tuple[float, StableCell]] = []
    for axis in map(on_natural_scale, axes_of(ledger.facts(), rows)):
        own = trial.config.get(axis.name)
        cells = neighbours(rows, trial, axis.name) if axis.name != INTERVENTIONS else []
        for side in (below(cells, own), above(cells, own)):
            nearest = next((cell for cell in side if cell.is_stable and cell.value != own), None)
            if nearest is not None:
                stable = StableCell(axis.name, nearest.value, nearest.loss)
                by_distance.append((_distance(axis, own, nearest.value), stable))
    return [cell for _, cell in sorted(by_distance, key=lambda pair: pair[0])]


def stable_neighbour(
    rows: Sequence[TrialResult], trial: TrialResult, cells: Sequence[StableCell]
) -> TrialResult | None:
    """The trial of the nearest stable cell with the seed of ``trial``, if any."""
    candidates = (row for cell in cells for row in trials_of(rows, trial, cell.setting, cell.value))
    return next((row for row in candidates if row.seed == trial.seed and row.outcome == "stable"), None)


def _distance(axis: Axis, own: object, value: object) -> float:
    factor = axis.factor(own, value)
    return math.inf if factor <= 0 else factor

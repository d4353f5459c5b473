"""Read what the forks of a trial came to: tallies, whether the control repeats it, and the stable cells around it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from orchestrator.base.files import LEDGER, REMEDIES
from orchestrator.base.packs import Trace
from orchestrator.base.space import on_natural_scale
from orchestrator.base.trial_result import TrialResult
from orchestrator.base.vocabulary import is_known, is_over_edge
from orchestrator.causes.diagnosis import Diagnosis, most_typical
from orchestrator.causes.remedies.cells import Region
from orchestrator.causes.remedies.remedy import NO_CHANGE, Entry, Fork, fork_of, own_interventions
from orchestrator.causes.remedies.results import Cost, Difference, Ignored, Remedies, Resumed, StableCell
from orchestrator.causes.remedies.tally import Tally
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.neighbours import above, below, neighbours, trials_of
from orchestrator.maps.relative_results import with_relative_results
from orchestrator.maps.table import axes_of, by_cell, read_table
from orchestrator.sweepfile.entries import INTERVENTIONS

NEIGHBOUR = "neighbour"  # folder with one for the forks of each stable neighbour
_MAX_NEIGHBOURS = 3
# Recorded facts of a process that results depend on.
_FACTS = ("host", "platform", "device", "torch", "numpy", "kernels", "compiled")
_CURVE = ("loss", "grad_norm")
_MIN_SHARED = 2  # losses at the same steps, without which two curves are not compared


def forks_folder(folder: Path, trial_id: str) -> Path:
    """The folder of the forks of a trial of the sweep in ``folder``."""
    return folder / REMEDIES / trial_id


def neighbour_folder(folder: Path, trial_id: str, neighbour: TrialResult) -> Path:
    """The folder of the remedies of a trial on a stable neighbour."""
    return forks_folder(folder, trial_id) / NEIGHBOUR / neighbour.trial_id


def has_remedies(folder: Path, trial_id: str) -> bool:
    """Whether forks of the trial were trained."""
    return (forks_folder(folder, trial_id) / LEDGER).is_file()


def unstable_region(ledger: LedgerReader, where: Mapping[str, Any] | None = None) -> Region:
    """The cells over the edge of the map that match ``where``. Raises InputError for an unknown axis or value."""
    table = read_table(ledger).where("--cell", where or {})
    cells, states = by_cell(table.trials), table.states()
    ranks = {axis.name: {value: rank for rank, value in enumerate(axis.values)} for axis in table.axes}
    ordered = sorted(cells, key=lambda cell: [ranks[name][value] for name, value in cell.items()])
    num_known = sum(map(is_known, states.values()))
    typical = [most_typical(cells[cell]) for cell in ordered if is_over_edge(states[cell])]
    name = ledger.facts().get("name", ledger.path.parent.name)
    return Region(name, tuple(trial for trial in typical if trial is not None), num_known, len(cells) - num_known)


def current_remedies(folder: Path, diagnosis: Diagnosis) -> Remedies:
    """Read the results so far of the forks of the diagnosed trial of the sweep in ``folder``."""
    with LedgerReader(folder / LEDGER) as ledger:
        return read_remedies(ledger, diagnosis)


def read_remedies(ledger: LedgerReader, diagnosis: Diagnosis) -> Remedies:
    """Read the results so far of the forks of the diagnosed trial of ``ledger``; empty without forks."""
    trial, folder = diagnosis.trial, ledger.path.parent
    rows, forks, own = _trials(ledger), forks_folder(folder, trial.trial_id), own_interventions(trial)
    stable_cells = nearest_stable_cells(ledger, rows, trial)
    beside = stable_neighbours(rows, trial, stable_cells)
    results = Remedies(
        sweep=diagnosis.sweep,
        trial=trial,
        onset=diagnosis.evidence.ending_onset,
        cause=None if diagnosis.cause is None else diagnosis.cause.mechanism,
        stable_cells=tuple(stable_cells),
        neighbours=tuple(beside),
    )
    if not has_remedies(folder, trial.trial_id):
        return results
    with LedgerReader(forks / LEDGER) as trained:
        fork_rows = _trials(trained)
        ever = [fork.remedy for fork, _ in _forks(trained.trials(removed=True), own) if fork.remedy.entries]
        tried = {remedy.in_numbers(trial.config, own).name for remedy in ever}
        if (control := _control(fork_rows, own)) is not None:
            results = replace(results, control=control, **_repetition(ledger, trial, trained, control))
        if results.is_custom:
            resumed, ignored = _resumed(ledger, trial, trained, fork_rows)
            results = replace(results, resumed=resumed, without_effect=ignored)
    counted = tallies(fork_rows, own, first_spike_over(trial))
    fork_names = {(tally.name, tally.fork_step) for tally in counted}
    costs = [cost for each in beside for cost in _costs(neighbour_folder(folder, trial.trial_id, each), each)]
    return replace(
        results,
        tallies=tuple(
            tally
            for tally in counted
            if tally.name != NO_CHANGE
            and not tally.is_fresh
            and Ignored(tally.name, tally.fork_step) not in results.without_effect
        ),
        unchanged=tuple(tally for tally in counted if tally.name == NO_CHANGE and not tally.is_fresh),
        fresh=tuple(tally for tally in counted if tally.name != NO_CHANGE and tally.is_fresh),
        fresh_other_data=tuple(tally for tally in counted if tally.name == NO_CHANGE and tally.is_fresh),
        num_tried=len(tried),
        costs=tuple(cost for cost in costs if (cost.name, cost.fork_step) in fork_names),  # not of earlier requests
        num_missing=sum(row.outcome is None for row in fork_rows),
    )


def first_spike_over(trial: TrialResult) -> int | None:
    """The step when the first spike of a trial was over; None if it never recovered or never spiked."""
    return trial.episodes[0][1] if trial.episodes else None


def _trials(ledger: LedgerReader) -> list[TrialResult]:
    return with_relative_results(ledger.trials(), ledger.facts(), ledger.trace)


def _forks(rows: Iterable[TrialResult], own: Sequence[Entry] = ()) -> list[tuple[Fork, TrialResult]]:
    """The forks among ``rows``, of an original with the interventions ``own``; without the control."""
    pairs = [(fork_of(own_interventions(row), own), row) for row in rows]
    return [(fork, row) for fork, row in pairs if fork is not None]


def _control(rows: Iterable[TrialResult], own: Sequence[Entry]) -> TrialResult | None:
    """The finished control among the rows of a trial's forks."""
    controls = (row for row in rows if fork_of(own_interventions(row), own) is None)
    return next((row for row in controls if row.outcome is not None), None)


def _costs(folder: Path, neighbour: TrialResult) -> tuple[Cost, ...]:
    if not (folder / LEDGER).is_file():
        return ()
    own = own_interventions(neighbour)
    with LedgerReader(folder / LEDGER) as trained:
        rows = _trials(trained)
    if (control := _control(rows, own)) is None:
        return ()
    return tuple(
        Cost(fork.remedy.name, fork.step, row.label, row.final_loss, control.final_loss, neighbour.trial_id)
        for fork, row in _forks(rows, own)
        if row.outcome is not None
    )


# --- how many replicates each remedy saved ---


def tallies(rows: Iterable[TrialResult], own: Sequence[Entry] = (), over: int | None = None) -> list[Tally]:
    """The tally of each remedy and fork step of ``rows``, in their order; trials without a result do not count.

    ``own`` are the interventions of the original, whose first spike was ``over`` at that step. The original has no fork
    and no tally. Forks without a remedy have nothing but other data. Fresh replicates have a tally of their own.
    """
    groups: dict[tuple[str, int, bool], list[tuple[Fork, TrialResult]]] = {}
    for fork, row in _forks(rows, own):
        if row.is_judged:
            groups.setdefault((fork.remedy.name, fork.step, fork.is_fresh), []).append((fork, row))
    return [_tally(group, over) for group in groups.values()]


def _tally(group: Sequence[tuple[Fork, TrialResult]], over: int | None) -> Tally:
    first, rows = group[0][0], [row for _, row in group]
    middle = median(math.inf if row.final_loss is None else row.final_loss for row in rows)
    own_row = next((row for fork, row in group if fork.replicate == 0), None)
    return Tally(
        remedy=first.remedy,
        fork_step=first.step,
        tried=len(rows),
        saved=sum(map(_is_saved, rows)),
        recovered=sum(row.outcome == "spiked" for row in rows),
        final_loss=middle if math.isfinite(middle) else None,
        own_loss=None if own_row is None else own_row.final_loss,
        spent_steps=sum(max(0, (row.steps_done or 0) - first.step) for row in rows),
        own_passed=None if own_row is None or over is None else _has_passed(own_row, over),
        outcomes=dict(sorted(Counter(row.label for row in rows).items())),
        is_fresh=first.is_fresh,
        different=len({(row.outcome, row.steps_done, row.final_loss) for row in rows}),
    )


def _has_passed(row: TrialResult, over: int) -> bool:
    return row.ending == "stable" if row.ending_step is None else row.ending_step > over


def _is_saved(row: TrialResult) -> bool:
    """Whether a fork is stable and learned.

    A fork that only stands still is not saved, nor a fork that ends above the loss with which training began: the
    detector allows a loss that falls over decades to rise by a few.
    """
    first, last = row.initial_loss, row.final_loss
    is_above = first is not None and last is not None and last > first
    return row.ending == "stable" and not row.is_degraded and not is_above


# --- whether the control and forks that are only resumed repeat the trial ---


def curves_of(
    ledger: LedgerReader, trial: TrialResult, trained: LedgerReader, control: TrialResult
) -> tuple[Trace, Trace]:
    """The curves of a trial of ``ledger`` and of its control in the ledger ``trained``."""
    return ledger.trace(trial.trial_id, _CURVE), trained.trace(control.trial_id, _CURVE)


def same_curve(first: Trace, second: Trace) -> bool:
    """Whether the columns of two curves are equal bit for bit."""
    return first.keys() == second.keys() and all(
        np.array_equal(first[name], second[name], equal_nan=True) for name in first
    )


def difference(first: Trace, second: Trace, onset: int | None = None) -> Difference | None:
    """How the losses of two curves differ at the steps that both have; None if they are equal bit for bit."""
    steps, in_first, in_second = np.intersect1d(first["step"], second["step"], return_indices=True)
    a, b = np.asarray(first["loss"], dtype=float)[in_first], np.asarray(second["loss"], dtype=float)[in_second]
    differs = ~((a == b) | (np.isnan(a) & np.isnan(b)))
    if not differs.any():
        return None
    before = differs if onset is None else differs & (steps < onset)
    with np.errstate(all="ignore"):
        share = np.nan_to_num(np.abs(b - a)[before] / np.abs(a[before]), nan=np.inf)
    return Difference(int(steps[differs][0]), float(share.max(initial=0.0)))


def different_facts(before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """The facts of two processes that results may depend on and that differ, each with both values."""
    if "kernels" not in before:  # the ledger of another version
        return {"kernels": ("not recorded", now.get("kernels", "not recorded"))}
    both = {name: (before[name], now[name]) for name in _FACTS if name in before and name in now}
    return {name: (old, new) for name, (old, new) in both.items() if old != new}


def _repetition(
    ledger: LedgerReader, trial: TrialResult, trained: LedgerReader, control: TrialResult
) -> dict[str, Any]:
    """The fields of Remedies that say whether the control repeats the trial, and how they differ."""
    first, second = curves_of(ledger, trial, trained, control)
    if same_curve(first, second):
        return {"control_repeats": True}
    has_losses = "loss" in first and "loss" in second
    return {
        "control_repeats": False,
        "control_differs": different_facts(ledger.environment(trial.trial_id), trained.environment(control.trial_id)),
        "control_difference": difference(first, second, trial.onset_step) if has_losses else None,
    }


def _resumed(
    ledger: LedgerReader, trial: TrialResult, trained: LedgerReader, rows: Iterable[TrialResult]
) -> tuple[tuple[Resumed, ...], tuple[Ignored, ...]]:
    """What resuming alone does to a custom trainer's ``trial``, and which remedies it ignores.

    Compares the forks in the ledger ``trained`` with the trial and with each other.
    """
    own = ledger.trace(trial.trial_id, _CURVE)
    if "loss" not in own:
        return (), ()
    forks = {
        (fork.remedy.name, fork.step): row.trial_id
        for fork, row in _forks(rows)
        if row.is_judged and not fork.replicate
    }
    alone = {step: trained.trace(fork_id, _CURVE) for (name, step), fork_id in forks.items() if name == NO_CHANGE}
    resumed = (
        Resumed(step, difference(own, curve, trial.onset_step))
        for step, curve in sorted(alone.items())
        if "loss" in curve
    )
    # The trainer ignores a remedy if its fork has the losses of the fork that is left alone.
    unchanged = {0: own, **alone}
    ignored = (
        Ignored(name, step)
        for (name, step), fork_id in forks.items()
        if name != NO_CHANGE and step in unchanged and _is_same(unchanged[step], trained.trace(fork_id, _CURVE), step)
    )
    return tuple(resumed), tuple(ignored)


def _is_same(alone: Trace, curve: Trace, step: int) -> bool:
    if "loss" not in alone or "loss" not in curve:
        return False
    shared = np.intersect1d(alone["step"], curve["step"])
    return int((shared >= step).sum()) >= _MIN_SHARED and difference(alone, curve) is None


# --- stable cells around the trial ---


def nearest_stable_cells(ledger: LedgerReader, rows: Sequence[TrialResult], trial: TrialResult) -> list[StableCell]:
    """The nearest stable cell on either side of the trial along each axis, the nearest of all first."""
    by_distance: list[tuple[float, StableCell]] = []
    for axis in map(on_natural_scale, axes_of(ledger.facts(), rows)):
        own = trial.config.get(axis.name)
        cells = neighbours(rows, trial, axis.name) if axis.name != INTERVENTIONS else []
        for side in (below(cells, own), above(cells, own)):
            nearest = next((cell for cell in side if cell.is_stable and cell.value != own), None)
            if nearest is not None:
                factor = axis.factor(own, nearest.value)
                stable = StableCell(axis.name, nearest.value, nearest.loss)
                by_distance.append((math.inf if factor <= 0 else factor, stable))
    return [cell for _, cell in sorted(by_distance, key=lambda pair: pair[0])]


def stable_neighbours(
    rows: Sequence[TrialResult], trial: TrialResult, cells: Sequence[StableCell]
) -> list[TrialResult]:
    """The stable trials of the nearest stable cells with the seed of ``trial``, the nearest first."""
    candidates = (row for cell in cells for row in trials_of(rows, trial, cell.setting, cell.value))
    stable = {row.trial_id: row for row in candidates if row.seed == trial.seed and row.ending == "stable"}
    return list(stable.values())[:_MAX_NEIGHBOURS]

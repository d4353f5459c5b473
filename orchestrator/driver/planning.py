"""Before a run trains: the trials of a sweep, what is missing, its packs and time."""

from __future__ import annotations

import importlib
import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from objectives.base import ExecutionPlan
from objectives.native.library import failure as kernel_failure
from objectives.optimizers.facts import OPTIMIZERS
from objectives.optimizers.facts.library import problem_with
from orchestrator.base.columns import RESULTS
from orchestrator.base.errors import InputError, Problem
from orchestrator.base.files import FROZEN_SWEEP, LEDGER, storage_errors
from orchestrator.base.query import hidden
from orchestrator.base.space import Cell, Trial
from orchestrator.base.words import count, plural
from orchestrator.driver.keeping import check_kept
from orchestrator.driver.packing import (
    compile_note,
    grouped,
    kernels_of,
    make_packs,
    planned_workers,
    rounding_of,
    structure_of,
    structure_text,
    with_numerics,
    world_sizes,
)
from orchestrator.driver.texts import check_documents
from orchestrator.driver.timing import measure_structures, planned_time
from orchestrator.ledger.reader import LedgerReader, check_not_imported
from orchestrator.maps.relative_results import with_relative_results
from orchestrator.search.protocol import CellResult, SeedResult
from orchestrator.sweepfile.custom_trainer import CustomTrainer, check_files_exist
from orchestrator.sweepfile.overrides import Overrides, refined
from orchestrator.sweepfile.searches import proposed_trials
from orchestrator.sweepfile.spec import Sweep, build_sweep
from orchestrator.sweepfile.strict_yaml import Document, read_document
from orchestrator.worker.machine import PlanChoice, cached_choice, set_plan

# Room for a search that proposes all of its trials at once.
_UNLIMITED = 10**9
_OVER = ("finished", "errored")  # status of trials that will get no further result


@dataclass(frozen=True, slots=True)
class Plan:
    """What a sweep would train.

    ``existing`` counts its trials in the ledger by status, ``packs`` are the members of each pack, the largest first,
    and ``seconds`` the time at the measured speed if no run ends early, None if unknown; it may be off by the factor
    ``seconds_within``, or is too long if it ``is_bound``. ``choices`` say how packs of each structure run, None if that
    is not measured yet, and ``structures`` names them. ``num_removed`` trials of the ledger are no longer in the sweep;
    ``has_run`` says whether its last run measured the speed.
    """

    sweep: str
    objective: str
    axes: Mapping[str, list[Any]]
    num_seeds: int
    num_trials: int
    most_trials: int | None
    existing: Mapping[str, int]
    to_train: int
    packs: list[int]
    workers: int
    member_steps: int
    member_steps_per_second: float | None
    seconds: float | None
    seconds_within: float | None
    choices: tuple[PlanChoice | None, ...] = hidden()
    structures: tuple[str, ...] = hidden()
    missing: tuple[Trial, ...] = hidden()
    num_removed: int = hidden()
    has_run: bool = hidden()
    is_bound: bool = hidden()
    note: str | None = hidden()


def plan_of(sweep: Sweep, results: Path, *, measures: bool = False) -> Plan:
    """Return the plan of ``sweep``; it ``measures`` a speed that is unknown, in a process of its own.

    Raises InputError for a sweep that cannot run here.
    """
    check_runnable(sweep, results / sweep.name)
    statuses: dict[str, tuple[str, int]] = {}
    speed = None
    path = results / sweep.name / LEDGER
    if _has_begun(path):
        with LedgerReader(path) as ledger:
            statuses = ledger.statuses(removed=True)
            speed = ledger.member_steps_per_second()
            sweep = with_numerics(sweep, ledger)
    trials = _trials(sweep, path)
    missing = missing_trials(trials, statuses)
    workers = planned_workers(sweep)
    if measures and speed is None:
        measure_structures(sweep, missing)
    packs = make_packs(sweep, missing, workers)
    is_custom = isinstance(sweep.objective, CustomTrainer)
    structures = [] if is_custom else grouped(missing, lambda trial: structure_of(sweep, trial))
    num_steps = sum(trial.steps for trial in missing) + max(0, (sweep.max_trials or 0) - len(trials)) * sweep.steps
    time = planned_time(sweep, missing, num_steps, max(1, min(workers, len(packs))), speed)
    return Plan(
        sweep=sweep.name,
        objective=sweep.objective.name,
        axes={axis.name: list(axis.values) if axis.values else list(axis.ends or ()) for axis in sweep.axes},
        num_seeds=len(sweep.seeds),
        num_trials=len(trials),
        most_trials=sweep.max_trials,
        existing=Counter(statuses[trial.trial_id][0] for trial in trials if trial.trial_id in statuses),
        to_train=len(missing),
        packs=sorted((len(pack.members) for pack in packs), reverse=True),
        workers=workers,
        member_steps=num_steps,
        member_steps_per_second=time.member_steps_per_second,
        seconds=time.seconds,
        seconds_within=time.within,
        choices=tuple(_known_choices(sweep, missing, structures)),
        structures=tuple(structure_text(sweep, trials[0].config) for trials in structures),
        missing=tuple(missing),
        num_removed=len(statuses.keys() - {trial.trial_id for trial in trials}),
        has_run=speed is not None,
        is_bound=time.is_bound,
        note=compile_note(sweep),
    )


def _trials(sweep: Sweep, path: Path) -> Sequence[Trial]:
    """Return the known trials of ``sweep``; in a search, its proposals so far, or else its first ones."""
    if not sweep.is_open or not _has_begun(path):
        return sweep.trials
    with LedgerReader(path) as ledger:
        rows = ledger.trials(removed=True)
    return [trial for row in rows if (trial := sweep.trial_like(row)) is not None] or sweep.trials


def _known_choices(
    sweep: Sweep, missing: Sequence[Trial], structures: Sequence[Sequence[Trial]]
) -> list[PlanChoice | None]:
    """Return how packs of each structure will run on this machine, None if not measured yet."""
    if isinstance(sweep.objective, CustomTrainer):
        return [PlanChoice(ExecutionPlan(1), f"each trial by itself: {sweep.objective.summary}")] if missing else []
    resources, choices = sweep.resources, list[PlanChoice | None]()
    for trials in structures:
        config = sweep.objective.config_of(trials[0].config)
        choice, rounding = None, rounding_of(sweep, trials[0])
        if resources.pack != "auto" and config.can_be_stacked:
            choice = set_plan(rounding.plan(resources.pack), world_sizes(sweep.objective, config, resources))
        elif not resources.gpus:  # otherwise the cache is on the machine with the GPU
            choice = cached_choice(sweep.objective, config, "cpu", resources.cpus, len(trials), rounding)
        choices.append(choice)
    return choices


def check_runnable(sweep: Sweep, folder: Path) -> None:
    """Raise InputError if ``sweep`` cannot be trained on this machine, or if ``folder`` belongs to another sweep."""
    check_not_imported(folder)
    check_files_exist(sweep.objective)
    check_kept(sweep)
    check_optimizers(sweep)
    check_documents(sweep)
    check_same_axes(sweep, folder)
    check_kernels(sweep, folder)


def library_optimizers(sweep: Sweep, trials: Sequence[Trial]) -> list[str]:
    """Return the library optimizers that ``trials`` name, in order."""
    if isinstance(sweep.objective, CustomTrainer):
        return []
    return [n for n in dict.fromkeys(trial.config["optimizer"] for trial in trials) if n not in OPTIMIZERS]


def check_optimizers(sweep: Sweep) -> None:
    """Raise InputError if a library is not installed, or if its optimizer fails with a few steps of a small model."""
    names = library_optimizers(sweep, sweep.trials)
    problems = [problem for name in names if (problem := problem_with(name))]
    if names and not problems:
        # Imports torch, which a plan of the own optimizers does not need.
        foreign = importlib.import_module("objectives.optimizers.foreign")
        failures = [foreign.rehearsal_problem(name) for name in names]
        problems = [failure.rpartition("; ")[::2] for failure in failures if failure is not None]
    if problems:
        raise InputError(*(Problem("", "optimizer", *problem) for problem in problems))


def _has_begun(path: Path) -> bool:
    """Whether there is a ledger with tables: a run on a full disk, or that has just started, leaves an empty file."""
    if not path.is_file():
        return False
    with LedgerReader(path) as ledger:
        return ledger.version > 0


def check_kernels(sweep: Sweep, folder: Path) -> None:
    """Raise InputError if ``sweep`` trains by native kernels, and the C++ compiler here fails."""
    has_begun = _has_begun(folder / LEDGER)
    if has_begun:
        with LedgerReader(folder / LEDGER) as ledger:
            if not sweep.is_open and not missing_trials(sweep.trials, ledger.statuses()):
                return
            sweep = with_numerics(sweep, ledger)
    if kernels_of(sweep) and (failure := kernel_failure()) is not None:
        begun = "with another --name " if has_begun else ""  # results keep their kernels
        remedy = f"repair it, or set CXX to another one; {begun}`kernels: default` trains without, more slowly"
        raise InputError(Problem("resources", "kernels", f"the C++ compiler cannot make kernels: {failure}", remedy))


def check_same_axes(sweep: Sweep, folder: Path) -> None:
    """Raise InputError if ``folder`` holds results over an axis that ``sweep`` lacks.

    The map, report and frozen file of ``sweep`` would replace the other sweep's. A new axis, or other values of
    an axis, extend the existing results.
    """
    if not _has_begun(folder / LEDGER):
        return
    with LedgerReader(folder / LEDGER) as ledger:
        axes = [axis["name"] for axis in json.loads(ledger.facts().get("axes", "[]"))]
        has_results = any(status == "finished" for status, _ in ledger.statuses().values())
    if has_results and (gone := [name for name in axes if name not in sweep.axis_names]):
        message = f"existing results are over {' and '.join(axes)}, but this sweep has no axis {gone[0]}"
        remedy = f"set --name NEW_NAME, or keep the axis with one value: --axis {gone[0]}=values:VALUE"
        raise InputError(Problem(str(folder), f"axes.{gone[0]}", message, remedy))


class Proposer:
    """The trials of one run, in the order of the sweep: those in the ledger, and the search's next ones."""

    def __init__(self, sweep: Sweep, ledger: LedgerReader) -> None:
        self._sweep, self._ledger = sweep, ledger
        self._is_over = False  # whether the search has nothing more to propose
        self.trials = {trial.trial_id: trial for trial in self._recorded()}
        statuses = self._ledger.statuses(removed=True)
        is_waiting = self._sweep.is_open and any(statuses[trial_id][0] not in _OVER for trial_id in self.trials)
        room = len(self._sweep.trials) if self._sweep.is_open else _UNLIMITED
        new = [] if is_waiting else self._proposed(room)
        order = {trial.trial_id: i for i, trial in enumerate(self._sweep.trials)}
        trials = sorted([*self.trials.values(), *new], key=lambda trial: order.get(trial.trial_id, len(order)))
        self.trials = {trial.trial_id: trial for trial in trials}

    def more(self, room: int) -> list[Trial]:
        """Return further trials; none while the search waits or when it is over."""
        new = self._proposed(room)
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
        """Return the results of all trials, with what follows from other trials if they are still in the sweep."""
        rows = self._ledger.trials(removed=True)
        present = [row for row in rows if row.position is not None]
        rows = with_relative_results(present, self._ledger.facts(), self._ledger.trace) + rows[len(present) :]
        return {
            row.trial_id: SeedResult(
                seed=row.seed,
                outcome=row.ending,
                is_over=row.status in _OVER,
                metrics={
                    name: float(value)
                    for name in RESULTS
                    if (value := getattr(row, name)) is not None and math.isfinite(value)
                },
            )
            for row in rows
        }


def missing_trials(trials: Iterable[Trial], statuses: Mapping[str, tuple[str, int]]) -> list[Trial]:
    """Return the ``trials`` that a run would train: planned, interrupted or lost, and not given up."""
    again = ("planned", "interrupted", "lost")
    return [trial for trial in trials if statuses.get(trial.trial_id, ("planned", 0))[0] in again]


def read_only_counts(sweep: Sweep, folder: Path, *, retry_errored: bool) -> Counter[str] | None:
    """Count the trials of ``sweep`` by outcome if ``folder`` cannot be written and a run would not write there."""
    path = folder / LEDGER
    if os.access(folder, os.W_OK) or not path.is_file():
        return None
    with LedgerReader(path) as ledger, storage_errors(folder):
        statuses, outcomes = ledger.statuses(), ledger.endings()
        is_same = (folder / FROZEN_SWEEP).read_text(encoding="utf-8") == sweep.text
        is_same = is_same and [*Proposer(with_numerics(sweep, ledger), ledger).trials] == [*statuses]
    counts = Counter(outcomes.get(trial_id, status) for trial_id, (status, _) in statuses.items())
    is_over = all(status in _OVER for status, _ in statuses.values()) and not (retry_errored and counts["errored"])
    return counts if is_same and is_over else None


def refining_sweep(
    folder: Path, along: str | None, num_more: int, factor: float, overrides: Overrides, allow_import: bool
) -> Sweep:
    """Return the search that continues from the trials in ``folder`` and adds at most ``num_more``.

    The same refinement that was interrupted goes on with the trials that are left. Raises InputError if ``folder`` has
    another name than its sweep, imported results, no trial of these axes, or more without a result than ``num_more``.
    """
    check_not_imported(folder)
    document = read_document(folder / FROZEN_SWEEP)
    with LedgerReader(folder / LEDGER) as ledger:
        rows = ledger.trials(removed=True)

    def search(num_known: int) -> Document:
        return refined(document, along, num_known, num_more, factor)

    # The axes decide which trials count, so the sweep is built twice.
    sweep = build_sweep(search(len(rows)), overrides, allow_import=allow_import)
    if sweep.name != folder.name:
        what = f"the sweep in it is called {sweep.name}, and would begin anew in a folder of that name"
        raise InputError(Problem(str(folder), "name", what, f"say --name {folder.name}"))
    statuses = [row.status for row in rows if sweep.trial_like(row) is not None]
    num_known = sum(status in _OVER for status in statuses)
    if not num_known:
        raise InputError(Problem(str(folder), "", "has no trial to begin with", "`sweep run` it first"))
    before = document.data.get("search") or {}
    began = before.get("refines")
    if began is not None and num_known < before["trials"] and search(began).data["search"] == before:
        num_known = began
    elif (num_waiting := len(statuses) - num_known) > num_more:
        have = plural(num_waiting, "has", "have")
        what = f"{count(num_waiting, 'trial')} of the sweep {have} no result yet, and would be trained first"
        raise InputError(Problem("--trials", str(num_more), what, f"`sweep run {sweep.name}` first, or raise it"))
    return build_sweep(search(num_known), overrides, allow_import=allow_import)

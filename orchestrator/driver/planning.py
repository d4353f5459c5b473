"""What `run` would train: the missing trials, their packs, and the estimated time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from objectives.base import ExecutionPlan
from orchestrator.base.files import LEDGER
from orchestrator.base.query import hidden
from orchestrator.base.space import Trial
from orchestrator.driver.checks import check_runnable
from orchestrator.driver.packing import make_packs, planned_workers, structure_of
from orchestrator.driver.proposing import missing_trials
from orchestrator.ledger.reader import LedgerReader
from orchestrator.sweepfile.custom_trainer import CustomTrainer
from orchestrator.sweepfile.spec import Sweep
from orchestrator.worker.autotune import PlanChoice, cached_choice


@dataclass(frozen=True, slots=True)
class Plan:
    """What a sweep would train.

    ``existing`` counts its trials in the ledger by status, ``packs`` are the members of each pack, the largest first,
    and ``seconds`` the time at the measured speed if no run ends early, None if unknown. ``choices`` say how
    packs of each structure run, None if that is not measured yet. ``num_removed`` trials of the ledger are no longer in
    the sweep; ``has_run`` says whether its last run measured the speed.
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
    choices: tuple[PlanChoice | None, ...] = hidden()
    missing: tuple[Trial, ...] = hidden()
    num_removed: int = hidden()
    has_run: bool = hidden()


def plan_of(sweep: Sweep, results: Path) -> Plan:
    """Return the plan of ``sweep``. Raises InputError for a sweep that cannot run here."""
    check_runnable(sweep, results / sweep.name)
    statuses: dict[str, tuple[str, int]] = {}
    speed = None
    path = results / sweep.name / LEDGER
    if path.is_file():
        with LedgerReader(path) as ledger:
            statuses = ledger.statuses(removed=True)
            speed = ledger.member_steps_per_second()
    trials = _trials(sweep, path)
    missing = missing_trials(trials, statuses)
    workers = planned_workers(sweep)
    packs = make_packs(sweep, missing, workers)
    choices = tuple(_known_choices(sweep, missing, workers).values())
    has_run = speed is not None
    if speed is None and (speed := _speed(choices)) is not None:
        speed /= sweep.telemetry.time_factor
    num_steps = sum(trial.steps for trial in missing) + max(0, (sweep.max_trials or 0) - len(trials)) * sweep.steps
    seconds = None if speed is None or not packs else num_steps / (speed * min(workers, len(packs)))
    return Plan(
        sweep=sweep.name,
        objective=sweep.objective.name,
        axes={axis.name: list(axis.values) if axis.values else list(axis.ends or ()) for axis in sweep.axes},
        num_seeds=len(sweep.seeds),
        num_trials=len(trials),
        most_trials=sweep.max_trials,
        existing=_existing(trials, statuses),
        to_train=len(missing),
        packs=sorted((len(pack.members) for pack in packs), reverse=True),
        workers=workers,
        member_steps=num_steps,
        member_steps_per_second=speed,
        seconds=seconds if missing else 0.0,
        choices=choices,
        missing=tuple(missing),
        num_removed=len(statuses.keys() - {trial.trial_id for trial in trials}),
        has_run=has_run,
    )


def _existing(trials: Sequence[Trial], statuses: dict[str, tuple[str, int]]) -> Counter[str]:
    """The trials of the sweep that are in the ledger, by status."""
    return Counter(statuses[trial.trial_id][0] for trial in trials if trial.trial_id in statuses)


def _trials(sweep: Sweep, path: Path) -> Sequence[Trial]:
    """Return the known trials of ``sweep``; in a search, its proposals so far, or else its first ones."""
    if not sweep.is_open or not path.is_file():
        return sweep.trials
    with LedgerReader(path) as ledger:
        rows = ledger.trials(removed=True)
    return [trial for row in rows if (trial := sweep.trial_like(row)) is not None] or sweep.trials


def _speed(choices: Sequence[PlanChoice | None]) -> float | None:
    """Member-steps per second of a worker, averaged over structures with these ``choices``; None if not measured."""
    speeds = [choice.member_steps_per_second for choice in choices if choice is not None]
    known = [speed for speed in speeds if speed]
    if not known or len(known) < len(choices):
        return None
    # Structures differ in speed, and have about equal numbers of trials.
    return len(known) / sum(1 / speed for speed in known)


def _known_choices(sweep: Sweep, missing: Sequence[Trial], workers: int) -> dict[str, PlanChoice | None]:
    """Return how packs of each structure will run on this machine, None if not measured yet."""
    if isinstance(sweep.objective, CustomTrainer):
        return {"": PlanChoice(ExecutionPlan(1), f"each trial by itself: {sweep.objective.summary}")} if missing else {}
    by_structure: dict[str, list[Trial]] = {}
    for trial in missing:
        by_structure.setdefault(structure_of(sweep, trial), []).append(trial)
    choices: dict[str, PlanChoice | None] = {}
    for structure, trials in by_structure.items():
        config = sweep.objective.config_of(trials[0].config)
        if sweep.resources.pack != "auto" and config.can_be_stacked:
            reason = f"{sweep.resources.pack} at a time, as resources.pack says"
            choices[structure] = PlanChoice(ExecutionPlan(sweep.resources.pack), reason)
            continue
        if sweep.resources.gpus:
            choices[structure] = None  # the cache is on the machine with the GPU
            continue
        steps_ahead = sum(trial.steps for trial in trials) // workers
        choices[structure] = cached_choice(
            sweep.objective, config, "cpu", sweep.resources.cpus, len(trials), steps_ahead
        )
    return choices

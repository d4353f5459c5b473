"""`sweep plan`: what `run` would train, without training it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from objectives.base import ExecutionPlan
from orchestrator.base.cell import Trial
from orchestrator.base.errors import EXIT_OK
from orchestrator.base.files import LEDGER, check_output
from orchestrator.base.space import Axis, format_value
from orchestrator.commands.printing import Answer, written_json
from orchestrator.driver.checks import check_runnable, library_optimizers
from orchestrator.driver.packing import make_packs, planned_workers, structure_of
from orchestrator.driver.proposing import missing_trials
from orchestrator.driver.words import format_seconds, length_text
from orchestrator.ledger.reader import LedgerReader
from orchestrator.sweepfile.batch import formula
from orchestrator.sweepfile.custom_trainer import CustomTrainer
from orchestrator.sweepfile.spec import Sweep
from orchestrator.worker.autotune import PlanChoice, cached_choice

_STRUCTURES_SHOWN = 4


def plan(sweep: Sweep, results: Path, json_file: Path | None = None) -> Answer:
    """The plan of ``sweep``: trials, existing results, packs, estimated time. Raises InputError."""
    check_output(json_file, "--json")
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
    yield from _question_lines(sweep)
    yield from _existing_lines(trials, statuses)
    sizes = Counter(len(pack.members) for pack in packs)
    shown = ", ".join(f"{count} of {size}" for size, count in sorted(sizes.items(), reverse=True))
    yield f"to train: {len(missing)} trials in {len(packs)} packs" + (f" ({shown} members)" if packs else "")
    choices = list(_choices(sweep, missing, workers).values())
    for choice in choices[:_STRUCTURES_SHOWN]:
        yield f"way:      {choice.reason if choice else 'measured when the first pack starts, in a second or two'}"
    if len(choices) > _STRUCTURES_SHOWN:
        yield f"          ... and {len(choices) - _STRUCTURES_SHOWN} more structures"
    for name in library_optimizers(sweep, missing):
        yield f"          {name} comes from a library, and trains one member at a time"
    yield f"workers:  {workers} packs at a time, {sweep.resources.cpus} CPU" + (
        f" and {sweep.resources.gpus:g} GPU each" if sweep.resources.gpus else " each"
    )
    has_run = speed is not None
    if speed is None and (speed := _speed(choices)) is not None:
        speed /= sweep.telemetry.time_factor
    num_steps = sum(trial.steps for trial in missing) + max(0, (sweep.max_trials or 0) - len(trials)) * sweep.steps
    seconds = None if speed is None or not packs else num_steps / (speed * min(workers, len(packs)))
    if not missing:
        yield "time:     none, there is nothing to train"
    elif speed is None and isinstance(sweep.objective, CustomTrainer):
        yield "time:     `sweep check FILE` estimates it from one trial"
    elif speed is None or seconds is None:
        yield "time:     known once the first pack has been timed"
    else:
        rate = f"{speed:,.0f} member-steps/s a worker, {'as in the last run' if has_run else 'measured with one alone'}"
        yield f"time:     about {format_seconds(seconds)} without early ends ({rate})"
    content = {
        "sweep": sweep.name,
        "objective": sweep.objective.name,
        "axes": {axis.name: list(axis.values) if axis.values else list(axis.ends or ()) for axis in sweep.axes},
        "num_seeds": len(sweep.seeds),
        "num_trials": len(trials),
        "most_trials": sweep.max_trials,
        "existing": _existing(trials, statuses),
        "to_train": len(missing),
        "packs": sorted((len(pack.members) for pack in packs), reverse=True),
        "workers": workers,
        "member_steps": num_steps,
        "member_steps_per_second": speed,
        "seconds": seconds if missing else 0.0,
    }
    yield from written_json(json_file, content)
    return EXIT_OK


def _existing(trials: Sequence[Trial], statuses: dict[str, tuple[str, int]]) -> Counter[str]:
    """The trials of the sweep that are in the ledger, by status."""
    return Counter(statuses[trial.trial_id][0] for trial in trials if trial.trial_id in statuses)


def _trials(sweep: Sweep, path: Path) -> Sequence[Trial]:
    """The trials of ``sweep`` as far as they are known: those that a search has proposed, or would propose first."""
    if not sweep.is_open or not path.is_file():
        return sweep.trials
    with LedgerReader(path) as ledger:
        rows = ledger.trials(removed=True)
    return [trial for row in rows if (trial := sweep.trial_like(row)) is not None] or sweep.trials


def _question_lines(sweep: Sweep) -> Iterator[str]:
    num_cells = len({tuple(trial.cell.items()) for trial in sweep.trials})
    yield f"sweep:    {sweep.name} ({sweep.objective.name}, {length_text(sweep.steps, sweep.tokens)})"
    if sweep.tokens is not None:
        steps = f"at most {sweep.steps:,}" if sweep.is_open else _extent([trial.steps for trial in sweep.trials])[2:]
        yield f"steps:    {steps}, the tokens over batch times context, to the nearest step"
    for axis in sweep.axes:
        shown = ", ".join(map(format_value, axis.values)) if axis.values else f"{axis.ends}"
        yield f"axis:     {axis.name} [{axis.scale}] {shown}{_relation(axis)}"
    for name, tie in sweep.maker.ties.items():
        # The cells of a search are not known yet.
        known = () if sweep.is_open else sweep.trials
        yield f"tie:      {name} = {tie.text}{_extent([trial.config.get(name) for trial in known])}"
    yield from _batch_lines(sweep)
    if sweep.is_open:
        yield f"trials:   at most {sweep.max_trials}, chosen while results come in; {num_cells} cells come first"
    else:
        yield f"trials:   {num_cells} cells x {len(sweep.seeds)} seeds = {len(sweep.trials)}"
    if limits := sweep.budget.model_dump(exclude_none=True):
        yield f"budget:   {', '.join(f'{key} {value}' for key, value in limits.items())}, over all runs"
    own = sweep.objective
    if isinstance(own, CustomTrainer) and len(sweep.seeds) > 1 and not own.uses("seed"):
        yield f"          no {{seed}} in the command: the {len(sweep.seeds)} seeds of a cell train the same run, unless"
        yield "          the script takes its seed from Watch; pass {seed} on, or train one seed"
    if isinstance(own, CustomTrainer):
        yield "          `sweep check FILE` runs one trial for a moment and shows what would be read"
    for name, number in sweep.idle.items():
        yield f"          {name} does not act in {number} of the cells: they repeat runs, and are trained anyway"


def _batch_lines(sweep: Sweep) -> Iterator[str]:
    """What follows from the parts of a global batch."""
    own = sweep.objective
    if isinstance(own, CustomTrainer) and own.batch_workers is not None:
        name, text = formula({*sweep.fixed, *sweep.axis_names, *sweep.maker.ties}, own.batch_workers)
        known = () if sweep.is_open else sweep.trials
        yield f"batch:    {name} = {text}{_extent([trial.config[name] for trial in known])}"


def _relation(axis: Axis) -> str:
    """How an axis depends on others, in words."""
    if axis.zipped:
        return f", together with {', '.join(name for name in axis.zipped if name != axis.name)}"
    conditions = [f"{name} is {' or '.join(map(format_value, values))}" for name, values in axis.when]
    return f", where {' and '.join(conditions)}" if conditions else ""


def _extent(values: Sequence[Any]) -> str:
    """The lowest and the highest of ``values``; empty without a number."""
    numbers = [value for value in values if value is not None]
    if not numbers:
        return ""
    low, high = format_value(min(numbers)), format_value(max(numbers))
    return f": {low}" if low == high else f": {low} .. {high}"


def _existing_lines(trials: Sequence[Trial], statuses: dict[str, tuple[str, int]]) -> Iterator[str]:
    wanted = {trial.trial_id for trial in trials}
    existing = _existing(trials, statuses)
    yield "exists:   " + (", ".join(f"{count} {status}" for status, count in existing.items()) or "nothing yet")
    if removed := len(statuses.keys() - wanted):
        yield f"removed:  {removed} trials in the ledger are no longer in the sweep; the map leaves them out"


def _speed(choices: Sequence[PlanChoice | None]) -> float | None:
    """Member-steps per second of a worker, averaged over structures with these ``choices``; None if not measured."""
    speeds = [choice.member_steps_per_second for choice in choices if choice is not None]
    known = [speed for speed in speeds if speed]
    if not known or len(known) < len(choices):
        return None
    # Structures differ in speed, and have about equal numbers of trials.
    return len(known) / sum(1 / speed for speed in known)


def _choices(sweep: Sweep, missing: Sequence[Trial], workers: int) -> dict[str, PlanChoice | None]:
    """How packs of each structure will run on this machine; None where not measured yet."""
    if isinstance(sweep.objective, CustomTrainer):
        return {"": PlanChoice(ExecutionPlan(1), f"each trial by itself: {sweep.objective.summary}")} if missing else {}
    alike: dict[str, list[Trial]] = {}
    for trial in missing:
        alike.setdefault(structure_of(sweep, trial), []).append(trial)
    choices: dict[str, PlanChoice | None] = {}
    for structure, trials in alike.items():
        config = sweep.objective.config_class.model_validate(trials[0].config, strict=False)
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

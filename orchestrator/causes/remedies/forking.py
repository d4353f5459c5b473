"""The sweep of the forks of a trial: its configuration and seed over the axis `interventions`; and which forks act."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from pydantic import ValidationError

from objectives.base import Objective, Rounding, TrainingConfig
from objectives.entries import factor_of
from objectives.interventions import corners, in_force
from orchestrator.base.errors import InputError, Problem
from orchestrator.base.files import FROZEN_SWEEP, LEDGER
from orchestrator.base.space import Axis, Cell, Trial, format_value, to_hashable, trial_id
from orchestrator.base.trial_result import TrialResult
from orchestrator.base.vocabulary import CUSTOM_KINDS, IMPORTED
from orchestrator.causes.remedies.remedy import Entry, Fork, held_by, own_interventions
from orchestrator.causes.small_sweeps import cell_alone
from orchestrator.ledger.reader import LedgerReader
from orchestrator.search.protocol import ListedCells
from orchestrator.sweepfile.custom_trainer import GIVEN, PARTS, CustomTrainer, placeholders, sized
from orchestrator.sweepfile.entries import CHECKPOINTS_FOR, DATA_SEED, INTERVENTIONS, forked_values
from orchestrator.sweepfile.spec import Sweep, build_sweep, check_import, load_sections
from orchestrator.worker.forked_run import KEPT, ResumeSteps

_NAME = "remedies"
_SEE_DIAGNOSIS = "`sweep diagnose` gives advice on it"
_UNUSED = ("refine", INTERVENTIONS)  # keys of a sweep file that a sweep of forks has no use for


class ForkedRun(Protocol):
    """A run that changes from a step of another."""

    def interventions(self, own: Sequence[Entry] = ()) -> list[dict[str, Any]]:
        """The ``interventions`` of the run, including the original's ``own``."""


def fork_sweep(
    folder: Path,
    trial: TrialResult,
    forks: Sequence[ForkedRun],
    *,
    allow_import: bool = False,
    target: Path | None = None,
    steps: Sequence[int] = (),
) -> Sweep:
    """The sweep of ``forks`` of a trial of the sweep in ``folder``, and of the trial left alone (the control).

    The control has the configuration of the trial. The control of a custom trainer keeps checkpoints for forks at
    ``steps``; results of earlier requests are in ``target``. Raises InputError if the trial cannot be trained again
    from here, or a fork is refused.
    """
    check_forkable(folder, trial)
    own = own_interventions(trial)
    values: list[Sequence[Entry]] = [own, *(fork.interventions(own) for fork in forks)]
    sweep = _sweep(folder, trial, None if is_custom(trial) else values, allow_import)
    if not any(dict(member.config) == dict(trial.config) for member in sweep.trials):
        message = "the sweep file no longer yields this trial: it was changed, or belongs to another version"
        raise InputError(Problem(str(folder), trial.trial_id, message, "`sweep run` trains the trials of the file"))
    if is_custom(trial):
        checked_trainer(sweep, allow_import)
        return custom_sweep(sweep, target or folder, [fork for fork in forks if isinstance(fork, Fork)], steps)
    # Results are compared bit for bit; other kernels and compiled code round differently.
    rounding = _rounding(folder, trial)
    return sweep if rounding is None else replace(sweep, roundings={"": rounding})


def _rounding(folder: Path, trial: TrialResult) -> Rounding | None:
    """The rounding of the trial's curve; None if the ledger does not have it."""
    if not (folder / LEDGER).is_file():
        return None
    with LedgerReader(folder / LEDGER) as ledger:
        return Rounding.of_facts(ledger.environment(trial.trial_id))


def accepted_forks(
    folder: Path, trial: TrialResult, forks: Sequence[Fork], *, refuses: bool = False, allow_import: bool = False
) -> list[Fork]:
    """The ``forks`` whose interventions the trial's settings accept.

    If it ``refuses``, it raises InputError, which names the remedy, for the first fork that they do not accept.
    """
    refusal_of, accepted = _refusals(folder, trial, allow_import), []
    for fork in forks:
        refusal = refusal_of(fork)
        if refusal is None:
            accepted.append(fork)
        elif refuses:
            raise InputError(Problem("--try", fork.remedy.name, refusal, "try another field or value"))
    return accepted


def objective_of(folder: Path, trial: TrialResult, *, allow_import: bool = False) -> Objective:
    """The objective of a trial that no custom trainer made. Raises InputError as ``fork_sweep`` does."""
    objective = _sweep(folder, trial, [own_interventions(trial)], allow_import).objective
    assert isinstance(objective, Objective)
    return objective


def _sweep(folder: Path, trial: TrialResult, values: Sequence[Sequence[Entry]] | None, allow_import: bool) -> Sweep:
    """The trial's cell over lists of interventions; None for the cell alone."""
    document = cell_alone(folder, trial)
    data = {key: value for key, value in document.data.items() if key not in _UNUSED}
    data["fixed"] = {name: value for name, value in data["fixed"].items() if name != INTERVENTIONS}
    stopping, telemetry = (
        dict(section) if isinstance(section := data.get(key), Mapping) else {} for key in ("stopping", "telemetry")
    )
    document.data = {
        **data,
        "name": f"{_NAME}_{trial.trial_id}",
        "seeds": [trial.seed],
        "axes": {} if values is None else {INTERVENTIONS: {"values": [list(value) for value in values]}},
        # A fork that is slower than others is a result here.
        "stopping": {**stopping, "slow": None},
        # Forks are compared by their losses, and by the loads of a router that collapsed; curves stay as thin as the
        # trial's.
        "telemetry": {**telemetry, **({} if trial.is_collapsed else {"every": None}), "curvature": None},
        "tracking": {"enabled": False},
    }
    return build_sweep(document, allow_import=allow_import)


def _refusals(folder: Path, trial: TrialResult, allow_import: bool) -> Callable[[Fork], str | None]:
    """A function that says why a fork is refused, or returns None."""
    check_forkable(folder, trial)
    if is_custom(trial):
        trainer = checked_trainer(_sweep(folder, trial, None, allow_import), allow_import)
        return lambda fork: why_refused(trainer, trial, fork)
    objective = objective_of(folder, trial, allow_import=allow_import)
    return lambda fork: refusal(objective, trial, fork)


def refusal(objective: Objective, trial: TrialResult, fork: ForkedRun) -> str | None:
    """Why the settings of a trial refuse a fork; None if they accept it."""
    interventions = fork.interventions(own_interventions(trial))
    try:
        objective.config_class.model_validate({**trial.config, INTERVENTIONS: interventions}, strict=False)
    except ValueError as error:
        message = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        return message.removeprefix("Value error, ")
    return None


# --- whether a fork changes anything ---


def why_idle(objective: Objective, trial: TrialResult, fork: Fork) -> str | None:
    """Why a remedy changes nothing in ``trial`` after the step of ``fork``; None if it does."""
    config = objective.config_of(trial.config)
    reasons = [_why_idle(objective, config, entry, fork.step + entry["at"]) for entry in fork.remedy.entries]
    return "; ".join(reason for reason in reasons if reason) if reasons and None not in reasons else None


def acting_forks(
    objective: Objective, trial: TrialResult, forks: Sequence[Fork], *, refuses: bool = False
) -> list[Fork]:
    """The ``forks`` that change something.

    If it ``refuses``, it raises InputError for a remedy that changes nothing from any step.
    """
    kept = [fork for fork in forks if why_idle(objective, trial, fork) is None]
    useful = {fork.remedy.name for fork in kept}
    idle = next((fork for fork in forks if fork.remedy.name not in useful), None)
    if refuses and idle is not None:
        message = f"would change nothing: {why_idle(objective, trial, idle)}"
        raise InputError(Problem("--try", idle.remedy.name, message, "try another field or value, or fork later"))
    return kept


def _why_idle(objective: Objective, config: TrainingConfig, entry: Entry, step: int) -> str | None:
    holds = held_by(entry) - {"data"}
    if (changes := entry.get("set", {})) and not holds:
        now = in_force(config, step)
        # The trial's own changes may come later, or go back.
        later = [now, *(in_force(config, corner) for corner in corners(config) if corner > step)]
        if not all(_is_already(getattr(at, name, None), value) for name, value in changes.items() for at in later):
            return None
        return ", ".join(f"{name} is already {format_value(getattr(now, name, None))}" for name in changes)
    if entry.get("reset") or entry.get("rescale") is not None:
        return "the optimizer has no state before its first step" if step == 0 else None
    # Noise differs from step to step, and skipping moves it on.
    is_same_data = objective.is_full_batch(config.model_dump()) and not getattr(config, "noise", 0)
    moves_data = entry.get("skip") or entry.get("data")
    return "every step sees the same data" if is_same_data and moves_data and not holds else None


def _is_already(own: float | None, value: float | str | None) -> bool:
    times = factor_of(value)
    return own == value if times is None else own is not None and own * times == own


# --- custom trainers ---
# Their forks continue from the trainer's own checkpoints, with other values. The control, which is left alone, keeps
# those checkpoints while it trains. So a fork starts at a checkpoint's step.


def is_custom(trial: TrialResult) -> bool:
    """Whether a custom trainer made the trial."""
    return trial.objective in CUSTOM_KINDS


def why_unforkable(folder: Path, trial: TrialResult) -> tuple[str, str, str] | None:
    """Why a custom trainer's trial cannot be forked: key, message and remedy; None if it can."""
    if trial.objective == IMPORTED:
        return "objective", "it was trained elsewhere, so it cannot be trained again here", _SEE_DIAGNOSIS
    file = folder / FROZEN_SWEEP
    section = load_sections(file).objective if file.is_file() else None
    resume = None if section is None or isinstance(section, str) else section.resume
    if resume is None:
        message = "a custom trainer is forked from its own checkpoints, and the sweep file does not say how it resumes"
        remedy = 'add resume: {checkpoint: "{folder}/ckpt.pt", arguments: [...]} to the sweep file, and run it again'
        return "objective.resume", message, f"{remedy}; {_SEE_DIAGNOSIS}"
    if "folder" not in placeholders(resume.checkpoint):
        message = f"{resume.checkpoint!r} is not in the trial's own folder, which is copied for each fork"
        return "objective.resume.checkpoint", message, "write {folder}/..., and let the trainer save there"
    return None


def check_forkable(folder: Path, trial: TrialResult) -> None:
    """Raise InputError for a custom trainer's trial that cannot be forked."""
    if is_custom(trial) and (reason := why_unforkable(folder, trial)) is not None:
        key, message, remedy = reason
        raise InputError(Problem(str(folder / FROZEN_SWEEP), key, message, remedy))


def replicates_of(trial: TrialResult, requested: int) -> int:
    """Replicates of each fork: one if a custom trainer has no placeholder that gives it other data."""
    return requested if not is_custom(trial) or DATA_SEED in values_of(trial) else 1


def values_of(trial: TrialResult) -> dict[str, Any]:
    """The values that were passed to the trainer."""
    return {name: value for name, value in trial.config.items() if name not in GIVEN}


def why_refused(trainer: CustomTrainer, trial: TrialResult, fork: Fork) -> str | None:
    """Why the trainer refuses a fork; None if it accepts."""
    values, changes = values_of(trial), entries_of(fork)
    names = [name for entry in changes for name in entry.get("set", {})]
    if wrong := next((name for name in names if name in values and not trainer.uses(name)), None):
        return f"{wrong} is not passed to the trainer"
    if trainer.batch_workers is not None and (part := next((name for name in names if name in PARTS.values()), None)):
        return f"{part} is one of three batch sizes, which are fixed for the whole run"
    try:
        trainer.resolve(trial.steps, forked_values(values, changes))
    except ValueError as error:
        return str(error)
    return None


def entries_of(fork: Fork) -> list[Entry]:
    """The ``interventions`` of a fork; of a fork that is only resumed, its step."""
    return [*fork.interventions()] or [{"at": fork.step}]


def custom_sweep(sweep: Sweep, folder: Path, forks: Iterable[Fork], steps: Sequence[int]) -> Sweep:
    """``forks`` of the only trial of ``sweep``, and the control that keeps the checkpoints for ``steps``.

    The results of earlier requests are in ``folder``.
    """
    (alone,) = sweep.trials
    of_batch: dict[str, Any] = {}
    if sweep.resources.is_elastic:  # forks and their control must not differ in their number of processes
        workers = sweep.resources.most_workers
        of_batch = sized(alone.config, workers)
        sweep = replace(sweep, resources=sweep.resources.model_copy(update={"workers": workers}))
    controls: list[dict[str, Any]] = [
        {INTERVENTIONS: [], CHECKPOINTS_FOR: list(kept)} for kept in _controls(folder, steps)
    ]
    added = [*controls, *({INTERVENTIONS: entries_of(fork)} for fork in forks)]
    trials: dict[str, Trial] = {}
    for changes in added:
        config = {**alone.config, **of_batch, **changes}
        cell = Cell({INTERVENTIONS: to_hashable(changes[INTERVENTIONS])})
        made = trial_id(sweep.objective.name, config, alone.seed, sweep.rules)
        trials.setdefault(made, Trial(made, cell, alone.seed, config))
    values = tuple(dict.fromkeys(forked.cell[INTERVENTIONS] for forked in trials.values()))
    # Controls for other steps share a cell, so one cell may hold all trials.
    listed = ListedCells([forked.cell for forked in trials.values()], len(trials) + 1)
    axis = Axis(INTERVENTIONS, "values", values)
    return replace(sweep, axes=(axis,), trials=tuple(trials.values()), search=listed)


def checked_trainer(sweep: Sweep, allow_import: bool) -> CustomTrainer:
    """The trainer of a sweep. Raises InputError for code that must not be imported."""
    check_import(sweep, allow_import)
    assert isinstance(sweep.objective, CustomTrainer)
    return sweep.objective


def unknown_steps(folder: Path, steps: Iterable[int]) -> list[int]:
    """The fork steps that no control has sought a checkpoint for yet."""
    known = ResumeSteps.read(folder / KEPT).steps
    return sorted({step for step in steps if step > 0} - known.keys())


def checkpoint_steps(folder: Path, steps: Iterable[int], trial: TrialResult) -> list[int]:
    """The steps of the last checkpoints at or before ``steps``, ascending; 0 is the start of the run.

    Raises InputError if none of the steps has a checkpoint.
    """
    resume = ResumeSteps.read(folder / KEPT)
    starts = {step: 0 if step == 0 else resume.steps.get(step) for step in steps}
    if known := sorted({start for start in starts.values() if start is not None}):
        return known
    requested = ", ".join(map(str, sorted(starts)))
    message = f"the trainer has no checkpoint at or before step {requested} to resume from"
    if resume.problem is not None:
        message = f"{message}: {resume.problem}"
    remedy = "let it save more often, fork later, or fork at 0, which needs no checkpoint"
    raise InputError(Problem("--fork", trial.trial_id, message, remedy))


def resumes_at(folder: Path, step: int) -> bool:
    """Whether a fork can start at exactly this step."""
    return step == 0 or ResumeSteps.read(folder / KEPT).steps.get(step) == step


def _controls(folder: Path, steps: Sequence[int]) -> list[tuple[int, ...]]:
    """The steps of each control: the controls with a result, and one more for steps that none has looked at."""
    done: list[tuple[int, ...]] = []
    if (folder / LEDGER).is_file():
        with LedgerReader(folder / LEDGER) as ledger:
            rows = ledger.trials(removed=True)
        done = [tuple(row.config[CHECKPOINTS_FOR]) for row in rows if CHECKPOINTS_FOR in row.config and row.outcome]
    missing = tuple(unknown_steps(folder, steps))
    return [*done, missing] if missing or not done else done

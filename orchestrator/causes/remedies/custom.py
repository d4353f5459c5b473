"""Forks of a custom trainer's trial: they continue from the trainer's own checkpoints, with other values.

The control, which is left alone, keeps those checkpoints while it trains. So a fork starts at a checkpoint's step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.base.errors import InputError, Problem
from orchestrator.base.files import FROZEN_SWEEP, LEDGER
from orchestrator.base.space import Axis, Cell, Trial, to_hashable, trial_id
from orchestrator.base.trial_result import TrialResult
from orchestrator.base.vocabulary import CUSTOM_KINDS, IMPORTED
from orchestrator.causes.remedies.remedy import Entry, Fork
from orchestrator.ledger.reader import LedgerReader
from orchestrator.search.protocol import ListedCells
from orchestrator.sweepfile.batch import PARTS
from orchestrator.sweepfile.custom_trainer import GIVEN, CustomTrainer, placeholders
from orchestrator.sweepfile.forked_values import CHECKPOINTS_FOR, DATA_SEED, INTERVENTIONS, forked_values
from orchestrator.sweepfile.spec import Sweep, check_import, load_sections
from orchestrator.worker.kept_checkpoints import KEPT, ResumeSteps

_SEE_DIAGNOSIS = "`sweep diagnose` gives advice on it"


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
    controls: list[dict[str, Any]] = [
        {INTERVENTIONS: [], CHECKPOINTS_FOR: list(kept)} for kept in _controls(folder, steps)
    ]
    added = [*controls, *({INTERVENTIONS: entries_of(fork)} for fork in forks)]
    trials: dict[str, Trial] = {}
    for changes in added:
        config = {**alone.config, **changes}
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

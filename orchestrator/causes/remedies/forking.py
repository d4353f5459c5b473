"""The sweep of the forks of a trial: its configuration and seed over the axis `interventions`; and which forks act."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError

from objectives.base import Objective, Rounding, TrainingConfig
from objectives.interventions import corners, factor_of, in_force
from orchestrator.base.errors import InputError, Problem
from orchestrator.base.files import LEDGER
from orchestrator.base.space import format_value
from orchestrator.base.trial_result import TrialResult
from orchestrator.causes.remedies.custom import (
    check_forkable,
    checked_trainer,
    custom_sweep,
    is_custom,
    why_refused,
)
from orchestrator.causes.remedies.remedy import Entry, Fork, own_interventions
from orchestrator.causes.small_sweep import cell_alone
from orchestrator.ledger.reader import LedgerReader
from orchestrator.sweepfile.forked_values import INTERVENTIONS
from orchestrator.sweepfile.spec import Sweep, build_sweep

_NAME = "remedies"
_UNUSED = ("notify", "refine", INTERVENTIONS)  # keys of a sweep file that a sweep of forks has no use for


def fork_sweep(
    folder: Path,
    trial: TrialResult,
    forks: Sequence[Fork],
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
        return custom_sweep(sweep, target or folder, forks, steps)
    # Results are compared bit for bit; other kernels round differently, and a narrow pack may have chosen them.
    return replace(sweep, rounding=_rounding(folder, trial))


def _rounding(folder: Path, trial: TrialResult) -> Rounding | None:
    """The rounding of the trial's curve; None if the ledger does not have it."""
    if not (folder / LEDGER).is_file():
        return None
    with LedgerReader(folder / LEDGER) as ledger:
        return Rounding.of_facts(ledger.environment(trial.trial_id))


def accepted_forks(
    folder: Path, trial: TrialResult, forks: Sequence[Fork], *, allow_import: bool = False
) -> list[Fork]:
    """The ``forks`` whose interventions the trial's settings accept."""
    refusal_of = _refusals(folder, trial, allow_import)
    return [fork for fork in forks if refusal_of(fork) is None]


def check_forks(folder: Path, trial: TrialResult, forks: Sequence[Fork], *, allow_import: bool = False) -> None:
    """Raise InputError, naming the remedy, for the first of ``forks`` that the trial's settings do not accept."""
    refusal_of = _refusals(folder, trial, allow_import)
    for fork in forks:
        if (refusal := refusal_of(fork)) is not None:
            raise InputError(Problem("--try", fork.remedy.name, refusal, "try another field or value"))


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
        # Forks are compared by their losses; curves stay as thin as the trial's.
        "telemetry": {**telemetry, "every": None, "curvature": None},
        "tracking": {"enabled": False},
    }
    return build_sweep(document, allow_import=allow_import)


def _refusals(folder: Path, trial: TrialResult, allow_import: bool) -> Callable[[Fork], str | None]:
    """A function that says why a fork is refused, or returns None."""
    check_forkable(folder, trial)
    if is_custom(trial):
        trainer = checked_trainer(_sweep(folder, trial, None, allow_import), allow_import)
        return lambda fork: why_refused(trainer, trial, fork)
    own = own_interventions(trial)
    objective = objective_of(folder, trial, allow_import=allow_import)

    def refusal_of(fork: Fork) -> str | None:
        try:
            objective.config_class.model_validate(
                {**trial.config, INTERVENTIONS: fork.interventions(own)}, strict=False
            )
        except ValueError as error:
            message = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
            return message.removeprefix("Value error, ")
        return None

    return refusal_of


# --- whether a fork changes anything ---


def why_idle(objective: Objective, trial: TrialResult, fork: Fork) -> str | None:
    """Why a remedy changes nothing in ``trial`` after the step of ``fork``; None if it does."""
    config = objective.config_of(trial.config)
    reasons = [_why_idle(objective, config, entry, fork.step + entry["at"]) for entry in fork.remedy.entries]
    return "; ".join(reason for reason in reasons if reason) if reasons and None not in reasons else None


def acting_forks(objective: Objective, trial: TrialResult, forks: Sequence[Fork]) -> list[Fork]:
    """The ``forks`` that change something."""
    return [fork for fork in forks if why_idle(objective, trial, fork) is None]


def check_acting(objective: Objective, trial: TrialResult, forks: Sequence[Fork]) -> list[Fork]:
    """The ``forks`` that change something. Raises InputError for a remedy that changes nothing from any step."""
    kept = acting_forks(objective, trial, forks)
    useful = {fork.remedy.name for fork in kept}
    for fork in forks:
        if fork.remedy.name not in useful:
            message = f"would change nothing: {why_idle(objective, trial, fork)}"
            raise InputError(Problem("--try", fork.remedy.name, message, "try another field or value, or fork later"))
    return kept


def _why_idle(objective: Objective, config: TrainingConfig, entry: Entry, step: int) -> str | None:
    if changes := entry.get("set", {}):
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
    return "every step sees the same data" if is_same_data and entry.get("skip") else None


def _is_already(own: float | None, value: float | str | None) -> bool:
    times = factor_of(value)
    return own == value if times is None else own is not None and own * times == own

"""The sweep of the forks of one trial: its configuration and its seed, over the axis `interventions`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from objectives.base import Objective, Rounding
from orchestrator.base.errors import InputError, Problem
from orchestrator.base.files import LEDGER
from orchestrator.base.trial_result import TrialResult
from orchestrator.causes.remedies import custom
from orchestrator.causes.remedies.remedy import Entry, Fork
from orchestrator.causes.small_sweep import cell_alone
from orchestrator.ledger.reader import LedgerReader
from orchestrator.sweepfile.spec import Sweep, build_sweep

AXIS = "interventions"
_NAME = "remedies"
_NOT_HERE = ("notify", "refine", AXIS)  # keys of a sweep file without a use in one of forks


def own_interventions(trial: TrialResult) -> list[Entry]:
    """The interventions of the trial itself, in most trials none."""
    return list(trial.config.get(AXIS) or ())


def fork_sweep(
    folder: Path,
    trial: TrialResult,
    forks: Iterable[Fork],
    *,
    allow_import: bool = False,
    there: Path | None = None,
    steps: Sequence[int] = (),
) -> Sweep:
    """The trial of the sweep in ``folder`` left alone (the control), and ``forks`` of it.

    The control has the configuration of the trial. That of a custom trainer keeps the checkpoints for forks at
    ``steps``, beside the results of earlier questions in ``there``. Raises InputError where the trial cannot be trained
    again from here, or a fork is refused.
    """
    custom.refuse_unforkable(folder, trial)
    own = own_interventions(trial)
    is_custom = custom.is_custom(trial)
    values: list[Sequence[Entry]] | None = None
    if not is_custom:
        values = [own, *(fork.interventions(own) for fork in forks)]
    sweep = _sweep(folder, trial, values, allow_import)
    if not any(dict(one.config) == dict(trial.config) for one in sweep.trials):
        message = "the sweep's file does not give this trial any more: it was changed, or is of another version"
        raise InputError(Problem(str(folder), trial.trial_id, message, "`sweep run` trains the trials of the file"))
    if is_custom:
        custom.checked(sweep, allow_import)
        return custom.custom_sweep(sweep, there or folder, trial, forks, steps)
    # Its results are compared to the bit: other kernels round differently, and a narrow pack may have chosen them.
    return replace(sweep, rounding=_rounding(folder, trial))


def _rounding(folder: Path, trial: TrialResult) -> Rounding | None:
    """That of the trial's curve; None where the ledger does not say it."""
    if not (folder / LEDGER).is_file():
        return None
    with LedgerReader(folder / LEDGER) as ledger:
        return Rounding.of_facts(ledger.environment(trial.trial_id))


def accepted(folder: Path, trial: TrialResult, forks: Sequence[Fork], *, allow_import: bool = False) -> list[Fork]:
    """Those of ``forks`` whose interventions the trial's settings accept."""
    checks = _check(folder, trial, allow_import)
    return [fork for fork in forks if checks(fork) is None]


def refuse_forks(folder: Path, trial: TrialResult, forks: Sequence[Fork], *, allow_import: bool = False) -> None:
    """Raise InputError, naming the remedy, for the first of ``forks`` that the trial's settings do not accept."""
    checks = _check(folder, trial, allow_import)
    for fork in forks:
        if (refused := checks(fork)) is not None:
            raise InputError(Problem("--try", fork.remedy.name, refused, "try another field or value"))


def objective_of(folder: Path, trial: TrialResult, *, allow_import: bool = False) -> Objective:
    """What trained the trial, which no custom trainer did. Raises InputError as ``fork_sweep`` does."""
    objective = _sweep(folder, trial, [own_interventions(trial)], allow_import).objective
    assert isinstance(objective, Objective)
    return objective


def _sweep(folder: Path, trial: TrialResult, values: Sequence[Sequence[Entry]] | None, allow_import: bool) -> Sweep:
    """The trial's cell over lists of interventions; None for the cell alone."""
    document = cell_alone(folder, trial)
    data = {key: value for key, value in document.data.items() if key not in _NOT_HERE}
    data["fixed"] = {name: value for name, value in data["fixed"].items() if name != AXIS}
    stopping, telemetry = (
        dict(section) if isinstance(section := data.get(key), Mapping) else {} for key in ("stopping", "telemetry")
    )
    document.data = {
        **data,
        "name": f"{_NAME}_{trial.trial_id}",
        "seeds": [trial.seed],
        "axes": {} if values is None else {AXIS: {"values": [list(value) for value in values]}},
        # A fork that is slow beside others is a result here.
        "stopping": {**stopping, "slow": None},
        # Forks are compared by their losses; curves stay as thin as those of the trial.
        "telemetry": {**telemetry, "every": None, "curvature": None},
        "tracking": {"enabled": False},
    }
    return build_sweep(document, allow_import=allow_import)


def _check(folder: Path, trial: TrialResult, allow_import: bool) -> Any:
    """A function that says why a fork is refused, None where it is not."""
    custom.refuse_unforkable(folder, trial)
    if custom.is_custom(trial):
        trainer = custom.checked(_sweep(folder, trial, None, allow_import), allow_import)
        return lambda fork: custom.refused(trainer, trial, fork)
    own = own_interventions(trial)
    objective = objective_of(folder, trial, allow_import=allow_import)

    def refused(fork: Fork) -> str | None:
        try:
            objective.config_class.model_validate({**trial.config, AXIS: fork.interventions(own)}, strict=False)
        except ValueError as error:
            return _said(error)
        return None

    return refused


def _said(error: ValueError) -> str:
    """What a model says of a value, without pydantic's frame."""
    message = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
    return message.removeprefix("Value error, ")

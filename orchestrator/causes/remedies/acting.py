"""Whether a remedy changes anything in a trial: forks of one that does not would be trained for nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from objectives.base import Objective, TrainingConfig
from objectives.interventions import corners, factor_of, in_force
from orchestrator.base.errors import InputError, Problem
from orchestrator.base.space import format_value
from orchestrator.base.trial_result import TrialResult
from orchestrator.causes.remedies.remedy import Entry, Fork


def idle_because(objective: Objective, trial: TrialResult, fork: Fork) -> str | None:
    """Why a remedy changes nothing in ``trial`` from the step of ``fork`` on; None where it does."""
    config = objective.config_class.model_validate(trial.config, strict=False)
    reasons = [_idle(objective, config, entry, fork.step + entry["at"]) for entry in fork.remedy.entries]
    return "; ".join(reason for reason in reasons if reason) if reasons and None not in reasons else None


def acting(objective: Objective, trial: TrialResult, forks: Sequence[Fork]) -> list[Fork]:
    """Those of ``forks`` that change something."""
    return [fork for fork in forks if idle_because(objective, trial, fork) is None]


def refuse_idle(objective: Objective, trial: TrialResult, forks: Sequence[Fork]) -> list[Fork]:
    """Those of ``forks`` that change something. Raises InputError for a remedy that does so from no step."""
    kept = acting(objective, trial, forks)
    useful = {fork.remedy.name for fork in kept}
    for fork in forks:
        if fork.remedy.name not in useful:
            why = f"would change nothing: {idle_because(objective, trial, fork)}"
            raise InputError(Problem("--try", fork.remedy.name, why, "try another field or value, or fork later"))
    return kept


def _idle(objective: Objective, config: TrainingConfig, entry: Entry, step: int) -> str | None:
    changes = entry.get("set", {})
    if changes:
        now = in_force(config, step)
        # The trial's own changes may come later, or go back.
        later = [now, *(in_force(config, corner) for corner in corners(config) if corner > step)]
        if not all(_is_already(getattr(at, name, None), value) for name, value in changes.items() for at in later):
            return None
        return ", ".join(f"{name} is {format_value(getattr(now, name, None))} already" for name in changes)
    if entry.get("reset") or entry.get("rescale") is not None:
        return "the optimizer has no state before its first step" if step == 0 else None
    is_full = objective.is_full_batch(config.model_dump())
    return "every step sees the same data" if entry.get("skip") and is_full and not _draws_noise(config) else None


def _is_already(own: Any, value: Any) -> bool:
    times = factor_of(value)
    return own == value if times is None else own is not None and own * times == own


def _draws_noise(config: TrainingConfig) -> bool:
    """Whether steps differ by noise that skipping moves on."""
    return bool(getattr(config, "noise", 0))

"""The shares of the steps among a run's settings, in steps, as the trials of a sweep have them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from orchestrator.base.errors import InputError, Problem
from orchestrator.base.trial_result import TrialResult
from orchestrator.sweepfile.run_settings import RunSettings
from orchestrator.sweepfile.settings import settings_of
from orchestrator.sweepfile.shares import is_share, share_problem, steps_of_share


def in_whole_steps(run: RunSettings, rows: Sequence[TrialResult]) -> RunSettings:
    """``run`` with whole steps in place of shares of its steps, where the trials ``rows`` have whole numbers.

    The steps are its own, or those of all trials; where neither is known, a share stays as it is. Raises InputError for
    what is no share.
    """
    lengths = {row.steps for row in rows}
    steps = run.values.get("steps", next(iter(lengths)) if len(lengths) == 1 else None)
    if type(steps) is not int or steps < 1:
        return run
    known = settings_of(rows[0].objective, rows[0].config, rows[0].cell)
    counted = {name: value for name, value in run.values.items() if is_share(value) and type(known.get(name)) is int}
    return replace(run, values={**run.values, **{name: _steps(run, name, counted[name], steps) for name in counted}})


def _steps(run: RunSettings, name: str, value: Any, steps: int) -> int:
    if problem := share_problem(value):
        raise InputError(Problem(run.places[name], name, *problem))
    return steps_of_share(value, steps)

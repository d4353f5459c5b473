"""Time as a size: to which of a few lengths each run of one length was stable."""

from __future__ import annotations

import math
from collections.abc import Sequence

from orchestrator.base.errors import InputError, Problem
from orchestrator.base.space import is_number
from orchestrator.base.trial_result import TrialResult
from orchestrator.ledger.facts import trainer_facts
from orchestrator.ledger.reader import check_has_curves
from orchestrator.maps.lifetimes import lifetime
from orchestrator.maps.table import SweepTable

STEPS = "steps"
_FEWEST, _MOST = 3, 5  # halvings of what was trained
_UNKNOWN = ""
_WARMUPS, _LEAST = 4, 20  # a run is judged after so many warmups, and steps


def judged_lengths(table: SweepTable) -> tuple[int, ...]:
    """Return the steps at which the runs of a sweep are judged: what was trained, a half, a fourth, ascending.

    Raises InputError where the first part of a run is no shorter run, or too short.
    """
    check_has_curves(table.facts, "only a curve says when a run left its trend")
    stated = trainer_facts(table.facts)
    trained = {trial.steps for trial in table.trials}
    if len(trained) != 1:
        remedy = "keep one length with `--where`, or import the runs with steps as an axis"
        raise InputError(Problem("--at", STEPS, f"is no axis, and the runs have {len(trained)} lengths", remedy))
    schedules = {str({**stated, **trial.config}.get("schedule", _UNKNOWN)) for trial in table.trials}
    if _UNKNOWN in schedules:
        message = "the schedule of the learning rate is not known, and one that ends at the last step would mislead"
        remedy = "if it is constant after the warmup, add `facts: {schedule: constant}` and `sweep run` the file again"
        raise InputError(Problem("--at", STEPS, message, remedy))
    if moving := sorted(schedules - {"constant"}):
        message = f"schedule {moving[0]} knows its end, so the first half of a run is no run of half the steps"
        remedy = "train the sizes with `schedule: constant`, or import runs of several lengths with steps as an axis"
        raise InputError(Problem("--at", STEPS, message, remedy))
    (longest,) = trained
    warmups = [{**stated, **trial.config}.get("warmup", 0) for trial in table.trials]
    warmup = max(each if is_number(each) else 0 for each in warmups)
    halves = [longest // 2**halvings for halvings in range(_MOST)]
    lengths = tuple(length for length in reversed(halves) if length >= max(_WARMUPS * warmup, _LEAST))
    if len(lengths) < _FEWEST:
        message = f"{longest} steps with {warmup:g} of warmup are too few to see stability wear off"
        remedy = f"train {math.ceil(max(_WARMUPS * warmup, _LEAST) * 2 ** (_FEWEST - 1))} steps or more"
        raise InputError(Problem("--at", STEPS, message, remedy))
    return lengths


def stable_lengths(trial: TrialResult, lengths: Sequence[int], is_stable: bool) -> int:
    """Return to how many of the ascending ``lengths`` a run was stable; ``is_stable`` is its outcome at the last."""
    if is_stable:
        return len(lengths)
    life = lifetime(trial)
    return sum(length < life.steps for length in lengths[:-1])

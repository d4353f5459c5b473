"""The values that a fork passes to a custom trainer: those of the trial, with the changes of a remedy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.base.space import is_number
from orchestrator.sweepfile.fields import without_noise

INTERVENTIONS = "interventions"
CHECKPOINTS_FOR = "checkpoints_for"  # of a run that is left alone: the steps for which it keeps checkpoints
# A value that chooses the order of the data after the fork, where the trainer has such a placeholder.
DATA_SEED = "data_seed"
_FORK_KEYS = frozenset({INTERVENTIONS, CHECKPOINTS_FOR})
_CAN_CHANGE = frozenset({"at", "set", "data"})


def is_of_fork(config: Mapping[str, Any]) -> bool:
    """Whether a custom trainer's configuration is that of a fork or of its control; no value of a user is a list."""
    return isinstance(config.get(INTERVENTIONS), list | tuple)


def without_fork(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of the trial itself."""
    return {name: value for name, value in config.items() if name not in _FORK_KEYS}


def fork_step(interventions: Sequence[Mapping[str, Any]]) -> int:
    """The step from which on the changes act; 0 where there are none."""
    return min((entry["at"] for entry in interventions), default=0)


def forked_values(values: Mapping[str, Any], interventions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """``values`` after ``interventions``, which all act at one step, where the trainer is resumed.

    Raises ValueError for what a trainer that is resumed with other values cannot do.
    """
    changed, step = dict(values), fork_step(interventions)
    for entry in interventions:
        if unknown := [name for name in entry if name not in _CAN_CHANGE]:
            raise ValueError(f"a custom trainer can be resumed with other values, but not change {unknown[0]!r}")
        if entry["at"] != step:
            raise ValueError("a custom trainer is resumed once, and has no later changes nor ways back")
        for name, value in entry.get("set", {}).items():
            changed[name] = _changed(name, values, value)
        if data := entry.get("data"):
            if not _is_whole(values.get(DATA_SEED)):
                raise ValueError(f"other data needs a placeholder {{{DATA_SEED}}} with a whole number")
            changed[DATA_SEED] = values[DATA_SEED] + data
    return changed


def _changed(name: str, values: Mapping[str, Any], value: Any) -> Any:
    if name not in values:
        raise ValueError(f"{name} is no value of the trial: it has {', '.join(sorted(values)) or 'none'}")
    own = values[name]
    if isinstance(value, str):  # a factor, such as x0.5
        if not is_number(own):
            raise ValueError(f"{name} is {own!r}, which is no number to multiply")
        value = without_noise(own * float(value.removeprefix("x")))
    if _is_whole(own) and is_number(value):
        if not math.isfinite(value) or value != int(value):
            raise ValueError(f"{name} is the whole number {own} in this trial, and would be {value}")
        return int(value)
    return value


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)

"""The values that a fork passes to a custom trainer: the trial's values, with the changes of a remedy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.base.space import is_number
from orchestrator.sweepfile.fields import without_noise

INTERVENTIONS = "interventions"
CHECKPOINTS_FOR = "checkpoints_for"  # of a control run: the steps at which it keeps checkpoints
# If the trainer has this placeholder, it selects the order of the data after the fork.
DATA_SEED = "data_seed"
_FORK_KEYS = frozenset({INTERVENTIONS, CHECKPOINTS_FOR})
_CAN_CHANGE = frozenset({"at", "set", "data"})


def is_of_fork(config: Mapping[str, Any]) -> bool:
    """Whether ``config`` of a custom trainer belongs to a fork or its control: no value of a user is a list."""
    return isinstance(config.get(INTERVENTIONS), list | tuple)


def without_fork(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration of the trial itself."""
    return {name: value for name, value in config.items() if name not in _FORK_KEYS}


def fork_step(interventions: Sequence[Mapping[str, Any]]) -> int:
    """Return the step of the changes, or 0 without changes."""
    return min((entry["at"] for entry in interventions), default=0)


def forked_values(values: Mapping[str, Any], interventions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Apply ``interventions``, which must all act at the step where the trainer is resumed, to ``values``.

    Raises ValueError for a change that cannot be made by resuming a trainer with other values.
    """
    changed, step = dict(values), fork_step(interventions)
    for entry in interventions:
        if unknown := [name for name in entry if name not in _CAN_CHANGE]:
            raise ValueError(f"a custom trainer can be resumed with other values, but cannot change {unknown[0]!r}")
        if entry["at"] != step:
            raise ValueError("a custom trainer is resumed once, and cannot change later or go back")
        for name, value in entry.get("set", {}).items():
            changed[name] = _changed(name, values, value)
        if data := entry.get("data"):
            if not _is_integer(values.get(DATA_SEED)):
                raise ValueError(f"other data needs a placeholder {{{DATA_SEED}}} with an integer value")
            changed[DATA_SEED] = values[DATA_SEED] + data
    return changed


def _changed(name: str, values: Mapping[str, Any], value: Any) -> Any:
    if name not in values:
        raise ValueError(f"{name} is not a value of the trial, which has {', '.join(sorted(values)) or 'none'}")
    own = values[name]
    if isinstance(value, str):  # a factor, such as x0.5
        if not is_number(own):
            raise ValueError(f"{name} is {own!r}, which cannot be multiplied")
        value = without_noise(own * float(value.removeprefix("x")))
    if _is_integer(own) and is_number(value):
        if not math.isfinite(value) or value != int(value):
            raise ValueError(f"{name} is the integer {own} in this trial, and would become {value}")
        return int(value)
    return value


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)

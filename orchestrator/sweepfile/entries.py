"""Interventions and rules of control: as lists of entries in a sweep file, and as values of a custom trainer's fork."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from objectives.control import Rule
from objectives.entries import Intervention
from objectives.loop_config import checked
from orchestrator.base.errors import Problem
from orchestrator.base.space import is_number, to_hashable, to_plain
from orchestrator.detection.policies import EXAMPLE, entry_problem
from orchestrator.detection.policies import KEY as CONTROL
from orchestrator.sweepfile.fields import without_noise
from orchestrator.sweepfile.sections import SweepFile
from orchestrator.sweepfile.steps import STEP_KEYS, entry_in_steps, is_share, share_problem
from orchestrator.sweepfile.strict_yaml import Document

INTERVENTIONS = "interventions"
CHECKPOINTS_FOR = "checkpoints_for"  # of a control run: the steps at which it keeps checkpoints
# If the trainer has this placeholder, it selects the order of the data after the fork.
DATA_SEED = "data_seed"
_FORK_KEYS = frozenset({INTERVENTIONS, CHECKPOINTS_FOR})
_CAN_CHANGE = frozenset({"at", "set", "data"})
_MANY = 10**12  # steps, of which different shares are different numbers


@dataclass(frozen=True, slots=True)
class EntryField:
    """A field whose value is a list of entries: the model of an entry, and an example.

    Entries are sorted by the key ``ordered_by``, or kept as written.
    """

    noun: str
    model: type[BaseModel]
    example: str
    refused_for_custom: str | None  # why a custom trainer cannot have it
    ordered_by: str | None = None


ENTRY_FIELDS: Mapping[str, EntryField] = {
    INTERVENTIONS: EntryField(
        "interventions",
        Intervention,
        "write a list of entries such as {at: 100, set: {lr: x0.5}, over: 20}",
        "a custom trainer itself decides what changes in mid-run",
        "at",
    ),
    CONTROL: EntryField(
        "rules",
        Rule,
        EXAMPLE,
        None,
    ),
}


def entries_problem(name: str, value: Any) -> tuple[str, str] | None:
    """Return what is wrong with ``value`` as a list of entries of the field ``name``, and the remedy; None if valid."""
    field = ENTRY_FIELDS[name]
    if not isinstance(value, list | tuple):
        return f"{value!r:.80} is refused: not a list of {field.noun}", field.example
    for number, entry in enumerate(value, 1):
        if not isinstance(entry, Mapping):
            return f"entry {number}, {entry!r:.80}, is refused: not a mapping of keys to values", field.example
        for key in STEP_KEYS:
            if is_share(entry.get(key)) and (problem := share_problem(entry[key])):
                return f"entry {number}, {key}: {problem[0]}", problem[1]
        if problem := entry_problem(field.model, entry_in_steps(entry, _MANY)):
            message, remedy = problem
            return f"entry {number}{message}", remedy or field.example
    return None


def loop_problem(rules: Any, steps: int) -> tuple[str, str] | None:
    """Return why rules, in whole steps, cannot act in a training loop of the user's own, and the remedy, or None."""
    try:
        checked([Rule.model_validate(to_plain(rule)) for rule in rules], steps)
    except ValueError as error:
        return str(error), "docs/control.md says what acts in a training loop of your own"
    return None


def are_rules(name: str, value: Any) -> bool:
    """Whether ``value`` of a custom trainer are rules for its `Watch`, and not a value that its command uses."""
    return name == CONTROL and isinstance(value, list | tuple)


def rules_of(config: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """Return the rules for the `Watch` of a custom trainer as plain data, or None if it brings its own."""
    rules = config.get(CONTROL)
    return to_plain(rules) if are_rules(CONTROL, rules) else None


def canonical_entries(name: str, value: Any) -> Any:
    """Return the one form of lists that mean the same: without defaults, with typed numbers, sorted.

    A value that is not a valid list of entries is returned unchanged, as a hashable.
    """
    if entries_problem(name, value):
        return to_hashable(value)
    field, entries = ENTRY_FIELDS[name], []
    for entry in value:
        plain = field.model.model_validate(entry_in_steps(entry, _MANY)).model_dump()
        entries.append({**plain, **{key: entry[key] for key in STEP_KEYS if is_share(entry.get(key))}})
    key = field.ordered_by
    if key is not None and not any(is_share(entry[key]) for entry in entries):
        entries.sort(key=lambda entry: entry[key])
    return to_hashable(entries)


def with_entries(file: SweepFile) -> SweepFile:
    """Return ``file`` with the interventions and the control of all trials among its fixed values."""
    given = {name: value for name in ENTRY_FIELDS if (value := getattr(file, name)) is not None}
    return file.model_copy(update={"fixed": {**file.fixed, **given}}) if given else file


def path_of_fixed(file: SweepFile, name: str) -> tuple[str, ...]:
    """Return the path in ``file`` of the value of the fixed field ``name``."""
    is_top_level = name in ENTRY_FIELDS and getattr(file, name) is not None
    return (name,) if is_top_level else ("fixed", name)


def misplaced(file: SweepFile, *, is_custom: bool, document: Document) -> list[Problem]:
    """Return problems of the top-level keys: with a custom trainer, or when values are given elsewhere as well."""
    problems = []
    for name, field in ENTRY_FIELDS.items():
        if getattr(file, name) is None:
            continue
        if is_custom and field.refused_for_custom is not None:
            problems.append(document.problem((name,), field.refused_for_custom, "remove it"))
        if name in file.fixed or name in file.axes:
            other = "fixed" if name in file.fixed else "axes"
            problems.append(document.problem((name,), f"is also given under {other}", "keep one of the two"))
    return problems


# --- forks of a custom trainer ---------------------------------------------------------------------


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

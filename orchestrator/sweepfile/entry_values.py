"""Interventions and rules of control as values of a sweep file: problems, canonical form, shares of the steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from objectives.control import Rule
from objectives.interventions import Intervention
from orchestrator.base.errors import Problem, did_you_mean
from orchestrator.base.space import frozen
from orchestrator.sweepfile.sections import SweepFile
from orchestrator.sweepfile.shares import is_share, share_problem, steps_of_share
from orchestrator.sweepfile.strict_yaml import Document

INTERVENTIONS = "interventions"
_MANY = 10**12  # steps, of which different shares are different numbers


@dataclass(frozen=True, slots=True)
class EntryField:
    """A field whose value is a list of entries: the model of an entry, its keys that count steps, and an example.

    Entries are in the order of ``ordered_by``, or as they are written.
    """

    noun: str
    model: type[BaseModel]
    step_keys: tuple[str, ...]
    example: str
    refused_for_custom: str
    ordered_by: str | None = None


ENTRY_FIELDS: Mapping[str, EntryField] = {
    INTERVENTIONS: EntryField(
        "interventions",
        Intervention,
        ("at", "over", "lasts"),
        "write a list of entries such as {at: 100, set: {lr: x0.5}, over: 20}",
        "a custom trainer decides by itself what changes in mid-run",
        "at",
    ),
    "control": EntryField(
        "rules",
        Rule,
        ("every", "after", "cool_down", "over", "lasts"),
        "write a list of rules such as {on: curvature, above: 1, do: {lr: x0.5}, every: 5, at_most: 4}",
        "a custom trainer is not read while it trains",
    ),
}
_STEP_KEYS = {key for field in ENTRY_FIELDS.values() for key in field.step_keys}


def entries_problem(name: str, value: Any) -> tuple[str, str] | None:
    """The problem of ``value`` as a list of entries of the field ``name`` and its remedy; None without one."""
    field = ENTRY_FIELDS[name]
    if not isinstance(value, list | tuple):
        return f"{value!r:.80} is refused: not a list of {field.noun}", field.example
    for number, entry in enumerate(value, 1):
        if not isinstance(entry, Mapping):
            return f"entry {number}, {entry!r:.80}, is refused: not a mapping of keys to values", field.example
        shares = ((key, share_problem(entry[key])) for key in field.step_keys if is_share(entry.get(key)))
        if wrong := next(((key, found) for key, found in shares if found), None):
            return f"entry {number}, {wrong[0]}: {wrong[1][0]}", wrong[1][1]
        try:
            field.model.model_validate(_in_steps(entry, _MANY))
        except ValidationError as error:
            details = error.errors()[0]
            key = ".".join(str(part) for part in details["loc"][:2])
            message = details["msg"].removeprefix("Value error, ")
            message = f"{message[:1].lower()}{message[1:]}"
            if details["type"] == "extra_forbidden":
                keys = f"keys: {', '.join(field.model.model_fields)}"
                return f"entry {number} has no key {key}", did_you_mean(key, field.model.model_fields) or keys
            return f"entry {number}{', ' if key else ''}{key} is refused: {message}", field.example
    return None


def canonical_entries(name: str, value: Any) -> Any:
    """The one form of lists that mean the same: no defaults, numbers as the configuration has them, in order.

    What is no list of such entries stays as it is.
    """
    if entries_problem(name, value):
        return frozen(value)
    field, entries = ENTRY_FIELDS[name], []
    for entry in value:
        plain = field.model.model_validate(_in_steps(entry, _MANY)).model_dump()
        entries.append({**plain, **{count: entry[count] for count in field.step_keys if is_share(entry.get(count))}})
    key = field.ordered_by
    if key is not None and not any(is_share(entry[key]) for entry in entries):
        entries.sort(key=lambda entry: entry[key])
    return frozen(entries)


def has_shares(value: Any) -> bool:
    """Whether ``value`` is a list of entries with a share of the steps in it."""
    return isinstance(value, list | tuple) and any(
        isinstance(entry, Mapping) and any(is_share(entry.get(key)) for key in _STEP_KEYS) for entry in value
    )


def in_whole_steps(name: str, value: Any, steps: int) -> Any:
    """A list of entries with whole steps in place of shares of ``steps``, in its canonical form."""
    return canonical_entries(name, [_in_steps(entry, steps) for entry in value])


def with_entries(file: SweepFile) -> SweepFile:
    """``file`` with the interventions and the control of all trials among its fixed values."""
    given = {name: value for name in ENTRY_FIELDS if (value := getattr(file, name)) is not None}
    return file.model_copy(update={"fixed": {**file.fixed, **given}}) if given else file


def place_of(file: SweepFile, name: str) -> tuple[str, ...]:
    """Where the value of the fixed field ``name`` stands in ``file``."""
    at_top = name in ENTRY_FIELDS and getattr(file, name) is not None
    return (name,) if at_top else ("fixed", name)


def misplaced(file: SweepFile, *, is_custom: bool, document: Document) -> list[Problem]:
    """Problems of the top-level keys: a custom trainer, which has no steps to act before, or values elsewhere."""
    problems = []
    for name, field in ENTRY_FIELDS.items():
        if getattr(file, name) is None:
            continue
        where = document.place((name,))
        if is_custom:
            problems.append(Problem(where, name, field.refused_for_custom, "remove it"))
        elif name in file.fixed or name in file.axes:
            other = "fixed" if name in file.fixed else "axes"
            problems.append(Problem(where, name, f"also stands under {other}", "keep one of the two"))
    return problems


def _in_steps(entry: Mapping[str, Any], steps: int) -> dict[str, Any]:
    counted = {key: steps_of_share(entry[key], steps) for key in _STEP_KEYS if is_share(entry.get(key))}
    return {**entry, **counted}

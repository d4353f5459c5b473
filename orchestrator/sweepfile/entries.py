"""Interventions and rules of control as values of a sweep file: lists of entries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from objectives.control import Rule
from objectives.interventions import Intervention
from orchestrator.base.errors import Problem, did_you_mean
from orchestrator.base.space import to_hashable
from orchestrator.sweepfile.fields import lowered
from orchestrator.sweepfile.sections import SweepFile
from orchestrator.sweepfile.steps import STEP_KEYS, entry_in_steps, is_share, share_problem
from orchestrator.sweepfile.strict_yaml import Document

INTERVENTIONS = "interventions"
_MANY = 10**12  # steps, of which different shares are different numbers


@dataclass(frozen=True, slots=True)
class EntryField:
    """A field whose value is a list of entries: the model of an entry, and an example.

    Entries are sorted by the key ``ordered_by``, or kept as written.
    """

    noun: str
    model: type[BaseModel]
    example: str
    refused_for_custom: str
    ordered_by: str | None = None


ENTRY_FIELDS: Mapping[str, EntryField] = {
    INTERVENTIONS: EntryField(
        "interventions",
        Intervention,
        "write a list of entries such as {at: 100, set: {lr: x0.5}, over: 20}",
        "a custom trainer itself decides what changes in mid-run",
        "at",
    ),
    "control": EntryField(
        "rules",
        Rule,
        "write a list of rules such as {on: curvature, above: 1, do: {lr: x0.5}, every: 5, at_most: 4}",
        "rules cannot act on a custom trainer, which is not read while it trains",
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
        try:
            field.model.model_validate(entry_in_steps(entry, _MANY))
        except ValidationError as error:
            details = error.errors()[0]
            key = ".".join(str(part) for part in details["loc"][:2])
            message = lowered(details["msg"].removeprefix("Value error, "))
            if details["type"] == "extra_forbidden":
                keys = f"keys: {', '.join(field.model.model_fields)}"
                return f"entry {number} has no key {key}", did_you_mean(key, field.model.model_fields) or keys
            return f"entry {number}{', ' if key else ''}{key} is refused: {message}", field.example
    return None


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
        if is_custom:
            problems.append(document.problem((name,), field.refused_for_custom, "remove it"))
        elif name in file.fixed or name in file.axes:
            other = "fixed" if name in file.fixed else "axes"
            problems.append(document.problem((name,), f"is also given under {other}", "keep one of the two"))
    return problems

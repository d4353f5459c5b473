"""Interventions as values of a sweep file: their problems, their canonical form, and shares of the steps in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from objectives.interventions import Intervention
from orchestrator.errors import Problem, did_you_mean
from orchestrator.space import frozen
from orchestrator.sweepfile.sections import SweepFile
from orchestrator.sweepfile.shares import is_share, share_problem, steps_of_share
from orchestrator.sweepfile.strict_yaml import Document

NAME = "interventions"
STEP_KEYS = ("at", "over", "lasts")
_EXAMPLE = "write a list of entries such as {at: 100, set: {lr: x0.5}, over: 20}"
_MANY = 10**12  # steps, of which different shares are different numbers


def interventions_problem(value: Any) -> tuple[str, str] | None:
    """The problem of ``value`` as a list of interventions and its remedy; None without one."""
    if not isinstance(value, list | tuple):
        return f"{value!r:.80} is refused: not a list of interventions", _EXAMPLE
    for number, entry in enumerate(value, 1):
        if not isinstance(entry, Mapping):
            return f"entry {number}, {entry!r:.80}, is refused: not a mapping of keys to values", _EXAMPLE
        shares = ((key, share_problem(entry[key])) for key in STEP_KEYS if is_share(entry.get(key)))
        if wrong := next(((key, found) for key, found in shares if found), None):
            return f"entry {number}, {wrong[0]}: {wrong[1][0]}", wrong[1][1]
        try:
            Intervention.model_validate(_in_steps(entry, _MANY))
        except ValidationError as error:
            details = error.errors()[0]
            key = ".".join(str(part) for part in details["loc"][:2])
            message = details["msg"].removeprefix("Value error, ")
            message = f"{message[:1].lower()}{message[1:]}"
            if details["type"] == "extra_forbidden":
                keys = f"keys: {', '.join(Intervention.model_fields)}"
                return f"entry {number} has no key {key}", did_you_mean(key, Intervention.model_fields) or keys
            return f"entry {number}{', ' if key else ''}{key} is refused: {message}", _EXAMPLE
    return None


def canonical_interventions(value: Any) -> Any:
    """The one form of lists that mean the same: no defaults, numbers as the configuration has them, in order.

    What is no list of interventions stays as it is.
    """
    if interventions_problem(value):
        return frozen(value)
    entries = []
    for entry in value:
        plain = Intervention.model_validate(_in_steps(entry, _MANY)).model_dump()
        entries.append({**plain, **{key: entry[key] for key in STEP_KEYS if is_share(entry.get(key))}})
    if not any(is_share(entry["at"]) for entry in entries):
        entries.sort(key=lambda entry: entry["at"])
    return frozen(entries)


def has_shares(value: Any) -> bool:
    """Whether ``value`` is a list of interventions with a share of the steps in it."""
    return isinstance(value, list | tuple) and any(
        isinstance(entry, Mapping) and any(is_share(entry.get(key)) for key in STEP_KEYS) for entry in value
    )


def in_whole_steps(value: Any, steps: int) -> Any:
    """A list of interventions with whole steps in place of shares of ``steps``, in its canonical form."""
    return canonical_interventions([_in_steps(entry, steps) for entry in value])


def with_interventions(file: SweepFile) -> SweepFile:
    """``file`` with the interventions of all trials among its fixed values."""
    if file.interventions is None:
        return file
    return file.model_copy(update={"fixed": {**file.fixed, NAME: file.interventions}})


def misplaced(file: SweepFile, *, is_custom: bool, document: Document) -> list[Problem]:
    """Problems of the top-level key: a custom trainer, which has no steps to act before, or values elsewhere."""
    if file.interventions is None:
        return []
    where = document.place((NAME,))
    if is_custom:
        return [Problem(where, NAME, "a custom trainer decides by itself what changes in mid-run", "remove it")]
    if NAME in file.fixed or NAME in file.axes:
        other = "fixed" if NAME in file.fixed else "axes"
        return [Problem(where, NAME, f"also stands under {other}", "keep one of the two")]
    return []


def _in_steps(entry: Mapping[str, Any], steps: int) -> dict[str, Any]:
    counted = {key: steps_of_share(entry[key], steps) for key in STEP_KEYS if is_share(entry.get(key))}
    return {**entry, **counted}

"""A policy as users give it to a ``Watch``: rules in Python, a mapping, or the key `control` of a YAML file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from objectives.control import Rule
from orchestrator.base.errors import InputError, Problem, did_you_mean
from orchestrator.sweepfile.strict_yaml import read_document

if TYPE_CHECKING:
    from objectives.policy import Policy

KEY = "control"  # of a sweep file or a policy's file, and of a trial's configuration
EXAMPLE = "write a list of rules such as {on: grad_norm, above: 2, do: {lr: x0.5}, every: 5, at_most: 4}"
PolicyLike = str | os.PathLike[str] | Mapping[str, Any] | Sequence[Rule | Mapping[str, Any]]


def policy_of(control: PolicyLike, steps: int | None = None) -> Policy:
    """Return the policy in ``control``: the path of a file, a rule, a list of rules, or a mapping with such a list.

    ``steps`` is the length of the run. Raises InputError for a rule that cannot act in a training loop.
    """
    from objectives.policy import Policy  # takes a while

    where, value = "Watch", control
    if isinstance(value, str | os.PathLike):
        where = str(Path(value))
        value = read_document(where, "give the path of a YAML file with the key `control`").data
    if isinstance(value, Mapping) and "on" not in value:
        if KEY not in value:
            raise InputError(Problem(where, KEY, "is missing", EXAMPLE))
        value = value[KEY]
    entries: Any = [value] if isinstance(value, Mapping | Rule) else value
    if isinstance(entries, str) or not isinstance(entries, Sequence):
        raise InputError(Problem(where, KEY, f"{entries!r:.80} is refused: not a list of rules", EXAMPLE))
    rules = []
    for number, entry in enumerate(entries, 1):
        if isinstance(entry, Rule):
            rules.append(entry)
        elif not isinstance(entry, Mapping):
            problem = f"entry {number}, {entry!r:.80}, is refused: not a mapping of keys to values"
            raise InputError(Problem(where, KEY, problem, EXAMPLE))
        elif problem_of := entry_problem(Rule, entry):
            message, remedy = problem_of
            raise InputError(Problem(where, KEY, f"entry {number}{message}", remedy or EXAMPLE))
        else:
            rules.append(Rule.model_validate(entry))
    try:
        return Policy(rules, steps)
    except ValueError as error:
        raise InputError(Problem(where, KEY, str(error), "docs/control.md says what acts in a training loop")) from None


def entry_problem(model: type[BaseModel], entry: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return what is wrong with ``entry``, to be said after its number, and a remedy if there is one; None if valid."""
    try:
        model.model_validate(entry)
    except ValidationError as error:
        details = error.errors()[0]
        key = ".".join(str(part) for part in details["loc"][:2])
        message = details["msg"].removeprefix("Value error, ")
        if details["type"] == "extra_forbidden":
            keys = f"keys: {', '.join(model.model_fields)}"
            return f" has no key {key}", did_you_mean(key, model.model_fields) or keys
        return f"{', ' if key else ''}{key} is refused: {message[:1].lower()}{message[1:]}", ""
    return None

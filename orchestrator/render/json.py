"""Answers as JSON, from their fields: the names of the fields are the keys."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from orchestrator.base.query import IS_FLAT, KEY, reported
from orchestrator.base.space import Axis
from orchestrator.base.trial_result import TrialResult

_OF_TRIAL = ("trial_id", "cell", "seed", "status", "outcome", "reason")  # what JSON has about a trial in an answer


def to_plain(value: Any) -> Any:
    """Return ``value`` as JSON has it: mappings, lists, text, numbers, and null for a number that is not finite.

    A dataclass becomes a mapping of its fields and `reported` properties, an axis its name. Raises TypeError for what
    has no such form.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Axis):
        return value.name
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, TrialResult):
        return {name: to_plain(getattr(value, name)) for name in _OF_TRIAL}
    if is_dataclass(value) and not isinstance(value, type):
        return _of_dataclass(value)
    if isinstance(value, Mapping):
        return {str(key): to_plain(each) for key, each in value.items()}
    if isinstance(value, Sequence):
        return [to_plain(each) for each in value]
    if isinstance(value, Set):
        return sorted(map(to_plain, value))
    if hasattr(value, "tolist"):  # a number or an array of numpy
        return to_plain(value.tolist())
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def to_json(value: Any) -> str:
    """Return ``value`` as the text of a JSON file."""
    return json.dumps(to_plain(value), indent=2, allow_nan=False) + "\n"


def _of_dataclass(value: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for each in fields(value):
        key = each.metadata.get(KEY, each.name)
        if each.metadata.get(IS_FLAT):
            plain |= to_plain(getattr(value, each.name)) or {}
        elif key is not None:
            plain[key] = to_plain(getattr(value, each.name))
    for name in _reported_names(type(value)):
        plain[name] = to_plain(getattr(value, name))
    return plain


def _reported_names(kind: type) -> list[str]:
    names = [name for parent in reversed(kind.__mro__) for name, each in vars(parent).items() if _is_reported(each)]
    return list(dict.fromkeys(names))


def _is_reported(member: Any) -> bool:
    return isinstance(member, reported)

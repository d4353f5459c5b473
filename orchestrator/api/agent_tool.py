"""What an agent calls: a tool with the schema of its arguments, which are checked against it, and its reply."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.base.errors import InputError, Problem
from orchestrator.base.files import sweep_names
from orchestrator.base.words import listed
from orchestrator.logs.files import find_logs

_MOST_ITEMS, _LONGEST = 64, 2000  # of an argument


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool: its ``schema`` is the JSON Schema of its arguments, which ``call`` takes after they were checked."""

    name: str
    description: str
    schema: Mapping[str, Any]
    call: Callable[[Mapping[str, Any]], Reply]
    is_read_only: bool = True
    waits: bool = False  # for what others do, so that it keeps nobody from calling the next tool


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer as text, and as data unless there is too much."""

    text: str
    data: Any = None


def called(tools: Mapping[str, Tool], name: str, arguments: Mapping[str, Any]) -> Reply:
    """Call a tool. Raises SweepError, also for an unknown tool and for arguments that do not fit its schema."""
    if name not in tools:
        raise InputError(Problem("tool", name[:_LONGEST], "is not known", f"choose {', '.join(tools)}"))
    schema = tools[name].schema
    if missing := [key for key in schema["required"] if key not in arguments]:
        raise InputError(Problem(name, ", ".join(missing), "is missing", "give it"))
    for key, value in arguments.items():
        if key not in schema["properties"]:
            remedy = f"arguments: {', '.join(schema['properties'])}"
            raise InputError(Problem(name, str(key)[:_LONGEST], "is not an argument", remedy))
        if problem := _problem_of(value, schema["properties"][key]):
            raise InputError(Problem(name, key, problem, "see the tool's schema"))
    return tools[name].call(arguments)


def _problem_of(value: Any, schema: Mapping[str, Any]) -> str:
    """Why a value does not fit the schema of its argument; empty if it does."""
    kind = schema["type"]
    if kind == "array":
        if not isinstance(value, list) or len(value) > _MOST_ITEMS:
            return f"is not a list of at most {_MOST_ITEMS} entries"
        return next(filter(None, (_problem_of(each, schema["items"]) for each in value)), "")
    if kind == "string":
        return "" if isinstance(value, str) and len(value) <= _LONGEST and "\0" not in value else "is not a short text"
    if kind == "boolean":
        return "" if isinstance(value, bool) else "is not true or false"
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or (kind == "integer" and not isinstance(value, int)):
        return f"is not a finite {'whole ' if kind == 'integer' else ''}number"
    low, high = schema.get("minimum", -math.inf), schema.get("maximum", math.inf)
    return "" if low <= value <= high else f"is not from {low:g} to {high:g}"


def check_names(names: Iterable[str], results: Path) -> None:
    """Raise InputError for a name that is not there; a sweep is asked for by no other, so no path leads out."""
    there = sweep_names(results)
    for name in names:
        if name not in there:
            known = f"sweeps: {listed(there, _MOST_ITEMS)}" if there else "there are none yet"
            raise InputError(Problem("name", name, "is not a sweep", known))


def log_below(text: str) -> Path:
    """Return a log, or a folder of logs, below the folder of the server; no link leads out. Raises InputError."""
    root = Path.cwd().resolve()
    path = (root / text).resolve()
    logs = find_logs(path) if path.is_relative_to(root) and (path.is_file() or path.is_dir()) else []
    if not logs or not all(log.resolve().is_relative_to(root) for log in logs):
        raise InputError(Problem("log", text, "is not a log below the server's folder", f"it is {root}"))
    return path


def schema_of_object(properties: Mapping[str, Any], required: list[str]) -> dict[str, Any]:
    """Return the schema of a tool's arguments."""
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}

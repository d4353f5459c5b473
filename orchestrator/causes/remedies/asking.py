"""What the command line asks for: remedies (`--try`) and the steps to fork at (`--at`)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

from objectives.interventions import RESETS, factor_of
from orchestrator.base.errors import InputError, Problem
from orchestrator.causes.remedies.remedy import Entry, Remedy

_OF_TWO = re.compile(r"\+(?=[a-z_0-9]+=)")
_FORM = "write FIELD=VALUE,VALUE such as lr=x0.5,x0.25, skip=1,5, reset=moments or rescale=4"
ONSET = "onset"


def remedies_of(texts: Iterable[str]) -> list[Remedy]:
    """The remedies of `--try` options, in order, each once.

    ``lr=x0.5,x0.25`` are two of one field. A value may have a length: ``lr=x0.25:50`` for 50 steps, and
    ``lr=x0.25:50:20`` with a ramp of 20 steps back. ``lr=x0.5+skip=5`` are two changes at a time. Raises InputError.
    """
    found: dict[str, Remedy] = {}
    for text in texts:
        entries: list[tuple[Entry, ...]] = [()]
        for part in _OF_TWO.split(text):
            changes = _changes(part, text)
            entries = [(*before, *change) for before in entries for change in changes]
        for one in entries:
            found.setdefault(Remedy(one).name, Remedy(one))
    return list(found.values())


def _changes(part: str, text: str) -> list[tuple[Entry, ...]]:
    name, equals, values = (word.strip() for word in part.partition("="))
    if not equals or not name or not values:
        raise InputError(Problem("--try", text, "is not FIELD=VALUE", _FORM))
    if "=" in values:
        remedy = f"write {name}=VALUE,VALUE for two remedies of a field, or --try twice"
        raise InputError(Problem("--try", text, "has a second = after a comma", remedy))
    return [_change(name, value.strip(), text) for value in values.split(",")]


def _change(name: str, value: str, text: str) -> tuple[Entry, ...]:
    if name == "skip":
        return ({"at": 0, "skip": _whole(value, text, "batches to skip")},)
    if name == "reset":
        if value not in RESETS:
            raise InputError(Problem("--try", text, f"{value!r} is nothing to reset", f"one of {', '.join(RESETS)}"))
        return ({"at": 0, "reset": value},)
    if name == "rescale":
        rescale = _number(value.removeprefix("x"), text)
        if rescale <= 0:
            raise InputError(Problem("--try", text, f"{value!r} is no factor above 0", "write e.g. rescale=4"))
        return ({"at": 0, "rescale": rescale},)
    value, *lengths = value.split(":")
    if len(lengths) > 2:
        raise InputError(Problem("--try", text, "has more than a value, a length and a ramp", "write lr=x0.25:50:20"))
    number = _value(value, text)
    entry: dict[str, Any] = {"at": 0, "set": {name: number}}
    steps = [_whole(one, text, "steps") for one in lengths]
    if len(steps) < 2:
        return (entry | ({"lasts": steps[0]} if steps else {}),)
    times = factor_of(number)
    if times is None:
        raise InputError(Problem("--try", text, "only a factor has a ramp back", f"write {name}=x0.5:50:20"))
    return entry, {"at": steps[0], "set": {name: f"x{1 / times:.12g}"}, "over": steps[1]}


def _value(value: str, text: str) -> Any:
    if value.startswith("x"):
        if not factor_of(value):
            raise InputError(Problem("--try", text, f"{value!r} is no factor above 0", "write e.g. lr=x0.5"))
        return value
    return None if value == "none" else _number(value, text)


def _number(value: str, text: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InputError(Problem("--try", text, f"{value!r} is not a number", _FORM))
    return number


def _whole(value: str, text: str, what: str) -> int:
    if not value.isascii() or not value.isdigit() or int(value) < 1:
        raise InputError(Problem("--try", text, f"{value!r} is no number of {what}", "write a whole number from 1 on"))
    return int(value)


def fork_steps_of(texts: Sequence[str], onset: int | None, steps: int, *, leaves_out: bool = False) -> list[int]:
    """The steps of `--at` options, ascending: ``100`` from the start, ``-50`` before the onset, ``onset`` itself.

    ``steps`` is the length of the run. Raises InputError for a step outside of it, or ``leaves_out`` such steps.
    """
    found = set()
    for text in texts:
        for word in (one.strip() for one in text.split(",")):
            if not (word == ONSET or re.fullmatch(r"-?[0-9]{1,9}", word)):
                what = "is neither a step, nor a number of steps before the onset"
                raise InputError(Problem("--at", word, what, "write 100, -50 or onset"))
            if (word == ONSET or word.startswith("-")) and onset is None:
                if leaves_out:
                    continue
                message = "counts from the onset, and this trial has none"
                raise InputError(Problem("--at", word, message, "give a step from the start, such as --at 100"))
            step = (onset or 0) + int(word) if word.startswith("-") else onset if word == ONSET else int(word)
            if step is None or not 0 <= step < steps:
                if leaves_out:
                    continue
                from_onset = f", the onset is at step {onset}" if onset is not None else ""
                message = f"is outside of the run: it has the steps 0 to {steps - 1}{from_onset}"
                lowest = f", --at -{onset} is its start" if onset is not None else ""
                raise InputError(Problem("--at", word, message, f"choose a step of the run{lowest}"))
            found.add(step)
    return sorted(found)

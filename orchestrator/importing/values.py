"""Values of imported axes: what a cell of a table means, and the scale that the values of an axis suggest."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.base.errors import InputError, Problem
from orchestrator.base.space import SCALES, Axis, Scale, is_number, on_natural_scale
from orchestrator.base.words import listed
from orchestrator.logs.columns import MAX_LISTED, find_name

EMPTY = object()  # a cell without a value
_NONE = ("none", "null")
_BOOLEANS = {"true": True, "false": False}
_LARGEST = 2**53  # up to which a float is a whole number for certain
_EVENER = 0.5  # gaps on the logarithmic scale are this much more even before a scale is taken as logarithmic
_EVEN = 0.02  # relative spread of gaps that count as even


@dataclass(frozen=True, slots=True)
class AxisColumn:
    """An axis and the column of the source that has its values; ``scale`` None is found from the values."""

    name: str
    column: str
    scale: Scale | None = None


def axis_columns(options: Sequence[tuple[str, str]], scales: Sequence[str], columns: Sequence[str]) -> list[AxisColumn]:
    """The axes that (option, text) pairs name: COLUMN, or NAME=COLUMN. ``scales`` are NAME=SCALE. Raises InputError."""
    found = []
    for option, text in options:
        name, equals, column = text.partition("=")
        if not equals or text in columns:
            name = column = text
        found.append((option, name.strip(), column_named(option, column.strip(), columns)))
    names = [name for _, name, _ in found]
    for option, name, _ in found:
        if names.count(name) > 1:
            raise InputError(Problem(option, name, "is an axis already", "name each axis once"))
    wanted = _scales(scales, names)
    return [AxisColumn(name, column, wanted.get(name)) for _, name, column in found]


def column_named(option: str, wanted: str, columns: Sequence[str]) -> str:
    """The column ``wanted``, in the spelling of the source; lr also means the only one that ends in .lr or /lr.

    Raises InputError naming ``option``.
    """
    found = find_name(columns, wanted)
    inner = [column for column in columns if re.split(r"[./]", column)[-1] == wanted]
    if found is None and len(inner) == 1:
        return inner[0]
    if found is None and inner:
        raise InputError(Problem(option, wanted, f"may be any of {listed(inner, MAX_LISTED)}", "write the whole name"))
    if found is None:
        raise InputError(Problem(option, wanted, "is no column", f"columns: {listed(list(columns), MAX_LISTED)}"))
    return found


def _scales(texts: Sequence[str], names: Sequence[str]) -> dict[str, Scale]:
    found: dict[str, Scale] = {}
    for text in texts:
        name, _, scale = text.partition("=")
        known = {one: one for one in SCALES}
        if name not in names:
            raise InputError(Problem("--scale", text, f"{name!r} is no axis", f"axes: {', '.join(names)}"))
        if scale not in known:
            raise InputError(Problem("--scale", text, f"{scale!r} is no scale", f"choose {', '.join(SCALES)}"))
        found[name] = known[scale]
    return found


def value_of(raw: Any) -> Any:
    """What a cell of a table means: a number, true, false, None for none, or a text; EMPTY where nothing stands."""
    if raw is None:
        return EMPTY
    if isinstance(raw, list | tuple):
        return tuple(map(value_of, raw))
    if not isinstance(raw, str):
        return _plain(raw)
    text = raw.strip()
    if not text:
        return EMPTY
    if text.lower() in _NONE:
        return None
    if text.lower() in _BOOLEANS:
        return _BOOLEANS[text.lower()]
    if (number := number_of(text)) is not None:
        return number
    return text


def _plain(raw: Any) -> Any:
    """A value of NumPy as one of Python; NaN, with which pandas marks a gap, as EMPTY."""
    value = raw.item() if hasattr(raw, "item") else raw
    if isinstance(value, float) and math.isnan(value):
        return EMPTY
    return value if isinstance(value, bool | int | float) else str(value)


def number_of(text: str) -> int | float | None:
    """The number that ``text`` is, whole where it is written so; None for anything else."""
    if "_" in text:
        return None
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return None


def evened(values: Sequence[Any]) -> list[Any]:
    """The values of one column with numbers of one kind: whole where all are, else with a decimal point."""
    numbers = [value for value in values if is_number(value)]
    are_whole = all(math.isfinite(value) and value == int(value) and abs(value) < _LARGEST for value in numbers)
    kind = int if are_whole else float
    return [kind(value) if is_number(value) else value for value in values]


def axis_of(name: str, values: Sequence[Any], scale: Scale | None, *, is_scattered: bool) -> Axis:
    """The axis over distinct, ordered ``values``. Raises InputError where they do not fit on a ``scale`` that is given.

    On a scale it has ends, so that a map whose cells are scattered is a range.
    """
    numbers = [float(value) for value in values if is_number(value)]
    chosen = scale or _suggested(name, values, numbers, is_scattered=is_scattered)
    if chosen == "values":
        return Axis(name, chosen, tuple(values))
    low, high = min(numbers, default=math.nan), max(numbers, default=math.nan)
    if (
        len(numbers) < len(values)
        or (chosen == "log" and not low > 0)
        or (chosen == "log1m" and not (low >= 0 and high < 1))
    ):
        needed = {"log": "positive numbers", "log1m": "numbers from 0 to below 1"}.get(chosen, "numbers")
        message = f"{chosen} needs {needed}, and the values are {listed([str(value) for value in values], MAX_LISTED)}"
        raise InputError(Problem("--scale", f"{name}={chosen}", message, f"say --scale {name}=values"))
    return Axis(name, chosen, tuple(values), (low, high) if low < high else None)


def _suggested(name: str, values: Sequence[Any], numbers: Sequence[float], *, is_scattered: bool) -> Scale:
    """Logarithmic where the values span far or are evener so, linear where they are even, else a list of values."""
    if len(numbers) < len(values) or len(numbers) < 2:
        return "values"
    natural = on_natural_scale(Axis(name, "values", tuple(values))).scale
    if natural != "values":
        return natural
    linear = _spread(numbers)
    if min(numbers) > 0 and len(numbers) > 2 and _spread([math.log(value) for value in numbers]) < _EVENER * linear:
        return "log"
    return "linear" if is_scattered or (len(numbers) > 2 and linear < _EVEN) else "values"


def _spread(places: Sequence[float]) -> float:
    """How uneven the gaps between ascending ``places`` are: their standard deviation over their mean."""
    gaps = [b - a for a, b in itertools.pairwise(sorted(places))]
    mean = math.fsum(gaps) / len(gaps)
    return math.sqrt(math.fsum((gap - mean) ** 2 for gap in gaps) / len(gaps)) / mean if mean else 0.0

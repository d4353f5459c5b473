"""Values of imported settings: the meaning of a cell of a table, and the scale that the values of an axis suggest."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.base.errors import InputError, Problem
from orchestrator.base.space import Axis, Scale, is_number, on_natural_scale
from orchestrator.base.words import listed
from orchestrator.logs.columns import MAX_LISTED, find_name

EMPTY = object()  # a cell without a value
_NONE = ("none", "null")
_BOOLEANS = {"true": True, "false": False}
_MAX_EXACT = 2**53  # a float up to here is an integer for certain
_EVENER = 0.5  # a scale is logarithmic if gaps vary so much less on it
_EVEN = 0.02  # relative variation of gaps that count as even


@dataclass(frozen=True, slots=True)
class AxisColumn:
    """An axis, the column with its values, and its scale, or None to choose it from the values."""

    name: str
    column: str
    scale: Scale | None = None


def column_named(place: str, key: str, wanted: str, columns: Sequence[str]) -> str:
    """Return the column ``wanted`` as the source spells it; lr also means the only column that ends in .lr or /lr.

    Raises InputError at the ``place`` and the ``key`` where the user named it.
    """
    name = find_name(columns, wanted)
    if name is not None:
        return name
    nested = [column for column in columns if re.split(r"[./]", column)[-1] == wanted]
    if len(nested) == 1:
        return nested[0]
    if nested:
        message = f"{wanted!r} may be any of {listed(nested, MAX_LISTED)}"
        raise InputError(Problem(place, key, message, "write the whole name"))
    raise InputError(Problem(place, key, f"{wanted!r} is not a column", f"columns: {listed(columns, MAX_LISTED)}"))


def value_of(raw: Any) -> Any:
    """Return the meaning of a cell: a number, a boolean, None for none, a text, or EMPTY if nothing is there."""
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
    number = number_of(text)
    return text if number is None else number


def _plain(raw: Any) -> Any:
    """Convert a value of NumPy to Python, and NaN, with which pandas marks a gap, to EMPTY."""
    value = raw.item() if hasattr(raw, "item") else raw
    if isinstance(value, float) and math.isnan(value):
        return EMPTY
    return value if isinstance(value, bool | int | float) else str(value)


def number_of(text: str) -> int | float | None:
    """Return the number that ``text`` is, an integer if it is written so, or None."""
    if "_" in text:
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return None


def evened(values: Sequence[Any]) -> list[Any]:
    """Convert the numbers of one column to one type: to integers if all are integers, else to floats."""
    numbers = [value for value in values if is_number(value)]
    are_integers = all(math.isfinite(value) and value == int(value) and abs(value) < _MAX_EXACT for value in numbers)
    kind = int if are_integers else float
    return [kind(value) if is_number(value) else value for value in values]


def axis_of(name: str, values: Sequence[Any], scale: Scale | None, *, is_scattered: bool) -> Axis:
    """Return the axis over distinct, ordered ``values``. Raises InputError if they do not fit a given ``scale``.

    An axis with a scale has ends, so that it is a range in the map of scattered cells.
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
        found = listed([str(value) for value in values], MAX_LISTED)
        message = f"{chosen} needs {needed}, and the values are {found}"
        raise InputError(Problem(f"--axis {name}={chosen}", "", message, f"say --axis {name}=values"))
    return Axis(name, chosen, tuple(values), (low, high) if low < high else None)


def _suggested(name: str, values: Sequence[Any], numbers: Sequence[float], *, is_scattered: bool) -> Scale:
    """Return log if the values span far or are more even so, linear if they are even, else values."""
    if len(numbers) < len(values) or len(numbers) < 2:
        return "values"
    natural = on_natural_scale(Axis(name, "values", tuple(values))).scale
    if natural != "values":
        return natural
    linear = _variation_of_gaps(numbers)
    if min(numbers) > 0 and len(numbers) > 2:
        logarithmic = _variation_of_gaps([math.log(value) for value in numbers])
        if logarithmic < _EVENER * linear:
            return "log"
    return "linear" if is_scattered or (len(numbers) > 2 and linear < _EVEN) else "values"


def _variation_of_gaps(positions: Sequence[float]) -> float:
    """Return the standard deviation of the gaps between ``positions`` over their mean."""
    gaps = [b - a for a, b in itertools.pairwise(sorted(positions))]
    mean = math.fsum(gaps) / len(gaps)
    return math.sqrt(math.fsum((gap - mean) ** 2 for gap in gaps) / len(gaps)) / mean if mean else 0.0

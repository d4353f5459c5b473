"""The axes of a sweep: values in order and in words, the value that a text means, and axes that advance together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from orchestrator.base.errors import InputError, Problem
from orchestrator.base.space import Axis, format_value, is_number, is_ordered, number_text
from orchestrator.base.words import listed

_DIGITS = 6
_MOST_DIGITS = 17  # distinguish any two doubles
_FEWEST_DIGITS = 2  # of a rounded number that may stand for a longer one
_FEW_DIGITS = 3  # of a number between values
_SHOWN = 20


def ordered(values: Sequence[Any]) -> list[Any]:
    """Numbers in ascending order, then none (no clipping: the loosest); words keep their order."""
    others = [value for value in values if not is_number(value)]
    if others in ([], [None]):
        return [*sorted(value for value in values if is_number(value)), *others]
    return list(values)


def axis_values(cells: Sequence[Mapping[str, Any]]) -> dict[str, tuple[Any, ...]]:
    """The values of each axis in ``cells``, in order."""
    names = list(cells[0]) if cells else []
    return {name: tuple(ordered(list(dict.fromkeys(cell[name] for cell in cells)))) for name in names}


def existing(axis: Axis, values: Sequence[Any]) -> tuple[Any, ...]:
    """``values`` without the None of cells where ``axis`` does not exist, which has no neighbours."""
    return tuple(value for value in values if value is not None or not axis.when)


def sides(axis: Axis, value: Any) -> tuple[list[Any], list[Any]]:
    """The values of an ordered axis below and above ``value``, the nearest first; None is above all numbers."""

    def place(each: Any) -> float:
        return math.inf if each is None else float(each)

    values = existing(axis, axis.values)
    if not is_ordered(values):
        return [], []
    below = [each for each in values if place(each) < place(value)]
    return below[::-1], [each for each in values if place(each) > place(value)]


def led(axes: Iterable[Axis]) -> set[str]:
    """The axes that follow another one, which stands for them: the first of their list in `zip`."""
    return {name for axis in axes for name in axis.zipped[1:]}


def together(axes: Mapping[str, Axis], names: Iterable[str | None]) -> set[str]:
    """The axes ``names`` and all axes that advance with them."""
    return {each for name in names if name is not None and name in axes for each in (name, *axes[name].zipped)}


def value_labels(values: Sequence[Any], digits: int = _DIGITS) -> list[str]:
    """A text for each value, different for different values: numbers have ``digits`` digits, or more if needed."""
    # The digits of 1 - value matter only where all values are below 1, as of a decay.
    is_beyond = any(isinstance(value, int | float) and value >= 1 for value in values)
    for num in range(digits, _MOST_DIGITS + 1):
        labels = [_label(value, num, is_beyond) for value in values]
        if len(set(labels)) == len(set(values)):
            return labels
    return [repr(value) for value in values]


def _label(value: Any, num_digits: int, is_beyond: bool) -> str:
    if not isinstance(value, float):
        return format_value(value)
    return number_text(float(f"{value:.{num_digits}g}") if is_beyond else value, num_digits)


def value_label(axis: Axis, value: Any) -> str:
    """The text of one value of ``axis``, which no other value of the axis has."""
    return value_labels(axis.values)[axis.values.index(value)]


def axis_number(axis: Axis, value: float) -> str:
    """A number with the digits that its place on the axis's scale has."""
    return number_text(value, _FEW_DIGITS) if axis.scale == "log1m" else f"{value:.{_FEW_DIGITS}g}"


def label_between(a: Any, b: Any, value: float, digits: int = _FEW_DIGITS) -> str:
    """``value``, between ``a`` and ``b``, with enough digits to differ from both."""
    for num in range(digits, _MOST_DIGITS + 1):
        # The digits of 1 - value matter only where both are below 1, as of a decay.
        text = number_text(value if max(a, b) < 1 else float(f"{value:.{num}g}"), num)
        if min(a, b) < float(text) < max(a, b):
            return text
    return repr(value)


def value_meant(option: str, axis: Axis, wanted: Any) -> Any:
    """The value of ``axis`` that ``wanted`` means: a value, or its text.

    A number means the equal value, or else the only one that rounds to it at two digits or more, as in figures and
    tables; so 0.9999 never means 0.99999. Raises InputError with the name of ``option`` if no value matches, or
    several do.
    """
    found = _equal(axis.values, wanted) or _written(axis.values, str(wanted))
    if len(found) == 1:
        return found[0]
    labels = value_labels(axis.values)
    if not found:
        raise InputError(Problem(option, axis.name, f"no cell has {wanted}", f"values: {listed(labels, _SHOWN)}"))
    several = ", ".join(label for label, value in zip(labels, axis.values, strict=True) if value in found)
    raise InputError(Problem(option, axis.name, f"{wanted} may be any of {several}", "write more digits"))


def _equal(values: Sequence[Any], wanted: Any) -> list[Any]:
    if isinstance(wanted, str):
        return []
    return [value for value in values if value == wanted and isinstance(value, bool) == isinstance(wanted, bool)]


def _written(values: Sequence[Any], wanted: str) -> list[Any]:
    """The values with the text ``wanted``, or else the values that round to it."""
    printed = [value_labels(values, digits) for digits in range(_FEWEST_DIGITS, _DIGITS + 1)]
    words = [value for value, *labels in zip(values, *printed, strict=True) if wanted in labels]
    words = words or [value for value in values if value is None and wanted == "null"]
    try:
        number = float(wanted)
    except ValueError:
        return words
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    exact = [value for value in numbers if value == number]
    return exact or words or [value for value in numbers if _rounds_to(value, number)]


def _rounds_to(value: float, number: float) -> bool:
    # Rounded far enough every value is 0 or 1, which matches any value in between.
    return number not in (0, 1) and any(
        float(text) == number
        for num in range(_FEWEST_DIGITS, _MOST_DIGITS)
        for text in (f"{value:.{num}g}", number_text(float(value), num))
    )

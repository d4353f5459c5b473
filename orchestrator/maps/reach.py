"""The part of each axis that trials reach: beyond it a fitted surface returns to its mean, and knows nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from orchestrator.base.space import Axis, Cell, is_number, is_ordered

_BEYOND = 0.1  # of a range on its scale, or the mean distance of the values that were tried


def reached(axes: Sequence[Axis], cells: Iterable[Cell]) -> tuple[Axis, ...]:
    """Return the axes, shortened to what trials in ``cells`` reach.

    A range ends a little beyond the last value that was tried, and an ordered list with it. A list without an order
    keeps what was tried.
    """
    listed = list(cells)
    return tuple(_reached(axis, {cell[axis.name] for cell in listed}) for axis in axes)


def is_reached(axes: Sequence[Axis], reach: Sequence[Axis], setting: Mapping[str, Any]) -> bool:
    """Whether a ``setting`` on ``axes`` lies within the part of them that trials reach."""
    shortened = [part for axis, part in zip(axes, reach, strict=True) if part != axis and axis.name in setting]
    return all(part.has(setting[part.name]) for part in shortened)


def _reached(axis: Axis, tried: set[Any]) -> Axis:
    if axis.values:
        return _of_list(axis, tried)
    units = [axis.unit(value) for value in tried if is_number(value)]
    if not units:
        return axis
    beyond = max(_BEYOND, 1 / (len(units) + 1))
    low, high = min(units) - beyond, max(units) + beyond
    if low <= 0 and high >= 1:
        return axis
    assert axis.ends is not None
    low_end = axis.at(low) if low > 0 else axis.ends[0]
    high_end = axis.at(high) if high < 1 else axis.ends[1]
    refined = tuple(value for value in axis.refined if low_end <= value <= high_end)
    return replace(axis, ends=(low_end, high_end), refined=refined)


def _of_list(axis: Axis, tried: set[Any]) -> Axis:
    places = [i for i, value in enumerate(axis.values) if value in tried]
    if not places or len(places) == len(axis.values):
        return axis
    if is_ordered(axis.values):
        return replace(axis, values=axis.values[places[0] : places[-1] + 1])
    return replace(axis, values=tuple(axis.values[i] for i in places))

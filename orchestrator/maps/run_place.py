"""The values of one run on the axes of a sweep: between which values of the grid they lie, or that they lie outside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import Any

from orchestrator.base.errors import InputError, Problem, did_you_mean
from orchestrator.base.space import Axis, format_value, is_number, is_ordered
from orchestrator.maps.axes import existing, led, sides, value_labels
from orchestrator.sweepfile.settings import RunSettings

_SAME = 1e-9  # values within this share of each other, of 1 - value on a log1m axis, are one


@dataclass(frozen=True, slots=True)
class Outside:
    """A value of the run that its axis does not reach, and what the axis has, in words."""

    axis: str
    value: Any
    has: str


@dataclass(frozen=True, slots=True)
class RunPlace:
    """The run's value of each axis, and those that lie ``outside``. An axis that does not exist there has None.

    Axes that advance with another have no value of their own here: they follow.
    """

    setting: Mapping[str, Any]
    outside: tuple[Outside, ...]


def place_of(run: RunSettings, axes: Sequence[Axis], is_scattered: bool, known: Sequence[str] = ()) -> RunPlace:
    """Where ``run`` lies on ``axes``; ``known`` are the names of the sweep's other settings.

    Where cells are scattered, a list has nothing between its values. Raises InputError for axes without a value, and
    for values that no axis of their scale could have.
    """
    by_name = {axis.name: axis for axis in axes}
    order = TopologicalSorter({axis.name: [name for name, _ in axis.when] for axis in axes}).static_order()
    setting: dict[str, Any] = {}
    outside: list[Outside] = []
    problems: list[Problem] = []
    missing: list[Axis] = []
    for axis in (by_name[name] for name in order if name not in led(axes)):
        if not all(setting.get(name) in values for name, values in axis.when):
            setting[axis.name] = None
        elif axis.name not in run.values:
            missing.append(axis)
        elif problem := _refused(axis, run.values[axis.name], run.places[axis.name]):
            problems.append(problem)
        else:
            setting[axis.name] = _snapped(axis, run.values[axis.name])
            if not _reaches(axis, setting[axis.name], is_scattered):
                outside.append(Outside(axis.name, setting[axis.name], _range_text(axis)))
    if missing:
        names = [axis.name for axis in missing]
        for name in run.values:
            if name not in by_name and name not in known and (remedy := did_you_mean(name, names)):
                problems.append(Problem(run.places[name], name, "is no setting of the sweep", remedy))
        problems += [_missing(axis) for axis in missing]
    if problems:
        raise InputError(*problems)
    return RunPlace({axis.name: setting[axis.name] for axis in axes if axis.name in setting}, tuple(outside))


def _is_numeric(axis: Axis) -> bool:
    values = existing(axis, axis.values)
    return axis.ends is not None or (is_ordered(values) and any(map(is_number, values)))


def _refused(axis: Axis, value: Any, place: str) -> Problem | None:
    if not _is_numeric(axis) or value is None:
        return None
    if not is_number(value):
        return Problem(place, axis.name, f"{value!r} is not a number", f"the axis has {_range_text(axis)}")
    if (axis.scale == "log" and value <= 0) or (axis.scale == "log1m" and value >= 1):
        bound = "above 0" if axis.scale == "log" else "below 1"
        return Problem(place, axis.name, f"{value} has no place on a {axis.scale} axis", f"write a number {bound}")
    return None


def _snapped(axis: Axis, value: Any) -> Any:
    """The axis's own value where ``value`` equals it but for rounding, or is written as tables print it."""
    values = existing(axis, axis.values)
    if not is_number(value):
        return value
    for each, label in zip(values, value_labels(values), strict=True):
        if is_number(each) and (axis.factor(each, value) < 1 + _SAME or float(label) == value):
            return each
    return value


def _reaches(axis: Axis, value: Any, is_scattered: bool) -> bool:
    values = existing(axis, axis.values)
    if any(each == value and isinstance(each, bool) == isinstance(value, bool) for each in values):
        return True
    if not _is_numeric(axis) or value is None:
        return False
    if axis.ends is not None and (is_scattered or not values):
        return axis.ends[0] <= value <= axis.ends[1]
    below, above = sides(axis, value)
    return bool(below and above) and not is_scattered


def _range_text(axis: Axis) -> str:
    values = existing(axis, axis.values)
    if axis.ends is not None:
        return f"{format_value(axis.ends[0])} .. {format_value(axis.ends[1])}"
    return ", ".join(value_labels(values))


def _missing(axis: Axis) -> Problem:
    message = "is an axis of the sweep, and the run has no value for it"
    return Problem(
        "--config, --at", axis.name, message, f"write --at {axis.name}=VALUE; the axis has {_range_text(axis)}"
    )

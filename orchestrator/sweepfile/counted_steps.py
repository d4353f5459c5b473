"""Values of fields that count steps, in whole steps where a sweep file has shares of all steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from orchestrator.base.errors import Problem
from orchestrator.base.space import Axis
from orchestrator.sweepfile.entry_values import has_shares, in_whole_steps
from orchestrator.sweepfile.fields import Fields
from orchestrator.sweepfile.shares import is_share, steps_of_share
from orchestrator.sweepfile.strict_yaml import Document


def needs_steps(value: Any) -> bool:
    """Whether ``value`` is a share of the steps, or a list of entries with one in it."""
    return is_share(value) or has_shares(value)


def counted(values: Mapping[str, Any], steps: int, fields: Fields) -> dict[str, Any]:
    """``values`` with whole steps in place of shares of ``steps``. Raises ValueError where a field refuses one."""
    found = dict(values)
    for name, value in values.items():
        if not (needs_steps(value) and fields.counts_steps(name)):
            continue
        found[name] = steps_of_share(value, steps) if is_share(value) else in_whole_steps(name, value, steps)
        if refused := fields.problem(name, found[name]):
            raise ValueError(f"{name} = {value} of {steps} steps: {refused[0]}")
    return found


def counted_axes(
    axes: Sequence[Axis], steps: int, fields: Fields, document: Document, problems: list[Problem]
) -> list[Axis]:
    """``axes`` with whole steps in place of shares of ``steps``, also in conditions; adds to ``problems``."""
    found = []
    for axis in axes:
        values = _steps_of_values(axis, steps, fields, document, problems)
        when = [
            (name, tuple(counted({name: value}, steps, fields)[name] for value in wanted)) for name, wanted in axis.when
        ]
        found.append(replace(axis, values=values, when=tuple(when)))
    return found


def _steps_of_values(
    axis: Axis, steps: int, fields: Fields, document: Document, problems: list[Problem]
) -> tuple[Any, ...]:
    """The values of ``axis`` with whole steps in place of shares."""
    found: dict[Any, Any] = {}
    for place, value in enumerate(axis.values):
        path, key = ("axes", axis.name, "values", place), f"axes.{axis.name}"
        try:
            number = counted({axis.name: value}, steps, fields)[axis.name]
        except ValueError as error:
            problems.append(Problem(document.place(path), key, str(error), "write another share, or a number of steps"))
            continue
        if number in found and needs_steps(value):
            message = f"{found[number]} and {value} are both {number} of {steps} steps"
            problems.append(Problem(document.place(path), key, message, "keep one of them"))
        found[number] = value
    return tuple(found)

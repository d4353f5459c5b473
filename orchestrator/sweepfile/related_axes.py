"""Axes that depend on each other: those that advance together (``zip``), and those that exist for some cells only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from typing import Any

from orchestrator.base.errors import Problem, did_you_mean
from orchestrator.base.space import Axis, format_value
from orchestrator.sweepfile.fields import Fields
from orchestrator.sweepfile.sections import SweepFile
from orchestrator.sweepfile.strict_yaml import Document

_SHOWN = 8  # values of an axis that are listed


def related(
    axes: Sequence[Axis], file: SweepFile, fields: Fields, document: Document, problems: list[Problem]
) -> list[Axis]:
    """The ``axes`` of ``file`` with what ``zip`` and ``when`` say of them; adds to ``problems``."""
    by_name = {axis.name: axis for axis in axes}
    found = [*_scattered(file, document), *_zip_problems(file, by_name, document)]
    group_of = {name: tuple(group) for group in file.zip for name in group}
    related = [replace(axis, zipped=group_of.get(axis.name, ())) for axis in axes]
    for place, axis in enumerate(related):
        when = file.axes[axis.name].when
        if when is None:
            continue
        conditions = []
        for name, wanted in when.items():
            values = [wanted] if not isinstance(wanted, list) else wanted
            values = [fields.canonical(name, value) if fields.is_known(name) else value for value in values]
            conditions.append((name, tuple(values)))
            if problem := _condition_problem(axis, name, values, by_name, fields):
                path = ("axes", axis.name, "when", name)
                found.append(Problem(document.place(path), ".".join(path), *problem))
        related[place] = replace(axis, when=tuple(conditions))
    problems += found or _circle(related, document)
    return related


def _scattered(file: SweepFile, document: Document) -> Iterator[Problem]:
    """Problems of relations between axes whose cells are no grid."""
    kind = "search" if file.search is not None else "sample" if file.sample is not None else None
    if kind is None:
        return
    what = "has no meaning where cells are " + ("chosen by a search" if kind == "search" else "sampled")
    if file.zip:
        remedy = f"remove {kind} for a grid, or make one an axis and compute the other: tie: {{{file.zip[0][1]}: ...}}"
        yield Problem(document.place(("zip",)), "zip", what, remedy)
    for name, section in file.axes.items():
        if section.when is not None:
            remedy = f"remove {kind} for a grid, or make one sweep for each value of {next(iter(section.when))}"
            yield Problem(document.place(("axes", name, "when")), f"axes.{name}.when", what, remedy)


def _zip_problems(file: SweepFile, axes: Mapping[str, Axis], document: Document) -> Iterator[Problem]:
    seen: set[str] = set()
    for i, group in enumerate(file.zip):

        def problem(message: str, remedy: str, i: int = i) -> Problem:
            return Problem(document.place(("zip", i)), f"zip.{i}", message, remedy)

        if unknown := [name for name in group if name not in file.axes]:
            remedy = did_you_mean(unknown[0], file.axes) or f"axes: {', '.join(file.axes) or 'none'}"
            yield problem(f"{unknown[0]!r} is not an axis", remedy)
        elif twice := [name for name in group if name in seen]:
            yield problem(f"{twice[0]} advances with other axes already", "write them all in one list")
        elif conditional := [name for name in group if file.axes[name].when is not None]:
            yield problem(f"{conditional[0]} exists in some cells only (when)", "take it out of the list")
        elif len({len(axes[name].values) for name in group if name in axes}) > 1:
            numbers = ", ".join(f"{name} has {len(axes[name].values)}" for name in group if name in axes)
            yield problem(f"numbers of values differ: {numbers}", "give them equal numbers of values")
        seen.update(group)


def _condition_problem(
    axis: Axis, name: str, values: Sequence[Any], axes: Mapping[str, Axis], fields: Fields
) -> tuple[str, str] | None:
    """The problem of the condition that the axis ``name`` has one of ``values``, and its remedy."""
    if name == axis.name:
        return "an axis cannot depend on itself", "name another axis"
    if name not in axes:
        others = [other for other in axes if other != axis.name]
        remedy = did_you_mean(name, others) or f"other axes: {', '.join(others) or 'none'}"
        return f"{name!r} is not an axis", remedy
    if fields.names_files(name):
        return f"values of {name} are lists of files", "make one sweep for each"
    if None in axis.values:
        return f"null is a value of {axis.name} and would also stand for its absence", "take null out of its values"
    known = axes[name].values
    listed = ", ".join(map(format_value, known[:_SHOWN])) + (" ..." if len(known) > _SHOWN else "")
    if not values:
        return "says no value", f"values of {name}: {listed}"
    for value in values:
        if not any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in known):
            return f"{format_value(value)} is not a value of {name}", f"values of {name}: {listed}"
    return None


def _circle(axes: Sequence[Axis], document: Document) -> list[Problem]:
    try:
        TopologicalSorter({axis.name: [name for name, _ in axis.when] for axis in axes}).prepare()
    except CycleError as error:
        names = error.args[1]
        key = f"axes.{names[0]}.when"
        message = f"axes depend on each other in a circle: {', '.join(names)}"
        return [Problem(document.place(("axes", names[0], "when")), key, message, "take out one of the conditions")]
    return []

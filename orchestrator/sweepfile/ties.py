"""The section ``tie`` of a sweep file: fields whose value in each cell follows from other values of the cell."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any

from orchestrator.base.errors import Problem, did_you_mean
from orchestrator.base.space import is_number
from orchestrator.sweepfile.arithmetic import ALLOWED, Expression, parsed
from orchestrator.sweepfile.fields import Fields, shown
from orchestrator.sweepfile.sections import SweepFile
from orchestrator.sweepfile.strict_yaml import Document

STEPS = "steps"  # the key of a sweep file that every expression may use


def checked_ties(file: SweepFile, fields: Fields, document: Document, problems: list[Problem]) -> dict[str, Expression]:
    """The tied fields of ``file`` in the order in which they can be computed; adds to ``problems``."""
    ties: dict[str, Expression] = {}
    found = len(problems)

    def refuse(name: str, message: str, remedy: str) -> None:
        problems.append(Problem(document.place(("tie", name)), f"tie.{name}", message, remedy))

    for name, text in file.tie.items():
        if unknown := (name == STEPS or not fields.is_known(name)) and fields.problem(name, None):
            refuse(name, *unknown)
            continue
        if name in file.fixed:
            refuse(name, "is also fixed", "keep one of the two")
            continue
        try:
            ties[name] = parsed(_text(text))
        except ValueError as error:
            refuse(name, str(error), f"an expression has {ALLOWED}; one with a comma is written in quotes")
            continue
        for used in ties[name].names:
            if problem := _problem_of_name(used, name, file, fields):
                refuse(name, *problem)
    if len(problems) > found:
        return ties
    try:
        order = list(TopologicalSorter({name: set(tie.names) - {name} for name, tie in ties.items()}).static_order())
    except CycleError as error:
        names = error.args[1]
        refuse(names[0], f"needs itself: {' needs '.join(reversed(names))}", "take one of the names out")
        return ties
    return {name: ties[name] for name in order if name in ties}


def that_need_steps(ties: Mapping[str, Expression], counted: Collection[str]) -> set[str]:
    """The names of ``ties`` that need the steps, directly or by way of another one or of the fields ``counted``."""
    late = {STEPS, *counted}
    for name, tie in ties.items():
        if not late.isdisjoint(tie.names):
            late.add(name)
    return late & ties.keys()


def _text(value: Any) -> str:
    """An expression as text; a number is one. Raises ValueError for anything else."""
    if not isinstance(value, str) and not is_number(value):
        raise ValueError(f"{shown(value)} is no expression")
    return str(value)


def _problem_of_name(used: str, tied: str, file: SweepFile, fields: Fields) -> tuple[str, str] | None:
    """The problem of the name ``used`` in the expression of the field ``tied``, and its remedy."""
    if used == tied and used not in file.axes:
        return f"{used} has no value of its own here, as it is not an axis", f"make {used} an axis, or leave it out"
    if used in (STEPS, *file.axes, *file.fixed, *file.tie):
        return None
    if fields.is_known(used):
        return f"{used} has no value in this file", f"give it one: fixed: {{{used}: ...}}"
    known = [STEPS, *file.axes, *file.fixed, *file.tie]
    return f"{used!r} is not known", did_you_mean(used, known) or f"names: {', '.join(dict.fromkeys(known))}"


def tied_values(ties: Mapping[str, Expression], given: Mapping[str, Any], fields: Fields) -> dict[str, Any]:
    """The values of tied fields where other fields, axes and ``steps`` have those of ``given``.

    A name means the value that a trial trains with; only in its own expression it means the value on its axis. An axis
    without a value (null) in a cell stays without one. Raises ValueError, whose first word is the tied field, where a
    value cannot be computed or the field refuses it.
    """
    found: dict[str, Any] = {}
    for name, tie in ties.items():
        if name in given and given[name] is None:
            continue
        own = {name: given[name]} if name in given else {}
        try:
            found[name] = fields.computed(name, tie.value({**given, **found, **own}))
        except ValueError as error:
            raise ValueError(f"{name} = {tie.text}: {error}") from None
        if refused := fields.problem(name, found[name]):
            raise ValueError(f"{name} = {tie.text}: {refused[0]}")
    return found

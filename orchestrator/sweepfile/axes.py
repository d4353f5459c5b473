"""The axes of a sweep file: their values, checked one by one and against the size of the grid."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from orchestrator.base.errors import InputError, Problem
from orchestrator.base.space import SCALES, Axis, combinations, format_value
from orchestrator.sweepfile.fields import Fields, absolute_text, shown
from orchestrator.sweepfile.sections import AxisSection, SweepFile
from orchestrator.sweepfile.strict_yaml import Document

MAX_PROBLEMS = 20  # listed in one message


def field_problem(fields: Fields, name: str, value: Any, path: tuple[str, ...], document: Document) -> Problem | None:
    """The problem of ``value`` for the field ``name``, if any."""
    found = fields.problem(name, value)
    return Problem(document.place(path), ".".join(path[:2]), *found) if found else None


def checked_axes(file: SweepFile, fields: Fields, document: Document, problems: list[Problem]) -> list[Axis]:
    """The axes of ``file`` with allowed values; problems of the others are added to ``problems``."""
    axes = []
    for name, section in file.axes.items():
        if len(problems) >= MAX_PROBLEMS:
            break
        axis = _axis(name, section, file, fields, document, problems)
        if axis is None:
            continue
        candidates = (axis.at(0.0), axis.at(1.0), *axis.values)
        wrong = (field_problem(fields, name, value, ("axes", name), document) for value in candidates)
        place, key = document.place(("axes", name)), f"axes.{name}"
        if problem := next(filter(None, wrong), None):
            problems.append(problem)
            continue
        if fields.names_files(name):
            places = [document.place(("axes", name, "values", i)) for i in range(len(axis.values))]
            texts = (absolute_text(*text, key, problems) for text in zip(axis.values, places, strict=True))
            axis = replace(axis, values=tuple(texts))
        if repeated := _repeated(axis.values):
            problems.append(Problem(place, key, *repeated))
            continue
        axes.append(axis)
    return axes


def _axis(
    name: str, section: AxisSection, file: SweepFile, fields: Fields, document: Document, problems: list[Problem]
) -> Axis | None:
    where, key = document.place(("axes", name)), f"axes.{name}"

    def refuse(message: str, remedy: str) -> None:
        problems.append(Problem(where, key, message, remedy))

    if unknown := not fields.is_known(name) and field_problem(fields, name, None, ("axes", name), document):
        problems.append(unknown)
        return None
    given = [scale for scale in SCALES if getattr(section, scale) is not None]
    if len(given) != 1:
        what = "has no values" if not given else f"has both {' and '.join(given)}"
        return refuse(what, "give one of values: [...], linear: [a, b], log: [a, b], log1m: [a, b]")
    scale = given[0]
    if scale == "values":
        if section.num is not None:
            return refuse("num has no meaning beside values", "remove num")
        return Axis(name, "values", tuple(fields.canonical(name, value) for value in section.values or ()))
    low, high = getattr(section, scale)
    is_integer = fields.is_integer(name, document.data["axes"][name][scale])
    if low >= high:
        return refuse(f"[{low:g}, {high:g}] is not low, high", f"write {scale}: [{high:g}, {low:g}]")
    if scale == "log" and low <= 0:
        return refuse(f"a log axis cannot begin at {low:g}", "begin above 0, or use linear")
    if scale == "log1m" and high >= 1:
        return refuse(f"a log1m axis cannot reach {high:g}", "end below 1")
    if not math.isfinite(high / low if scale == "log" else high - low):
        return refuse(f"[{low:g}, {high:g}] is too wide for numbers of double precision", "bring its ends nearer")
    unfilled = Axis(name, scale, (), (low, high), is_integer)
    if file.sample is not None and section.num is not None:
        return refuse("num has no meaning when cells are sampled", "remove num, or remove sample")
    if section.num is None and (file.sample is not None or file.search is not None):
        return unfilled
    if section.num is None:
        return refuse("num is missing", "say how many values, e.g. num: 7")
    if section.num > file.max_trials:
        return refuse(
            f"num: {section.num} is more than max_trials = {file.max_trials}", "lower num or raise max_trials"
        )
    return Axis(name, scale, unfilled.grid(section.num), (low, high), is_integer)


def _repeated(values: Sequence[Any]) -> tuple[str, str] | None:
    """The problem of values that would not each have a column of the map, and its remedy; None without one."""
    seen: dict[Any, Any] = {}
    for value in values:
        try:
            is_new = value not in seen
        except TypeError:
            return f"{shown(value)} cannot be a column of a map", "write numbers, words, true, false, null or lists"
        if is_new:
            seen[value] = value
        elif repr(seen[value]) == repr(value):
            return f"{shown(value)} repeats a value", "list each once"
        else:
            message = f"{shown(seen[value])} and {shown(value)} are equal in Python, so the map would have one column"
            return f"{message} for both", "keep one of them, or write words in quotes, such as '1.0'"
    # Rounded numbers may look alike; a map shows lists as they are.
    names = {format_value(value): value for value in values}
    for value in values:
        if isinstance(value, tuple) and names[name := format_value(value)] != value:
            message = f"{shown(value)} and {shown(names[name])} would both be called {name}"
            return message, "give one of the files, or its folder, another name (a link will do)"
    return None


def refuse_huge(file: SweepFile, axes: Sequence[Axis], document: Document) -> None:
    """Raise InputError for more trials than max_trials."""
    if file.search is not None and file.search.trials > file.max_trials:
        num = file.search.trials
        what = f"{num} trials are more than max_trials = {file.max_trials}"
        raise InputError(Problem(document.place(("search", "trials")), "search.trials", what, f"say max_trials: {num}"))
    if file.search is not None:
        return
    num_cells = file.sample.num if file.sample else math.prod(len(axis.values) for axis in axes)
    if file.sample is None and any(axis.zipped or axis.when for axis in axes):
        # Of such a grid only as many cells are counted as tell that there are too many.
        num_cells = sum(1 for _ in itertools.islice(combinations(axes), file.max_trials // len(file.all_seeds) + 1))
        if num_cells * len(file.all_seeds) > file.max_trials:
            what = f"more than max_trials = {file.max_trials} trials"
            raise InputError(Problem(document.place(("axes",)), "axes", what, "shorten an axis, or raise max_trials"))
    num_trials = num_cells * len(file.all_seeds)
    if num_trials > file.max_trials:
        raise InputError(
            Problem(
                document.place(("sample" if file.sample else "axes",)),
                "axes",
                f"{num_cells} cells x {len(file.all_seeds)} seeds = {num_trials} trials,"
                f" more than max_trials = {file.max_trials}",
                f"shorten an axis, or say max_trials: {num_trials}",
            )
        )

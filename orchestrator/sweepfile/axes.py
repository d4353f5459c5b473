"""The axes of a sweep file: their values, and how they depend on each other (``zip`` and ``when``)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from typing import Any

from orchestrator.base.errors import InputError, Problem, did_you_mean
from orchestrator.base.space import SCALES, Axis, combinations, format_value, is_number, on_natural_scale
from orchestrator.base.words import count
from orchestrator.sweepfile.fields import Fields, field_problem, shown
from orchestrator.sweepfile.objective_fields import absolute_text
from orchestrator.sweepfile.sections import AxisSection, SweepFile
from orchestrator.sweepfile.strict_yaml import MAX_PROBLEMS, Document

_EXACT = 2**53  # below it a double holds any integer
_MAX_LISTED = 8  # values of an axis in a message


def checked_axes(file: SweepFile, fields: Fields, document: Document, problems: list[Problem]) -> list[Axis]:
    """Return the valid axes of ``file``; problems of the others are appended to ``problems``."""
    axes = []
    for name, section in file.axes.items():
        if len(problems) >= MAX_PROBLEMS:
            break
        axis = _axis(name, section, file, fields, document, problems)
        if axis is None:
            continue
        candidates = (axis.at(0.0), axis.at(1.0), *axis.values)
        invalid = (field_problem(fields, name, value, ("axes", name), document) for value in candidates)
        if problem := next(filter(None, invalid), None):
            problems.append(problem)
            continue
        if fields.names_files(name):
            places = [document.place(("axes", name, "values", i)) for i in range(len(axis.values))]
            texts = (absolute_text(*text, f"axes.{name}", problems) for text in zip(axis.values, places, strict=True))
            axis = replace(axis, values=tuple(texts))
        if repeated := _repeated(axis.values):
            problems.append(document.problem(("axes", name), *repeated))
            continue
        axis = replace(axis, values=_of_one_kind(axis.values))
        axes.append(axis if file.search is None or file.search.refines is None else _refined(axis, fields))
    return axes


def _refined(axis: Axis, fields: Fields) -> Axis:
    """Return the range that the numbers of ``axis`` span, on the scale that they suggest, or else only its values."""
    if len(axis.values) < 2 or not all(map(is_number, axis.values)):
        return replace(axis, scale="values", ends=None) if axis.values else axis
    numbers = tuple(sorted(axis.values))
    given, ends = on_natural_scale(axis), (numbers[0], numbers[-1])
    scale = "linear" if given.scale == "values" else given.scale
    is_integer = axis.is_integer if axis.ends else fields.is_integer(axis.name, ends)
    return Axis(axis.name, scale, (), axis.ends or (float(ends[0]), float(ends[1])), is_integer, refined=numbers)


def _axis(
    name: str, section: AxisSection, file: SweepFile, fields: Fields, document: Document, problems: list[Problem]
) -> Axis | None:
    def reject(message: str, remedy: str) -> None:
        problems.append(document.problem(("axes", name), message, remedy))

    if unknown := not fields.is_known(name) and field_problem(fields, name, None, ("axes", name), document):
        problems.append(unknown)
        return None
    given = [scale for scale in SCALES if getattr(section, scale) is not None]
    if len(given) != 1:
        what = "has no values" if not given else f"has both {' and '.join(given)}"
        return reject(what, "give one of values: [...], linear: [a, b], log: [a, b], log1m: [a, b]")
    scale = given[0]
    if scale == "values":
        if section.num is not None:
            return reject("num does not apply to a list of values", "remove num")
        return Axis(name, "values", tuple(fields.canonical(name, value) for value in section.values or ()))
    low, high = getattr(section, scale)
    is_integer = fields.is_integer(name, document.data["axes"][name][scale])
    if low >= high:
        return reject(f"[{low:g}, {high:g}] is not low, high", f"write {scale}: [{high:g}, {low:g}]")
    if scale == "log" and low <= 0:
        return reject(f"a log axis cannot begin at {low:g}", "begin above 0, or use linear")
    if scale == "log1m" and high >= 1:
        return reject(f"a log1m axis cannot reach {high:g}", "end below 1")
    if not math.isfinite(high / low if scale == "log" else high - low):
        return reject(f"[{low:g}, {high:g}] is too wide for numbers of double precision", "bring its ends nearer")
    unfilled = Axis(name, scale, (), (low, high), is_integer)
    if file.sample is not None and section.num is not None:
        return reject("num does not apply when cells are sampled", "remove num, or remove sample")
    if section.num is None and (file.sample is not None or file.search is not None):
        return unfilled
    if section.num is None:
        return reject("num is missing", "say how many values, e.g. num: 7")
    if section.num > file.max_trials:
        return reject(
            f"num: {section.num} is more than max_trials = {file.max_trials}", "lower num or raise max_trials"
        )
    return Axis(name, scale, unfilled.grid(section.num), (low, high), is_integer)


def _of_one_kind(values: Sequence[Any]) -> tuple[Any, ...]:
    """Return ``values`` with all numbers as floats if one of them is: a trainer that reads 0.03 may not read 3."""
    has_float = any(isinstance(value, float) for value in values)

    def as_float(value: Any) -> Any:
        return float(value) if has_float and type(value) is int and abs(value) < _EXACT else value

    return tuple(map(as_float, values))


def _repeated(values: Sequence[Any]) -> tuple[str, str] | None:
    """Return the problem of values that would share a column of the map, and the remedy; None if all are distinct."""
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
            return f"{message} for both", "keep one, or write words in quotes, such as '1.0'"
    # Rounded numbers may look alike; a map shows lists as they are.
    names = {format_value(value): value for value in values}
    for value in values:
        if isinstance(value, tuple) and names[name := format_value(value)] != value:
            message = f"{shown(value)} and {shown(names[name])} would both be called {name}"
            return message, "give one of the files, or its folder, another name (a link will do)"
    return None


def check_num_trials(file: SweepFile, axes: Sequence[Axis], document: Document) -> None:
    """Raise InputError if the sweep has more trials than ``max_trials``."""
    limit, num_seeds = file.max_trials, len(file.all_seeds)
    if file.search is not None:
        if (num := file.search.trials) > limit:
            what = f"{count(num, 'trial is', 'trials are')} more than max_trials = {limit}"
            raise InputError(document.problem(("search", "trials"), what, f"say max_trials: {num}"))
        return
    num_cells = file.sample.num if file.sample else math.prod(len(axis.values) for axis in axes)
    if file.sample is None and any(axis.zipped or axis.when for axis in axes):
        # Count cells of such a grid only until there are too many.
        num_cells = sum(1 for _ in itertools.islice(combinations(axes), limit // num_seeds + 1))
        if num_cells * num_seeds > limit:
            what = f"more than max_trials = {count(limit, 'trial')}"
            raise InputError(document.problem(("axes",), what, "shorten an axis, or raise max_trials"))
    num_trials = num_cells * num_seeds
    if num_trials > limit:
        place = document.place(("sample" if file.sample else "axes",))
        what = f"{count(num_cells, 'cell')} x {count(num_seeds, 'seed')}, more than max_trials = {limit}"
        raise InputError(Problem(place, "axes", what, f"shorten an axis, or say max_trials: {num_trials}"))


# --- zip and when ----------------------------------------------------------------------------------


def with_relations(
    axes: Sequence[Axis], file: SweepFile, fields: Fields, document: Document, problems: list[Problem]
) -> list[Axis]:
    """Return ``axes`` with their groups (``zip``) and conditions (``when``); appends to ``problems``."""
    by_name = {axis.name: axis for axis in axes}
    invalid = [*_relations_without_grid(file, document), *_zip_problems(file, by_name, document)]
    group_of = {name: tuple(group) for group in file.zip for name in group}
    related = [replace(axis, zipped=group_of.get(axis.name, ())) for axis in axes]
    for i, axis in enumerate(related):
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
                invalid.append(document.problem(path, *problem))
        related[i] = replace(axis, when=tuple(conditions))
    problems += invalid or _cycle_problems(related, document)
    return related


def _relations_without_grid(file: SweepFile, document: Document) -> Iterator[Problem]:
    """Yield problems of related axes if the cells are sampled or chosen by a search."""
    kind = "search" if file.search is not None else "sample" if file.sample is not None else None
    if kind is None:
        return
    what = "does not apply when cells are " + ("chosen by a search" if kind == "search" else "sampled")
    if file.zip:
        remedy = f"remove {kind} for a grid, or make one an axis and compute the other: tie: {{{file.zip[0][1]}: ...}}"
        yield document.problem(("zip",), what, remedy)
    for name, section in file.axes.items():
        if section.when is not None:
            remedy = f"remove {kind} for a grid, or make one sweep for each value of {next(iter(section.when))}"
            yield document.problem(("axes", name, "when"), what, remedy)


def _zip_problems(file: SweepFile, axes: Mapping[str, Axis], document: Document) -> Iterator[Problem]:
    seen: set[str] = set()
    for i, group in enumerate(file.zip):
        path = ("zip", i)
        if unknown := [name for name in group if name not in file.axes]:
            remedy = did_you_mean(unknown[0], file.axes) or f"axes: {', '.join(file.axes) or 'none'}"
            yield document.problem(path, f"{unknown[0]!r} is not an axis", remedy)
        elif twice := [name for name in group if name in seen]:
            yield document.problem(path, f"{twice[0]} advances with other axes already", "write them all in one list")
        elif conditional := [name for name in group if file.axes[name].when is not None]:
            yield document.problem(
                path, f"{conditional[0]} exists in some cells only (when)", "take it out of the list"
            )
        elif len({len(axes[name].values) for name in group if name in axes}) > 1:
            numbers = ", ".join(f"{name} has {len(axes[name].values)}" for name in group if name in axes)
            yield document.problem(path, f"numbers of values differ: {numbers}", "give them equal numbers of values")
        seen.update(group)


def _condition_problem(
    axis: Axis, name: str, values: Sequence[Any], axes: Mapping[str, Axis], fields: Fields
) -> tuple[str, str] | None:
    """Return the problem of the condition that the axis ``name`` has one of ``values``, and the remedy."""
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
    listed = ", ".join(map(format_value, known[:_MAX_LISTED])) + (" ..." if len(known) > _MAX_LISTED else "")
    if not values:
        return "lists no value", f"values of {name}: {listed}"
    for value in values:
        if not any(value == other and isinstance(value, bool) == isinstance(other, bool) for other in known):
            return f"{format_value(value)} is not a value of {name}", f"values of {name}: {listed}"
    return None


def _cycle_problems(axes: Sequence[Axis], document: Document) -> list[Problem]:
    try:
        TopologicalSorter({axis.name: [name for name, _ in axis.when] for axis in axes}).prepare()
    except CycleError as error:
        names = error.args[1]
        message = f"axes depend on each other in a circle: {', '.join(names)}"
        return [document.problem(("axes", names[0], "when"), message, "take out one of the conditions")]
    return []

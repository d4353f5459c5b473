"""Which axes an edge is drawn along, against and by; every further axis must be fixed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.base.errors import InputError, Problem
from orchestrator.base.space import Axis, is_number
from orchestrator.base.words import plural
from orchestrator.maps.axes import led, together
from orchestrator.maps.table import SweepTable, axis_named

MOST_LINES = 8  # values of an axis up to which it gets a line for each of them without being asked to


@dataclass(frozen=True, slots=True)
class EdgeAxes:
    """The axis ``along`` which the edge lies, the one ``across``, and the one of which each value has a line.

    The latter two have the values of the trials that are selected.
    ``fixed`` are the values that trials must have. ``read_at`` are the values of ranges at which a fitted surface is
    read, with those of the axes that have only one. ``notes`` say in words what was fixed.
    """

    along: Axis
    across: Axis
    facet: Axis | None
    fixed: Mapping[str, Any]
    read_at: Mapping[str, Any]
    notes: tuple[str, ...]


def edge_axes(
    table: SweepTable,
    axes: Mapping[str, Axis],
    along: str | None = None,
    across: str | None = None,
    facet: str | None = None,
    where: Mapping[str, Any] | None = None,
) -> EdgeAxes:
    """The axes named, or by default: along the first, against the first other one of numbers, a line for each value of
    the next one where these are at most ``MOST_LINES``.

    An axis without values is a range over which cells are scattered. Raises InputError for an unknown axis or value,
    where axes coincide, where there is nothing to draw the edge against, and where a further axis is not fixed.
    """
    where = where or {}
    check_names(axes, {"--along": along, "--across": across, "--by": facet}, where)
    ranges = {name: _in_range(axes[name], value) for name, value in where.items() if _is_range(axes.get(name))}
    listed = {name: value for name, value in where.items() if name not in ranges}
    selected = table.where("--where", listed)
    found = {name: dict.fromkeys(row.cell[name] for row in selected.trials) for name in axes}
    leaders = [name for name in axes if name not in led(axes.values()) and name not in together(axes, where)]
    along = along or _first(_beside(axes, leaders, (across, facet)))
    if along is None:
        raise InputError(
            Problem("--along", "", "no axis is left along which the edge could lie", "fix or name fewer axes")
        )
    varying = _beside(
        axes, [name for name in leaders if _is_range(axes[name]) or len(found[name]) > 1], (along, across, facet)
    )
    if across is None:
        across = _first([name for name in varying if _is_numeric(axes[name])] or varying)
        varying = _beside(axes, varying, (across,))
    if across is None:
        what = f"no axis besides {along} is free, so there is nothing to draw the edge against"
        raise InputError(Problem("--across", "", what, "`sweep boundary NAME` shows this one edge"))
    if facet is None and varying and 0 < len(axes[varying[0]].values) <= MOST_LINES:
        facet = varying[0]
    _refuse_free(_beside(axes, varying, (facet,)), facet)
    single = {name: next(iter(values)) for name, values in found.items() if len(values) == 1}
    notes = selected.fixed_notes()
    notes += [f"{name} = {where[name]}" for name in ranges]
    drawn = {name: replace(axes[name], values=tuple(v for v in axes[name].values if v in found[name])) for name in axes}
    of_facet = None if facet is None else drawn[facet]
    return EdgeAxes(axes[along], drawn[across], of_facet, selected.fixed, {**single, **ranges}, tuple(notes))


def check_names(axes: Mapping[str, Axis], chosen: Mapping[str, str | None], where: Mapping[str, Any]) -> None:
    """Raise InputError where a chosen name is not an axis, is chosen twice, or is fixed."""
    taken = dict.fromkeys(where, "--where")
    for option, name in chosen.items():
        if name is None:
            continue
        axis_named(name, axes.values(), option)
        if name in taken:
            raise InputError(Problem(option, "", f"{name!r} is also in {taken[name]}", "choose another axis"))
        taken[name] = option


def _refuse_free(names: Sequence[str], facet: str | None) -> None:
    """Raise InputError where axes ``names`` are left besides those that are drawn."""
    if not names:
        return
    what = f"{', '.join(names)} {plural(len(names), 'is', 'are')} neither drawn nor fixed"
    fixes = " ".join(f"--where {name}=VALUE" for name in names)
    lines = "" if facet is not None else f", or --by {names[0]} for lines at its values"
    raise InputError(Problem("--where", "", what, f"add {fixes}{lines}"))


def _beside(axes: Mapping[str, Axis], names: Iterable[str], drawn: Iterable[str | None]) -> list[str]:
    """``names`` without the axes that are drawn, or advance with one that is."""
    return [name for name in names if name not in together(axes, drawn)]


def _first(names: Sequence[str]) -> str | None:
    return names[0] if names else None


def _is_range(axis: Axis | None) -> bool:
    return axis is not None and not axis.values and axis.ends is not None


def _is_numeric(axis: Axis) -> bool:
    """Whether the values of ``axis`` are numbers, or numbers and none (no clipping)."""
    numbers = [value for value in axis.values if value is not None]
    return _is_range(axis) or (len(numbers) > 0 and all(map(is_number, numbers)))


def _in_range(axis: Axis, value: Any) -> float:
    """The number that ``value`` means on a range. Raises InputError where it is none, or beyond the ends."""
    assert axis.ends is not None
    low, high = axis.ends
    try:
        number = float(value)
    except ValueError:
        number = float("nan")
    if not low <= number <= high:
        remedy = f"choose a number from {low:g} to {high:g}"
        raise InputError(Problem("--where", axis.name, f"{value} is not within its range", remedy))
    return number

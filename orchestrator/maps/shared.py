"""What several sweeps share: cells of grids, or a region of scattered cells; and the settings that differ."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.base.errors import InputError, Problem
from orchestrator.base.space import Axis, Cell, format_value, number_text
from orchestrator.base.trial_result import TrialResult
from orchestrator.base.words import listed
from orchestrator.maps.axes import ordered, value_labels
from orchestrator.maps.reach import reached
from orchestrator.maps.surface_map import as_range
from orchestrator.maps.table import SweepTable
from orchestrator.sweepfile.settings import settings_of

_DIGITS = 9
_SHOWN = 6  # values named in a message


@dataclass(frozen=True, slots=True)
class SharedCells:
    """The tables of grids over the same ``axes``, limited to the cells that all have, in order.

    ``num_left_out`` cells of each sweep are not shared.
    """

    axes: tuple[Axis, ...]
    cells: tuple[Cell, ...]
    tables: tuple[SweepTable, ...]
    num_left_out: tuple[int, ...]


def unique_names(names: Sequence[str]) -> list[str]:
    """The names, with a number behind each that occurs more than once."""
    return [name if names.count(name) == 1 else f"{name} ({i + 1})" for i, name in enumerate(names)]


def shared_cells(tables: Sequence[SweepTable], names: Sequence[str]) -> SharedCells:
    """Find the cells that all grids have. A cell has the values of all fields that are an axis in any of the sweeps.

    Raises InputError if a sweep lacks an axis of the others, and if they share no cell.
    """
    order = list(dict.fromkeys(axis.name for table in tables for axis in table.axes))
    runs_of = with_fields_as_trained([table.runs for table in tables], [table.ties for table in tables])
    for name, runs in zip(names, runs_of, strict=True):
        lacking = [axis for axis in order if not runs or axis not in {**runs[0].cell, **_settings(runs[0])}]
        if lacking:
            raise InputError(
                Problem(name, "", f"has no {lacking[0]}, an axis of the others", "compare sweeps of one objective")
            )
    runs_of = [[with_cell_of(run, order) for run in runs] for runs in runs_of]
    cells_of = [{run.cell for run in runs} for runs in runs_of]
    shared = set.intersection(*cells_of)
    if not shared:
        raise InputError(Problem(", ".join(names), "", "share no cell", _why_nothing_is_shared(order, cells_of, names)))
    kept = [tuple(run for run in runs if run.cell in shared) for runs in runs_of]
    values = {axis: ordered(list(dict.fromkeys(run.cell[axis] for run in kept[0]))) for axis in order}
    by_name = {axis.name: axis for table in reversed(tables) for axis in reversed(table.axes)}
    axes = tuple(replace(by_name[name], values=tuple(values[name])) for name in order)
    cells = sorted(shared, key=lambda cell: [values[name].index(cell[name]) for name in order])
    return SharedCells(
        axes,
        tuple(cells),
        tuple(replace(table, axes=axes, trials=runs) for table, runs in zip(tables, kept, strict=True)),
        tuple(len(own - shared) for own in cells_of),
    )


def shared_region(tables: Sequence[SweepTable], names: Sequence[str]) -> tuple[Axis, ...]:
    """The region that sweeps over the same axes cover. Raises InputError for other axes, and if they cover none."""
    axes_of = [{axis.name: axis for axis in table.axes} for table in tables]
    _check_axes(names, axes_of, [table.ties for table in tables])
    reach_of = [
        {
            axis.name: axis
            for axis in reached(list(map(as_range, axes.values())), {run.cell for run in table.runs if run.is_judged})
        }
        for axes, table in zip(axes_of, tables, strict=True)
    ]
    return tuple(_common(names, [axes[name] for axes in reach_of]) for name in axes_of[0])


def with_cell_of(trial: TrialResult, axes: Sequence[str]) -> TrialResult:
    """The trial with a cell of other ``axes``, whose values are its settings."""
    settings = {**_settings(trial), **trial.cell}
    return replace(trial, cell=Cell((name, _rounded(settings.get(name))) for name in axes))


def changed_fields(tables: Sequence[SweepTable], axes: Sequence[str]) -> dict[str, tuple[Any, ...]]:
    """The fields that differ between sweeps, except for their axes and fields that all tie alike."""
    ties = [table.ties for table in tables]
    alike = [*axes, *(name for name, text in ties[0].items() if all(each.get(name) == text for each in ties))]
    configs = [{"objective": table.runs[0].objective, **_settings(table.runs[0])} for table in tables]
    fields = dict.fromkeys(field for config in configs for field in config if field not in (*alike, "seed"))
    return {
        field: tuple(config.get(field) for config in configs)
        for field in fields
        if any(config.get(field) != configs[0].get(field) for config in configs)
    }


def covered_text(axis: Axis) -> str:
    """The range or the values of an axis in words."""
    if axis.values or axis.ends is None:
        return listed(list(map(format_value, axis.values)), _SHOWN)
    return f"{format_value(axis.ends[0])} to {format_value(axis.ends[1])}"


def with_fields_as_trained(
    runs_of: Sequence[Sequence[TrialResult]], ties_of: Sequence[Mapping[str, str]]
) -> list[list[TrialResult]]:
    """The runs of several sweeps with cells in which a name means the same.

    A tied axis keeps its own values if all sweeps tie it alike, and otherwise has the values that were trained with.
    """
    as_trained = []
    for runs, ties in zip(runs_of, ties_of, strict=True):
        unlike = {name for name, text in ties.items() if any(each.get(name) != text for each in ties_of)}
        as_trained.append([_as_trained(run, unlike) for run in runs])
    return as_trained


def _as_trained(trial: TrialResult, names: set[str]) -> TrialResult:
    settings = settings_of(trial.objective, trial.config)
    values = ((name, settings.get(name, value) if name in names else value) for name, value in trial.cell.items())
    return replace(trial, cell=Cell(values))


def _settings(trial: TrialResult) -> Mapping[str, Any]:
    return settings_of(trial.objective, trial.config, trial.cell)


def _rounded(value: Any) -> Any:
    """Round away differences in the last digits of a number between the grids of two files."""
    if isinstance(value, float) and math.isfinite(value):
        return float(number_text(value, _DIGITS))
    return tuple(value) if isinstance(value, list) else value


def _why_nothing_is_shared(order: Sequence[str], cells_of: Sequence[set[Cell]], names: Sequence[str]) -> str:
    for axis in order:
        values_of = [{cell[axis] for cell in cells} for cells in cells_of]
        if not set.intersection(*values_of):
            shown = (
                f"{name}: {', '.join(value_labels(ordered(list(values)))[:_SHOWN])}"
                for name, values in zip(names, values_of, strict=True)
            )
            return f"their values of {axis} differ ({'; '.join(shown)})"
    return "each axis has shared values, but no combination of them is in all sweeps"


def _check_axes(names: Sequence[str], axes_of: Sequence[Mapping[str, Axis]], ties: Sequence[Mapping[str, str]]) -> None:
    """Raise InputError unless surfaces over the axes of all sweeps can be compared."""
    for name, axes, tied in zip(names, axes_of, ties, strict=True):
        if set(axes) != set(axes_of[0]):
            what = f"has the axes {', '.join(axes) or 'none'}, and {names[0]} has {', '.join(axes_of[0]) or 'none'}"
            remedy = "scattered cells are compared between sweeps with the same axes: --drop an axis, or add it"
            raise InputError(Problem(name, "axes", what, remedy))
        for axis in axes.values():
            if axis.zipped or axis.when:
                what = "advances with another axis, or exists in some cells only, so no surface is fitted over it"
                raise InputError(Problem(name, axis.name, what, "compare sweeps without `zip` and `when`"))
            if tied.get(axis.name) != ties[0].get(axis.name):
                what = "is tied otherwise than in the first sweep, so its values do not mean the same"
                raise InputError(Problem(name, axis.name, what, "compare sweeps that tie it alike"))
    if not axes_of[0]:
        raise InputError(Problem(names[0], "axes", "there are none, so there is no map to compare", "add an axis"))


def _common(names: Sequence[str], axes: Sequence[Axis]) -> Axis:
    """The part of an axis that all sweeps cover: the listed values that all have, or the range within all ranges."""
    listed_axis = next((axis for axis in axes if axis.values), None)
    if listed_axis is not None:
        values = tuple(value for value in listed_axis.values if all(axis.has(value) for axis in axes))
        if values:
            return replace(listed_axis, values=values)
    else:
        ends = [axis.ends for axis in axes if axis.ends is not None]
        low, high = max(end[0] for end in ends), min(end[1] for end in ends)
        if low < high:
            return replace(axes[0], ends=(low, high), refined=())
    covered = "; ".join(f"{name}: {covered_text(axis)}" for name, axis in zip(names, axes, strict=True))
    what = f"the sweeps have no region of it in common ({covered})"
    raise InputError(Problem(", ".join(names), axes[0].name, what, "compare sweeps whose ranges overlap"))

"""Where one run lies on a sweep's map: inside stable territory or not, how far from each edge, near which cells."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import TopologicalSorter
from statistics import median
from typing import TYPE_CHECKING, Any

from orchestrator.base.errors import InputError, Problem, did_you_mean
from orchestrator.base.query import hidden, reported
from orchestrator.base.space import Axis, Cell, format_value, is_number, is_ordered, on_natural_scale, to_hashable
from orchestrator.base.trial_result import TrialResult
from orchestrator.base.vocabulary import IMPORTED, cell_state
from orchestrator.maps.axes import existing, led, sides, value_labels
from orchestrator.maps.edges import STABLE, Escape, Interval, Margin, Side, StableRule
from orchestrator.maps.grid_map import GridMap
from orchestrator.maps.stability_map import map_of
from orchestrator.maps.table import SweepTable, base_notes
from orchestrator.sweepfile.settings import RunSettings, settings_of

if TYPE_CHECKING:
    from orchestrator.maps.surface_map import SurfaceMap

_NEAREST = 4  # cells
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


@dataclass(frozen=True, slots=True)
class Caution:
    """A setting of the run, not an axis, that differs from the sweep's; ``is_known`` says whether the sweep has it."""

    name: str
    place: str
    run: Any
    sweep: Any
    is_known: bool
    remedy: str = hidden()


@dataclass(frozen=True, slots=True)
class NearCell:
    """A cell near the run: how many of its seeds have each label, and the median of their final losses, and scores."""

    setting: Cell
    state: str
    outcomes: Mapping[str, int]
    median_final_loss: float | None
    median_score: float | None
    trials: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Located:
    """A run on a sweep's map.

    ``side`` is stable if all ``num_cells_around`` cells around the run are stable, not stable if none is, at the edge
    if some are; ``is_island`` if stable ones are cut off from the stable region. If cells are scattered it follows from
    ``p_stable``, P(stable) by a fitted surface. ``margins`` lead from a stable place to the edges, ``escapes`` from
    another one to stable cells; a place outside the axes has neither. ``axes`` include the run's values.
    """

    sweep: str
    side: Side
    num_cells_around: int
    num_degraded_around: int
    is_island: bool
    p_stable: Interval | None
    margins: tuple[Margin, ...]
    escapes: tuple[Escape, ...]
    cautions: tuple[Caution, ...]
    not_given: tuple[str, ...]  # settings of the sweep that the run does not give
    notes: tuple[str, ...]
    nearest: tuple[NearCell, ...]
    axes: tuple[Axis, ...] = hidden()
    place: RunPlace = hidden()
    is_fitted: bool = False

    @reported
    def setting(self) -> Mapping[str, Any]:
        """The run's value of each axis."""
        return self.place.setting

    @reported
    def outside(self) -> tuple[Outside, ...]:
        """Values beyond their axes."""
        return self.place.outside


def locate(table: SweepTable, run: RunSettings, rule: StableRule = STABLE) -> Located:
    """Locate ``run`` on the sweep's map.

    On a grid a run between values has up to two neighbours on each axis, and the worst of the cells around it counts;
    on a cell its margins are those of ``recommend``. Raises InputError for a sweep without axes, for settings that lack
    an axis or cannot be values of it, and for too few scattered cells to fit a surface to.
    """
    if not table.axes or not table.runs:
        raise InputError(Problem(str(table.ledger.path), "", "the sweep has no axes, so it has no map"))
    run = run.in_whole_steps(table.runs)
    place = place_of(run, table.axes, table.is_grid, list(_settings(table.runs[0])))
    cells = table.by_cell()
    ranked = sorted(cells, key=_distance_from(place.setting, table))
    nearest = cells[ranked[0]][0]
    located = Located(
        sweep=table.name,
        side="outside",
        num_cells_around=0,
        num_degraded_around=0,
        is_island=False,
        p_stable=None,
        margins=(),
        escapes=(),
        cautions=tuple(_cautions(run, nearest, set(place.setting))),
        not_given=tuple(name for name in _settings(nearest) if name not in run.values and name not in place.setting),
        notes=tuple(base_notes(place.setting, table.ties)),
        nearest=tuple(_near_cell(cell, cells[cell]) for cell in ranked[:_NEAREST]),
        axes=tuple(_with_value(axis, place.setting.get(axis.name)) for axis in table.axes),
        place=place,
    )
    if place.outside:
        return located
    stability = map_of(table, rule=rule)
    position = stability.position(place.setting)
    if position.side == "outside":
        return replace(located, place=replace(place, outside=tuple(_unreached(stability, place.setting))))
    return replace(
        located,
        side=position.side,
        num_cells_around=position.num_cells,
        num_degraded_around=position.num_degraded,
        is_island=position.is_island,
        p_stable=position.p_stable,
        margins=tuple(stability.margins(place.setting)) if position.has_margins else (),
        escapes=() if position.has_margins else tuple(stability.escapes(place.setting)),
        axes=stability.axes if stability.is_fitted else located.axes,
        is_fitted=stability.is_fitted,
    )


def _unreached(stability: GridMap | SurfaceMap, setting: Mapping[str, Any]) -> Iterator[Outside]:
    """The values of the run that no trial of a surface reaches."""
    assert not isinstance(stability, GridMap)
    for axis, part in zip(stability.axes, stability.reach, strict=True):
        if part != axis and not part.has(setting[axis.name]):
            yield Outside(axis.name, setting[axis.name], f"trials in {_range_text(part)}")


def _with_value(axis: Axis, value: Any) -> Axis:
    """The axis with the run's value among its values, so that every value of an answer has its own text."""
    if not axis.values or value in axis.values or not is_number(value) or not is_ordered(axis.values):
        return axis
    below, above = sides(axis, value)
    return replace(axis, values=(*below[::-1], value, *above))


def _settings(row: TrialResult) -> dict[str, Any]:
    """The settings of a trial that are not axes."""
    length = {} if row.objective == IMPORTED else {"steps": row.steps}  # an imported run may not have one
    settings = {**length, **settings_of(row.objective, row.config)}
    return {
        name: to_hashable(value)
        for name, value in settings.items()
        if name not in row.cell and not isinstance(value, dict)
    }


def _cautions(run: RunSettings, nearest: TrialResult, placed: set[str]) -> list[Caution]:
    """Settings of the run that are not axes and differ from the nearest cell's."""
    settings = {**_settings(nearest), **{name: to_hashable(value) for name, value in nearest.cell.items()}}
    cautions = []
    for name, value in run.values.items():
        if name in placed or (name in settings and _is_same(value, settings[name])):
            continue
        remedy = "" if name in settings else did_you_mean(name, settings)
        cautions.append(Caution(name, run.places[name], value, settings.get(name), name in settings, remedy))
    return cautions


def _is_same(a: Any, b: Any) -> bool:
    return a == b and isinstance(a, bool) == isinstance(b, bool)


def _near_cell(cell: Cell, rows: Sequence[TrialResult]) -> NearCell:
    judged = [row for row in rows if row.is_judged]
    losses = [row.final_loss for row in judged if row.final_loss is not None]
    scores = [row.score for row in judged if row.score is not None]
    labels = [row.label for row in rows]
    return NearCell(
        cell,
        cell_state(labels),
        dict(Counter(labels)),
        median(losses) if losses else None,
        median(scores) if scores else None,
        tuple(row.trial_id for row in rows),
    )


def _distance_from(setting: Mapping[str, Any], table: SweepTable) -> Callable[[Cell], float]:
    """The distance of a cell from the run: in steps of a grid, or in lengths of the axes if cells are scattered."""
    followers = led(table.axes)
    free = [on_natural_scale(axis) for axis in table.axes if axis.name not in followers]
    units = [_unit(axis, table.is_grid) for axis in free]

    def distance(cell: Cell) -> float:
        parts = zip(free, units, strict=True)
        return math.hypot(*(_apart(axis, unit, cell[axis.name], setting[axis.name]) for axis, unit in parts))

    return distance


def _unit(axis: Axis, is_grid: bool) -> float:
    """The mean step of an axis on its scale, or its length; 0 for words."""
    places = [_position(axis, value) for value in axis.values or axis.ends or ()]
    numbers = [place for place in places if place is not None] or [0.0]
    return (max(numbers) - min(numbers)) / (max(1, len(numbers) - 1) if is_grid else 1)


def _apart(axis: Axis, unit: float, a: Any, b: Any) -> float:
    """The distance of two values on the axis's scale, in units; 1 between words."""
    here, there = _position(axis, a), _position(axis, b)
    if a == b or here is None or there is None or unit == 0:
        return float(a != b)
    return abs(here - there) / unit


def _position(axis: Axis, value: Any) -> float | None:
    if not is_number(value) or (axis.scale == "log" and value <= 0) or (axis.scale == "log1m" and value >= 1):
        return None
    return axis.position(value)


# --- the place on the axes ----------------------------------------------------------------------------


def place_of(run: RunSettings, axes: Sequence[Axis], is_grid: bool, known: Sequence[str] = ()) -> RunPlace:
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
            if not _reaches(axis, setting[axis.name], is_grid):
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


def _reaches(axis: Axis, value: Any, is_grid: bool) -> bool:
    values = existing(axis, axis.values)
    if any(each == value and isinstance(each, bool) == isinstance(value, bool) for each in values):
        return True
    if not _is_numeric(axis) or value is None:
        return False
    if axis.ends is not None and (not is_grid or not values):
        return axis.ends[0] <= value <= axis.ends[1]
    below, above = sides(axis, value)
    return bool(below and above) and is_grid


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

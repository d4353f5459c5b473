"""Where one run lies on a sweep's map: inside stable territory or not, how far from each edge, near which cells."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Literal

from scipy.special import expit

from orchestrator.base.errors import InputError, Problem, did_you_mean
from orchestrator.base.query import hidden, reported
from orchestrator.base.space import Axis, Cell, is_number, is_ordered, on_natural_scale, to_hashable
from orchestrator.base.trial_result import TrialResult
from orchestrator.base.vocabulary import DEGRADED, IMPORTED, cell_state, is_known
from orchestrator.maps.axes import led
from orchestrator.maps.boundary import Margin, margin_along, ordered_axes
from orchestrator.maps.fitted import Fit, fit
from orchestrator.maps.fitted_margins import fitted_margins
from orchestrator.maps.related_cells import state_beside, worst_state
from orchestrator.maps.rule import STABLE, StableRule
from orchestrator.maps.run_place import Outside, RunPlace, beside, place_of, sides
from orchestrator.maps.table import SweepTable, base_notes
from orchestrator.maps.ways_back import Way, fitted_ways, way_along
from orchestrator.surface.surface import CONFIDENCE
from orchestrator.sweepfile.settings import RunSettings, settings_of

Side = Literal["stable", "not stable", "at the edge", "not known", "outside"]
_NEAREST = 4  # cells


@dataclass(frozen=True, slots=True)
class Caution:
    """A setting of the run that is no axis and differs from the sweep's; ``is_known`` says whether the sweep has it."""

    name: str
    place: str
    run: Any
    sweep: Any
    is_known: bool
    remedy: str = hidden()


@dataclass(frozen=True, slots=True)
class NearCell:
    """A cell beside the run: the labels of its seeds with their numbers, and the median of their final losses."""

    setting: Cell
    state: str
    outcomes: Mapping[str, int]
    median_final_loss: float | None
    trials: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Located:
    """A run on a sweep's map.

    ``side`` is stable if all ``num_cells_around`` cells around the run are stable, not stable if none is, at the edge
    if some are. If cells are scattered it follows from ``p_stable``, P(stable) with the ends of its 95 % interval, by
    the surface ``fitted``. ``margins`` lead from a stable place to the edges, ``escapes`` from another one to stable
    cells; a place outside the axes has neither. ``axes`` include the run's values.
    """

    sweep: str
    side: Side
    num_cells_around: int
    num_degraded_around: int
    p_stable: Mapping[str, float] | None
    margins: tuple[Margin, ...]
    escapes: tuple[Way, ...]
    cautions: tuple[Caution, ...]
    not_given: tuple[str, ...]  # settings of the sweep that the run does not give
    notes: tuple[str, ...]
    nearest: tuple[NearCell, ...]
    axes: tuple[Axis, ...] = hidden()
    place: RunPlace = hidden()
    fitted: Fit | None = hidden()

    @reported
    def setting(self) -> Mapping[str, Any]:
        """The run's value of each axis."""
        return self.place.setting

    @reported
    def is_fitted(self) -> bool:
        """Whether a surface was fitted, as cells are scattered."""
        return self.fitted is not None

    @reported
    def outside(self) -> tuple[Outside, ...]:
        """The values that their axes do not reach."""
        return self.place.outside


def locate(table: SweepTable, run: RunSettings, rule: StableRule = STABLE) -> Located:
    """Where ``run`` lies on the sweep's map. With ``counts_degraded`` degraded cells are over the edge.

    On a grid a run between values has up to two neighbours on each axis, and the worst of the cells around it counts;
    on a cell its margins are those that ``recommend`` has there. Raises InputError for a sweep without axes, for
    settings that lack an axis or cannot be values of it, and for too few scattered cells to fit a surface to.
    """
    axes, rows = table.axes, table.runs
    if not axes or not rows:
        raise InputError(Problem(str(table.ledger.path), "", "the sweep has no axes, so it has no map"))
    is_scattered = not table.is_grid
    run = run.in_whole_steps(rows)
    place = place_of(run, axes, is_scattered, list(_settings(rows[0])))
    cells = table.by_cell()
    ordered = sorted(cells, key=lambda cell: _distance(cell, axes, place.setting, is_scattered))
    nearest_row = cells[ordered[0]][0]
    found = Located(
        sweep=table.name,
        axes=tuple(_with_value(axis, place.setting.get(axis.name)) for axis in axes),
        place=place,
        side="outside",
        num_cells_around=0,
        num_degraded_around=0,
        p_stable=None,
        fitted=None,
        margins=(),
        escapes=(),
        cautions=tuple(_cautions(run, nearest_row, set(place.setting))),
        not_given=tuple(
            name for name in _settings(nearest_row) if name not in run.values and name not in place.setting
        ),
        notes=tuple(base_notes(place.setting, table.ties)),
        nearest=tuple(_near_cell(cell, cells[cell]) for cell in ordered[:_NEAREST]),
    )
    if place.outside:
        return found
    if is_scattered:
        return _on_surface(found, table, rule)
    return _on_grid(found, axes, table.states(), rule)


def _on_grid(found: Located, axes: Sequence[Axis], states: Mapping[Cell, str], rule: StableRule) -> Located:
    setting = found.place.setting
    free = [axis for axis in axes if axis.name in setting]
    names = [axis.name for axis in free]
    by_free = {cell.only(names): cell for cell in states}
    around = itertools.product(*(beside(axis, setting[axis.name]) for axis in free))
    corners = [by_free[cell] for values in around if (cell := Cell(zip(names, values, strict=True))) in by_free]
    margins: list[Margin] = []
    ways: list[Way] = []
    side = _side([states[cell] for cell in corners], rule)
    for axis in ordered_axes(axes) if corners else ():
        # Of axes that advance together one may have no order, and the other stands for both.
        here = setting[axis.name] if axis.name in setting else corners[0][axis.name]
        if (here is None and axis.when) or (axis.name not in setting and len(corners) > 1):
            continue
        for is_upwards, values in zip((False, True), sides(axis, here), strict=True):
            row = [(v, worst_state([state_beside(cell, axis, v, axes, states) for cell in corners])) for v in values]
            if side == "stable":
                margins.append(margin_along(axis, here, is_upwards, row, rule))
            elif way := way_along(axis, here, is_upwards, row, rule):
                ways.append(way)
    return replace(
        found,
        side=side,
        num_cells_around=len(corners),
        num_degraded_around=sum(states[cell] == DEGRADED for cell in corners),
        margins=tuple(margins),
        escapes=tuple(ways),
    )


def _side(states: Sequence[str], rule: StableRule) -> Side:
    if not states or not all(map(is_known, states)):
        return "not known"
    over = [rule.is_over(state) for state in states]
    return "not stable" if all(over) else "at the edge" if any(over) else "stable"


def _on_surface(found: Located, table: SweepTable, rule: StableRule) -> Located:
    along = next((axis.name for axis in found.axes if axis.ends is not None or is_ordered(axis.values)), None)
    fitted = fit(table, along, rule=rule)
    setting = found.place.setting
    latent = fitted.latent([setting])
    middle, spread = float(latent.mean_M[0]), CONFIDENCE * float(latent.sd_M[0])
    low, at, high = (float(expit(value)) for value in (middle - spread, middle, middle + spread))
    side: Side = "stable" if low > fitted.level else "not stable" if high < fitted.level else "at the edge"
    is_inside = middle > math.log(fitted.level / (1 - fitted.level))
    return replace(
        found,
        side=side,
        p_stable={"at": at, "low": low, "high": high},
        fitted=fitted,
        margins=tuple(fitted_margins(fitted, setting)) if is_inside else (),
        escapes=() if is_inside else tuple(fitted_ways(fitted, setting)),
    )


def _with_value(axis: Axis, value: Any) -> Axis:
    """The axis with the run's value among its own, so that every value of an answer has a text of its own."""
    if not axis.values or value in axis.values or not is_number(value) or not is_ordered(axis.values):
        return axis
    below, above = sides(axis, value)
    return replace(axis, values=(*below[::-1], value, *above))


def _settings(row: TrialResult) -> dict[str, Any]:
    """The settings of a trial that are no axes."""
    length = {} if row.objective == IMPORTED else {"steps": row.steps}  # of an imported run it need not be known
    settings = {**length, **settings_of(row.objective, row.config)}
    return {
        name: to_hashable(value)
        for name, value in settings.items()
        if name not in row.cell and not isinstance(value, dict)
    }


def _cautions(run: RunSettings, nearest: TrialResult, placed: set[str]) -> list[Caution]:
    """Settings of the run that are no axes and differ from those of the nearest cell's trials."""
    settings = {**_settings(nearest), **{name: to_hashable(value) for name, value in nearest.cell.items()}}
    found = []
    for name, value in run.values.items():
        if name in placed or (name in settings and _is_same(value, settings[name])):
            continue
        remedy = "" if name in settings else did_you_mean(name, settings)
        found.append(Caution(name, run.places[name], value, settings.get(name), name in settings, remedy))
    return found


def _is_same(a: Any, b: Any) -> bool:
    return a == b and isinstance(a, bool) == isinstance(b, bool)


def _near_cell(cell: Cell, rows: Sequence[TrialResult]) -> NearCell:
    losses = [row.final_loss for row in rows if row.is_judged and row.final_loss is not None]
    labels = [row.label for row in rows]
    return NearCell(
        cell,
        cell_state(labels),
        dict(Counter(labels)),
        median(losses) if losses else None,
        tuple(row.trial_id for row in rows),
    )


def _distance(cell: Cell, axes: Sequence[Axis], setting: Mapping[str, Any], is_scattered: bool) -> float:
    """The distance of a cell from the run: in steps of a grid, or in lengths of the axes where cells are scattered."""
    followers = led(axes)
    free = [axis for axis in axes if axis.name not in followers]
    return math.hypot(*(_apart(axis, cell[axis.name], setting[axis.name], is_scattered) for axis in free))


def _apart(axis: Axis, a: Any, b: Any, is_scattered: bool) -> float:
    """The distance of two values on the axis's scale, as a part of its length or in mean steps; of words 1."""
    if a == b:
        return 0.0
    axis = on_natural_scale(axis)
    places = [_position(axis, value) for value in axis.values or axis.ends or ()]
    numbers = [place for place in places if place is not None]
    here, there = _position(axis, a), _position(axis, b)
    if here is None or there is None or not numbers or max(numbers) == min(numbers):
        return 1.0
    return abs(here - there) / (max(numbers) - min(numbers)) * (1 if is_scattered else len(numbers) - 1)


def _position(axis: Axis, value: Any) -> float | None:
    if not is_number(value) or (axis.scale == "log" and value <= 0) or (axis.scale == "log1m" and value >= 1):
        return None
    return axis.position(value)

"""The edge of scattered cells: where a surface of P(stable), fitted to all trials, crosses a level.

Letters of shapes: D axes, L places along a row, M points, N cells.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from scipy.special import expit

from orchestrator.base.errors import InputError, Problem
from orchestrator.base.space import Axis, Cell, is_number, is_ordered
from orchestrator.base.trial_result import TrialResult
from orchestrator.base.words import count, plural
from orchestrator.maps.axes import axis_number, value_label
from orchestrator.maps.edges import (
    STABLE,
    Edge,
    EdgeRule,
    Escape,
    Interval,
    LevelRule,
    Margin,
    Position,
    Row,
    Side,
    kind_of,
)
from orchestrator.maps.reach import is_reached, reached
from orchestrator.maps.table import SweepTable, axis_named
from orchestrator.surface.fitting import Outcomes, surface_of
from orchestrator.surface.lattice import Lattice, LatticeColumn, lattice_of
from orchestrator.surface.lines import first_below
from orchestrator.surface.surface import CONFIDENCE, Crossing, Latent, Surface, crossings_of

LEVEL = 0.5  # the share of stable trials at the edge
_FEWEST = 8  # trials with an outcome
_PLACES = 257  # along a range
_PLACES_BEYOND = 129  # between a setting and the end of a range
_ROWS = {1: 9, 2: 5}  # rows that are shown on a range across, by the number of such ranges
_FEW_ROWS = 3
_MOST_POINTS = 1500  # of the area's mesh
_KEPT = 8  # fits: pictures, answers and trackers ask for the same ones
_ALONG, _ALONG_ALONE = 65, 257  # points of it on a range along, with other axes and without


@dataclass(frozen=True)
class SurfaceMap:
    """A surface over ``axes``, fitted to ``num_trials`` trials in ``num_cells`` cells; edges lie along ``along``.

    An axis without values is a range. Rows and area belong to ``region``, whose axes are the same or shorter. Nothing
    is read beyond ``reach``, the part of the axes that trials reach.
    """

    name: str
    axes: tuple[Axis, ...]
    along: Axis
    rule: EdgeRule
    lattice: Lattice
    surface: Surface
    num_cells: int
    num_trials: int
    region: tuple[Axis, ...]
    reach: tuple[Axis, ...]

    is_fitted: ClassVar[bool] = True
    level: ClassVar[float] = LEVEL

    # --- rows -----------------------------------------------------------------------------------------

    def rows(self) -> list[Row]:
        """Rows over the other axes: all of a list's values, and a few even ones of a range."""
        across = [axis for axis in self.region if axis.name != self.along.name]
        return [self.row(setting) for setting in shown_settings(across)]

    def row(self, setting: Mapping[str, Any]) -> Row:
        """The row at ``setting``, which has a value of every other axis."""
        if not is_reached(self.axes, self.reach, setting):
            return Row(Cell(setting), kind_of(0, None), ())
        i, low = self.axes.index(self.along), self.along.values[0] if self.along.values else self.along.at(0.0)
        row_1D = np.array([self.lattice.point({**setting, self.along.name: low})])
        from_unit, to_unit = self._units_along(self.along)
        places_L = np.linspace(0.0, 1.0, max(len(self.along.values) or _PLACES, 2))
        places_L = places_L[(places_L >= from_unit) & (places_L <= to_unit)]
        points_LD = np.repeat(row_1D, len(places_L), axis=0)
        points_LD[:, i] = places_L
        above_L = self.surface.latent(points_LD).above(self.level)
        edges = tuple(map(self._edge, crossings_of(places_L, above_L)))
        row_1D[0, i] = (from_unit + to_unit) / 2
        p_stable = float(self.surface.latent(row_1D).probability()[0])
        kind = kind_of(len(edges), bool(above_L[0] > 0), self.rule.inner, self.rule.outer)
        return Row(Cell(setting), kind, edges, p_stable=p_stable)

    def _units_along(self, axis: Axis) -> tuple[float, float]:
        """The places on an ordered axis between which trials reach."""
        reach = self.reach[self.axes.index(axis)]
        if reach == axis:
            return 0.0, 1.0
        ends = (reach.values[0], reach.values[-1]) if reach.ends is None else reach.ends
        first, last = sorted(map(self._column(axis).unit, ends))
        return first, last

    def _edge(self, crossing: Crossing) -> Edge:
        at = None if crossing.at is None else self._value(crossing.at)
        return Edge(at, self._value(crossing.low), self._value(crossing.high), not crossing.rises, "fit")

    def _value(self, place: float) -> float | None:
        """The value at a place of the axis along, or None beyond its ends."""
        if not 0 <= place <= 1:
            return None
        values = self.along.values
        if not values:
            return float(self.along.at(place))
        at = place * (len(values) - 1)
        below, above = values[math.floor(at)], values[math.ceil(at)]
        return float(below + (at % 1) * (above - below)) if is_number(below) and is_number(above) else None

    # --- around a setting -------------------------------------------------------------------------------

    def position(self, setting: Mapping[str, Any]) -> Position:
        """The side of ``setting``: at the edge if the interval of its P(stable) has the level."""
        if not is_reached(self.axes, self.reach, setting):
            return Position("outside", has_margins=False)
        (p_stable,) = self.p_stable([setting])
        side: Side = "at the edge"
        if p_stable.low > self.level:
            side = "stable"
        elif p_stable.high < self.level:
            side = "not stable"
        return Position(side, p_stable.at > self.level, p_stable=p_stable)

    def margins(self, setting: Mapping[str, Any]) -> list[Margin]:
        """The margins of a ``setting`` along each ordered axis, with the other axes fixed."""
        return self.margins_of([setting])[0]

    def margins_of(self, settings: Sequence[Mapping[str, Any]]) -> list[list[Margin]]:
        """The margins of each setting."""
        by_direction = [self._margins_along(settings, *direction) for direction in self._directions()]
        return [[margins[i] for margins in by_direction] for i in range(len(settings))]

    def islands(self, cells: Iterable[Cell]) -> set[Cell]:
        """The ``cells`` that are over the fitted edge."""
        listed = list(cells)
        above = self.latent(listed).above(self.level).tolist() if listed else []
        return {cell for cell, surely in zip(listed, above, strict=True) if surely < 0}

    def escapes(self, setting: Mapping[str, Any]) -> list[Escape]:
        """Where P(stable) first reaches the level in each direction from ``setting``, with the other axes fixed."""
        escapes = []
        for axis, is_upwards in self._directions():
            unit_SL, read = self._beyond([setting], axis, is_upwards)
            (num_places,) = unit_SL[0].shape
            is_stable_L = read(np.zeros(num_places, int), np.arange(num_places)) > 0
            if is_stable_L.any():
                value = self._column(axis).value(float(unit_SL[0, is_stable_L.argmax()]))
                escapes.append(Escape(axis.name, is_upwards, value, axis.factor(setting[axis.name], value)))
        return escapes

    def _directions(self) -> Iterator[tuple[Axis, bool]]:
        ordered = [axis for axis in self.axes if len(axis.values) != 1 and (not axis.values or is_ordered(axis.values))]
        return itertools.product(ordered, (False, True))

    def _beyond(
        self, settings: Sequence[Mapping[str, Any]], axis: Axis, is_upwards: bool
    ) -> tuple[np.ndarray, Callable[[np.ndarray, np.ndarray], np.ndarray]]:
        """The places from each of ``settings`` to the end of its reach, both included, and how surely they are stable.

        The second is a function of lines and places, as in ``first_below``. Lines along a list repeat its end.
        """
        points_SD, i = self._points(settings), self.axes.index(axis)
        first, last = self._units_along(axis)
        if axis.values:
            unit_L = np.array([unit for unit in self._column(axis).units if first <= unit <= last])
            step_L = np.arange(len(unit_L)) * (1 if is_upwards else -1)
            here_S = np.searchsorted(unit_L, points_SD[:, i])
            unit_SL = unit_L[np.clip(here_S[:, None] + step_L, 0, len(unit_L) - 1)]
        else:
            unit_SL = np.linspace(points_SD[:, i], last if is_upwards else first, _PLACES_BEYOND, axis=1)
            if axis.is_integer:
                unit_SL[:, 1:] = np.vectorize(lambda unit: axis.unit(axis.at(float(unit))))(unit_SL[:, 1:])

        def read(line_N: np.ndarray, place_N: np.ndarray) -> np.ndarray:
            points_ND = points_SD[line_N]
            points_ND[:, i] = unit_SL[line_N, place_N]
            return self.surface.latent(points_ND).above(self.level)

        return unit_SL, read

    def _column(self, axis: Axis) -> LatticeColumn:
        return self.lattice.columns[self.axes.index(axis)]

    def _margins_along(self, settings: Sequence[Mapping[str, Any]], axis: Axis, is_upwards: bool) -> list[Margin]:
        unit_SL, read = self._beyond(settings, axis, is_upwards)
        num_lines, num_places = unit_SL.shape
        unsure_S, below_S = first_below(read, num_lines, num_places, (CONFIDENCE, 0.0))
        return [
            self._margin(setting[axis.name], unit_L, unsure, below, axis, is_upwards)
            for setting, unit_L, unsure, below in zip(settings, unit_SL, unsure_S, below_S, strict=True)
        ]

    def _margin(self, here: Any, unit_L: np.ndarray, unsure: int, below: int, axis: Axis, is_upwards: bool) -> Margin:
        """The margin of the value ``here``, given the first places that are not surely stable and not stable."""

        def value(place: int) -> Any:
            return self._column(axis).value(float(unit_L[place])) if place else here

        end = self._units_along(axis)[is_upwards]
        unreached = () if end == float(is_upwards) else (self._column(axis).value(float(is_upwards)),)
        last_stable = value(max(0, unsure - 1))
        edge = value(below) if below < len(unit_L) else None
        return Margin(
            axis=axis.name,
            is_upwards=is_upwards,
            known=axis.factor(here, last_stable),
            edge=None if edge is None else axis.factor(here, edge),
            last_stable=last_stable,
            first_not_stable=edge,
            not_known=() if edge is not None else (value(unsure),) if unsure < len(unit_L) else unreached,
        )

    # --- P(stable) --------------------------------------------------------------------------------------

    def latent(self, cells: Sequence[Mapping[str, Any]]) -> Latent:
        """The posterior at ``cells``, which may have any values within the axes."""
        return self.surface.latent(self._points(cells))

    def _points(self, cells: Iterable[Mapping[str, Any]]) -> np.ndarray:
        return np.array([self.lattice.point(cell) for cell in cells])

    def probability(self, cells: Sequence[Mapping[str, Any]]) -> np.ndarray:
        """P(stable) at ``cells``, averaged over the posterior, (M,)."""
        return self.latent(cells).probability()

    def p_stable(self, cells: Sequence[Mapping[str, Any]]) -> list[Interval]:
        """P(stable) at ``cells``, by the median of the posterior, with its 95 % interval."""
        latent = self.latent(cells)
        ends = (expit(latent.quantile(z)).tolist() for z in (0.0, -CONFIDENCE, CONFIDENCE))
        return [Interval(*values) for values in zip(*ends, strict=True)]

    def area(self) -> float:
        """The mean of P(stable) over the region."""
        return float(self.probability(self._mesh()).mean())

    def area_deviation(self) -> float:
        """The standard deviation of the area over the posterior, which knows nothing of seeds."""
        return self.surface.mean_deviation(self._points(self._mesh()))

    def _mesh(self) -> list[Cell]:
        return mesh_cells(self.region, self.along.name)


def surface_map(
    table: SweepTable,
    along: str | None = None,
    where: Mapping[str, Any] | None = None,
    rule: EdgeRule = STABLE,
    fills_grids: bool = False,
) -> SurfaceMap:
    """Fit a surface to the trials of ``where`` whose side is known.

    ``along`` is by default the axis of the search, or the first ordered one. With ``fills_grids`` the surface of a grid
    also covers what lies between its values on a range. Raises InputError for an unknown axis, one whose values have no
    order, and with too few trials.
    """
    part = table.where("--where", where or {})
    free = [axis for axis in table.axes if axis.name not in part.fixed]
    axes = tuple(as_range(axis) if fills_grids or not table.is_grid else axis for axis in free)
    chosen = _along(axes, along or part.edge_axis)
    runs = [run for run in part.runs if rule.of_trial(run) is not None]
    if not runs and isinstance(rule, LevelRule):
        raise InputError(rule.unknown())
    if len(runs) < _FEWEST:
        are = plural(len(runs), "is", "are")
        what = f"{count(len(runs), 'trial')} with an outcome {are} too few to fit a surface to"
        raise InputError(Problem(table.name, "", what, f"train at least {_FEWEST}"))
    lattice = lattice_of(axes, chosen.name, None)
    sides = _sides(runs, axes, rule)
    has_one_edge = _has_one_edge(table, sides, lattice)
    surface = _kept_surface(_outcomes(sides, lattice), lattice.layout, lattice.resolution, has_one_edge)
    reach = reached(axes, sides)
    return SurfaceMap(table.name, axes, chosen, rule, lattice, surface, len(sides), len(runs), reach, reach)


_kept_surface = lru_cache(maxsize=_KEPT)(surface_of)


def _along(axes: Sequence[Axis], name: str | None) -> Axis:
    if name is None:
        ordered = [axis for axis in axes if axis.ends is not None or is_ordered(axis.values)]
        name = (ordered or axes)[0].name if axes else ""
    axis = axis_named(name, axes, "--along")
    if axis.ends is None and not is_ordered(axis.values):
        raise InputError(Problem("--along", "", f"the values of {name} have no order", "choose another axis"))
    return axis


def _sides(runs: Iterable[TrialResult], axes: Sequence[Axis], rule: EdgeRule) -> dict[Cell, list[bool]]:
    """Whether the ``runs`` of each cell are inside the edge."""
    sides: dict[Cell, list[bool]] = {}
    for run in runs:
        sides.setdefault(run.cell.only(axis.name for axis in axes), []).append(rule.of_trial(run) is True)
    return sides


def _has_one_edge(table: SweepTable, sides: Mapping[Cell, Sequence[bool]], lattice: Lattice) -> bool | None:
    """Whether rows have one edge, by the cells that a search for an edge had spread; None if all cells may decide.

    Its later cells lie at supposed edges, and are no evidence of how many there are.
    """
    num_initial = table.num_initial
    if num_initial is None:
        return None
    names = [column.axis.name for column in lattice.columns]
    cells = list(dict.fromkeys(trial.cell for trial in table.trials))[:num_initial]
    initial = {cell: sides[cell] for cell in (cell.only(names) for cell in cells) if cell in sides}
    if 2 * len(initial) < num_initial:
        return True
    return _kept_surface(_outcomes(initial, lattice), lattice.layout, lattice.resolution).has_one_edge


def _outcomes(sides: Mapping[Cell, Sequence[bool]], lattice: Lattice) -> Outcomes:
    """The points of the cells, with their numbers of stable and of all runs."""
    return tuple((tuple(lattice.point(cell)), sum(of_cell), len(of_cell)) for cell, of_cell in sides.items())


def as_range(axis: Axis) -> Axis:
    """The axis without the values that were tried, if it has a range."""
    return Axis(axis.name, axis.scale, (), axis.ends, refined=axis.refined) if axis.ends is not None else axis


def mesh_cells(region: Sequence[Axis], along: str) -> list[Cell]:
    """Cells spread evenly over a region, on the axes' scales, with all values of lists; a random part of too many."""
    num_listed = math.prod(len(axis.values) for axis in region if axis.values)
    across = [axis.name for axis in region if not axis.values and axis.name != along]
    num_along = 1 if any(axis.name == along and axis.values for axis in region) else _ALONG
    num_along = _ALONG_ALONE if len(region) == 1 else num_along
    room = _MOST_POINTS / (num_along * num_listed)
    num_across = max(2, int(room ** (1 / len(across)))) if across else 1

    def even(axis: Axis) -> tuple[Any, ...]:
        num = num_across if axis.name in across else num_along
        return axis.values or tuple(axis.at((i + 0.5) / num) for i in range(num))

    cells = _product(region, even)
    if len(cells) <= _MOST_POINTS:
        return cells
    kept = np.random.default_rng(0).choice(len(cells), _MOST_POINTS, replace=False)
    return [cells[i] for i in kept]


def shown_settings(axes: Sequence[Axis]) -> list[Cell]:
    """The rows that are shown across ``axes``: all of a list's values, and a few of a range, at its grid's values."""
    num = _ROWS.get(sum(not axis.values for axis in axes), _FEW_ROWS)

    def shown(axis: Axis) -> tuple[Any, ...]:
        if len(axis.refined) > num:
            return tuple(axis.refined[round(i * (len(axis.refined) - 1) / (num - 1))] for i in range(num))
        return axis.values or axis.refined or tuple(shown_value(axis, i / (num - 1)) for i in range(num))

    return _product(axes, shown)


def _product(axes: Sequence[Axis], values_of: Callable[[Axis], Sequence[Any]]) -> list[Cell]:
    names = [axis.name for axis in axes]
    return [Cell(zip(names, values, strict=True)) for values in itertools.product(*map(values_of, axes))]


def shown_value(axis: Axis, unit: float) -> Any:
    """The value at a place of a range, rounded to what is shown of it, so that a row is where its label says."""
    value = axis.at(unit)
    rounded = float(axis_number(axis, float(value)))
    return rounded if axis.ends is not None and axis.ends[0] <= rounded <= axis.ends[1] else value


def value_text(axis: Axis, value: Any) -> str:
    """A value of an axis in words, of a list or between the ends of a range."""
    return value_label(axis, value) if axis.values else axis_number(axis, float(value))


def setting_text(setting: Mapping[str, Any], axes: Sequence[Axis]) -> str:
    """The values of a row's other axes in words."""
    by_name = {axis.name: axis for axis in axes}
    return " ".join(f"{name}={value_text(by_name[name], value)}" for name, value in setting.items()) or "all cells"

"""The edge of stability where cells are scattered: from a surface of P(stable) that is fitted to all trials."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from orchestrator.base.errors import InputError, Problem
from orchestrator.base.space import Axis, is_number, is_ordered, number_text
from orchestrator.base.trial_result import TrialResult
from orchestrator.base.vocabulary import is_known
from orchestrator.base.words import columns
from orchestrator.maps.axes import value_label
from orchestrator.maps.cell_map import CellMap
from orchestrator.maps.rule import STABLE, StableRule
from orchestrator.maps.table import SweepTable
from orchestrator.surface.lattice import Lattice, lattice_of
from orchestrator.surface.surface import CONFIDENCE, Crossing, Latent, Surface, fit_surface

LEVEL = 0.5  # the share of stable trials at the edge
_FEWEST = 8  # trials with an outcome
_PLACES = 257  # along a range
_ROWS = {1: 9, 2: 5}  # rows that are shown on a range across, by the number of such ranges
_FEW_ROWS = 3
_MESH = 81  # points on each axis of a picture
_DIGITS = 3


@dataclass(frozen=True, slots=True)
class FittedEdge:
    """Where a row crosses the level, with an interval of 95 %, in values of the axis along.

    ``at`` is None if the row may cross the level somewhere in the interval. An end is None if the interval
    reaches the end of the axis. ``is_stable_below`` says whether training is stable at the lower values.
    """

    at: float | None
    low: float | None
    high: float | None
    is_stable_below: bool


@dataclass(frozen=True, slots=True)
class FittedRow:
    """The edges of one row: ``setting`` has a value of each other axis. Without edges it is stable or not throughout.

    ``stable`` is P(stable) in the middle of the row.
    """

    setting: Mapping[str, Any]
    edges: tuple[FittedEdge, ...]
    stable: float


@dataclass(frozen=True)
class Fit:
    """A surface over ``axes``, fitted to ``num_trials`` trials in ``num_cells`` cells; edges lie along ``along``."""

    axes: tuple[Axis, ...]
    along: Axis
    lattice: Lattice
    surface: Surface
    num_cells: int
    num_trials: int
    level: float

    def row(self, setting: Mapping[str, Any]) -> FittedRow:
        """The edges of the row at ``setting``, which has a value of every other axis."""
        point = self._point({**setting, self.along.name: self._ends[0]})
        row_RD = np.array([point])
        edges = tuple(map(self._edge, self.surface.crossings(row_RD, self._places, self.level)[0]))
        row_RD[0, self.axes.index(self.along)] = 0.5
        return FittedRow(setting, edges, float(self.surface.latent(row_RD).probability()[0]))

    def rows(self) -> list[FittedRow]:
        """Rows over the other axes: all of a list's values, and a few even ones of a range."""
        return [self.row(setting) for setting in shown_settings([a for a in self.axes if a.name != self.along.name])]

    def latent(self, cells: Sequence[Mapping[str, Any]]) -> Latent:
        """The posterior of ``cells``, of any values within the axes."""
        return self.surface.latent(np.array([self._point(cell) for cell in cells]))

    def stable(self, cells: Sequence[Mapping[str, Any]]) -> np.ndarray:
        """P(stable) of ``cells``, of any values within the axes, (M,)."""
        return self.latent(cells).probability()

    @property
    def _ends(self) -> tuple[Any, Any]:
        return (
            (self.along.values[0], self.along.values[-1])
            if self.along.values
            else (self.along.at(0.0), self.along.at(1.0))
        )

    @property
    def _places(self) -> np.ndarray:
        num = len(self.along.values) or _PLACES
        return np.linspace(0.0, 1.0, max(num, 2))

    def _point(self, cell: Mapping[str, Any]) -> list[float]:
        return self.lattice.point(cell)

    def _edge(self, crossing: Crossing) -> FittedEdge:
        low, high = (self._value(place) for place in (crossing.low, crossing.high))
        at = None if crossing.at is None else self._value(crossing.at)
        return FittedEdge(at, low, high, is_stable_below=not crossing.rises)

    def _value(self, place: float) -> float | None:
        """The value at a place of the axis along; None beyond its ends."""
        if not 0 <= place <= 1:
            return None
        if not self.along.values:
            return float(self.along.at(place))
        at = place * (len(self.along.values) - 1)
        below, above = self.along.values[math.floor(at)], self.along.values[math.ceil(at)]
        return float(below + (at % 1) * (above - below)) if is_number(below) and is_number(above) else None


def fit(
    table: SweepTable,
    along: str | None = None,
    where: Mapping[str, Any] | None = None,
    level: float = LEVEL,
    rule: StableRule = STABLE,
    fills_grids: bool = False,
) -> Fit:
    """The surface fitted to the trials of ``where`` that have an outcome; ``along`` is by default the first axis.

    With ``counts_degraded`` degraded trials are not stable. With ``fills_grids`` the surface of a grid also has what
    lies between its values on a range. Raises InputError for an unknown axis, one whose values have no order, and with
    too few trials.
    """
    chosen_part = table.where("--where", where or {})
    is_filled = fills_grids or not table.is_grid
    free = [axis for axis in table.axes if axis.name not in chosen_part.fixed]
    axes = tuple(as_range(axis) if is_filled else axis for axis in free)
    chosen = along or next((axis.name for axis in axes), "")
    if chosen not in [axis.name for axis in axes]:
        known = ", ".join(axis.name for axis in axes) or "none"
        raise InputError(Problem("--along", "", f"{chosen!r} is not an axis that is free", f"axes: {known}"))
    axis = next(axis for axis in axes if axis.name == chosen)
    if axis.ends is None and not is_ordered(axis.values):
        raise InputError(Problem("--along", "", f"the values of {chosen} have no order", "choose another axis"))
    judged = [run for run in chosen_part.runs if is_known(run.label)]
    if len(judged) < _FEWEST:
        what = f"{len(judged)} trials with an outcome are too few to fit a surface to"
        raise InputError(Problem(table.name, "", what, f"train at least {_FEWEST}"))
    lattice = lattice_of(axes, chosen, None)
    points, stable, trials = _counts(judged, lattice, rule)
    has_one_edge = _has_one_edge(table, judged, lattice, rule)
    surface = fit_surface(points, stable, trials, lattice.layout, lattice.resolution, has_one_edge)
    return Fit(axes, axis, lattice, surface, len(points), len(judged), level)


@dataclass(frozen=True)
class Mesh:
    """The surface over two ranges. ``x_X`` and ``y_Y`` are places on the axes' scales; the others are (Y, X).

    ``stable_YX`` is P(stable), ``surely_YX`` how many times the level is left by the width of its 95 % interval: above
    1 a point is surely stable, below -1 surely not.
    """

    x_X: np.ndarray
    y_Y: np.ndarray
    stable_YX: np.ndarray
    surely_YX: np.ndarray


def fitted_mesh(
    table: SweepTable, x: str, y: str | None, where: Mapping[str, Any] | None = None, rule: StableRule = STABLE
) -> Mesh | None:
    """The surface over the ranges ``x`` and ``y``; None if there is none, as with too few trials or a third axis."""
    try:
        fitted = fit(table, x, where, rule=rule)
    except InputError:
        return None
    axes = {axis.name: axis for axis in fitted.axes}
    if y is None or set(axes) != {x, y} or any(axis.values for axis in axes.values()):
        return None
    return mesh_of(fitted, axes[x], axes[y])


def map_mesh(table: SweepTable, stability: CellMap, where: Mapping[str, Any] | None = None) -> Mesh | None:
    """Return the surface behind the points of a map of scattered cells; None for a grid, and as ``fitted_mesh``."""
    if stability.is_grid:
        return None
    chosen = {**(where or {}), **dict([stability.facet] if stability.facet else [])}
    y = None if stability.y is None else stability.y.name
    return fitted_mesh(table, stability.x.name, y, chosen, stability.rule)


def mesh_of(fitted: Fit, x: Axis, y: Axis) -> Mesh:
    """The surface over the ranges ``x`` and ``y``, which are the axes of the fit or their parts."""
    units = np.linspace(0, 1, _MESH)
    xs, ys = ([axis.at(unit) for unit in units] for axis in (x, y))
    latent = fitted.latent([{x.name: a, y.name: b} for b in ys for a in xs])
    level = math.log(fitted.level / (1 - fitted.level))
    return Mesh(
        np.array([x.position(value) for value in xs]),
        np.array([y.position(value) for value in ys]),
        latent.probability().reshape(_MESH, _MESH),
        ((latent.mean_M - level) / (CONFIDENCE * latent.sd_M)).reshape(_MESH, _MESH),
    )


def _has_one_edge(table: SweepTable, judged: Sequence[TrialResult], lattice: Lattice, rule: StableRule) -> bool | None:
    """Whether rows have one edge, by the cells that a search for an edge had spread; None if all cells may decide.

    Its later cells lie at edges that it supposed, and are no evidence of how many there are.
    """
    num_spread = table.num_spread
    if num_spread is None:
        return None
    cells = list(dict.fromkeys(trial.cell for trial in table.trials))
    first = {tuple(lattice.point(cell)) for cell in cells[:num_spread]}
    spread = [row for row in judged if tuple(lattice.point(row.cell)) in first]
    if 2 * len(spread) < num_spread:
        return True
    return fit_surface(*_counts(spread, lattice, rule), lattice.layout, lattice.resolution).has_one_edge


def _counts(
    rows: Sequence[TrialResult], lattice: Lattice, rule: StableRule
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Points of the cells, and their numbers of stable and of all trials."""
    found: dict[tuple[float, ...], list[float]] = {}
    for row in rows:
        counts = found.setdefault(tuple(lattice.point(row.cell)), [0.0, 0.0])
        counts[0] += not rule.is_over(row.label)
        counts[1] += 1
    counts_N2 = np.array(list(found.values()))
    return np.array(list(found)), counts_N2[:, 0], counts_N2[:, 1]


def as_range(axis: Axis) -> Axis:
    """The axis without the values that were tried, where it has a range."""
    return Axis(axis.name, axis.scale, (), axis.ends) if axis.ends is not None else axis


def shown_settings(axes: Sequence[Axis]) -> list[dict[str, Any]]:
    """The rows that are shown across ``axes``: all of a list's values, and a few even ones of a range."""
    num = _ROWS.get(sum(not axis.values for axis in axes), _FEW_ROWS)
    values = [axis.values or tuple(shown_value(axis, i / (num - 1)) for i in range(num)) for axis in axes]
    names = [axis.name for axis in axes]
    return [dict(zip(names, setting, strict=True)) for setting in itertools.product(*values)]


def shown_value(axis: Axis, unit: float) -> Any:
    """The value at a place of a range, rounded to what is shown of it, so that a row is where its label says."""
    value = axis.at(unit)
    rounded = float(axis_number(axis, float(value)))
    return rounded if axis.ends is not None and axis.ends[0] <= rounded <= axis.ends[1] else value


def fitted_lines(fitted: Fit) -> list[str]:
    """The edges in words, a line per row from the top of the map down."""
    rows = fitted.rows()
    names = [setting_text(row.setting, fitted.axes) for row in rows]
    return columns([(name, row_text(row, fitted)) for name, row in zip(names, rows, strict=True)][::-1])


def setting_text(setting: Mapping[str, Any], axes: Sequence[Axis]) -> str:
    """The values of a row's other axes."""
    of_name = {axis.name: axis for axis in axes}
    return " ".join(f"{name}={value_text(of_name[name], value)}" for name, value in setting.items()) or "all cells"


def value_text(axis: Axis, value: Any) -> str:
    """A value of an axis, of a list or between the ends of a range."""
    return value_label(axis, value) if axis.values else axis_number(axis, float(value))


def row_text(row: FittedRow, fitted: Fit) -> str:
    """The edges of one row in words."""
    if not row.edges:
        return "stable throughout" if row.stable > fitted.level else "not stable throughout"
    return "; ".join(_edge_text(edge, fitted.along) for edge in row.edges)


def _edge_text(edge: FittedEdge, axis: Axis) -> str:
    low = "below the axis" if edge.low is None else axis_number(axis, edge.low)
    high = "beyond the axis" if edge.high is None else axis_number(axis, edge.high)
    if edge.at is None:
        return f"an edge may lie at {axis.name} {low} .. {high}"
    side = "stable up to" if edge.is_stable_below else "stable from"
    return f"{side} {axis.name} {axis_number(axis, edge.at)} ({low} .. {high})"


def axis_number(axis: Axis, value: float) -> str:
    """A value with the digits that its place on the axis's scale has."""
    return number_text(value, _DIGITS) if axis.scale == "log1m" else f"{value:.{_DIGITS}g}"

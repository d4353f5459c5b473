"""Sweeps compared on what they share: how much of it is stable, where the edge moved, and how certain that is.

Grids are compared cell by cell. If the cells of a sweep are scattered, two sweeps hardly share any, and surfaces that
are fitted to them are compared on the region that all cover.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.base.errors import InputError, Problem
from orchestrator.base.intervals import holm, mean_interval
from orchestrator.base.measure import FINAL_LOSS
from orchestrator.base.space import Axis, Cell, is_ordered
from orchestrator.base.trial_result import TrialResult
from orchestrator.base.vocabulary import DEGRADED, is_known
from orchestrator.base.words import count
from orchestrator.maps.axes import led, ordered, together
from orchestrator.maps.cell_map import CellMap, check_two_axes, map_of_trials
from orchestrator.maps.chance import by_seed, tested
from orchestrator.maps.edges import STABLE, Edge, Interval, Row, StableRule
from orchestrator.maps.gains import Gains, Pairs, gains, paired
from orchestrator.maps.grid_map import GridMap
from orchestrator.maps.shared import changed_fields, shared_cells, shared_region, unique_names, with_cell_of
from orchestrator.maps.stability_map import Mesh, StabilityMap, mesh_of
from orchestrator.maps.surface_map import SurfaceMap, mesh_cells, surface_map
from orchestrator.maps.table import SweepTable, axis_named

Stable = Mapping[tuple[Cell, int], bool]  # by cell and seed


@dataclass(frozen=True, slots=True)
class Side:
    """One sweep of a comparison: its ``trials`` of shared cells, or all, and its map of what is shared.

    ``area`` is the stable share of that, and ``by_seed`` each seed's. The interval of 95 % is None with few seeds.
    ``deviation`` is the standard error of the fit behind it, 0 on grids.
    ``num_degraded`` of its compared cells are degraded, or of its trials. ``num_left_out`` of its cells are not shared.
    """

    name: str
    trials: tuple[TrialResult, ...]
    stability: StabilityMap
    area: float
    by_seed: Mapping[int, float]
    num_degraded: int
    num_left_out: int = 0
    deviation: float = 0.0

    @property
    def area_interval(self) -> Interval | None:
        """The area with its interval over seeds."""
        ends = mean_interval([*self.by_seed.values()], self.deviation)
        return None if ends is None else Interval(self.area, max(0.0, ends[0]), min(1.0, ends[1]))


@dataclass(frozen=True, slots=True)
class RowShift:
    """One row of two maps, and how its edge moved from ``before`` to ``after``.

    ``factor`` is above 1 if the edge moved up the axis (of 1 / (1 - value) on a log1m axis), None unless both rows have
    exactly one edge, on the same side.
    """

    before: Row
    after: Row
    factor: float | None = None


@dataclass(frozen=True, slots=True)
class Difference:
    """What changed from the first sweep to ``name``.

    ``p_value``, corrected for the number of differences, is of a test that permutes whole ``num_seeds`` seeds, those of
    both sweeps if ``is_paired``; so few cannot give less than ``least_p``. Both are None without two seeds. ``pairs``
    are trials of the same cell and seed, None without any. ``rows`` has all rows of the map, empty without an edge
    axis. On grids ``num_turned`` cells have all seeds stable in one sweep and none in the other, and ``gains`` is None
    without pairs and for another objective.
    """

    name: str
    area_change: float
    area_interval: Interval | None
    p_value: float | None
    least_p: float | None
    num_seeds: int
    is_paired: bool
    pairs: Pairs | None
    rows: tuple[RowShift, ...]
    num_turned: int = 0
    gains: Gains | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Sweeps on what they share over ``axes``; ``changed`` are the fields of the configuration that differ.

    The edge lies along ``edge_axis``, None if no axis is ordered. ``num_unknown`` of the ``num_cells`` shared cells of
    grids are not known in some sweep: they are drawn but not compared. If the sweeps are the values of an axis of one
    sweep, ``by`` is its name.
    """

    axes: tuple[Axis, ...]
    edge_axis: Axis | None
    sides: tuple[Side, ...]
    differences: tuple[Difference, ...]
    changed: Mapping[str, tuple[Any, ...]]
    rule: StableRule
    is_fitted: bool
    num_cells: int = 0
    num_unknown: int = 0
    by: str | None = None


def compare(tables: Sequence[SweepTable], x: str | None = None, rule: StableRule = STABLE) -> Comparison:
    """Compare each further sweep with the first; ``x`` is the axis of the edge, which ``rule`` defines.

    Raises InputError if the sweeps share nothing, for an unknown axis, and for too few scattered cells to fit a surface
    to.
    """
    found = (_on_cells if all(table.is_grid for table in tables) else _on_surfaces)(tables, x, rule)
    p_values = holm([new.p_value for new in found.differences])
    corrected = (replace(new, p_value=value) for new, value in zip(found.differences, p_values, strict=True))
    return replace(found, differences=tuple(corrected))


def _on_cells(tables: Sequence[SweepTable], x: str | None, rule: StableRule) -> Comparison:
    names = unique_names([table.name for table in tables])
    shared = shared_cells(tables, names)
    states = [table.states() for table in shared.tables]
    compared = tuple(cell for cell in shared.cells if all(is_known(of_sweep[cell]) for of_sweep in states))
    if not compared:
        what = f"share {count(len(shared.cells), 'cell')}, and none of them is known in all sweeps"
        remedy = "`sweep run NAME` trains missing seeds; a trial of fewer than ten losses has no outcome"
        raise InputError(Problem(", ".join(names), "", what, remedy))
    edge_axis = _edge_axis(shared.axes, x)
    along = None if edge_axis is None else edge_axis.name
    maps = [GridMap(table, rule, along, reduce=None, region=compared) for table in shared.tables]
    known = [_by_cell_and_seed(run for run in table.runs if run.cell in {*compared}) for table in shared.tables]
    stable = [_stable(trials) for trials in known]
    sides = tuple(
        Side(
            name=name,
            trials=stability.table.trials,
            stability=stability,
            area=stability.area(),
            by_seed=by_seed(of_trials),
            num_degraded=sum(of_sweep[cell] == DEGRADED for cell in compared),
            num_left_out=left_out,
        )
        for name, stability, of_trials, of_sweep, left_out in zip(
            names, maps, stable, states, shared.num_left_out, strict=True
        )
    )
    measures = {table.measure for table in tables if not table.measure.is_loss}
    # Sweeps that are compared by different scores, or by one and a loss, still share their losses.
    measure = (
        measures.pop() if len(measures) == 1 and not any(table.measure.is_loss for table in tables) else FINAL_LOSS
    )
    differences = []
    for i in range(1, len(sides)):
        train_the_same = sides[0].trials[0].objective == sides[i].trials[0].objective
        differences.append(
            replace(
                _difference(sides[0], sides[i], paired(stable[0], stable[i]), edge_axis),
                num_turned=_num_turned(stable[0], stable[i]),
                gains=gains(known[0], known[i], measure) if train_the_same else None,
            )
        )
    return Comparison(
        axes=shared.axes,
        edge_axis=edge_axis,
        sides=sides,
        differences=tuple(differences),
        changed=changed_fields(shared.tables, [axis.name for axis in shared.axes]),
        rule=rule,
        is_fitted=False,
        num_cells=len(shared.cells),
        num_unknown=len(shared.cells) - len(compared),
        by=common_axis(tables),
    )


def _on_surfaces(tables: Sequence[SweepTable], x: str | None, rule: StableRule) -> Comparison:
    names = unique_names([table.name for table in tables])
    region = shared_region(tables, names)
    along = _ordered_axis(names, region, x)
    sides = tuple(_fitted_side(name, table, region, along, rule) for name, table in zip(names, tables, strict=True))
    order = [axis.name for axis in region]
    stable = [_stable(_by_cell_and_seed([with_cell_of(run, order) for run in table.runs])) for table in tables]
    differences = [_difference(sides[0], sides[i], paired(stable[0], stable[i]), along) for i in range(1, len(sides))]
    changed = changed_fields(tables, order)
    return Comparison(region, along, sides, tuple(differences), changed, rule, is_fitted=True, by=common_axis(tables))


def _fitted_side(name: str, table: SweepTable, region: tuple[Axis, ...], along: Axis, rule: StableRule) -> Side:
    """One sweep, its edge by ``rule``, and its area by a surface of what is stable, which degraded trials are not."""
    num_degraded = sum(run.is_degraded for run in table.runs)
    surface = replace(surface_map(table, along.name, rule=rule, fills_grids=True), region=region)
    stable = surface
    if num_degraded and not rule.counts_degraded:
        stable = replace(surface_map(table, along.name, rule=StableRule(True), fills_grids=True), region=region)
    by_seed = _fitted_by_seed(stable, table.runs)
    return Side(name, table.runs, surface, stable.area(), by_seed, num_degraded, deviation=stable.area_deviation())


def _difference(first: Side, new: Side, pairs: Pairs | None, along: Axis | None) -> Difference:
    """What changed from the ``first`` side to another."""
    rows: tuple[RowShift, ...] = ()
    if along is not None:
        after = {row.setting: row for row in new.stability.rows()}
        rows = tuple(row_shift(row, after[row.setting], along) for row in first.stability.rows())
    change, fits = new.area - first.area, math.hypot(first.deviation, new.deviation)
    interval, p_value, least_p, num_seeds, is_paired = tested(first.by_seed, new.by_seed, change, fits)
    return Difference(new.name, change, interval, p_value, least_p, num_seeds, is_paired, pairs, rows)


def _fitted_by_seed(surface: SurfaceMap, runs: Iterable[TrialResult]) -> dict[int, float]:
    """The area in each seed: of the fit, moved by how much more of the seed's trials are stable than it expects.

    Trials near the edge tell more about it than trials elsewhere: a shift of the logit moves both by P (1 - P).
    """
    inside = [run for run in runs if run.is_judged and all(axis.has(run.cell[axis.name]) for axis in surface.region)]
    if not inside:
        return {}
    p_N = surface.probability([run.cell for run in inside])
    p_M = surface.probability(mesh_cells(surface.region, surface.along.name))
    scale = float((p_M * (1 - p_M)).mean() / (p_N * (1 - p_N)).mean())
    excess = {
        (run.cell, run.seed): float(p_M.mean()) + scale * ((surface.rule.of_trial(run) is True) - float(p))
        for run, p in zip(inside, p_N, strict=True)
    }
    return by_seed(excess)


def common_axis(tables: Sequence[SweepTable]) -> str | None:
    """The axis whose single values all ``tables`` are, or None for sweeps of their own."""
    axes = {table.along for table in tables}
    return axes.pop() if len(axes) == 1 else None


def _by_cell_and_seed(trials: Iterable[TrialResult]) -> dict[tuple[Cell, int], TrialResult]:
    return {(trial.cell, trial.seed): trial for trial in trials}


def _stable(trials: Mapping[tuple[Cell, int], TrialResult]) -> Stable:
    """Whether each trial with an outcome is stable."""
    return {place: trial.label == "stable" for place, trial in trials.items() if trial.is_judged}


def _num_turned(before: Stable, after: Stable) -> int:
    """Cells with all seeds stable in one of two sweeps and none in the other, with at least two seeds in each."""
    cells: list[dict[Cell, list[bool]]] = [{}, {}]
    for of_sweep, by_cell in zip((before, after), cells, strict=True):
        for (cell, _), stable in of_sweep.items():
            by_cell.setdefault(cell, []).append(stable)
    pairs = ((stable, cells[1][cell]) for cell, stable in cells[0].items() if cell in cells[1])
    return sum(min(len(a), len(b)) > 1 and len(set(a)) == len(set(b)) == 1 and a[0] != b[0] for a, b in pairs)


def _edge_axis(axes: Sequence[Axis], x: str | None) -> Axis | None:
    """The axis of the edge of grids: ``x``, or the first, if its values are ordered."""
    if x is not None:
        axis_named(x, axes, "--x")
    asked = [axis for axis in axes if (axis.name not in led(axes) if x is None else axis.name == x)]
    return next((axis for axis in asked if len(axis.values) > 1 and is_ordered(axis.values)), None)


def _ordered_axis(names: Sequence[str], region: Sequence[Axis], x: str | None) -> Axis:
    """The axis of the edge of surfaces: ``x``, or by default the first with an order and more than one value."""
    if x is not None:
        return axis_named(x, region, "--x")
    ordered = (axis for axis in region if not axis.values or (len(axis.values) > 1 and is_ordered(axis.values)))
    axis = next(ordered, None)
    if axis is None:
        known = ", ".join(axis.name for axis in region)
        message = f"none of {known} has values with an order, along which there would be an edge"
        raise InputError(Problem(", ".join(names), "axes", message, "compare grids, which need none"))
    return axis


def row_shift(before: Row, after: Row, axis: Axis) -> RowShift:
    """How the edge of a row moved along ``axis``."""
    first, new = (_single_edge(row) for row in (before, after))
    if first is None or new is None or first.is_stable_below != new.is_stable_below:
        return RowShift(before, after)
    assert first.at is not None
    assert new.at is not None
    if first.basis == "bracket":
        factor = axis.factor(first.at, new.at)
        return RowShift(before, after, factor if new.at >= first.at else 1 / factor)
    a, b = _place(axis, first.at), _place(axis, new.at)
    return RowShift(before, after, None if a is None or b is None else math.exp(b - a))


def _single_edge(row: Row) -> Edge | None:
    """The edge of a row that has exactly one, with a place on the axis."""
    return row.edges[0] if len(row.edges) == 1 and row.edges[0].at is not None else None


def _place(axis: Axis, value: float) -> float | None:
    """The logarithm of a value, or of 1 / (1 - value) on a log1m axis; None if it has none."""
    if axis.scale == "log1m":
        return -math.log(1 - value) if value < 1 else None
    return math.log(value) if value > 0 else None


def compared_maps(
    comparison: Comparison, x: str | None = None, y: str | None = None, reduce: str = "worst"
) -> list[CellMap]:
    """Map each sweep: the shared cells of grids, or all cells, over axes that span what any sweep covers.

    Raises InputError for an unknown axis or reduction.
    """
    axes = {axis.name: axis for axis in comparison.axes}
    if not comparison.is_fitted:
        wide = [name for name, axis in axes.items() if len(axis.values) > 1 and name not in led(axes.values())]
        x, y = _map_axes(axes, wide or list(axes), x, y)
        return [
            map_of_trials(side.trials, axes, x, y, reduce=reduce, name=side.name, rule=comparison.rule)
            for side in comparison.sides
        ]
    axes = {name: _joint(axis, _surfaces(comparison)) for name, axis in axes.items()}
    x, y = _map_axes(axes, list(axes), x, y)
    maps = []
    for side in comparison.sides:
        trials = [run for run in side.trials if all(axis.has(run.cell[name]) for name, axis in axes.items())]
        cells = map_of_trials(trials, axes, x, y, reduce=reduce, name=side.name, is_grid=False, rule=comparison.rule)
        xs = axes[x].values or cells.x_values  # ranks in lists are alike on all maps
        ys = (axes[y].values if y else (None,)) or cells.y_values
        maps.append(replace(cells, x_values=xs, y_values=ys))
    return maps


def _map_axes(axes: Mapping[str, Axis], wide: Sequence[str], x: str | None, y: str | None) -> tuple[str, str | None]:
    """The axes of the maps, by default the first of ``wide``. Raises InputError for an unknown axis, or one twice."""
    check_two_axes(axes.values(), x, y)
    x = x or next((name for name in wide if name not in together(axes, (y,))), wide[0])
    return x, y or next((name for name in wide if name not in together(axes, (x,))), None)


def _surfaces(comparison: Comparison) -> list[SurfaceMap]:
    return [side.stability for side in comparison.sides if isinstance(side.stability, SurfaceMap)]


def _joint(common: Axis, surfaces: Sequence[SurfaceMap]) -> Axis:
    """What any sweep covers of an axis: a range if one has a range, else all listed values."""
    axes = [axis for surface in surfaces for axis in surface.axes if axis.name == common.name]
    ranges = [axis for axis in axes if axis.ends is not None]
    if not ranges:
        values = dict.fromkeys(value for axis in axes for value in axis.values)
        return replace(axes[0], values=tuple(ordered(list(values))))
    ends = [axis.ends for axis in ranges if axis.ends is not None]
    return Axis(common.name, ranges[0].scale, (), (min(low for low, _ in ends), max(high for _, high in ends)))


@dataclass(frozen=True, slots=True)
class ComparedMeshes:
    """The surface of each sweep over two ranges, as a whole and over the region that all cover."""

    whole: tuple[Mesh, ...]
    common: tuple[Mesh, ...]


def compared_meshes(comparison: Comparison, x: str, y: str | None) -> ComparedMeshes | None:
    """The surfaces over ``x`` and ``y``, or None unless these are the only axes, and ranges in all sweeps."""
    region = {axis.name: axis for axis in comparison.axes}
    if y is None or set(region) != {x, y} or any(axis.values for axis in region.values()):
        return None
    whole, common = [], []
    for surface in _surfaces(comparison):
        own = {axis.name: replace(region[axis.name], ends=axis.ends) for axis in surface.axes}
        whole.append(mesh_of(surface, own[x], own[y]))
        common.append(mesh_of(surface, region[x], region[y]))
    return ComparedMeshes(tuple(whole), tuple(common))

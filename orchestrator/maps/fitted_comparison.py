"""Sweeps whose cells are scattered, compared on a surface fitted to each: the stable area of what all cover, and edges.

Letters of shapes: M points of the mesh, S draws.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import expit

from orchestrator.base.errors import InputError, Problem
from orchestrator.base.intervals import CONFIDENCE
from orchestrator.base.space import Axis, format_value, is_ordered
from orchestrator.base.trial_result import TrialResult
from orchestrator.base.words import listed
from orchestrator.maps.axes import ordered
from orchestrator.maps.cell_map import CellMap, map_of_trials
from orchestrator.maps.comparison import changed_fields, map_axes, stable_by_seed, unique_names
from orchestrator.maps.fitted import Fit, FittedEdge, FittedRow, Mesh, as_range, fit, mesh_of, shown_settings
from orchestrator.maps.paired_trials import Pairs, paired
from orchestrator.maps.rule import STABLE, StableRule
from orchestrator.maps.table import SweepTable, axis_named

_MOST_POINTS = 1500  # of the mesh, whose covariance is factored once for each sweep
_ALONG, _ALONG_ALONE = 65, 257  # points of the mesh on a range along, with other axes and without
_NUM_DRAWS = 1000
_JITTER = 1e-4  # added to variances of logits, so that rounding leaves the covariance positive
_SHOWN = 6  # values named in a message


@dataclass(frozen=True, slots=True)
class FittedSide:
    """One sweep of a comparison: its ``trials``, and the surface that is fitted to them.

    ``area`` is the mean of P(stable) over the region that all sweeps cover, with an interval of 95 % by the fit.
    ``num_degraded`` of its trials are degraded.
    """

    name: str
    trials: tuple[TrialResult, ...]
    fitted: Fit
    area: float
    area_interval: tuple[float, float]
    num_degraded: int


@dataclass(frozen=True, slots=True)
class RowShift:
    """One row of two surfaces, and how its edge moved from ``before`` to ``after``.

    ``factor`` is above 1 where the edge moved up the axis (of 1 / (1 - value) on a log1m axis), None unless both have
    exactly one edge, on the same side. ``low`` and ``high`` are the ends of an interval of 95 %, None if it has no
    end since that of an edge has none.
    """

    before: FittedRow
    after: FittedRow
    factor: float | None
    low: float | None
    high: float | None

    @property
    def has_moved(self) -> bool:
        """Whether the interval excludes that the edge is where it was."""
        return (self.low is not None and self.low > 1) or (self.high is not None and self.high < 1)


@dataclass(frozen=True, slots=True)
class FittedDifference:
    """What changed from the first sweep to ``name``; ``pairs`` are the trials of a cell and seed that both have."""

    name: str
    area_change: float
    area_interval: tuple[float, float]
    rows: tuple[RowShift, ...]
    pairs: Pairs | None


@dataclass(frozen=True, slots=True)
class FittedComparison:
    """Sweeps on the ``region`` that all cover; ``changed`` are the fields of the configuration that differ.

    Edges lie along ``along``. With ``counts_degraded`` degraded trials do not count as stable.
    """

    region: tuple[Axis, ...]
    along: Axis
    sides: tuple[FittedSide, ...]
    differences: tuple[FittedDifference, ...]
    changed: Mapping[str, tuple[Any, ...]]
    rule: StableRule


def compare_fitted(tables: Sequence[SweepTable], x: str | None = None, rule: StableRule = STABLE) -> FittedComparison:
    """Compare each further sweep with the first on surfaces fitted to their trials; ``x`` is the axis of the edge.

    With ``counts_degraded`` a degraded trial does not count as stable. Raises InputError where the sweeps have not the
    same axes or cover nothing in common, and as ``fit`` does.
    """
    names = unique_names([table.name for table in tables])
    axes_of = [{axis.name: axis for axis in table.axes} for table in tables]
    ties = [table.ties for table in tables]
    _check_axes(names, axes_of, ties)
    region = tuple(_common(names, [as_range(axes[name]) for axes in axes_of]) for name in axes_of[0])
    along = _along(names, region, x)
    fits = [fit(table, along.name, rule=rule, fills_grids=True) for table in tables]
    cells = mesh_cells(region, along.name)
    draws = [_areas(fitted, cells, i) for i, fitted in enumerate(fits)]
    rows_of = [table.runs for table in tables]
    sides = tuple(
        FittedSide(
            name, rows, fitted, float(fitted.stable(cells).mean()), _interval(drawn_S), sum(r.is_degraded for r in rows)
        )
        for name, rows, fitted, drawn_S in zip(names, rows_of, fits, draws, strict=True)
    )
    settings = shown_settings([axis for axis in region if axis.name != along.name])
    order = [axis.name for axis in region]
    outcomes = [stable_by_seed(rows, order, rule) for rows in rows_of]
    differences = tuple(
        FittedDifference(
            side.name,
            side.area - sides[0].area,
            _interval(draws[i] - draws[0]),
            tuple(row_shift(sides[0].fitted.row(setting), side.fitted.row(setting), along) for setting in settings),
            paired(outcomes[0], outcomes[i]),
        )
        for i, side in enumerate(sides)
        if i
    )
    return FittedComparison(region, along, sides, differences, changed_fields(rows_of, order, ties), rule)


def _check_axes(names: Sequence[str], axes_of: Sequence[Mapping[str, Axis]], ties: Sequence[Mapping[str, str]]) -> None:
    """Raises InputError unless surfaces over the axes of all sweeps can be compared."""
    for name, axes, tied in zip(names, axes_of, ties, strict=True):
        if set(axes) != set(axes_of[0]):
            found = f"has the axes {', '.join(axes) or 'none'}, and {names[0]} has {', '.join(axes_of[0]) or 'none'}"
            remedy = "scattered cells are compared between sweeps with the same axes: --drop an axis, or add it"
            raise InputError(Problem(name, "axes", found, remedy))
        for axis in axes.values():
            if axis.zipped or axis.when:
                found = "advances with another axis, or exists in some cells only, so no surface is fitted over it"
                raise InputError(Problem(name, axis.name, found, "compare sweeps without `zip` and `when`"))
            if tied.get(axis.name) != ties[0].get(axis.name):
                found = "is tied otherwise than in the first sweep, so its values do not mean the same"
                raise InputError(Problem(name, axis.name, found, "compare sweeps that tie it alike"))
    if not axes_of[0]:
        raise InputError(Problem(names[0], "axes", "there are none, so there is no map to compare", "add an axis"))


def _common(names: Sequence[str], axes: Sequence[Axis]) -> Axis:
    """The part of an axis that all sweeps cover: the listed values that all have, or the range within all ranges."""
    listed = next((axis for axis in axes if axis.values), None)
    if listed is not None:
        values = tuple(value for value in listed.values if all(axis.has(value) for axis in axes))
        if values:
            return replace(listed, values=values)
    else:
        ends = [axis.ends for axis in axes if axis.ends is not None]
        low, high = max(end[0] for end in ends), min(end[1] for end in ends)
        if low < high:
            return replace(axes[0], ends=(low, high))
    covered = "; ".join(f"{name}: {covered_text(axis)}" for name, axis in zip(names, axes, strict=True))
    found = f"the sweeps have no region of it in common ({covered})"
    raise InputError(Problem(", ".join(names), axes[0].name, found, "compare sweeps whose ranges overlap"))


def covered_text(axis: Axis) -> str:
    """The range or the values of an axis in words."""
    if axis.values or axis.ends is None:
        return listed(list(map(format_value, axis.values)), _SHOWN)
    return f"{format_value(axis.ends[0])} to {format_value(axis.ends[1])}"


def _along(names: Sequence[str], region: Sequence[Axis], x: str | None) -> Axis:
    """The axis of the edge: ``x``, or by default the first with an order and more than one value."""
    known = ", ".join(axis.name for axis in region)
    if x is not None:
        return axis_named(x, region, "--x")
    found = next(
        (axis for axis in region if not axis.values or (len(axis.values) > 1 and is_ordered(axis.values))), None
    )
    if found is None:
        message = f"none of {known} has values with an order, along which there would be an edge"
        raise InputError(Problem(", ".join(names), "axes", message, "compare grids, which need none"))
    return found


def mesh_cells(region: Sequence[Axis], along: str) -> list[dict[str, Any]]:
    """Cells spread evenly over a region, on the axes' scales, with all values of lists; a random part of too many."""
    num_listed = math.prod(len(axis.values) for axis in region if axis.values)
    across = [axis.name for axis in region if not axis.values and axis.name != along]
    num_along = 1 if any(axis.name == along and axis.values for axis in region) else _ALONG
    num_along = _ALONG_ALONE if len(region) == 1 else num_along
    room = _MOST_POINTS / (num_along * num_listed)
    num_across = max(2, int(room ** (1 / len(across)))) if across else 1
    values = []
    for axis in region:
        num = num_across if axis.name in across else num_along
        values.append(axis.values or tuple(axis.at((i + 0.5) / num) for i in range(num)))
    found = [dict(zip([axis.name for axis in region], cell, strict=True)) for cell in itertools.product(*values)]
    if len(found) <= _MOST_POINTS:
        return found
    kept = np.random.default_rng(0).choice(len(found), _MOST_POINTS, replace=False)
    return [found[i] for i in kept]


def _areas(fitted: Fit, cells: Sequence[Mapping[str, Any]], seed: int) -> np.ndarray:
    """The mean of P(stable) over ``cells`` in draws from the surface's posterior, (S,)."""
    latent = fitted.latent(cells)
    covariance_MM = fitted.surface.covariance(latent, latent)
    root_MM = np.linalg.cholesky(covariance_MM + _JITTER * np.eye(len(cells)))
    normal_MS = np.random.default_rng(seed).standard_normal((len(cells), _NUM_DRAWS))
    return np.asarray(expit(latent.mean_M[:, None] + root_MM @ normal_MS).mean(axis=0))


def _interval(draws_S: np.ndarray) -> tuple[float, float]:
    tail = 50 * (1 - CONFIDENCE)
    low, high = np.percentile(draws_S, [tail, 100 - tail])
    return float(low), float(high)


def row_shift(before: FittedRow, after: FittedRow, axis: Axis) -> RowShift:
    """How the edge of a row moved along ``axis``.

    The errors of the two edges are taken as independent, and each as normal on either side of the edge, as wide as the
    interval there: the formula of G. Y. Zou and A. Donner, Stat. Med. 27 (2008) 1693, for logarithms of values.
    """
    first, new = (_single_edge(row, axis) for row in (before, after))
    if first is None or new is None or first.is_stable_below != new.is_stable_below:
        return RowShift(before, after, None, None, None)
    a, b = _place(axis, first.at), _place(axis, new.at)
    if a is None or b is None:
        return RowShift(before, after, None, None, None)
    a_low, a_high, b_low, b_high = (_place(axis, end) for end in (first.low, first.high, new.low, new.high))
    low = None if a_high is None or b_low is None else math.exp(b - a - math.hypot(b - b_low, a_high - a))
    high = None if a_low is None or b_high is None else math.exp(b - a + math.hypot(b_high - b, a - a_low))
    return RowShift(before, after, math.exp(b - a), low, high)


def _single_edge(row: FittedRow, axis: Axis) -> FittedEdge | None:
    """The edge of a row that has exactly one."""
    return row.edges[0] if len(row.edges) == 1 and row.edges[0].at is not None else None


def _place(axis: Axis, value: float | None) -> float | None:
    """The logarithm of a value, or of 1 / (1 - value) on a log1m axis; None if there is none."""
    if value is None:
        return None
    if axis.scale == "log1m":
        return -math.log(1 - value) if value < 1 else None
    return math.log(value) if value > 0 else None


def fitted_maps(
    comparison: FittedComparison, x: str | None = None, y: str | None = None, reduce: str = "worst"
) -> list[CellMap]:
    """A map of the cells of each sweep; all have the same axes, which span what any sweep covers.

    Raises InputError for an unknown axis or reduction.
    """
    axes = {axis.name: _joint(axis, comparison.sides) for axis in comparison.region}
    x, y = map_axes(axes, list(axes), x, y)
    maps = []
    for side in comparison.sides:
        rows = [row for row in side.trials if all(axis.has(row.cell[name]) for name, axis in axes.items())]
        made = map_of_trials(rows, axes, x, y, reduce=reduce, name=side.name, is_grid=False, rule=comparison.rule)
        y_values = axes[y].values if y else (None,)
        xs, ys = axes[x].values or made.x_values, y_values or made.y_values  # ranks in lists are alike on all maps
        maps.append(replace(made, x_values=xs, y_values=ys, rule=comparison.rule))
    return maps


def _joint(common: Axis, sides: Sequence[FittedSide]) -> Axis:
    """What any sweep covers of an axis: a range where one has a range, else all listed values."""
    axes = [axis for side in sides for axis in side.fitted.axes if axis.name == common.name]
    ranges = [axis for axis in axes if axis.ends is not None]
    if not ranges:
        values = dict.fromkeys(value for axis in axes for value in axis.values)
        return replace(axes[0], values=tuple(ordered(list(values))))
    ends = [axis.ends for axis in ranges if axis.ends is not None]
    return Axis(common.name, ranges[0].scale, (), (min(low for low, _ in ends), max(high for _, high in ends)))


@dataclass(frozen=True, slots=True)
class FittedMeshes:
    """What is drawn behind the points of two ranges: the surface of each sweep, and each over the common region."""

    whole: tuple[Mesh, ...]
    common: tuple[Mesh, ...]


def fitted_meshes(comparison: FittedComparison, x: str, y: str | None) -> FittedMeshes | None:
    """The surfaces over ``x`` and ``y``; None unless these are the only axes, and ranges in all sweeps."""
    region = {axis.name: axis for axis in comparison.region}
    if y is None or set(region) != {x, y} or any(axis.values for axis in region.values()):
        return None
    whole, common = [], []
    for side in comparison.sides:
        own = {axis.name: replace(region[axis.name], ends=axis.ends) for axis in side.fitted.axes}
        whole.append(mesh_of(side.fitted, own[x], own[y]))
        common.append(mesh_of(side.fitted, region[x], region[y]))
    return FittedMeshes(tuple(whole), tuple(common))

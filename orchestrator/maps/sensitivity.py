"""Learning-rate sensitivity: what a wrong learning rate costs at each setting of the other axes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import numpy as np

from orchestrator.base.errors import InputError, Problem
from orchestrator.base.measure import Measure
from orchestrator.base.space import Axis, Cell, format_value, is_number, is_ordered
from orchestrator.base.trial_result import TrialResult
from orchestrator.base.words import count
from orchestrator.maps.axes import existing
from orchestrator.maps.table import SweepTable, usual_measure

_PLACES = 129  # on a range
_SMOOTHING = 1e-3
_NEAREST = 200  # cells between which a loss is interpolated: the cost grows with the third power of their number
_FEWEST = 8  # cells with a loss for each setting of names
_PARTS, _FEWEST_IN_PART = 8, 4  # of a range


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """The sensitivity of one setting in units of the loss, and the learning rate of lowest loss.

    On a grid ``value`` is the median of ``by_seed``; seeds without a loss at some learning rate are left out, and
    without any seed value and ``best`` are None.
    """

    setting: Cell
    value: float | None
    best: float | None
    by_seed: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sensitivities:
    """The sensitivities over ``axis``, from ``low`` to ``high``, by what settings are compared by: ``measure``.

    On a grid they are over ``num_values`` tried values. If cells are scattered, they are of the settings that are
    shown, and interpolated between ``num_cells`` cells; ``sparse`` are the parts of the range in which few cells lie:
    their ends and numbers of cells.
    """

    axis: Axis
    axes: tuple[Axis, ...]
    low: float
    high: float
    measure: Measure
    settings: tuple[Sensitivity, ...]
    num_values: int | None = None
    num_cells: int | None = None
    sparse: tuple[tuple[float, float, int], ...] = ()


def lr_sensitivity(table: SweepTable, name: str = "lr", between: tuple[float, float] | None = None) -> Sensitivities:
    """E over the learning rates of min(l(lr), l0) - l*, for every setting of the other axes.

    l is the final loss, l* its minimum over the learning rates and l0 the loss at initialisation, so that a diverged
    run costs as much as one that never trained (Wortsman et al. 2023, arXiv 2309.14322, section 2). The expectation is
    uniform on the axis's scale: over the tried values of a grid, and over the range if cells are scattered. ``between``
    are the ends of the part that counts, also for the minimum. Raises InputError if the sweep has no such axis of
    numbers, or too little lies in the part, or has a loss.
    """
    return sensitivity_of_values(table, name, between) if table.is_grid else _of_range(table, name, between)


def capped_cost(trial: TrialResult, measure: Measure) -> float | None:
    """The final loss, at most the loss at initialisation, which also replaces a loss that is not finite.

    The same of the cost of a score. None if neither is finite: such a run has nothing to compare.
    """
    ends = measure.final_cost(trial), measure.initial_cost(trial)
    return min((value for value in ends if value is not None), default=None)


def range_text(between: tuple[float, float]) -> str:
    """A range as it is written on the command line."""
    return ":".join(map(format_value, between))


# --- of a grid ---------------------------------------------------------------------------------------------


def sensitivity_of_values(
    table: SweepTable, name: str = "lr", between: tuple[float, float] | None = None
) -> Sensitivities:
    """``lr_sensitivity`` over the values that were tried, on each seed."""
    axes = {axis.name: axis for axis in table.axes}
    values = existing(axes[name], axes[name].values) if name in axes else ()
    if len(values) < 2 or not is_ordered(values) or None in values:
        remedy = f"axes: {', '.join(axes) or 'none'}"
        raise InputError(Problem(table.name, "", f"{name!r} is not an axis of two numbers or more", remedy))
    values = _within(values, between, name)
    judged = [trial for trial in table.trials if trial.is_judged and trial.cell[name] in values]
    along = {name, *axes[name].zipped}
    measure = usual_measure(judged, table.facts)
    trials: dict[Cell, dict[int, dict[Any, TrialResult]]] = {}
    for trial in judged:
        by_seed = trials.setdefault(trial.cell.without(along), {})
        by_seed.setdefault(trial.seed, {})[trial.cell[name]] = trial
    settings = tuple(_of_seeds(setting, by_seed, values, measure) for setting, by_seed in trials.items())
    return Sensitivities(axes[name], table.axes, min(values), max(values), measure, settings, num_values=len(values))


def _within(values: Sequence[float], between: tuple[float, float] | None, name: str) -> tuple[float, ...]:
    """The values in the part, or all."""
    if between is None:
        return tuple(values)
    inside = tuple(value for value in values if between[0] <= value <= between[1])
    if len(inside) < 2:
        what = f"{len(inside)} of the tried values of {name} lie in it, and two are needed"
        tried = f"tried: {format_value(values[0])} to {format_value(values[-1])}"
        raise InputError(Problem(f"--range {range_text(between)}", "", what, tried))
    return inside


def _of_seeds(
    setting: Cell, trials: Mapping[int, Mapping[Any, TrialResult]], values: Sequence[float], measure: Measure
) -> Sensitivity:
    losses = {
        seed: [capped_cost(by_value[value], measure) if value in by_value else None for value in values]
        for seed, by_value in sorted(trials.items())
    }
    known = {seed: [value for value in of_seed if value is not None] for seed, of_seed in losses.items()}
    complete = {seed: of_seed for seed, of_seed in known.items() if len(of_seed) == len(values)}
    if not complete:
        return Sensitivity(setting, None, None)
    by_seed = {seed: math.fsum(of_seed) / len(of_seed) - min(of_seed) for seed, of_seed in complete.items()}
    middle = [median(of_value) for of_value in zip(*complete.values(), strict=True)]
    return Sensitivity(setting, median(by_seed.values()), values[middle.index(min(middle))], by_seed)


# --- of scattered cells --------------------------------------------------------------------------------------


def _of_range(table: SweepTable, name: str, between: tuple[float, float] | None) -> Sensitivities:
    """``lr_sensitivity`` over a range, at settings that may lie between the cells.

    The logarithm of the capped loss, or a score itself, is interpolated between the nearest cells, linearly in the
    distance on the axes' scales.
    """
    from orchestrator.maps.surface_map import as_range, shown_settings  # imports SciPy, which grids do without

    axes = {axis.name: as_range(axis) for axis in table.axes}
    if name not in axes or axes[name].values:
        remedy = f"axes: {', '.join(axes) or 'none'}"
        raise InputError(Problem(table.name, "", f"{name!r} is not a range of numbers", remedy))
    low, high = _part(axes[name], between)
    trials = [trial for trial in table.trials if trial.is_judged]
    measure = usual_measure(trials, table.facts)
    losses: dict[Cell, list[float]] = {}
    for trial in trials:
        if (capped := capped_cost(trial, measure)) is not None and (capped > 0 or not measure.is_loss):
            losses.setdefault(trial.cell, []).append(capped)
    cells = {cell: median(of_cell) for cell, of_cell in losses.items()}
    others = [axis for axis in axes.values() if axis.name != name]
    is_log, shown = measure.is_loss, shown_settings(others)
    settings = tuple(_interpolated(Cell(other), axes, name, (low, high), cells, is_log) for other in shown)
    inside = [cell[name] for cell in cells if low <= cell[name] <= high]
    sparse = tuple(_sparse_parts(replace(axes[name], ends=(low, high)), inside))
    return Sensitivities(
        axes[name], tuple(axes.values()), low, high, measure, settings, num_cells=len(cells), sparse=sparse
    )


def _part(axis: Axis, between: tuple[float, float] | None) -> tuple[float, float]:
    """The ends of a part of the range of ``axis``, or of all."""
    first, last = float(axis.at(0.0)), float(axis.at(1.0))
    if between is None:
        return first, last
    low, high = max(first, between[0]), min(last, between[1])
    if low >= high:
        what = f"{axis.name} was trained from {format_value(first)} to {format_value(last)}"
        raise InputError(Problem(f"--range {range_text(between)}", "", what, "choose a part of that"))
    return low, high


def _sparse_parts(axis: Axis, values: Sequence[float]) -> Iterator[tuple[float, float, int]]:
    """Where few cells lie, so that the loss is that of cells far away; neighbouring parts of a range are one."""
    count_P, edge_P = np.histogram([axis.unit(value) for value in values], _PARTS, (0.0, 1.0))
    for is_sparse, parts in itertools.groupby(range(_PARTS), lambda part: count_P[part] < _FEWEST_IN_PART):
        if is_sparse:
            chosen = list(parts)
            first, last = chosen[0], chosen[-1]
            low, high = (float(axis.at(float(edge_P[edge]))) for edge in (first, last + 1))
            yield low, high, int(count_P[first : last + 1].sum())


def _interpolated(
    setting: Cell,
    axes: Mapping[str, Axis],
    name: str,
    part: tuple[float, float],
    cells: Mapping[Cell, float],
    is_log: bool,
) -> Sensitivity:
    from scipy.interpolate import RBFInterpolator

    from orchestrator.maps.surface_map import setting_text

    named = [axis for axis in axes if not all(map(is_number, axes[axis].values))]
    ranges = [axes[axis] for axis in axes if axis not in named]
    same = [(cell, loss) for cell, loss in cells.items() if cell.only(named) == setting.only(named)]
    if len(same) < _FEWEST:
        what = f"{count(len(same), 'cell')} with a loss: too few at {setting_text(setting, tuple(axes.values()))}"
        raise InputError(Problem(name, "", what, f"train at least {_FEWEST}"))
    first, last = (axes[name].unit(end) for end in part)
    units = np.linspace(first, last, _PLACES)
    points_ND = np.array([[_unit(axis, cell[axis.name]) for axis in ranges] for cell, _ in same])
    loss_N = np.array([loss for _, loss in same])
    value_N = np.log(loss_N) if is_log else loss_N
    surface = RBFInterpolator(points_ND, value_N, neighbors=_NEAREST, kernel="linear", smoothing=_SMOOTHING)
    line_LD = np.array(
        [[unit if axis.name == name else _unit(axis, setting[axis.name]) for axis in ranges] for unit in units]
    )
    value_L = np.clip(surface(line_LD), value_N.min(), value_N.max())
    loss_L = np.exp(value_L) if is_log else value_L
    value = float(np.trapezoid(loss_L, dx=1 / (_PLACES - 1)) - loss_L.min())
    return Sensitivity(setting, value, float(axes[name].at(float(units[loss_L.argmin()]))))


def _unit(axis: Axis, value: Any) -> float:
    if not axis.values:
        return axis.unit(value)
    return axis.values.index(value) / max(1, len(axis.values) - 1)

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
from orchestrator.base.space import Axis, Cell, format_value, is_number, is_ordered
from orchestrator.base.trial_result import TrialResult
from orchestrator.maps.axes import existing
from orchestrator.maps.surface_map import as_range, setting_text, shown_settings
from orchestrator.maps.table import SweepTable, usual_loss

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
    """The sensitivities over ``axis``, from ``low`` to ``high``, by ``loss``: of validation, or else of training.

    On a grid they are over ``num_values`` tried values. If cells are scattered, they are of the settings that are
    shown, and interpolated between ``num_cells`` cells; ``sparse`` are the parts of the range in which few cells lie:
    their ends and numbers of cells.
    """

    axis: Axis
    axes: tuple[Axis, ...]
    low: float
    high: float
    loss: str
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
    numbers, or too little of it is in the part, or has a loss.
    """
    return sensitivity_of_values(table, name, between) if table.is_grid else _of_range(table, name, between)


def capped_loss(trial: TrialResult, loss: str) -> float | None:
    """The final loss, at most the loss at initialisation, which also replaces a loss that is not finite.

    None if neither is finite: such a run has no loss to compare.
    """
    final = getattr(trial, loss) if getattr(trial, loss) is not None else trial.final_loss
    return min((value for value in (final, trial.initial_loss) if value is not None), default=None)


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
    loss = usual_loss(judged)
    trials: dict[Cell, dict[int, dict[Any, TrialResult]]] = {}
    for trial in judged:
        by_seed = trials.setdefault(trial.cell.without(along), {})
        by_seed.setdefault(trial.seed, {})[trial.cell[name]] = trial
    settings = tuple(_of_seeds(setting, by_seed, values, loss) for setting, by_seed in trials.items())
    return Sensitivities(axes[name], table.axes, min(values), max(values), loss, settings, num_values=len(values))


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
    setting: Cell, trials: Mapping[int, Mapping[Any, TrialResult]], values: Sequence[float], loss: str
) -> Sensitivity:
    losses = {
        seed: [capped_loss(by_value[value], loss) if value in by_value else None for value in values]
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

    The logarithm of the capped loss is interpolated between the nearest cells, linearly in the distance on the axes'
    scales.
    """
    axes = {axis.name: as_range(axis) for axis in table.axes}
    if name not in axes or axes[name].values:
        remedy = f"axes: {', '.join(axes) or 'none'}"
        raise InputError(Problem(table.name, "", f"{name!r} is not a range of numbers", remedy))
    low, high = _part(axes[name], between)
    trials = [trial for trial in table.trials if trial.is_judged]
    loss = usual_loss(trials)
    losses: dict[Cell, list[float]] = {}
    for trial in trials:
        if (capped := capped_loss(trial, loss)) is not None and capped > 0:
            losses.setdefault(trial.cell, []).append(capped)
    cells = {cell: median(of_cell) for cell, of_cell in losses.items()}
    others = [axis for axis in axes.values() if axis.name != name]
    settings = tuple(_interpolated(Cell(other), axes, name, (low, high), cells) for other in shown_settings(others))
    inside = [cell[name] for cell in cells if low <= cell[name] <= high]
    sparse = tuple(_sparse_parts(replace(axes[name], ends=(low, high)), inside))
    return Sensitivities(
        axes[name], tuple(axes.values()), low, high, loss, settings, num_cells=len(cells), sparse=sparse
    )


def _part(axis: Axis, between: tuple[float, float] | None) -> tuple[float, float]:
    """The ends of a part of the range of ``axis``, or of all of it."""
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
    setting: Cell, axes: Mapping[str, Axis], name: str, part: tuple[float, float], cells: Mapping[Cell, float]
) -> Sensitivity:
    from scipy.interpolate import RBFInterpolator

    named = [axis for axis in axes if not all(map(is_number, axes[axis].values))]
    ranges = [axes[axis] for axis in axes if axis not in named]
    same = [(cell, loss) for cell, loss in cells.items() if cell.only(named) == setting.only(named)]
    if len(same) < _FEWEST:
        what = f"{len(same)} cells with a loss are too few at {setting_text(setting, tuple(axes.values()))}"
        raise InputError(Problem(name, "", what, f"train at least {_FEWEST}"))
    first, last = (axes[name].unit(end) for end in part)
    units = np.linspace(first, last, _PLACES)
    points_ND = np.array([[_unit(axis, cell[axis.name]) for axis in ranges] for cell, _ in same])
    log_loss_N = np.log([loss for _, loss in same])
    surface = RBFInterpolator(points_ND, log_loss_N, neighbors=_NEAREST, kernel="linear", smoothing=_SMOOTHING)
    line_LD = np.array(
        [[unit if axis.name == name else _unit(axis, setting[axis.name]) for axis in ranges] for unit in units]
    )
    loss_L = np.exp(np.clip(surface(line_LD), log_loss_N.min(), log_loss_N.max()))
    value = float(np.trapezoid(loss_L, dx=1 / (_PLACES - 1)) - loss_L.min())
    return Sensitivity(setting, value, float(axes[name].at(float(units[loss_L.argmin()]))))


def _unit(axis: Axis, value: Any) -> float:
    if not axis.values:
        return axis.unit(value)
    return axis.values.index(value) / max(1, len(axis.values) - 1)

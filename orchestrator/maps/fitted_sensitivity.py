"""Learning-rate sensitivity where cells are scattered: by a surface of the loss."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np

from orchestrator.base.errors import InputError, Problem
from orchestrator.base.space import Axis, Cell, format_value, is_number
from orchestrator.maps.fitted import as_range, setting_text, shown_settings
from orchestrator.maps.sensitivity import capped_loss, range_text
from orchestrator.maps.table import SweepTable, usual_loss

_PLACES = 129  # on the axis
_SMOOTHING = 1e-3
_FEWEST = 8  # cells with a loss for each setting of words
_PARTS, _FEWEST_IN_PART = 8, 4  # of the range


@dataclass(frozen=True, slots=True)
class FittedSensitivity:
    """The sensitivity of one setting in units of the loss, and the learning rate of lowest loss."""

    setting: Mapping[str, Any]
    value: float
    best: float


@dataclass(frozen=True, slots=True)
class FittedSensitivities:
    """The sensitivities over ``axis``, from ``low`` to ``high``, of the settings that are shown.

    They are of the ``loss`` of ``num_cells`` cells. ``sparse`` are the parts of the range in which few cells lie: their
    ends and the number of cells.
    """

    axis: Axis
    low: float
    high: float
    axes: tuple[Axis, ...]
    of_setting: tuple[FittedSensitivity, ...]
    loss: str
    num_cells: int
    sparse: tuple[tuple[float, float, int], ...]


def fitted_lr_sensitivity(
    table: SweepTable, name: str = "lr", between: tuple[float, float] | None = None
) -> FittedSensitivities:
    """``lr_sensitivity`` over the range of an axis, or its part ``between`` two values.

    Settings of the other axes may lie between the cells that were trained.

    The logarithm of the capped loss is interpolated between the cells, linearly in the distance on the axes' scales.
    Raises InputError where the sweep has no such range, and where a setting of words has too few cells.
    """
    axes = {axis.name: as_range(axis) for axis in table.axes}
    if name not in axes or axes[name].values:
        remedy = f"axes: {', '.join(axes) or 'none'}"
        raise InputError(Problem(table.name, "", f"{name!r} is no range of numbers", remedy))
    low, high = _part(axes[name], between)
    trials = [trial for trial in table.trials if trial.is_judged]
    loss = usual_loss(trials)
    losses: dict[Cell, list[float]] = {}
    for trial in trials:
        if (capped := capped_loss(trial, loss)) is not None and capped > 0:
            losses.setdefault(trial.cell, []).append(capped)
    cells = [(cell, median(of_cell)) for cell, of_cell in losses.items()]
    others = [axis for axis in axes.values() if axis.name != name]
    of_setting = tuple(_of_setting(setting, axes, name, (low, high), cells) for setting in shown_settings(others))
    counted = [cell[name] for cell, _ in cells if low <= cell[name] <= high]
    sparse = tuple(_sparse_parts(replace(axes[name], ends=(low, high)), counted))
    return FittedSensitivities(axes[name], low, high, tuple(axes.values()), of_setting, loss, len(cells), sparse)


def _part(axis: Axis, between: tuple[float, float] | None) -> tuple[float, float]:
    """The part of the range of ``axis`` between two values; all of it without them."""
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


def _of_setting(
    setting: Mapping[str, Any],
    axes: Mapping[str, Axis],
    name: str,
    part: tuple[float, float],
    cells: Sequence[tuple[Mapping[str, Any], float]],
) -> FittedSensitivity:
    from scipy.interpolate import RBFInterpolator

    words = [axis for axis in axes if not all(map(is_number, axes[axis].values))]
    ranges = [axes[axis] for axis in axes if axis not in words]
    same = [(cell, loss) for cell, loss in cells if all(cell[word] == setting[word] for word in words)]
    if len(same) < _FEWEST:
        what = f"{len(same)} cells with a loss are too few at {setting_text(setting, tuple(axes.values()))}"
        raise InputError(Problem(name, "", what, f"train at least {_FEWEST}"))
    first, last = (axes[name].unit(end) for end in part)
    units = np.linspace(first, last, _PLACES)
    points_ND = np.array([[_unit(axis, cell[axis.name]) for axis in ranges] for cell, _ in same])
    log_loss_N = np.log([loss for _, loss in same])
    surface = RBFInterpolator(points_ND, log_loss_N, kernel="linear", smoothing=_SMOOTHING)
    line_LD = np.array(
        [[unit if axis.name == name else _unit(axis, setting[axis.name]) for axis in ranges] for unit in units]
    )
    loss_L = np.exp(np.clip(surface(line_LD), log_loss_N.min(), log_loss_N.max()))
    value = float(np.trapezoid(loss_L, dx=1 / (_PLACES - 1)) - loss_L.min())
    return FittedSensitivity(setting, value, float(axes[name].at(float(units[loss_L.argmin()]))))


def _unit(axis: Axis, value: Any) -> float:
    if not axis.values:
        return axis.unit(value)
    return axis.values.index(value) / max(1, len(axis.values) - 1)

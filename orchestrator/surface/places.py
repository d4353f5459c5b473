"""The cells that a search may propose, as points of the unit cube: the grid's cells, or those of a fine grid."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from orchestrator.base.space import Axis, is_ordered
from orchestrator.surface.kernel import Layout
from orchestrator.surface.surface import RESOLUTION

MOST_CANDIDATES = 4096
_FEWEST_ALONG, _MOST_ALONG = 65, 257  # values on an axis along that is a range
_ACROSS = {1: 65, 2: 33, 3: 17}  # values on each other range, by their number
_CLOSE_ENOUGH = 1 / 8  # of the distance of neighbours: how far a value may be rounded


@dataclass(frozen=True, slots=True)
class Places:
    """The values of one axis in the order of their places in [0, 1]; of a category, indices instead of places."""

    axis: Axis
    values: tuple[Any, ...]
    units: tuple[float, ...]
    is_categorical: bool
    is_given: bool  # the values are those of a grid, so there is nothing between them

    def place(self, value: Any) -> float:
        """Where ``value`` is, whether or not it is one of the values. Raises ValueError where it must be one."""
        if self.axis.ends is None:
            return self.units[self.values.index(value)]
        return self.axis.unit(value)


@dataclass(frozen=True)
class Lattice:
    """All cells that a search may propose. The axis ``along`` is a column of their points, or None."""

    columns: tuple[Places, ...]
    along: int | None

    @property
    def layout(self) -> Layout:
        """The columns of the points."""
        return Layout(tuple(column.is_categorical for column in self.columns), self.along)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The number of values of each axis."""
        return tuple(len(column.values) for column in self.columns)

    @property
    def num_cells(self) -> int:
        """The number of all cells."""
        return math.prod(self.sizes)

    @property
    def resolution(self) -> float:
        """The distance of neighbours along the axis, as a part of it."""
        if self.along is None:
            return RESOLUTION
        units = self.columns[self.along].units
        return (units[-1] - units[0]) / max(1, len(units) - 1) or RESOLUTION

    def points(self, cells_CD: np.ndarray) -> np.ndarray:
        """The points of cells that are given as indices of values, (C, D)."""
        columns = [np.array(column.units)[cells_CD[:, i]] for i, column in enumerate(self.columns)]
        return np.column_stack(columns)

    def cell(self, indices: Sequence[int]) -> dict[str, Any]:
        """The cell of indices of values."""
        return {c.axis.name: c.values[i] for c, i in zip(self.columns, indices, strict=True)}

    def indices(self, cell: Mapping[str, Any]) -> tuple[int, ...] | None:
        """The indices of a cell's values; None where one is not among them."""
        found = []
        for column, where in zip(self.columns, self._where, strict=True):
            index = where.get(cell[column.axis.name])
            if index is None:
                return None
            found.append(index)
        return tuple(found)

    def point(self, cell: Mapping[str, Any]) -> list[float]:
        """The point of any cell. Raises ValueError for a value that is not on its list."""
        indices = self.indices(cell)
        if indices is not None:
            return [column.units[i] for column, i in zip(self.columns, indices, strict=True)]
        return [column.place(cell[column.axis.name]) for column in self.columns]

    def candidates(self, random: np.random.Generator) -> np.ndarray:
        """All cells as indices, (C, D), or whole rows along the axis of a random part of them."""
        return self._rows_of(random, self.sizes[self.along] if self.along is not None else 1, MOST_CANDIDATES, True)

    def rows(self, random: np.random.Generator, most: int) -> np.ndarray:
        """One cell of each row along the axis, or of a random ``most`` of them, as indices (R, D)."""
        return self._rows_of(random, 1, most, False)

    def _rows_of(self, random: np.random.Generator, length: int, most: int, is_whole: bool) -> np.ndarray:
        sizes = [1 if i == self.along else size for i, size in enumerate(self.sizes)]
        num_rows = math.prod(sizes)
        chosen = np.arange(num_rows)
        if num_rows * length > most:
            chosen = np.sort(random.choice(num_rows, size=max(1, most // length), replace=False))
        rows_RD = np.column_stack(np.unravel_index(chosen, sizes))
        if not is_whole or self.along is None:
            return rows_RD
        cells_CD = np.repeat(rows_RD, length, axis=0)
        cells_CD[:, self.along] = np.tile(np.arange(length), len(rows_RD))
        return cells_CD

    @cached_property
    def _where(self) -> tuple[dict[Any, int], ...]:
        return tuple({value: i for i, value in enumerate(column.values)} for column in self.columns)


def lattice_of(axes: Sequence[Axis], along: str | None, precision: float | None) -> Lattice:
    """The cells of ``axes``: those of their values, and of a fine grid of rounded values on a range without any.

    On a range along, neighbours are at most half of ``precision`` (a factor) from each other where that takes no more
    than 257 values. Raises ValueError where ``along`` names no axis, or one whose values have no order.
    """
    names = [axis.name for axis in axes]
    column = None if along is None else names.index(along)
    num_across = sum(not axis.values for axis in axes if axis.name != along)
    columns = []
    for axis in axes:
        if axis.values:
            columns.append(_given(axis))
        else:
            num = _num_along(axis, precision) if axis.name == along else _ACROSS.get(num_across, min(_ACROSS.values()))
            columns.append(_fine(axis, num))
    if column is not None and columns[column].is_categorical:
        raise ValueError(f"the values of {along} have no order")
    return Lattice(tuple(columns), column)


def _given(axis: Axis) -> Places:
    if axis.ends is None and not is_ordered(axis.values):
        return Places(axis, axis.values, tuple(map(float, range(len(axis.values)))), True, True)
    if axis.ends is None:
        steps = max(1, len(axis.values) - 1)
        return Places(axis, axis.values, tuple(i / steps for i in range(len(axis.values))), False, True)
    by_place = sorted(axis.values, key=axis.unit)
    return Places(axis, tuple(by_place), tuple(map(axis.unit, by_place)), False, True)


def _fine(axis: Axis, num: int) -> Places:
    values = dict.fromkeys(_rounded(axis, i / (num - 1), _CLOSE_ENOUGH / (num - 1)) for i in range(num))
    return Places(axis, tuple(values), tuple(map(axis.unit, values)), False, False)


def _rounded(axis: Axis, unit: float, tolerance: float) -> Any:
    """The value with the fewest digits within ``tolerance`` of ``unit`` that is on the axis; of 1 - value on log1m."""
    exact = axis.at(unit)
    if axis.is_integer:
        return exact
    for digits in range(1, 13):
        if axis.scale == "log1m":
            value = float(f"{1 - float(f'{1 - exact:.{digits}g}'):.15g}")
        else:
            value = float(f"{exact:.{digits}g}")
        if value < 1 or axis.scale != "log1m":
            place = axis.unit(value) if axis.scale != "log" or value > 0 else math.inf
            if abs(place - unit) <= tolerance and 0 <= place <= 1:
                return value
    return exact


def _num_along(axis: Axis, precision: float | None) -> int:
    if precision is None:
        return _FEWEST_ALONG
    low, high = axis.at(0.0), axis.at(1.0)
    if axis.scale == "linear":
        # A factor is the widest step where values are largest; half of the axis is finer than it.
        step = (precision - 1) * abs(low + high) / 2 / (abs(high - low) or 1.0)
    else:
        step = math.log(precision) / math.log(axis.factor(low, high))
    return int(min(_MOST_ALONG, max(_FEWEST_ALONG, math.ceil(2 / max(step, 1e-9)) + 1)))

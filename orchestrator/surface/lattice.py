"""The cells that a search may propose, as points of the unit cube: the cells of a grid, or of a fine lattice."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from orchestrator.base.space import Axis, is_ordered
from orchestrator.surface.gaussian import Layout
from orchestrator.surface.surface import RESOLUTION

MAX_CANDIDATES = 4096
_MIN_ALONG, _MAX_ALONG = 65, 257  # values of the axis along, if it is a range
_ACROSS = {1: 65, 2: 33, 3: 17}  # values of each other range, by the number of such ranges
_ROUNDING = 1 / 8  # of the distance between neighbours: how far a value may be rounded


@dataclass(frozen=True, slots=True)
class LatticeColumn:
    """The values of one axis, ordered by their coordinates ``units`` in [0, 1], or indices if they are categories."""

    axis: Axis
    values: tuple[Any, ...]
    units: tuple[float, ...]
    is_categorical: bool
    is_given: bool  # the values come from a grid, so there is nothing between them

    def unit(self, value: Any) -> float:
        """Return the coordinate of any ``value``. Raises ValueError if the axis is a list that does not have it."""
        if self.axis.ends is None:
            return self.units[self.values.index(value)]
        return self.axis.unit(value)

    def value(self, unit: float) -> Any:
        """Return the value at a coordinate, one of ``units`` if the values are given."""
        return self.values[self.units.index(unit)] if self.is_given else self.axis.at(unit)


@dataclass(frozen=True)
class Lattice:
    """All cells that a search may propose. ``along`` is the column of the axis along which edges lie, or None."""

    columns: tuple[LatticeColumn, ...]
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
        """The distance between neighbours along the axis, as a fraction of the axis."""
        if self.along is None:
            return RESOLUTION
        units = self.columns[self.along].units
        return (units[-1] - units[0]) / max(1, len(units) - 1) or RESOLUTION

    def points(self, cells_CD: np.ndarray) -> np.ndarray:
        """Return the points (C, D) of cells given as indices of values (C, D)."""
        columns = [np.array(column.units)[cells_CD[:, i]] for i, column in enumerate(self.columns)]
        return np.column_stack(columns)

    def cell(self, indices: Sequence[int]) -> dict[str, Any]:
        """Return the cell with these indices of values."""
        return {c.axis.name: c.values[i] for c, i in zip(self.columns, indices, strict=True)}

    def indices(self, cell: Mapping[str, Any]) -> tuple[int, ...] | None:
        """Return the indices of a cell's values, or None if it is not in the lattice."""
        values = [cell[column.axis.name] for column in self.columns]
        if any(value not in index_of for value, index_of in zip(values, self._index_of, strict=True)):
            return None
        return tuple(index_of[value] for value, index_of in zip(values, self._index_of, strict=True))

    def point(self, cell: Mapping[str, Any]) -> list[float]:
        """Return the point of any cell. Raises ValueError for a value that its list does not have."""
        indices = self.indices(cell)
        if indices is not None:
            return [column.units[i] for column, i in zip(self.columns, indices, strict=True)]
        return [column.unit(cell[column.axis.name]) for column in self.columns]

    def candidates(self, random: np.random.Generator) -> np.ndarray:
        """Return all cells as indices (C, D), or a random subset of whole rows along the axis."""
        if self.along is None:
            return self.rows(random, MAX_CANDIDATES)
        length = self.sizes[self.along]
        rows_RD = self.rows(random, max(1, MAX_CANDIDATES // length))
        cells_CD = np.repeat(rows_RD, length, axis=0)
        cells_CD[:, self.along] = np.tile(np.arange(length), len(rows_RD))
        return cells_CD

    def rows(self, random: np.random.Generator, most: int) -> np.ndarray:
        """Return one cell of each row along the axis, or of at most ``most`` random rows, as indices (R, D)."""
        sizes = [1 if i == self.along else size for i, size in enumerate(self.sizes)]
        chosen = np.arange(math.prod(sizes))
        if len(chosen) > most:
            chosen = np.sort(random.choice(len(chosen), size=most, replace=False))
        return np.column_stack(np.unravel_index(chosen, sizes))

    @cached_property
    def _index_of(self) -> tuple[dict[Any, int], ...]:
        return tuple({value: i for i, value in enumerate(column.values)} for column in self.columns)


def lattice_of(axes: Sequence[Axis], along: str | None, precision: float | None) -> Lattice:
    """Return the lattice of ``axes``: their values, or a fine grid of rounded values for a range without values.

    If ``along`` is such a range, its neighbours are at most half of ``precision`` (a factor) apart, with at most 257
    values. Raises ValueError if ``along`` is not an axis, or if its values have no order.
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


def _given(axis: Axis) -> LatticeColumn:
    if axis.ends is None and not is_ordered(axis.values):
        return LatticeColumn(axis, axis.values, tuple(map(float, range(len(axis.values)))), True, True)
    if axis.ends is None:
        steps = max(1, len(axis.values) - 1)
        return LatticeColumn(axis, axis.values, tuple(i / steps for i in range(len(axis.values))), False, True)
    ordered = sorted(axis.values, key=axis.unit)
    return LatticeColumn(axis, tuple(ordered), tuple(map(axis.unit, ordered)), False, True)


def _fine(axis: Axis, num: int) -> LatticeColumn:
    values = dict.fromkeys(_rounded(axis, i / (num - 1), _ROUNDING / (num - 1)) for i in range(num))
    return LatticeColumn(axis, tuple(values), tuple(map(axis.unit, values)), False, False)


def _rounded(axis: Axis, unit: float, tolerance: float) -> Any:
    """Return the value on the axis with the fewest digits (of 1 - value on log1m) within ``tolerance`` of ``unit``."""
    exact = axis.at(unit)
    if axis.is_integer:
        return exact
    for digits in range(1, 13):
        if axis.scale == "log1m":
            value = float(f"{1 - float(f'{1 - exact:.{digits}g}'):.15g}")
        else:
            value = float(f"{exact:.{digits}g}")
        if value < 1 or axis.scale != "log1m":
            rounded = axis.unit(value) if axis.scale != "log" or value > 0 else math.inf
            if abs(rounded - unit) <= tolerance and 0 <= rounded <= 1:
                return value
    return exact


def _num_along(axis: Axis, precision: float | None) -> int:
    if precision is None:
        return _MIN_ALONG
    low, high = axis.at(0.0), axis.at(1.0)
    if axis.scale == "linear":
        # The step that the factor makes at the middle of the axis: it is wider above, finer below.
        step = (precision - 1) * abs(low + high) / 2 / (abs(high - low) or 1.0)
    else:
        step = math.log(precision) / math.log(axis.factor(low, high))
    return int(min(_MAX_ALONG, max(_MIN_ALONG, math.ceil(2 / max(step, 1e-9)) + 1)))

"""Cells as rows of numbers, for what is fitted over the axes of any sweep, grid or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from orchestrator.base.space import Axis, is_number, on_natural_scale
from orchestrator.maps.axes import value_label


@dataclass(frozen=True, slots=True)
class Covariate:
    """One number of each cell: its place on an axis, or with ``is_level`` 1 where the axis has the value ``level``.

    Values that are not numbers stand in the middle of the places of those that are.
    """

    axis: Axis
    level: Any = None
    is_level: bool = False

    def of(self, cell: Mapping[str, Any]) -> float:
        """The number of ``cell``."""
        value = cell[self.axis.name]
        if self.is_level:
            return float(value == self.level)
        low, high = self.ends
        places = self.axis.position(low), self.axis.position(high)
        return self.axis.position(value) if is_number(value) else sum(places) / 2

    @property
    def ends(self) -> tuple[Any, Any]:
        """The lowest and the highest number of the axis; of a level the value that it is compared with, and itself."""
        if self.is_level:
            return self.axis.values[0], self.level
        numbers = [value for value in self.axis.values if is_number(value)]
        return min(numbers), max(numbers)

    @property
    def change(self) -> str:
        """What the covariate compares, in words: ``lr from 0.001 to 1``, ``clip=none against 1``."""
        first, last = (value_label(self.axis, end) for end in self.ends)
        name = self.axis.name
        return f"{name}={last} against {first}" if self.is_level else f"{name} from {first} to {last}"


def covariates_of(axes: Sequence[Axis]) -> list[Covariate]:
    """The covariates of cells over ``axes``: a place for numbers, levels for words and none. One value gives none."""
    found: list[Covariate] = []
    for axis in map(on_natural_scale, axes):
        num_numbers = sum(is_number(value) for value in axis.values)
        others = [value for value in axis.values if not is_number(value)]
        found += [Covariate(axis)] if num_numbers >= 2 else []
        found += [Covariate(axis, value, is_level=True) for value in (others if num_numbers else others[1:])]
    return found


def design(covariates: Sequence[Covariate], cells: Sequence[Mapping[str, Any]]) -> np.ndarray:
    """The covariates of ``cells`` as an array of shape (cells, covariates)."""
    return np.array([[one.of(cell) for one in covariates] for cell in cells], float).reshape(len(cells), -1)

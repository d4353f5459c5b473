"""A cell is one point of a sweep's axes, without a seed; with a seed it is a trial."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.base.space import FrozenMap, format_value


class Cell(FrozenMap):
    """The value of each axis, by name and in the order of the axes. Frozen and hashable, so it is a key of tables.

    Cells with the same values are equal, whatever the order of their axes.
    """

    __slots__ = ()

    @property
    def name(self) -> str:
        """The cell in words, e.g. ``lr=0.1 beta2=0.9``; empty for a sweep without axes."""
        return " ".join(f"{axis}={format_value(value)}" for axis, value in self.items())

    def only(self, axes: Iterable[str]) -> Cell:
        """The values of ``axes``, in their order."""
        return Cell((axis, self[axis]) for axis in axes)

    def without(self, axes: Collection[str]) -> Cell:
        """The values of all axes except ``axes``."""
        return Cell((axis, value) for axis, value in self.items() if axis not in axes)

    def moved(self, axis: str, value: Any) -> Cell:
        """The cell with another ``value`` of ``axis``."""
        return Cell({**self, axis: value})


@dataclass(frozen=True, slots=True)
class Trial:
    """One training run: a cell, a seed and the resolved configuration, which holds every setting that acts.

    The configuration also holds values of the cell that do not act, so two cells never share a trial.
    """

    trial_id: str
    cell: Cell
    seed: int
    config: Mapping[str, Any] = field(hash=False)

    @property
    def steps(self) -> int:
        """Length of the run."""
        return self.config["steps"]

    @property
    def name(self) -> str:
        """The name for display, e.g. ``beta2=0.999 eps=1e-8 seed=0``."""
        return trial_name(self.cell, self.seed)


def trial_name(cell: Cell, seed: int) -> str:
    """A trial in words: its cell and its seed."""
    return f"{cell.name} seed={seed}".lstrip()

"""Where training turns from stable to not stable: the same questions to a grid and to a fitted surface.

Letters of shapes: X and Y places of a picture.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from orchestrator.base.errors import InputError
from orchestrator.base.space import Axis, Cell
from orchestrator.maps.cell_map import CellMap
from orchestrator.maps.edges import STABLE, EdgeRule, Escape, Margin, Position, Row
from orchestrator.maps.grid_map import GridMap
from orchestrator.maps.table import SweepTable

if TYPE_CHECKING:
    from orchestrator.maps.surface_map import SurfaceMap

_MESH = 81  # points on each axis of a picture


class StabilityMap(Protocol):
    """The stability of a sweep over its ``axes``, with rows that cross the edge ``along`` one of them.

    It is made of ``num_trials`` trials; ``is_fitted`` says whether a surface was fitted to them, or they are a grid.
    """

    @property
    def is_fitted(self) -> bool: ...  # noqa: D102

    @property
    def axes(self) -> tuple[Axis, ...]: ...  # noqa: D102

    @property
    def along(self) -> Axis: ...  # noqa: D102

    @property
    def rule(self) -> EdgeRule: ...  # noqa: D102

    @property
    def num_trials(self) -> int: ...  # noqa: D102

    def rows(self) -> list[Row]:
        """The rows that are shown, in the order of the other axes."""

    def position(self, setting: Mapping[str, Any]) -> Position:
        """The side of the edge on which ``setting`` is."""

    def margins(self, setting: Mapping[str, Any]) -> list[Margin]:
        """The margins of a stable ``setting`` along each ordered axis, downwards and upwards."""

    def margins_of(self, settings: Sequence[Mapping[str, Any]]) -> list[list[Margin]]:
        """The margins of each stable setting."""

    def islands(self, cells: Iterable[Cell]) -> set[Cell]:
        """The stable ``cells`` that are cut off from the stable region by what is not stable."""

    def escapes(self, setting: Mapping[str, Any]) -> list[Escape]:
        """The changes of one axis that lead from ``setting`` to what is stable."""

    def area(self) -> float:
        """The stable share of the map."""


def map_of(
    table: SweepTable,
    along: str | None = None,
    across: str | None = None,
    where: Mapping[str, Any] | None = None,
    reduce: str = "worst",
    rule: EdgeRule = STABLE,
) -> GridMap | SurfaceMap:
    """The map of a sweep: its cells if they are a grid, or a surface that is fitted to its trials.

    On a grid rows lie along ``along`` for each value of ``across``, and further axes are reduced; a surface has rows
    over all axes. Raises InputError for an unknown axis or value, and for too few scattered cells to fit a surface to.
    """
    if table.is_grid:
        return GridMap(table, rule, along, across, where, reduce)
    from orchestrator.maps.surface_map import surface_map

    return surface_map(table, along, where, rule)


def surface_mesh(table: SweepTable, cells: CellMap, where: Mapping[str, Any] | None = None) -> Mesh | None:
    """The surface behind the points of a drawn map of scattered cells; None for a grid, and without a surface.

    There is none with too few trials, with a third axis, and over axes that are not ranges.
    """
    if cells.is_grid or cells.y is None:
        return None
    from orchestrator.maps.surface_map import as_range, surface_map

    fixed = {**(where or {}), **dict(cells.facet)}
    axes = {axis.name: as_range(axis) for axis in table.axes if axis.name not in fixed}
    if set(axes) != {cells.x.name, cells.y.name} or any(axis.values for axis in axes.values()):
        return None
    try:
        surface = surface_map(table, where=fixed, rule=cells.rule)
    except InputError:
        return None
    reach = {axis.name: axis for axis in surface.reach}
    return mesh_of(surface, reach[cells.x.name], reach[cells.y.name])


@dataclass(frozen=True)
class Mesh:
    """A surface over two ranges. ``x_X`` and ``y_Y`` are places on the axes' scales; the others are (Y, X).

    ``stable_YX`` is P(stable), ``surely_YX`` its distance from the level in half-widths of its 95 % interval: above 1 a
    point is surely stable, below -1 surely not.
    """

    x_X: np.ndarray
    y_Y: np.ndarray
    stable_YX: np.ndarray
    surely_YX: np.ndarray


def mesh_of(surface: SurfaceMap, x: Axis, y: Axis) -> Mesh:
    """The surface over the ranges ``x`` and ``y``, each an axis or a part of one."""
    from orchestrator.surface.surface import CONFIDENCE

    units = np.linspace(0, 1, _MESH)
    xs, ys = ([axis.at(unit) for unit in units] for axis in (x, y))
    latent = surface.latent([{x.name: a, y.name: b} for b in ys for a in xs])
    return Mesh(
        np.array([x.position(value) for value in xs]),
        np.array([y.position(value) for value in ys]),
        latent.probability().reshape(_MESH, _MESH),
        (latent.above(surface.level) / CONFIDENCE).reshape(_MESH, _MESH),
    )

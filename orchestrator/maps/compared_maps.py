"""The maps of a comparison that are drawn: the cells of each sweep, and the surfaces behind scattered ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from orchestrator.base.space import Axis
from orchestrator.maps.axes import led, ordered, together
from orchestrator.maps.cell_map import CellMap, check_two_axes, map_of_trials
from orchestrator.maps.comparison import Comparison
from orchestrator.maps.surface_map import Mesh, SurfaceMap, mesh_of


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

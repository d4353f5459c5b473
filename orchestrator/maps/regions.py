"""The cells of a grid that touch each other, and the connected regions that they make."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from orchestrator.base.space import Axis, Cell, is_ordered
from orchestrator.base.vocabulary import DEGRADED, is_known, is_over_edge
from orchestrator.maps.axes import existing, led
from orchestrator.maps.edges import STABLE, StableRule


def ordered_axes(axes: Sequence[Axis]) -> Iterator[Axis]:
    """The axes with two or more ordered values; of axes that advance together, the first."""
    done, followers = set[str](), led(axes)
    for axis in sorted(axes, key=lambda axis: axis.name in followers):
        if len(existing(axis, axis.values)) > 1 and is_ordered(axis.values) and axis.name not in done:
            yield axis
            done.update(axis.zipped)


def state_beside(cell: Cell, axis: Axis, value: Any, axes: Sequence[Axis], states: Mapping[Cell, str]) -> str:
    """The worst state of ``cells_beside``; not_run without any."""
    return worst_state([states[other] for other in cells_beside(cell, axis, value, axes, states)] or ["not_run"])


def cells_beside(cell: Cell, axis: Axis, value: Any, axes: Sequence[Axis], states: Mapping[Cell, str]) -> list[Cell]:
    """The cells of ``states`` that are ``cell`` with another ``value`` of ``axis``.

    Axes that advance with it follow. If the step makes another axis begin or cease to exist, the other cell has that
    axis in any value.
    """
    moved = cell.moved(axis.name, value)
    if moved in states:
        return [moved]
    zipped = set(axis.zipped) - {axis.name}
    for conditional in (set(), _dependent(axes, zipped | {axis.name})):
        free = zipped | conditional
        if not free:
            continue
        options = {each.name: each.values for each in axes if each.name in free and each.name != axis.name}
        cells = (
            Cell({**moved, **dict(zip(options, values, strict=True))})
            for values in itertools.product(*options.values())
        )
        if reached := [other for other in cells if other in states]:
            return reached
    return []


def largest_regions(states: Mapping[Cell, str], axes: Sequence[Axis], rule: StableRule = STABLE) -> set[Cell]:
    """The cells of the connected regions with the most stable cells, one for each combination of unordered values.

    Regions connect neighbours along ordered axes that are not known to be over the edge: what is not known cuts nothing
    off. Regions of equal size all count.
    """
    beside: dict[Cell, list[Cell]] = {cell: [] for cell in states}
    moving = set[str]()
    for axis in ordered_axes(axes):
        moving |= {axis.name, *axis.zipped}
        for a, b in _pairs(states, axis, axes):
            beside[a].append(b)
            beside[b].append(a)
    fixed = [axis.name for axis in axes if axis.name not in moving]
    regions: dict[Cell, list[set[Cell]]] = {}
    left = {cell for cell, state in states.items() if not rule.is_over(state)}
    while left:
        first = left.pop()
        edge, region = [first], {first}
        while edge:
            new = left.intersection(beside[edge.pop()])
            left -= new
            region |= new
            edge += new
        regions.setdefault(first.only(fixed), []).append(region)
    kept = set[Cell]()
    for found in regions.values():
        sizes = [sum(states[cell] == "stable" for cell in region) for region in found]
        kept.update(*(region for region, size in zip(found, sizes, strict=True) if size == max(sizes)))
    return kept


def steepest_axis(sides: Mapping[Cell, bool | None], axes: Sequence[Axis], aside: Collection[str] = ()) -> str | None:
    """The ordered axis, not ``aside``, whose rows cross the edge most often; the first of a tie, None without an edge.

    A finer axis has more steps a row, each less likely to cross. Only pairs of cells whose sides are known count.
    """
    best, most = None, 0.0
    for axis in ordered_axes(axes):
        pairs = [(sides[a], sides[b]) for a, b in _pairs(sides, axis, axes)]
        known = [a != b for a, b in pairs if a is not None and b is not None]
        crossings = (len(axis.values) - 1) * sum(known) / len(known) if known else 0.0
        if crossings > most and not {axis.name, *axis.zipped} & {*aside}:
            best, most = axis.name, crossings
    return best


def rows_along(cells: Iterable[Cell], axis: Axis, axes: Sequence[Axis]) -> Iterator[dict[Any, list[Cell]]]:
    """The cells of each row along ``axis``, by its values in their order.

    A row has the cells with any value of axes that advance with ``axis``, and of those that begin or cease to exist.
    """
    moving = {axis.name, *axis.zipped}
    aside = moving | _dependent(axes, moving)
    place = {value: i for i, value in enumerate(existing(axis, axis.values))}
    rows: dict[Cell, dict[Any, list[Cell]]] = {}
    for cell in cells:
        if cell[axis.name] in place:
            rows.setdefault(cell.without(aside), {}).setdefault(cell[axis.name], []).append(cell)
    for row in rows.values():
        yield {value: row[value] for value in sorted(row, key=place.__getitem__)}


def _pairs(cells: Iterable[Cell], axis: Axis, axes: Sequence[Axis]) -> Iterator[tuple[Cell, Cell]]:
    """The neighbours along ``axis``, with whatever value of an axis that begins or ceases to exist between them."""
    free = _dependent(axes, {axis.name, *axis.zipped})
    for row in rows_along(cells, axis, axes):
        for low, high in itertools.pairwise(row.values()):
            for a, b in itertools.product(low, high):
                if all(a[name] == b[name] or None in (a[name], b[name]) for name in free):
                    yield a, b


def _dependent(axes: Sequence[Axis], names: set[str]) -> set[str]:
    """The axes whose existence depends on ``names``, also by way of other axes."""
    dependent: set[str] = set()
    while more := {axis.name for axis in axes if {name for name, _ in axis.when} & (names | dependent)} - dependent:
        dependent |= more
    return dependent


def worst_state(states: Sequence[str]) -> str:
    """The worst state: over the edge, then unknown, then degraded."""
    if len(states) == 1:
        return states[0]
    return max(states, key=lambda state: 3 if is_over_edge(state) else 2 if not is_known(state) else state == DEGRADED)

"""The edges of a grid: between neighbouring cells, without any smoothing."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

from orchestrator.base.errors import InputError, Problem
from orchestrator.base.space import Axis, Cell, is_ordered
from orchestrator.base.vocabulary import DEGRADED, cell_state, is_known
from orchestrator.maps.axes import existing, sides
from orchestrator.maps.cell_map import CellMap, cell_map
from orchestrator.maps.cells import cell_summary, stable_share
from orchestrator.maps.edges import (
    STABLE,
    Edge,
    EdgeRule,
    Escape,
    LevelRule,
    Margin,
    Position,
    Row,
    Side,
    StableRule,
    kind_of,
)
from orchestrator.maps.regions import (
    cells_beside,
    largest_regions,
    ordered_axes,
    rows_along,
    state_beside,
    steepest_axis,
    worst_state,
)
from orchestrator.maps.table import SweepTable, by_cell


@dataclass(frozen=True)
class GridMap:
    """The cells of a grid, with rows along the axis ``x`` for each value of ``y``; further axes are reduced.

    By default ``x`` and ``y`` are the first two axes, and rows are limited to the cells of ``where``. With None for
    ``reduce`` there is a row for each combination of the other axes. Margins, escapes and positions take all axes as
    they are. The area is measured over the cells ``region``, by default all cells that are known.
    """

    table: SweepTable
    rule: EdgeRule = STABLE
    x: str | None = None
    y: str | None = None
    where: Mapping[str, Any] | None = None
    reduce: str | None = "worst"
    region: Sequence[Cell] | None = None

    is_fitted: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """The name of the sweep."""
        return self.table.name

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The axes of the sweep."""
        return self.table.axes

    @property
    def num_trials(self) -> int:
        """The number of trials that it is made of."""
        return len(self.table.runs)

    @property
    def along(self) -> Axis:
        """The axis along which rows cross the edge."""
        return self.cells.x if self.x is None else self.table.axis(self.x, "--along")

    @cached_property
    def cells(self) -> CellMap:
        """The cells over two axes that rows are made of. Raises InputError as ``cell_map`` does."""
        reduce = self.reduce or "worst"
        if isinstance(self.rule, LevelRule):
            level = self.rule
            return cell_map(self.table, self.x, self.y, level.metric, self.where, reduce, level.measured)
        return cell_map(self.table, self.x, self.y, where=self.where, reduce=reduce, rule=self._stable_rule)

    @cached_property
    def states(self) -> dict[Cell, str]:
        """The state of each cell over all axes."""
        return self.table.states()

    @property
    def steepest(self) -> GridMap:
        """This map with rows along the axis on which the side of the edge changes most, if no axis was named."""
        if self.x is not None:
            return self
        shown = self.table.where("--where", self.where or {})
        sides: dict[Cell, bool | None] = {cell: self._of_state(state) for cell, state in shown.states().items()}
        if isinstance(self.rule, LevelRule):
            metric, of_metric = self.rule.metric, self.rule.measured
            summaries = {cell: cell_summary(runs, metric, of_metric) for cell, runs in shown.by_cell().items()}
            sides = {cell: self.rule.of_cell(summary) for cell, summary in summaries.items()}
        aside = [*(self.where or {}), *([] if self.y is None else [self.y])]
        return replace(self, x=steepest_axis(sides, self.axes, aside))

    # --- rows -----------------------------------------------------------------------------------------

    def rows(self) -> list[Row]:
        """The rows, in the order of ``y``. Unknown cells are skipped, which widens a bracket.

        Raises InputError for an axis with unordered values, and if no cell has the metric of a level.
        """
        if self.reduce is None:
            return self._all_rows()
        cells, xs = self.cells, self._row_values()
        rows = []
        for y in cells.y_values:
            setting = Cell() if cells.y is None else Cell({cells.y.name: y})
            row = [(x, cells.cells.get((x, y))) for x in xs]
            known = [(x, None if cell is None else self.rule.of_cell(cell)) for x, cell in row]
            degraded = [x for x, cell in row if cell is not None and cell.state == DEGRADED]
            rows.append(row_of(setting, known, cells.x, degraded, self.rule))
        if isinstance(self.rule, LevelRule) and all(row.kind == "not known" for row in rows):
            raise InputError(self.rule.unknown())
        return rows

    def _all_rows(self) -> list[Row]:
        axis = self.along
        others = [other.name for other in self.axes if other.name != axis.name and other.name not in axis.zipped]
        runs = [replace(run, cell=run.cell.only([*others, axis.name])) for run in self.table.runs]
        states = {cell: cell_state([run.label for run in of_cell]) for cell, of_cell in by_cell(runs).items()}
        rows = []
        for setting in dict.fromkeys(cell.only(others) for cell in states):
            values = existing(axis, axis.values)
            row = [(value, states.get(setting.moved(axis.name, value), "not_run")) for value in values]
            degraded = [value for value, state in row if state == DEGRADED]
            rows.append(row_of(setting, [(value, self._of_state(state)) for value, state in row], axis, degraded))
        return rows

    def _row_values(self) -> tuple[Any, ...]:
        """The values along x of the cells' rows. Raises InputError for values without an order."""
        x, y, values = self.cells.x, self.cells.y, self.cells.x_values
        if not is_ordered(values):
            raise InputError(Problem("--along", "", f"the values of {x.name} have no order", "choose another axis"))
        if y is not None and y.name in x.zipped:
            message = f"{y.name} advances with {x.name}, so each row has one cell"
            raise InputError(Problem("--across", "", message, "name another axis, or none"))
        return existing(x, values)

    # --- around a setting -------------------------------------------------------------------------------

    def position(self, setting: Mapping[str, Any]) -> Position:
        """The side of ``setting``, by the cells around it: up to two neighbours on each axis."""
        around = self._around(setting)
        states = [self.states[cell] for cell in around]
        side = _side([self._of_state(state) for state in states])
        is_stable = side == "stable"
        return Position(side, is_stable, len(states), states.count(DEGRADED), is_stable and bool(self.islands(around)))

    def margins(self, setting: Mapping[str, Any]) -> list[Margin]:
        """The margins of a stable ``setting`` along each ordered axis, with the other axes fixed."""
        return [self._margin(axis, here, is_upwards, row) for axis, here, is_upwards, row in self._directions(setting)]

    def margins_of(self, settings: Sequence[Mapping[str, Any]]) -> list[list[Margin]]:
        """The margins of each setting."""
        return [self.margins(setting) for setting in settings]

    def islands(self, cells: Iterable[Cell]) -> set[Cell]:
        """The ``cells`` outside of the largest stable region, see ``largest_regions``."""
        return set(cells) - self._mainland

    @cached_property
    def _mainland(self) -> set[Cell]:
        return largest_regions(self.states, self.axes, self._stable_rule)

    def escapes(self, setting: Mapping[str, Any]) -> list[Escape]:
        """The first stable value in each direction from ``setting``, with the other axes fixed."""
        escapes = []
        for axis, here, is_upwards, row in self._directions(setting):
            if stable := [value for value, state in row if self._of_state(state)]:
                escapes.append(Escape(axis.name, is_upwards, stable[0], axis.factor(here, stable[0])))
        return escapes

    def over_edge_beside(self, cell: Cell) -> set[Cell]:
        """The cells over the edge at the smallest margin of a stable ``cell``; empty if no direction has an edge."""
        edges = [margin for margin in self.margins(cell) if margin.edge is not None]
        nearest = min(edges, key=lambda margin: margin.edge or math.inf, default=None)
        if nearest is None:
            return set()
        axis = self.table.axis(nearest.axis, "")
        beside = cells_beside(cell, axis, nearest.first_not_stable, self.axes, self.states)
        return {other for other in beside if self._of_state(self.states[other]) is False}

    def distances_to_edge(self) -> dict[Cell, float]:
        """Decades, log10 of a factor, from each cell to the nearest one on the other side along any ordered axis.

        Negative for a cell over the edge. Without unknown cells, and those without another side; an island is none.
        """
        factors: dict[Cell, list[float]] = {}
        islands = {cell for cell, state in self.states.items() if self._of_state(state)} - self._mainland
        others_of = {cell: "unknown" if cell in islands else state for cell, state in self.states.items()}
        own = {cell: side for cell, state in self.states.items() if (side := self._of_state(state)) is not None}
        for axis in ordered_axes(self.axes):
            for row in rows_along(self.states, axis, self.axes):
                for here, cell in ((here, cell) for here, cells in row.items() for cell in cells if cell in own):
                    states = ((value, state_beside(cell, axis, value, self.axes, others_of)) for value in row)
                    others = ((value, self._of_state(state)) for value, state in states)
                    factors.setdefault(cell, []).extend(
                        axis.factor(here, value) for value, side in others if side is not None and side != own[cell]
                    )
        finite = {cell: [each for each in found if math.isfinite(each) and each > 0] for cell, found in factors.items()}
        return {cell: math.log10(min(found)) * (1 if own[cell] else -1) for cell, found in finite.items() if found}

    def _of_state(self, state: str) -> bool | None:
        return self._stable_rule.of_state(state)

    @property
    def _stable_rule(self) -> StableRule:
        return self.rule if isinstance(self.rule, StableRule) else STABLE

    def _around(self, setting: Mapping[str, Any]) -> list[Cell]:
        """The cells around ``setting``, which need not have axes that advance with others."""
        if len(setting) == len(self.axes) and (cell := Cell(setting)) in self.states:
            return [cell]
        free = [axis for axis in self.axes if axis.name in setting]
        names = [axis.name for axis in free]
        by_free = {cell.only(names): cell for cell in self.states}
        around = (
            Cell(zip(names, values, strict=True))
            for values in itertools.product(*(_nearest(axis, setting[axis.name]) for axis in free))
        )
        return [by_free[cell] for cell in around if cell in by_free]

    def _directions(self, setting: Mapping[str, Any]) -> Iterator[tuple[Axis, Any, bool, Iterator[tuple[Any, str]]]]:
        """Each axis with the value of ``setting``, a direction, and the values there with the worst state around.

        The states are looked up as they are asked for, since most margins end after a few.
        """
        corners = self._around(setting)
        for axis in ordered_axes(self.axes) if corners else ():
            # Of axes that advance together one may have no order, and the other stands for both.
            here = setting[axis.name] if axis.name in setting else corners[0][axis.name]
            if (here is None and axis.when) or (axis.name not in setting and len(corners) > 1):
                continue
            for is_upwards, values in zip((False, True), sides(axis, here), strict=True):
                yield axis, here, is_upwards, self._states_along(corners, axis, values)

    def _states_along(self, corners: Sequence[Cell], axis: Axis, values: Iterable[Any]) -> Iterator[tuple[Any, str]]:
        for value in values:
            yield value, worst_state([self._state_beside(cell, axis, value) for cell in corners])

    def _margin(self, axis: Axis, here: Any, is_upwards: bool, row: Iterable[tuple[Any, str]]) -> Margin:
        last_stable, first_not_stable, edge, missing, degraded = here, None, None, [], None
        for value, state in row:
            side = self._of_state(state)
            if side is None:
                missing.append(value)
            elif not side:
                first_not_stable, edge = value, axis.factor(here, value)
                break
            elif not missing:
                last_stable = value
                degraded = value if degraded is None and state == DEGRADED else degraded
        known = axis.factor(here, last_stable)
        return Margin(axis.name, is_upwards, known, edge, last_stable, first_not_stable, tuple(missing), degraded)

    def _state_beside(self, cell: Cell, axis: Axis, value: Any) -> str:
        return state_beside(cell, axis, value, self.axes, self.states)

    # --- share -----------------------------------------------------------------------------------------

    def area(self) -> float:
        """The stable share of the region: the mean of its cells' fractions of stable seeds."""
        region = self.region
        if region is None:
            region = [cell for cell, state in self.states.items() if is_known(state)]
        trials = by_cell(self.table.runs)
        share = stable_share(trials.get(cell, []) for cell in region)
        return math.nan if share is None else share


def row_of(
    setting: Cell,
    sides: Sequence[tuple[Any, bool | None]],
    axis: Axis,
    degraded: Iterable[Any] = (),
    rule: EdgeRule = STABLE,
) -> Row:
    """The row of values of ``axis``, in order, each with its side of the edge, or None if that is not known."""
    known = [(value, side) for value, side in sides if side is not None]
    edges = []
    for (low, is_stable), (high, is_other) in itertools.pairwise(known):
        if is_stable != is_other:
            edges.append(Edge(axis.between(low, high), low, high, is_stable, "bracket"))
    kind = kind_of(len(edges), known[0][1] if known else None, rule.inner, rule.outer)
    return Row(setting, kind, tuple(edges), tuple(value for value, side in sides if side is None), tuple(degraded))


def _side(stable: Sequence[bool | None]) -> Side:
    if not stable or None in stable:
        return "not known"
    return "stable" if all(stable) else "at the edge" if any(stable) else "not stable"


def _nearest(axis: Axis, value: Any) -> tuple[Any, ...]:
    """The value of a list or grid that equals ``value``, or its two neighbours."""
    if value in existing(axis, axis.values) or value is None:
        return (value,)
    below, above = sides(axis, value)
    return (*below[:1], *above[:1])

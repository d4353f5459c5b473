"""Two or more sweeps compared on their shared cells: what changed, and how certain that is."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from orchestrator.base.errors import InputError, Problem
from orchestrator.base.intervals import CONFIDENCE
from orchestrator.base.space import Axis, Cell, is_ordered, number_text
from orchestrator.base.trial_result import TrialResult
from orchestrator.base.vocabulary import DEGRADED, cell_state, is_known
from orchestrator.maps.axes import existing, led, ordered, together, value_labels
from orchestrator.maps.boundary import RowBoundary, row_boundary
from orchestrator.maps.cell_map import CellMap, check_two_axes, map_of_trials
from orchestrator.maps.gains import Gains, gains
from orchestrator.maps.paired_trials import Pairs, paired
from orchestrator.maps.related_cells import with_fields_as_trained
from orchestrator.maps.rule import STABLE, StableRule
from orchestrator.maps.table import SweepTable, axis_named, by_cell
from orchestrator.sweepfile.settings import settings_of

_NUM_DRAWS = 4000
_DIGITS = 9


@dataclass(frozen=True, slots=True)
class Side:
    """One sweep of a comparison, limited to the shared cells: its rows, each with its shared ``cell``.

    ``num_left_out`` of its cells are not shared. ``area`` is the stable share of the compared cells, the mean of their
    fractions of stable seeds; its interval is from a bootstrap over seeds, None with a single seed. ``num_degraded`` of
    its compared cells are degraded.
    """

    name: str
    trials: tuple[TrialResult, ...]
    num_left_out: int
    area: float
    area_interval: tuple[float, float] | None
    num_degraded: int


@dataclass(frozen=True, slots=True)
class EdgeShift:
    """How the edge along an axis moved, over the rows where both sweeps have exactly one edge.

    ``factors``: one number per such row, above 1 where the edge moved up the axis (of 1 / (1 - value) on a log1m axis).
    ``resolution``: the widest bracket of an edge, as a factor: smaller shifts are not detectable. ``num_other`` rows
    have no edge, or several, in one of the sweeps.
    """

    axis: str
    factors: tuple[float, ...]
    resolution: float
    num_rows: int
    num_other: int


@dataclass(frozen=True, slots=True)
class Difference:
    """What changed from the first sweep to ``name``.

    ``num_seeds`` is the smaller number of seeds. ``pairs`` are trials of the same compared cell and seed, None if
    seeds are not shared. ``num_turned`` cells have all seeds stable in one sweep and none in the other. ``gains`` is
    None if seeds are not shared, and where the sweeps train different objectives.
    """

    name: str
    area_change: float
    area_interval: tuple[float, float] | None
    num_seeds: int
    pairs: Pairs | None
    num_turned: int
    shift: EdgeShift | None
    gains: Gains | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Sweeps on their shared cells; ``changed`` are the fields of the configuration that differ.

    ``num_unknown`` of the ``num_cells`` shared cells are not known in some sweep (``cell_state``): they are drawn but
    not compared. With ``counts_degraded`` degraded trials do not count as stable. The sweeps are the values of the axis
    ``along`` of one sweep, None if they are sweeps of their own.
    """

    axes: tuple[Axis, ...]
    num_cells: int
    num_unknown: int
    sides: tuple[Side, ...]
    differences: tuple[Difference, ...]
    changed: Mapping[str, tuple[Any, ...]]
    rule: StableRule
    along: str | None


def compare(tables: Sequence[SweepTable], x: str | None = None, rule: StableRule = STABLE) -> Comparison:
    """Compare each further sweep with the first on the cells that all have; ``x`` is the axis of the edge.

    With ``counts_degraded`` a degraded trial does not count as stable.

    A cell is identified by the values of all fields that are an axis in any of the sweeps. Raises InputError when the
    sweeps share no cell, or none that is known in all of them.
    """
    names = unique_names([table.name for table in tables])
    axes_of = [table.axes for table in tables]
    ties = [table.ties for table in tables]
    rows_of = with_fields_as_trained([table.runs for table in tables], ties)
    union = {axis.name: axis for axes in reversed(axes_of) for axis in reversed(axes)}
    order = list(dict.fromkeys(axis.name for axes in axes_of for axis in axes))
    for name, rows in zip(names, rows_of, strict=True):
        lacking = [axis for axis in order if not rows or axis not in {**rows[0].cell, **_settings(rows[0])}]
        if lacking:
            raise InputError(
                Problem(name, "", f"has no {lacking[0]}, an axis of the others", "compare sweeps of one objective")
            )
    rows_of = [[_with_cell(row, order) for row in rows] for rows in rows_of]
    cells_of = [{row.cell for row in rows} for rows in rows_of]
    shared = set.intersection(*cells_of)
    if not shared:
        raise InputError(Problem(", ".join(names), "", "share no cell", _why_nothing_is_shared(order, cells_of, names)))
    kept = [tuple(row for row in rows if row.cell in shared) for rows in rows_of]
    values = {name: ordered(list(dict.fromkeys(row.cell[name] for row in kept[0]))) for name in order}
    axes = tuple(replace(union[name], values=tuple(values[name])) for name in order)
    cells = sorted(shared, key=lambda cell: [values[name].index(cell[name]) for name in order])
    states = [_states(rows) for rows in kept]
    compared = [cell for cell in cells if all(is_known(of_sweep[cell]) for of_sweep in states)]
    if not compared:
        found = f"share {len(cells)} cells, and none of them is known in all sweeps"
        remedy = "`sweep run NAME` trains the seeds that have no result"
        raise InputError(Problem(", ".join(names), "", found, remedy))
    outcomes = [_stable_table(rows, compared, rule) for rows in kept]
    draws = _draws(outcomes)
    areas = [_area(of_cells) for of_cells, _ in outcomes]
    sides = tuple(
        Side(name, rows, len(own - shared), area, _interval(drawn), sum(of[cell] == DEGRADED for cell in compared))
        for name, rows, own, area, drawn, of in zip(names, kept, cells_of, areas, draws, states, strict=True)
    )
    edge_axis = _edge_axis(axes, x)
    differences = tuple(
        _difference(sides[0], sides[i], draws[0], draws[i], axes, edge_axis, set(compared), rule)
        for i in range(1, len(sides))
    )
    num_unknown = len(cells) - len(compared)
    changed = changed_fields(kept, order, ties)
    return Comparison(axes, len(cells), num_unknown, sides, differences, changed, rule, common_axis(tables))


def common_axis(tables: Sequence[SweepTable]) -> str | None:
    """The axis whose single values all ``tables`` are; None for sweeps of their own."""
    axes = {table.along for table in tables}
    return axes.pop() if len(axes) == 1 else None


def unique_names(names: Sequence[str]) -> list[str]:
    """The names, with its place added to one that occurs more than once."""
    return [name if names.count(name) == 1 else f"{name} ({i + 1})" for i, name in enumerate(names)]


def _field(row: TrialResult, name: str) -> Any:
    return row.cell[name] if name in row.cell else _settings(row).get(name)


def _settings(row: TrialResult) -> Mapping[str, Any]:
    return settings_of(row.objective, row.config, row.cell)


def _rounded(value: Any) -> Any:
    """Rounds away differences in the last digits of a number between the grids of two files."""
    if isinstance(value, float) and math.isfinite(value):
        return float(number_text(value, _DIGITS))
    return tuple(value) if isinstance(value, list) else value


def _with_cell(row: TrialResult, order: Sequence[str]) -> TrialResult:
    return replace(row, cell=Cell((name, _rounded(_field(row, name))) for name in order))


def _why_nothing_is_shared(order: Sequence[str], cells_of: Sequence[set[Cell]], names: Sequence[str]) -> str:
    for axis in order:
        values = [{cell[axis] for cell in cells} for cells in cells_of]
        if not set.intersection(*values):
            shown = (
                f"{name}: {', '.join(value_labels(ordered(list(found)))[:6])}"
                for name, found in zip(names, values, strict=True)
            )
            return f"their values of {axis} differ ({'; '.join(shown)})"
    return "each axis has shared values, but no combination of them is in all sweeps"


def _states(rows: Sequence[TrialResult]) -> dict[Cell, str]:
    """The state of each cell of one sweep."""
    return {cell: cell_state([row.label for row in of_cell]) for cell, of_cell in by_cell(rows).items()}


def _stable_table(
    rows: Sequence[TrialResult], cells: Sequence[Cell], rule: StableRule
) -> tuple[np.ndarray, tuple[int, ...]]:
    """1.0 where stable, 0.0 where not, NaN without a result: (cells, seeds); and the seeds."""
    seeds = tuple(sorted({row.seed for row in rows}))
    place = {cell: i for i, cell in enumerate(cells)}
    table = np.full((len(cells), len(seeds)), np.nan)
    for row in rows:
        if row.is_judged and row.cell in place:
            table[place[row.cell], seeds.index(row.seed)] = bool(rule.of_trial(row))
    return table, seeds


def _area(table: np.ndarray) -> float:
    """Mean fraction of stable seeds over the cells with a result."""
    return float(_areas(table[:, None, :])[0])


def _areas(table: np.ndarray) -> np.ndarray:
    """Areas of (cells, draws, seeds), one per draw; NaN where no cell has a result."""
    known = ~np.isnan(table)
    num = known.sum(axis=2)
    fraction = np.where(num > 0, np.where(known, table, 0).sum(axis=2) / np.maximum(num, 1), np.nan)
    has_result = ~np.isnan(fraction)
    total = np.where(has_result, fraction, 0).sum(axis=0)
    return np.where(has_result.any(axis=0), total / np.maximum(has_result.sum(axis=0), 1), np.nan)


def _draws(tables: Sequence[tuple[np.ndarray, tuple[int, ...]]]) -> list[np.ndarray | None]:
    """Areas under resampled seeds; sweeps with the same seeds use the same draws, since their noise is shared.

    A seed is resampled with all its cells: the runs of one seed have the same data and initial weights.
    """
    picks: dict[tuple[int, ...], np.ndarray] = {}
    found: list[np.ndarray | None] = []
    for table, seeds in tables:
        if len(seeds) < 2:
            found.append(None)
            continue
        if seeds not in picks:
            picks[seeds] = np.random.default_rng(len(picks)).integers(len(seeds), size=(_NUM_DRAWS, len(seeds)))
        pieces = [_areas(table[:, pick]) for pick in np.array_split(picks[seeds], 40)]
        found.append(np.concatenate(pieces))
    return found


def _interval(draws: np.ndarray | None) -> tuple[float, float] | None:
    if draws is None or np.isnan(draws).all():
        return None
    tail = 50 * (1 - CONFIDENCE)
    low, high = np.nanpercentile(draws, [tail, 100 - tail])
    return float(low), float(high)


def _difference(
    first: Side,
    new: Side,
    first_draws: np.ndarray | None,
    new_draws: np.ndarray | None,
    axes: Sequence[Axis],
    edge_axis: Axis | None,
    compared: Container[Cell],
    rule: StableRule,
) -> Difference:
    base, changed = (
        {(row.cell, row.seed): row for row in side.trials if row.cell in compared} for side in (first, new)
    )
    before, after = (
        {pair: bool(rule.of_trial(row)) for pair, row in rows.items() if row.is_judged} for rows in (base, changed)
    )
    pairs = paired(before, after)
    draws = new_draws - first_draws if first_draws is not None and new_draws is not None else None
    num_seeds = min(len({row.seed for row in side.trials}) for side in (first, new))
    return Difference(
        name=new.name,
        area_change=new.area - first.area,
        area_interval=_interval(draws),
        num_seeds=num_seeds,
        pairs=pairs,
        num_turned=_num_turned(before, after),
        shift=_edge_shift(first, new, axes, edge_axis, rule) if edge_axis is not None else None,
        gains=gains(base, changed, rule) if _train_the_same(first, new) else None,
    )


def _train_the_same(first: Side, new: Side) -> bool:
    return first.trials[0].objective == new.trials[0].objective


def _num_turned(before: Mapping[tuple[Cell, int], bool], after: Mapping[tuple[Cell, int], bool]) -> int:
    """Cells with all seeds stable in one of two sweeps and none in the other, with at least two seeds in each."""
    outcomes: list[dict[Cell, list[bool]]] = [{}, {}]
    for of_sweep, found in zip((before, after), outcomes, strict=True):
        for (key, _), stable in of_sweep.items():
            found.setdefault(key, []).append(stable)
    return sum(
        len(seeds) > 1 and len(others) > 1 and len(set(seeds)) == len(set(others)) == 1 and seeds[0] != others[0]
        for key, seeds in outcomes[0].items()
        if (others := outcomes[1].get(key)) is not None
    )


def stable_by_seed(rows: Sequence[TrialResult], order: Sequence[str], rule: StableRule) -> dict[tuple[Cell, int], bool]:
    """Whether each trial with an outcome is stable, by its cell (values of the axes ``order``) and seed."""
    judged = (_with_cell(row, order) for row in rows if row.is_judged)
    return {(row.cell, row.seed): bool(rule.of_trial(row)) for row in judged}


def _edge_axis(axes: Sequence[Axis], x: str | None) -> Axis | None:
    if x is not None:
        axis_named(x, axes, "--x")
    asked = [axis for axis in axes if (axis.name not in led(axes) if x is None else axis.name == x)]
    fitting = [axis for axis in asked if len(axis.values) > 1 and is_ordered(axis.values)]
    return fitting[0] if fitting else None


def _edge_shift(first: Side, new: Side, axes: Sequence[Axis], axis: Axis, rule: StableRule) -> EdgeShift:
    others = [other.name for other in axes if other.name != axis.name and other.name not in axis.zipped]
    rows = [_edges(side, others, axis, rule) for side in (first, new)]
    factors, brackets = [], [1.0]
    for key, before in rows[0].items():
        after = rows[1][key]
        if before.kind == after.kind == "crosses":
            (a,), (b,) = before.edges, after.edges
            same_side = (axis.values.index(a.stable) < axis.values.index(a.not_stable)) == (
                axis.values.index(b.stable) < axis.values.index(b.not_stable)
            )
            if same_side and a.at is not None and b.at is not None:
                factor = axis.factor(a.at, b.at)
                factors.append(factor if b.at >= a.at else 1 / factor)
                brackets += [axis.factor(edge.stable, edge.not_stable) for edge in (a, b)]
    return EdgeShift(axis.name, tuple(factors), max(brackets), len(rows[0]), len(rows[0]) - len(factors))


def _edges(side: Side, others: Sequence[str], axis: Axis, rule: StableRule) -> dict[Cell, RowBoundary]:
    trials = [replace(trial, cell=trial.cell.only([*others, axis.name])) for trial in side.trials]
    states = _states(trials)

    def along(row: Cell) -> list[tuple[Any, str]]:
        return [(value, states.get(row.moved(axis.name, value), "not_run")) for value in existing(axis, axis.values)]

    rows = dict.fromkeys(cell.only(others) for cell in states)
    return {row: row_boundary(row, along(row), axis, rule) for row in rows}


def changed_fields(
    rows_of: Sequence[Sequence[TrialResult]], axes: Sequence[str], ties: Sequence[Mapping[str, str]]
) -> dict[str, tuple[Any, ...]]:
    """Fields that differ between the sweeps, other than their axes and fields that all tie alike."""
    alike = [*axes, *(name for name, text in ties[0].items() if all(each.get(name) == text for each in ties))]
    configs = [{"objective": rows[0].objective, **_settings(rows[0])} for rows in rows_of]
    fields = dict.fromkeys(field for config in configs for field in config if field not in (*alike, "seed"))
    return {
        field: tuple(config.get(field) for config in configs)
        for field in fields
        if any(config.get(field) != configs[0].get(field) for config in configs)
    }


def shared_maps(
    comparison: Comparison, x: str | None = None, y: str | None = None, reduce: str = "worst"
) -> list[CellMap]:
    """A map of each sweep over the shared cells. Raises InputError for an unknown axis or reduction."""
    axes = {axis.name: axis for axis in comparison.axes}
    wide = [name for name, axis in axes.items() if len(axis.values) > 1 and name not in led(axes.values())]
    x, y = map_axes(axes, wide or list(axes), x, y)
    return [
        replace(
            map_of_trials(side.trials, axes, x, y, "final_loss", reduce, side.name),
            rule=comparison.rule,
        )
        for side in comparison.sides
    ]


def map_axes(axes: Mapping[str, Axis], wide: Sequence[str], x: str | None, y: str | None) -> tuple[str, str | None]:
    """The axes of the maps, by default the first of ``wide``. Raises InputError for an unknown axis, or one twice."""
    check_two_axes(axes.values(), x, y)
    x = x or next((name for name in wide if name not in together(axes, (y,))), wide[0])
    return x, y or next((name for name in wide if name not in together(axes, (x,))), None)

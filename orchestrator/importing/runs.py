"""Runs of elsewhere: from rows with their settings to the cells and seeds of a sweep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite, prod
from typing import Any

from orchestrator.base.errors import InputError, Problem
from orchestrator.base.reports import Trace
from orchestrator.base.space import Axis, is_number, to_hashable
from orchestrator.base.trial_result import MemberResult
from orchestrator.importing.rows import LeftOut, Row
from orchestrator.importing.values import EMPTY, AxisColumn, axis_of, evened, value_of
from orchestrator.maps.stability import ordered

_LEAST_FILLED = 1 / 3  # of a grid: below it, cells are scattered
_FEWEST_SCATTERED = 12  # cells to which a surface can be fitted
_MOST_REPEATED = 0.5  # distinct values per row; a setting has fewer, a measurement more


@dataclass(frozen=True, slots=True)
class Settings:
    """What a source says of a run beside its result: values of the axes, a seed and a length if they are known."""

    where: str
    cell: Mapping[str, Any]
    seed: int | None
    steps: int | None
    fixed: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Run:
    """A run of elsewhere; ``result`` has no trial id yet, and ``curve`` is None where it is not known."""

    settings: Settings
    result: MemberResult
    curve: Trace | None = None

    @property
    def seed(self) -> int:
        """The seed, once it has one."""
        assert self.settings.seed is not None, "seeds have been numbered"
        return self.settings.seed


@dataclass(frozen=True, slots=True)
class Asked:
    """Which columns are what. ``steps`` is a column or a length for all runs; ``where`` chooses rows."""

    axes: Sequence[AxisColumn]
    seed: str | None = None
    steps: str | int | None = None
    where: Mapping[str, str] = field(default_factory=dict)


def chosen_rows(rows: Sequence[Row], where: Mapping[str, str]) -> list[Row]:
    """The rows whose columns have the values of ``where``, as ``value_of`` reads both. Raises InputError for none."""
    wanted = {column: value_of(text) for column, text in where.items()}
    kept = [row for row in rows if all(value_of(row.values.get(name)) == value for name, value in wanted.items())]
    if not kept:
        text = ",".join(f"{name}={value}" for name, value in where.items())
        there = "; ".join(f"{name} has {_some([row.values.get(name) for row in rows])}" for name in where)
        raise InputError(Problem("--where", text, "no row has these values", there))
    return kept


def settings_of_rows(rows: Sequence[Row], asked: Asked, unused: Sequence[str]) -> list[Settings | LeftOut]:
    """The settings of each row, or why it has none. A column of ``unused`` with one value is a fixed setting."""
    fixed = {
        name: value
        for name in unused
        if len(values := {to_hashable(value_of(row.values.get(name))) for row in rows}) == 1
        and (value := next(iter(values))) is not EMPTY
        and not (isinstance(value, float) and not isfinite(value))
    }
    columns = {axis.name: evened([value_of(row.values.get(axis.column)) for row in rows]) for axis in asked.axes}
    found: list[Settings | LeftOut] = []
    for i, row in enumerate(rows):
        cell = {name: to_hashable(values[i]) for name, values in columns.items()}
        found.append(_settings(row, cell, asked, fixed))
    return found


def _settings(row: Row, cell: dict[str, Any], asked: Asked, fixed: Mapping[str, Any]) -> Settings | LeftOut:
    for axis in asked.axes:
        value = cell[axis.name]
        if value is EMPTY:
            return LeftOut(row.where, f"{axis.column} is empty")
        if isinstance(value, float) and not isfinite(value):
            return LeftOut(row.where, f"{axis.column} is {value}")
    seed, steps = None, asked.steps if isinstance(asked.steps, int) else None
    if asked.seed is not None and (seed := _whole(row.values.get(asked.seed))) is None:
        return LeftOut(row.where, f"{asked.seed} is {row.values.get(asked.seed)!r}, not a seed")
    if isinstance(asked.steps, str) and (steps := _whole(row.values.get(asked.steps))) is None:
        return LeftOut(row.where, f"{asked.steps} is {row.values.get(asked.steps)!r}, not a number of steps")
    return Settings(row.where, cell, seed, steps, fixed)


def _whole(raw: Any) -> int | None:
    value = value_of(raw)
    return int(value) if is_number(value) and isfinite(value) and value == int(value) and value >= 0 else None


def with_seeds(runs: Sequence[Run]) -> tuple[list[Run], list[LeftOut]]:
    """The runs, each with a seed: its own, or its number within its cell.

    Of runs with one cell and seed the first counts; the second value has the others.
    """
    taken: dict[tuple[Any, ...], str] = {}
    counts: Counter[tuple[Any, ...]] = Counter()
    kept, left_out = [], []
    for run in runs:
        key = tuple(run.settings.cell.items())
        seed = counts[key] if run.settings.seed is None else run.settings.seed
        counts[key] += 1
        if (first := taken.setdefault((key, seed), run.settings.where)) != run.settings.where:
            left_out.append(LeftOut(run.settings.where, f"has the cell and the seed {seed} of {first}"))
            continue
        kept.append(replace(run, settings=replace(run.settings, seed=seed)))
    return kept, left_out


def axes_of(runs: Sequence[Run], wanted: Sequence[AxisColumn], scattered: bool | None) -> tuple[list[Axis], bool]:
    """The axes over the values of ``runs``, and whether cells are scattered: as told, or where they fill no grid."""
    values = {axis.name: ordered(list(dict.fromkeys(run.settings.cell[axis.name] for run in runs))) for axis in wanted}
    for name, own in values.items():
        if not all(map(is_number, own)):
            words = sorted(
                (value for value in own if not is_number(value)), key=lambda value: (value is None, str(value))
            )
            values[name] = [*sorted(value for value in own if is_number(value)), *words]
    num_cells = len({tuple(run.settings.cell.items()) for run in runs})
    are_numbers = sum(len(own) > 1 and all(map(is_number, own)) for own in values.values())
    if scattered is None:
        size = prod(map(len, values.values()))
        # The values of a grid with gaps repeat, those of a random search seldom do.
        most = max((len(own) for own in values.values() if all(map(is_number, own))), default=0)
        is_sparse = num_cells >= _FEWEST_SCATTERED and num_cells < _LEAST_FILLED * size
        scattered = are_numbers > 1 and is_sparse and most > _MOST_REPEATED * num_cells
    return [axis_of(axis.name, values[axis.name], axis.scale, is_scattered=scattered) for axis in wanted], scattered


def in_order(runs: Sequence[Run], axes: Sequence[Axis]) -> list[Run]:
    """The runs in the order of a grid: the first axis slowest, seeds last."""
    places = {axis.name: {value: i for i, value in enumerate(axis.values)} for axis in axes}

    def place(run: Run) -> tuple[int, ...]:
        return (*(places[name][value] for name, value in run.settings.cell.items()), run.seed)

    return sorted(runs, key=place)


def differing_columns(rows: Sequence[Row], asked: Asked, unused: Sequence[str]) -> list[str]:
    """Columns that look like settings and differ between rows of one cell, which then count as seeds.

    A setting repeats its values; a measurement seldom does.
    """
    cells: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        cells.setdefault(tuple(str(row.values.get(axis.column)) for axis in asked.axes), []).append(row)
    found = []
    for name in unused:
        is_same = all(len({str(row.values.get(name)) for row in own}) == 1 for own in cells.values())
        num_distinct = len({str(row.values.get(name)) for row in rows})
        if not is_same and num_distinct <= _MOST_REPEATED * len(rows):
            found.append(name)
    return found


def _some(raws: Sequence[Any]) -> str:
    texts = list(dict.fromkeys(str(raw) for raw in raws))
    return ", ".join(texts[:8]) + (f" and {len(texts) - 8} more" if len(texts) > 8 else "")

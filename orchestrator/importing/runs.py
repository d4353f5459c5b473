"""Imported runs: from the values of rows to the axes, cells and seeds of a sweep."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite, prod
from typing import Any

from orchestrator.base.errors import InputError, Problem, one_line
from orchestrator.base.packs import Trace
from orchestrator.base.space import Axis, Cell, Scale, is_number, on_natural_scale
from orchestrator.base.trial_result import MemberResult
from orchestrator.base.words import listed
from orchestrator.importing.rows import LeftOut
from orchestrator.importing.spool import Row
from orchestrator.logs.columns import MAX_LISTED, find_name

# Names, in lower case, of what belongs to a trial or to the machine, so that no fixed setting may have them.
OF_TRIAL = {"seed", "steps", "status", "state", "outcome", "exit_code", "run_id", "hostname", "user", "tags", "notes"}
OF_TRIAL |= {"created", "runtime", "_runtime", "_timestamp", "_step"}
_MIN_FILLED = 1 / 3  # of a grid; cells that fill less are scattered
_MIN_SCATTERED = 12  # cells, to which a surface can be fitted
_MAX_DISTINCT = 0.5  # distinct values per row: a setting has fewer, a measurement more
_MAX_LISTED = 8


@dataclass(frozen=True, slots=True)
class Settings:
    """What a source says of a run besides its result: its cell, and seed, length and fixed settings if known."""

    where: str
    cell: Cell
    seed: int | None
    steps: int | None
    fixed: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Run:
    """An imported run; ``result`` has no trial id yet. ``curve`` reads its curve, and is None if that is unknown."""

    settings: Settings
    result: MemberResult
    curve: Callable[[], Trace] | None = None

    @property
    def seed(self) -> int:
        """The seed, once runs are numbered."""
        assert self.settings.seed is not None, "seeds have been numbered"
        return self.settings.seed


@dataclass(frozen=True, slots=True)
class SettingColumns:
    """The columns of settings. ``steps`` is a column or the length of all runs; ``where`` chooses rows by values."""

    axes: Sequence[AxisColumn]
    seed: str | None = None
    steps: str | int | None = None
    where: Mapping[str, str] = field(default_factory=dict)


def chosen_rows(rows: Iterable[Row], where: Mapping[str, str]) -> Iterator[Row]:
    """Yield the rows with the values of ``where``, both read by ``value_of``.

    Raises InputError at the end if there are none.
    """
    wanted = {name: value_of(text) for name, text in where.items()}
    has_any = False
    for row in rows:
        if all(_are_same(value_of(row.values.get(name)), value) for name, value in wanted.items()):
            has_any = True
            yield row
    if where and not has_any:
        text = ",".join(f"{name}={value}" for name, value in where.items())
        known = "; ".join(f"{name} has {_distinct([row.values.get(name) for row in rows])}" for name in where)
        raise InputError(Problem("--where", text, "no row has these values", known))


def _are_same(value: Any, wanted: Any) -> bool:
    """Whether two values are equal; true is not 1."""
    return bool(value == wanted) and isinstance(value, bool) == isinstance(wanted, bool)


def settings_of_rows(rows: Sequence[Row], columns: SettingColumns, unused: Sequence[str]) -> list[Settings | LeftOut]:
    """Return the settings of each row, or why it has none. A column of ``unused`` with one value is a fixed setting."""
    fixed = {
        name: value
        for name in unused
        if len(values := set(evened([row.values.get(name) for row in rows]))) == 1
        and (value := next(iter(values))) is not EMPTY
        and not (isinstance(value, float) and not isfinite(value))
    }
    by_axis = {axis.name: evened([row.values.get(axis.column) for row in rows]) for axis in columns.axes}
    for axis in columns.axes:
        near = near_values(by_axis[axis.name]) if axis.merges else {}
        by_axis[axis.name] = [near.get(value, value) if is_number(value) else value for value in by_axis[axis.name]]
    settings: list[Settings | LeftOut] = []
    for i, row in enumerate(rows):
        cell = Cell({name: values[i] for name, values in by_axis.items()})
        settings.append(_settings(row, cell, columns, fixed))
    return settings


def _settings(row: Row, cell: Cell, columns: SettingColumns, fixed: Mapping[str, Any]) -> Settings | LeftOut:
    for axis in columns.axes:
        value = cell[axis.name]
        if value is EMPTY:
            return LeftOut(row.where, f"{axis.column} is empty")
        if isinstance(value, float) and not isfinite(value):
            return LeftOut(row.where, f"{axis.column} is {value}")
    seed, steps = None, columns.steps if isinstance(columns.steps, int) else None
    if columns.seed is not None and (seed := count_of(row.values.get(columns.seed))) is None:
        return LeftOut(row.where, f"{columns.seed} is {row.values.get(columns.seed)!r}, not a seed")
    if isinstance(columns.steps, str) and (steps := count_of(row.values.get(columns.steps))) is None:
        return LeftOut(row.where, f"{columns.steps} is {row.values.get(columns.steps)!r}, not a number of steps")
    return Settings(row.where, cell, seed, steps, fixed)


def count_of(raw: Any) -> int | None:
    """Return the whole number that ``raw`` is, or None if it is none or too large for the ledger."""
    value = value_of(raw)
    return int(value) if is_number(value) and 0 <= value < _MAX_STORED and value == int(value) else None


def with_seeds(runs: Sequence[Run]) -> tuple[list[Run], list[LeftOut]]:
    """Return the runs, each with its seed or its number within its cell, and the runs that repeat a cell and a seed."""
    first_with: dict[tuple[Cell, int], str] = {}
    counts: Counter[Cell] = Counter()
    kept, left_out = [], []
    for run in runs:
        cell, where = run.settings.cell, run.settings.where
        seed = counts[cell] if run.settings.seed is None else run.settings.seed
        counts[cell] += 1
        if (first := first_with.setdefault((cell, seed), where)) != where:
            left_out.append(LeftOut(where, f"has the cell and the seed {seed} of {first}"))
            continue
        kept.append(replace(run, settings=replace(run.settings, seed=seed)))
    return kept, left_out


def axes_of(runs: Sequence[Run], columns: Sequence[AxisColumn], is_scattered: bool | None) -> tuple[list[Axis], bool]:
    """Return the axes over the values of ``runs``, and whether cells are scattered; None finds it from the cells."""
    values = {
        axis.name: _numbers_first(list(dict.fromkeys(run.settings.cell[axis.name] for run in runs))) for axis in columns
    }
    if is_scattered is None:
        is_scattered = _are_scattered({run.settings.cell for run in runs}, values)
    return [
        axis_of(axis.name, values[axis.name], axis.scale, is_scattered=is_scattered) for axis in columns
    ], is_scattered


def _numbers_first(values: list[Any]) -> list[Any]:
    """Order the values of an axis: numbers, then words, then none."""
    words = [value for value in values if not is_number(value)]
    numbers = sorted(value for value in values if is_number(value))
    return [*numbers, *sorted(words, key=lambda value: (value is None, str(value)))]


def _are_scattered(cells: set[Cell], values: Mapping[str, Sequence[Any]]) -> bool:
    """Whether ``cells`` fill no grid: values of a grid with gaps repeat, values of a random search seldom do."""
    numeric = [own for own in values.values() if all(map(is_number, own))]
    is_sparse = len(cells) >= _MIN_SCATTERED and len(cells) < _MIN_FILLED * prod(map(len, values.values()))
    num_distinct = max(map(len, numeric), default=0)
    return sum(len(own) > 1 for own in numeric) > 1 and is_sparse and num_distinct > _MAX_DISTINCT * len(cells)


def in_order(runs: Sequence[Run], axes: Sequence[Axis]) -> list[Run]:
    """Sort the runs as a grid: the first axis slowest, seeds last."""
    index_of = {axis.name: {value: i for i, value in enumerate(axis.values)} for axis in axes}
    return sorted(
        runs, key=lambda run: (*(index_of[name][value] for name, value in run.settings.cell.items()), run.seed)
    )


def differing_columns(rows: Sequence[Row], columns: SettingColumns, unused: Sequence[str]) -> list[str]:
    """Return columns that look like settings, since values repeat, and differ between the rows of a cell."""
    cells: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        cells.setdefault(tuple(str(row.values.get(axis.column)) for axis in columns.axes), []).append(row)
    differing = []
    for name in unused:
        is_constant = all(len({str(row.values.get(name)) for row in own}) == 1 for own in cells.values())
        num_distinct = len({str(row.values.get(name)) for row in rows})
        if not is_constant and num_distinct <= _MAX_DISTINCT * len(rows):
            differing.append(name)
    return differing


def _distinct(raws: Sequence[Any]) -> str:
    return listed(list(dict.fromkeys(one_line(str(raw)) for raw in raws)), _MAX_LISTED)


# --- values of cells, and the scale that the values of an axis suggest -----------------------------

EMPTY = object()  # a cell without a value
_NONE = ("none", "null")
_BOOLEANS = {"true": True, "false": False}
_MAX_EXACT = 2**53  # a float up to here is an integer for certain
_MAX_STORED = 2**63  # an integer of SQLite is below it
_EVENER = 0.5  # a scale is logarithmic if gaps vary so much less on it
_ROUNDED = 0.005  # two values this near, relatively, are one that was rounded in two ways
_MAX_VALUES = 50  # of an axis that a person chose; cells that a sampler drew lie near each other
_EVEN = 0.02  # relative variation of gaps that count as even


@dataclass(frozen=True, slots=True)
class AxisColumn:
    """An axis, the column with its values, and its scale, or None to choose it from the values."""

    name: str
    column: str
    scale: Scale | None = None
    merges: bool = False  # values that differ by rounding


def near_values(values: Iterable[Any]) -> dict[Any, Any]:
    """Return the numbers that lie within half a percent above another one, with that other one.

    Below 1 the same holds for 1 minus the number, or decays such as 0.995 and 0.999 would be near.
    """
    numbers = sorted({value for value in values if is_number(value) and isfinite(value)})
    near: dict[Any, Any] = {}
    for low, high in itertools.pairwise(numbers):
        first = near.get(low, low)
        pairs = [(first, high), *([(1 - high, 1 - first)] if high < 1 else [])]
        if first > 0 and all(more <= less * (1 + _ROUNDED) for less, more in pairs):
            near[high] = first
    return near


def near_note(column: AxisColumn, axes: Sequence[Axis]) -> str | None:
    """Return the question whether values of an axis that differ by rounding are one; None if there are none."""
    values = next(axis.values for axis in axes if axis.name == column.name)
    near = near_values(values) if len(values) <= _MAX_VALUES else {}
    if not near:
        return None
    high, low = next(iter(near.items()))
    pair = f"{column.name} has {low!r} and {high!r}"
    return f"{pair}, less than half a percent apart: if they are one value, add --merge {column.name} (with --replace)"


def column_named(place: str, key: str, wanted: str, columns: Sequence[str]) -> str:
    """Return the column ``wanted`` as the source spells it; lr also means the only column that ends in .lr or /lr.

    Raises InputError at the ``place`` and the ``key`` where the user named it.
    """
    name = find_name(columns, wanted)
    if name is not None:
        return name
    nested = [column for column in columns if re.split(r"[./]", column)[-1] == wanted]
    if len(nested) == 1:
        return nested[0]
    if nested:
        message = f"{wanted!r} may be any of {listed(nested, MAX_LISTED)}"
        raise InputError(Problem(place, key, message, "write the whole name"))
    raise InputError(Problem(place, key, f"{wanted!r} is not a column", f"columns: {listed(columns, MAX_LISTED)}"))


def value_of(raw: Any) -> Any:
    """Return the meaning of a cell: a number, a boolean, None for none, a text, or EMPTY if nothing is there."""
    if raw is None:
        return EMPTY
    if isinstance(raw, list | tuple):
        return tuple(map(value_of, raw))
    if not isinstance(raw, str):
        return _plain(raw)
    text = raw.strip()
    if not text:
        return EMPTY
    if text.lower() in _NONE:
        return None
    if text.lower() in _BOOLEANS:
        return _BOOLEANS[text.lower()]
    number = number_of(text)
    return one_line(text) if number is None else number


def _plain(raw: Any) -> Any:
    """Convert a value of NumPy to Python, and NaN, with which pandas marks a gap, to EMPTY."""
    value = raw.item() if hasattr(raw, "item") else raw
    if isinstance(value, float) and math.isnan(value):
        return EMPTY
    if isinstance(value, bool | float):
        return value
    return (value if abs(value) < _MAX_STORED else _float(value)) if isinstance(value, int) else one_line(str(value))


def _float(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def number_of(text: str) -> int | float | None:
    """Return the number that ``text`` is, an integer if it is written so and the ledger can hold it, or None."""
    if "_" in text:
        return None
    try:
        if abs(number := int(text)) < _MAX_STORED:
            return number
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return None


def evened(raws: Iterable[Any]) -> list[Any]:
    """Return the values of one column in one type: numbers are integers if all are, else floats.

    Among numbers, true and false are words: else true and 1 would be one value.
    """
    values = [value_of(raw) for raw in raws]
    numbers = [value for value in values if is_number(value)]
    if numbers:
        values = [str(value).lower() if isinstance(value, bool) else value for value in values]
    are_integers = all(math.isfinite(value) and value == int(value) and abs(value) < _MAX_EXACT for value in numbers)
    kind = int if are_integers else float
    return [kind(value) if is_number(value) else value for value in values]


def axis_of(name: str, values: Sequence[Any], scale: Scale | None, *, is_scattered: bool) -> Axis:
    """Return the axis over distinct, ordered ``values``. Raises InputError if they do not fit a given ``scale``.

    An axis with a scale has ends, so that it is a range in the map of scattered cells.
    """
    numbers = [float(value) for value in values if is_number(value)]
    chosen = scale or _suggested(name, values, numbers, is_scattered=is_scattered)
    if chosen == "values":
        return Axis(name, chosen, tuple(values))
    low, high = min(numbers, default=math.nan), max(numbers, default=math.nan)
    if (
        len(numbers) < len(values)
        or (chosen == "log" and not low > 0)
        or (chosen == "log1m" and not (low >= 0 and high < 1))
    ):
        needed = {"log": "positive numbers", "log1m": "numbers from 0 to below 1"}.get(chosen, "numbers")
        found = listed([str(value) for value in values], MAX_LISTED)
        message = f"{chosen} needs {needed}, and the values are {found}"
        raise InputError(Problem(f"--axis {name}={chosen}", "", message, f"say --axis {name}=values"))
    return Axis(name, chosen, tuple(values), (low, high) if low < high else None)


def _suggested(name: str, values: Sequence[Any], numbers: Sequence[float], *, is_scattered: bool) -> Scale:
    """Return log if the values span far or are more even so, linear if they are even, else values."""
    if len(numbers) < len(values) or len(numbers) < 2:
        return "values"
    natural = on_natural_scale(Axis(name, "values", tuple(values))).scale
    if natural != "values":
        return natural
    linear = _variation_of_gaps(numbers)
    if min(numbers) > 0 and len(numbers) > 2:
        logarithmic = _variation_of_gaps([math.log(value) for value in numbers])
        if logarithmic < _EVENER * linear:
            return "log"
    return "linear" if is_scattered or (len(numbers) > 2 and linear < _EVEN) else "values"


def _variation_of_gaps(positions: Sequence[float]) -> float:
    """Return the standard deviation of the gaps between ``positions`` over their mean."""
    gaps = [b - a for a, b in itertools.pairwise(sorted(positions))]
    mean = math.fsum(gaps) / len(gaps)
    return math.sqrt(math.fsum((gap - mean) ** 2 for gap in gaps) / len(gaps)) / mean if mean else 0.0

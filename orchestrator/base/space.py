"""Axes, the values on them, cells and trials: scales, grids, values in words, configurations, trial ids."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from graphlib import TopologicalSorter
from typing import Any, Literal, NoReturn

Scale = Literal["values", "linear", "log", "log1m"]
SCALES: tuple[Scale, ...] = ("values", "linear", "log", "log1m")
# The version of a trial's identity: another number makes all trials new.
IDENTITY_SCHEMA = 1
_ID_LENGTH = 16
_NEAR_ONE = 0.99
_WIDE = 30.0  # ratio of the ends of a list of numbers from which its scale is taken as logarithmic
_MOST_PLACES = 17  # decimal places; they distinguish any two doubles below 1
_LONGEST_VALUE = 40  # characters of a displayed list of values
_DIGITS = 12  # of a value in a range
_DIGITS_BELOW_ONE = 15  # of a value whose distance to one has 12 digits: as many as a float keeps for certain
# Grids are computed in decimals, as ranges are written: exactly equal values give equal trial ids. Roots have an error
# in the last of these digits, and 20 digits fewer are free of it.
_EXACT = Context(prec=60)
_SURE_DIGITS = 40


@dataclass(frozen=True, slots=True)
class Axis:
    """One swept hyperparameter. ``ends`` is None for a list of values.

    ``values`` are the grid's values in order, empty when the axis is sampled from its range. ``zipped`` are the axes
    that advance together, itself among them; none where it advances alone. ``when`` holds, by name, the values of other
    axes for which it exists; elsewhere its value is None. ``refined`` are the values of a grid on a range that a search
    refines.
    """

    name: str
    scale: Scale
    values: tuple[Any, ...]
    ends: tuple[float, float] | None = None
    is_integer: bool = False
    zipped: tuple[str, ...] = ()
    when: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    refined: tuple[Any, ...] = ()

    def exists_in(self, cell: Mapping[str, Any]) -> bool:
        """Whether the axis exists for these values of other axes."""
        return all(cell[name] in values for name, values in self.when)

    def at(self, unit: float) -> Any:
        """The value at ``unit`` in [0, 1] of the axis, uniform on the axis's scale."""
        if self.ends is None:
            return self.values[min(int(unit * len(self.values)), len(self.values) - 1)]
        if unit in (0.0, 1.0):
            return self._in_grid(Fraction(unit))
        # In floats, since changing the computation would change the sampled values and so the trials.
        low, high = self.ends
        if self.scale == "log":
            return self._rounded(low * (high / low) ** unit)
        if self.scale == "log1m":
            # Rounding the distance to one keeps 1 - beta2 evenly spaced, which is the purpose of the scale.
            distance = (1 - low) * ((1 - high) / (1 - low)) ** unit
            return float(f"{1 - float(f'{distance:.12g}'):.15g}")
        return self._rounded(low + (high - low) * unit)

    def unit(self, value: Any) -> float:
        """The place of ``value`` in [0, 1] of the axis, where ``at`` gives it back; outside for one beyond the ends.

        In a list of values it is the middle of the value's share. Raises ValueError for one that is not listed.
        """
        if self.ends is None:
            return (self.values.index(value) + 0.5) / len(self.values)
        low, high = map(self.position, self.ends)
        return (self.position(value) - low) / (high - low)

    def has(self, value: Any) -> bool:
        """Whether ``value`` lies on the axis: one of its values, or within its range where it has none."""
        if value is None and self.when:
            return True
        if self.values or self.ends is None:
            return value in self.values
        return is_number(value) and self.ends[0] <= value <= self.ends[1]

    def grid(self, num: int) -> tuple[Any, ...]:
        """``num`` values evenly spaced on the axis's scale, including both ends; fewer where integers coincide.

        Extending a range by whole steps of its grid keeps all of its values.
        """
        units = [Fraction(0)] if num == 1 else [Fraction(i, num - 1) for i in range(num)]
        return tuple(dict.fromkeys(map(self._in_grid, units)))

    def _in_grid(self, unit: Fraction) -> float | int:
        """The value at ``unit`` in [0, 1] of a range, correctly rounded."""
        low, high = (Decimal(repr(end)) for end in self.ends or ())
        with localcontext(_EXACT):
            if self.scale == "linear":
                value = low + (high - low) * unit.numerator / unit.denominator
            else:
                place = Decimal(unit.numerator) / unit.denominator
                if self.scale == "log":
                    value = low * (high / low) ** place
                else:
                    # Rounding the distance to one keeps 1 - beta2 evenly spaced, which is the purpose of the scale.
                    value = 1 - _with_digits((1 - low) * ((1 - high) / (1 - low)) ** place, _DIGITS)
        digits = _DIGITS_BELOW_ONE if self.scale == "log1m" else _DIGITS
        return round(_with_digits(value, _SURE_DIGITS)) if self.is_integer else float(_with_digits(value, digits))

    def position(self, value: float) -> float:
        """The place of ``value`` on the axis's scale: log10 x, -log10(1 - x), or x itself."""
        if self.scale == "log":
            return math.log10(value)
        if self.scale == "log1m":
            return -math.log10(1 - value)
        return float(value)

    def between(self, a: Any, b: Any) -> float | None:
        """The midpoint of two values on the scale of ``on_natural_scale``; None if one has no place there."""
        if not (is_number(a) and is_number(b)):
            return None
        axis = on_natural_scale(self)
        middle = (axis.position(a) + axis.position(b)) / 2
        if axis.scale == "log":
            return 10.0**middle
        return 1 - 10.0**-middle if axis.scale == "log1m" else middle

    def factor(self, a: Any, b: Any) -> float:
        """The distance of two values as a factor of at least 1; of 1 - value on a log1m axis, and on one like it.

        Infinite if only one is zero or not a number (no clipping), or their signs differ.
        """
        if a == b:
            return 1.0
        if not (is_number(a) and is_number(b)):
            return math.inf
        if self._varies_near_one():
            a, b = 1 - a, 1 - b
        return max(a / b, b / a) if a * b > 0 else math.inf

    def moved(self, value: float, factor: float, is_upwards: bool) -> float:
        """The number that is a ``factor`` away from ``value``, as `factor` measures it."""
        if self._varies_near_one():
            return 1 - (1 - value) * (1 / factor if is_upwards else factor)
        return value * (factor if is_upwards == (value > 0) else 1 / factor)

    def _varies_near_one(self) -> bool:
        """Whether the scale is log1m, or distances of listed values to one differ by more than the values do."""
        if self.scale != "values":
            return self.scale == "log1m"
        numbers = [value for value in self.values if is_number(value)]
        positive = [value for value in numbers if value > 0]
        if not positive or min(numbers) < 0 or max(numbers) >= 1:
            return False
        low, high = min(positive), max(positive)
        return (1 - low) / (1 - high) > high / low

    def _rounded(self, value: float) -> float | int:
        return round(value) if self.is_integer else float(f"{value:.12g}")


def _with_digits(value: Decimal, num_digits: int) -> Decimal:
    """``value`` to ``num_digits`` digits; pre-rounded to more, so that a half is exact however it was computed."""
    return Context(prec=num_digits).plus(Context(prec=_SURE_DIGITS).plus(value))


def is_number(value: Any) -> bool:
    """Whether ``value`` is a number; true and false are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_ordered(values: Sequence[Any]) -> bool:
    """Whether values are numbers in ascending order, with none (no clipping: the loosest) last."""
    numbers = values[:-1] if values and values[-1] is None else values
    return all(map(is_number, numbers)) and all(a < b for a, b in itertools.pairwise(numbers))


def on_natural_scale(axis: Axis) -> Axis:
    """``axis`` with the scale that its values suggest.

    A list of numbers whose ends differ by a factor of 30 or more is logarithmic; one whose distances to one do, log1m.
    """
    numbers = [value for value in axis.values if is_number(value)]
    if axis.scale != "values" or len(numbers) < 2:
        return axis
    low, high = min(numbers), max(numbers)
    if low > 0 and high >= _WIDE * low:
        return replace(axis, scale="log")
    if low >= 0 and high < 1 and 1 - low >= _WIDE * (1 - high):
        return replace(axis, scale="log1m")
    return axis


def format_value(value: Any) -> str:
    """A value of an axis in few characters, e.g. 1e-8; null is ``none``, files are ``en/a.txt+fr/b.txt``."""
    if value is None:
        return "none"
    if isinstance(value, FrozenMap):
        return _format_tuple(tuple(f"{name}:{format_value(weight)}" for name, weight in value.items()))
    if isinstance(value, tuple):
        return _format_tuple(value)
    if isinstance(value, bool):
        return str(value).lower()
    return number_text(value, 6) if isinstance(value, float) else str(value).replace("\n", r"\n")


def number_text(value: float, digits: int) -> str:
    """``value`` with ``digits`` significant digits; of 1 - value where it is just below 1, e.g. 0.999968."""
    if _NEAR_ONE <= value < 1:
        places = min(digits - 1 - math.floor(math.log10(1 - value)), _MOST_PLACES)
        return min(f"{value:.{places}f}".rstrip("0"), repr(value), key=len)  # no digits that it does not have
    # Python pads exponents, as in 1e-08.
    return re.sub(r"e([+-])0+", r"e\1", f"{value:.{digits}g}")


def _format_tuple(values: tuple[Any, ...]) -> str:
    """The ends of paths, joined; or interventions, as ``lr x0.5 at 100``; or rules, as ``curvature > 1: lr x0.5``.

    ``none`` for an empty list. Of a long list the first, and a few characters that identify the whole.
    """
    if not values or isinstance(values[0], FrozenMap):
        text = entries_in_words(values)
    else:
        words = ["/".join(value.split("/")[-2:]) if isinstance(value, str) else format_value(value) for value in values]
        text = "+".join(words)
    if len(text) <= _LONGEST_VALUE:
        return text
    # Mappings that are equal give equal letters, in whatever order their keys stand.
    plain = (canonical_text(value) if isinstance(value, FrozenMap) else str(value) for value in values)
    letters = hashlib.sha256("\n".join(plain).encode()).hexdigest()[:6]
    if is_policy(values) and len(short := entries_in_words(values, wants_details=False)) <= _LONGEST_VALUE - 7:
        return f"{short} {letters}"
    if isinstance(values[0], FrozenMap) and (shown := _first_changes(text)):
        return f"{shown} and {len(values) - 1 - shown.count(', ')} more {letters}"
    return f"{text[: _LONGEST_VALUE - 9]}...{letters}"


def is_policy(values: Sequence[Any]) -> bool:
    """Whether ``values`` are rules of control."""
    return bool(values) and isinstance(values[0], Mapping) and "on" in values[0]


def entries_in_words(values: Sequence[Mapping[str, Any]], *, wants_details: bool = True) -> str:
    """Interventions or rules of control in words, ``none`` for an empty list."""
    # Their models are slow to import, and most sweeps have neither.
    from objectives.entries import changes_in_words
    from objectives.rule_words import policy_in_words

    return policy_in_words(values, wants_details=wants_details) if is_policy(values) else changes_in_words(values)


def _first_changes(text: str) -> str:
    """As many whole entries of a long list of interventions as leave room for the number of the others."""
    return text[: _LONGEST_VALUE - len(" and 99 more 123456") + 2].rpartition(", ")[0]


def _cannot_change(self: Any, *_: Any, **__: Any) -> NoReturn:
    raise TypeError(f"a {type(self).__name__} cannot be changed")


class FrozenMap(dict[str, Any]):
    """A mapping that cannot be changed: hashable, and JSON like any other."""

    __slots__ = ()
    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _cannot_change

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (dict(self),)


def to_hashable(value: Any) -> Any:
    """``value`` with a tuple for each list and a FrozenMap for each mapping, so that it can be a column of a map."""
    if isinstance(value, list | tuple):
        return tuple(map(to_hashable, value))
    return FrozenMap({key: to_hashable(inner) for key, inner in value.items()}) if isinstance(value, dict) else value


def to_plain(value: Any) -> Any:
    """``value`` with lists and plain mappings, as it is written in a file."""
    if isinstance(value, list | tuple):
        return list(map(to_plain, value))
    return {key: to_plain(inner) for key, inner in value.items()} if isinstance(value, dict) else value


def grid_cells(axes: Sequence[Axis]) -> Iterator[dict[str, Any]]:
    """Every combination of the axes' values, the first axis slowest.

    Zipped axes advance together. An axis that does not exist in a combination is None there, once.
    """
    names = [axis.name for axis in axes]
    if not any(axis.zipped or axis.when for axis in axes):
        for values in itertools.product(*(axis.values for axis in axes)):
            yield dict(zip(names, values, strict=True))
        return
    places = {axis.name: {None: len(axis.values), **{value: i for i, value in enumerate(axis.values)}} for axis in axes}
    for cell in sorted(combinations(axes), key=lambda cell: [places[name][cell[name]] for name in names]):
        yield {name: cell[name] for name in names}


def combinations(axes: Sequence[Axis]) -> Iterator[dict[str, Any]]:
    """The cells of ``grid_cells`` one after the other, in no particular order."""
    by_name = {axis.name: axis for axis in axes}
    order = TopologicalSorter({axis.name: [name for name, _ in axis.when] for axis in axes}).static_order()
    return _extended({}, [by_name[name] for name in order], by_name)


def _extended(cell: dict[str, Any], axes: Sequence[Axis], by_name: Mapping[str, Axis]) -> Iterator[dict[str, Any]]:
    """``cell`` with every combination of the values of ``axes``, which come after what they depend on."""
    if not axes:
        yield cell
        return
    axis, *rest = axes
    leader = next((by_name[name] for name in axis.zipped if name in cell), None)
    if not axis.exists_in(cell):
        values: tuple[Any, ...] = (None,)
    elif leader is not None:
        values = (axis.values[leader.values.index(cell[leader.name])],)
    else:
        values = axis.values
    for value in values:
        yield from _extended({**cell, axis.name: value}, rest, by_name)


def canonical_text(value: Any) -> str:
    """The canonical text of a configuration: sorted keys, shortest floats, nothing non-finite."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def trial_id(objective: str, config: Mapping[str, Any], seed: int, stopping: Mapping[str, Any]) -> str:
    """Identity of a trial: a hash of everything that can change its result; ``config`` holds only what acts."""
    identity = {"schema": IDENTITY_SCHEMA, "objective": objective, "config": config, "seed": seed, "stopping": stopping}
    return hashlib.sha256(canonical_text(identity).encode()).hexdigest()[:_ID_LENGTH]


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

"""What a sweep says about each size: its runs along the rate, the bracket of its edge, and its flat optimum."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median, stdev
from typing import Any

import numpy as np

from orchestrator.base.errors import InputError, Problem
from orchestrator.base.measure import Measure
from orchestrator.base.space import Axis, Cell, format_value, is_number
from orchestrator.base.trial_result import TrialResult
from orchestrator.base.words import count, listed
from orchestrator.maps.edges import STABLE, StableRule
from orchestrator.maps.lengths import STEPS, judged_lengths, stable_lengths
from orchestrator.maps.optimum import FLAT, Optimum, fitted_optimum
from orchestrator.maps.table import SweepTable

_FEWEST_RATES = 3  # stable, with a loss, that show an optimum
_SHOWN = 4
_RUNS_OF_GROUP, _MOST_GROUPS = 12, 6  # of sizes that are scattered


@dataclass(frozen=True, slots=True)
class Size:
    """The runs at one size by ascending rate: logs of their rates, which were unstable, and what the ledger has.

    ``low`` and ``high`` are the logs of the neighbours between which the edge lies, None beyond the axis.
    ``num_stable`` counts the lengths of the ladder to which each run was stable.
    """

    setting: Cell
    log_rates: tuple[float, ...]
    unstable: tuple[bool, ...]
    num_stable: tuple[int, ...]
    low: float | None
    high: float | None
    optimum: Optimum | None
    runs: tuple[TrialResult, ...] = field(repr=False)

    @property
    def edge(self) -> float | None:
        """The middle of the bracket."""
        return None if self.low is None or self.high is None else (self.low + self.high) / 2

    @property
    def edge_or_bound(self) -> float:
        """The middle of the bracket, or the end of the axis beyond which the edge lies."""
        known = [end for end in (self.low, self.high) if end is not None]
        return sum(known) / len(known)


@dataclass(frozen=True, slots=True)
class Ladder:
    """The sizes of a sweep over the axes ``names``, along a rate.

    ``lengths`` are the steps at which runs of one length are judged, up to what was trained, where steps are a size
    but no axis. They are the last of ``names`` then.
    """

    along: str
    names: tuple[str, ...]
    sizes: tuple[Size, ...]
    lengths: tuple[int, ...] = ()
    measure: Measure = field(repr=False, kw_only=True)

    @property
    def is_scattered(self) -> bool:
        """Whether most sizes have too few runs for an edge of their own."""
        return 2 * sum(len(set(size.log_rates)) < _FEWEST_RATES for size in self.sizes) > len(self.sizes)

    @property
    def num_runs(self) -> int:
        """The number of runs with an outcome."""
        return sum(len(size.log_rates) for size in self.sizes)

    def values(self, name: str) -> list[float]:
        """Return the values of a size axis in ascending order."""
        if name == STEPS and self.lengths:
            return list(map(float, self.lengths))
        return sorted({float(size.setting[name]) for size in self.sizes})

    def without(self, name: str, value: float) -> Ladder:
        """Return the sizes whose value of ``name`` is another, or the runs as they were one length before the last."""
        if name == STEPS and self.lengths:
            kept = self.lengths[:-1]
            return replace(self, lengths=kept, sizes=tuple(_earlier(size, kept) for size in self.sizes))
        return replace(self, sizes=tuple(size for size in self.sizes if size.setting[name] != value))

    def at_each_length(self) -> list[Size]:
        """Return the sizes as they were at each length, the longest first."""
        shorter = self.without(STEPS, self.lengths[-1]).at_each_length() if len(self.lengths) > 1 else []
        return [*self.sizes, *shorter]

    def steps_at(self, size_K: np.ndarray) -> int:
        """Return how long a whole run at a size is: the shortest run of the sweep, unless the size says."""
        if STEPS in self.names:
            return round(math.exp(size_K[self.names.index(STEPS)]))
        return min(run.steps for size in self.sizes for run in size.runs)

    def outcomes(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return log sizes, log rates, and to how many lengths each run was stable (to the only one, without them)."""
        runs = [
            (log_size(size.setting, self.names), rate, num_stable)
            for size in self.sizes
            for rate, num_stable in zip(size.log_rates, size.num_stable, strict=True)
        ]
        sizes, rates, num_stable = zip(*runs, strict=True)
        return np.array(sizes), np.array(rates), np.array(num_stable)

    def optima(self) -> list[tuple[Size, Optimum]]:
        """Return the sizes that show an optimum."""
        return [(size, size.optimum) for size in self.sizes if size.optimum is not None]


@dataclass(frozen=True, slots=True)
class _Run:
    log_rate: float
    is_unstable: bool
    num_stable: int
    trial: TrialResult


def log_size(setting: Mapping[str, float], names: Iterable[str]) -> np.ndarray:
    """Return the logs of the sizes ``names``."""
    return np.log([float(setting[name]) for name in names])


def read_ladder(table: SweepTable, names: Sequence[str], along: str, rule: StableRule = STABLE) -> Ladder:
    """Return the sizes of a sweep. Raises InputError for axes without a logarithm, and for axes that are not named.

    ``steps`` that are no axis of the sweep are the steps to which each run was stable.
    """
    lengths = judged_lengths(table) if STEPS in names and STEPS not in {axis.name for axis in table.axes} else ()
    axes = [name for name in names if not (lengths and name == STEPS)]
    for name in (along, *axes):
        _check_is_positive(table.axis(name, "--along" if name == along else "--at"), along)
    _check_has_no_other(table, axes, along)
    sizes: dict[Cell, list[_Run]] = {}
    for trial in table.runs:
        if (is_stable := rule.of_trial(trial)) is not None:
            num_stable = stable_lengths(trial, lengths, is_stable) if lengths else int(is_stable)
            runs = sizes.setdefault(trial.cell.only(axes), [])
            runs.append(_Run(math.log(trial.cell[along]), not is_stable, num_stable, trial))
    ordered = sorted(sizes.items(), key=lambda item: tuple(item[0][name] for name in axes))
    found = [_size(setting, sorted(runs, key=lambda run: run.log_rate), table.measure) for setting, runs in ordered]
    if lengths:
        found = [replace(size, setting=_with_steps(size.setting, lengths[-1])) for size in found]
    return Ladder(along, (*axes, *([STEPS] if lengths else [])), tuple(found), lengths, measure=table.measure)


def _earlier(size: Size, lengths: Sequence[int]) -> Size:
    """Return the runs of a size as they were at the last of ``lengths``, when no loss was final."""
    num_stable = tuple(min(num, len(lengths)) for num in size.num_stable)
    unstable = tuple(num < len(lengths) for num in num_stable)
    low, high = bracket(size.log_rates, unstable)
    setting = _with_steps(size.setting, lengths[-1])
    return replace(size, setting=setting, unstable=unstable, num_stable=num_stable, low=low, high=high, optimum=None)


def _with_steps(setting: Cell, steps: int) -> Cell:
    return Cell({**setting, STEPS: steps})


def pooled(ladder: Ladder, name: str, exponent_K: np.ndarray) -> Ladder:
    """Return scattered sizes as a few that hold many runs each, neighbours along the axis ``name``.

    Rates are moved to the middle of their group by the exponents of a law, and optima are those of a fitted loss.
    """
    runs = sorted(
        (
            (size, rate, is_unstable, num_stable, run)
            for size in ladder.sizes
            for rate, is_unstable, num_stable, run in zip(
                size.log_rates, size.unstable, size.num_stable, size.runs, strict=True
            )
        ),
        key=lambda each: float(each[0].setting[name]),
    )
    sizes = []
    for part in np.array_split(np.arange(len(runs)), min(_MOST_GROUPS, max(2, len(runs) // _RUNS_OF_GROUP))):
        group = [runs[i] for i in part]
        place_NK = np.array([log_size(size.setting, ladder.names) for size, *_ in group])
        middle_K = np.median(place_NK, axis=0)
        moved = [
            float(rate - shift) for (_, rate, *_), shift in zip(group, (place_NK - middle_K) @ exponent_K, strict=True)
        ]
        order = np.argsort(moved)
        rates = tuple(moved[i] for i in order)
        unstable, num_stable, trials = (tuple(group[i][place] for i in order) for place in (2, 3, 4))
        middle = Cell(zip(ladder.names, map(float, np.exp(middle_K)), strict=True))
        low, high = bracket(rates, unstable)
        costs = [
            None if is_unstable else ladder.measure.final_cost(trial)
            for is_unstable, trial in zip(unstable, trials, strict=True)
        ]
        optimum = None if ladder.lengths else fitted_optimum(rates, costs, place_NK[order] - middle_K)
        sizes.append(Size(middle, rates, unstable, num_stable, low, high, optimum, trials))
    return replace(ladder, sizes=tuple(sizes))


def _check_is_positive(axis: Axis, along: str) -> None:
    bad = [value for value in axis.values if not is_number(value) or value <= 0]
    if bad:
        option = "--along" if axis.name == along else "--at"
        remedy = f"a law of sizes needs positive numbers; `--where {axis.name}=VALUE` keeps one value"
        raise InputError(Problem(f"{option} {axis.name}", "", f"has the value {format_value(bad[0])}", remedy))


def _check_has_no_other(table: SweepTable, names: Sequence[str], along: str) -> None:
    """Refuse axes that vary and are neither a size nor kept at one value, since they would count as scatter."""
    used = {along, *names}
    used |= {other for axis in table.axes if axis.name in used for other in axis.zipped}
    for axis in table.axes:
        values: list[Any] = list(dict.fromkeys(trial.cell.get(axis.name) for trial in table.trials))
        if axis.name in used or used.intersection(axis.zipped) or len(values) < 2:
            continue
        is_size = all(is_number(value) and value > 0 for value in values)
        either = f"give the target's value, `--at {axis.name}=VALUE`, or " if is_size else ""
        shown = listed(list(map(format_value, values)), _SHOWN)
        remedy = f"{either}keep one value with `--where {axis.name}=VALUE`: {shown}"
        raise InputError(Problem("--at", axis.name, f"the sweep has {count(len(values), 'value')} of it", remedy))


def _size(setting: Cell, runs: Sequence[_Run], measure: Measure) -> Size:
    rates, unstable = tuple(run.log_rate for run in runs), tuple(run.is_unstable for run in runs)
    low, high = bracket(rates, unstable)
    num_stable = tuple(run.num_stable for run in runs)
    trials = tuple(run.trial for run in runs)
    return Size(setting, rates, unstable, num_stable, low, high, _optimum(runs, high, measure), trials)


def bracket(rates: Sequence[float], unstable: Sequence[bool]) -> tuple[float | None, float | None]:
    """Return the neighbouring rates between which the edge explains most outcomes, None beyond the axis.

    ``rates`` ascend.
    """
    values = sorted(set(rates))
    errors = _errors(values, rates, unstable)
    place = errors.index(min(errors))
    return values[place - 1] if place else None, values[place] if place < len(values) else None


def is_stable_above(sizes: Iterable[Size]) -> bool:
    """Whether edges with the stable side above them explain more outcomes than edges with it below."""
    below = above = 0
    for size in sizes:
        values = sorted(set(size.log_rates))
        errors = _errors(values, size.log_rates, size.unstable)
        below, above = below + min(errors), above + len(size.log_rates) - max(errors)
    return above < below


def _errors(values: Sequence[float], rates: Sequence[float], unstable: Sequence[bool]) -> list[int]:
    """The outcomes that an edge below each of ``values``, or above all, does not explain."""
    return [
        sum(is_unstable == (rate < high) for rate, is_unstable in zip(rates, unstable, strict=True))
        for high in (*values, math.inf)
    ]


def _optimum(runs: Sequence[_Run], edge: float | None, measure: Measure) -> Optimum | None:
    """Return the region around the best median cost of the rates below the edge that were stable on all seeds."""
    by_rate: dict[float, list[tuple[bool, float | None]]] = {}
    for run in runs:
        if edge is None or run.log_rate < edge:
            by_rate.setdefault(run.log_rate, []).append((run.is_unstable, measure.final_cost(run.trial)))
    costs: dict[float, list[float]] = {}
    for rate, seeds in by_rate.items():
        known = [cost for is_unstable, cost in seeds if not is_unstable and cost is not None and math.isfinite(cost)]
        if len(known) == len(seeds):
            costs[rate] = known
    rates, medians = tuple(costs), tuple(median(each) for each in costs.values())
    if len(rates) < _FEWEST_RATES:
        return None
    best = int(np.argmin(medians))
    seeds_of_best = costs[rates[best]]
    noise = stdev(seeds_of_best) / math.sqrt(len(seeds_of_best)) if len(seeds_of_best) > 1 else 0.0
    limit = medians[best] + max(FLAT * abs(medians[best]), noise)
    low, high = _reach(rates, medians, best, -1, limit), _reach(rates, medians, best, 1, limit)
    beyond = -1 if best == 0 else 1 if best == len(rates) - 1 and edge is None else 0
    return Optimum(low, high, beyond, rates, medians)


def _reach(rates: Sequence[float], costs: Sequence[float], best: int, step: int, limit: float) -> float:
    """Return where the cost crosses ``limit`` on one side of the best, or the last rate on that side."""
    here = best
    while 0 <= here + step < len(rates) and costs[here + step] <= limit:
        here += step
    if not 0 <= here + step < len(rates):
        return rates[here]
    share = (limit - costs[here]) / (costs[here + step] - costs[here])
    return rates[here] + share * (rates[here + step] - rates[here])

"""The setting with the best loss or score that is stable on every seed and far enough from the edge."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Any

from orchestrator.base.errors import InputError, Problem
from orchestrator.base.measure import Measure, score_of
from orchestrator.base.query import hidden, reported
from orchestrator.base.space import Axis, Cell, is_number, is_ordered, number_text
from orchestrator.maps.curve_metrics import measured
from orchestrator.maps.edges import STABLE, Margin, StableRule
from orchestrator.maps.stability_map import StabilityMap, map_of
from orchestrator.maps.table import SweepTable, tied_settings

LOSSES = ("final_loss", "validation_loss", "best_loss")
# A value that is to be tried lies beyond the margin by the first factor, so that rounding it keeps the margin; an edge
# up to the second factor beyond it is an edge within the margin.
_BEYOND, _JUST_BEYOND = 1.01, 1.05


@dataclass(frozen=True)
class Candidate:
    """A cell whose seeds are all stable: its median loss or score, and its margins along the axes of ``stability``.

    ``tied`` are the values that follow from the axes: values of tied fields, and ``effective_NAME`` of tied axes.
    """

    setting: Cell
    loss: float
    num_seeds: int
    tied: Mapping[str, Any]
    stability: StabilityMap = hidden()

    @cached_property
    def _margins(self) -> tuple[Margin, ...]:
        return tuple(self.stability.margins(self.setting))

    @reported
    def margins(self) -> tuple[Margin, ...]:
        """The margins, which are computed when they are first asked for: thousands take a minute on a surface."""
        return self._margins

    @reported
    def margin(self) -> float:
        """The smallest factor up to which every cell is stable; infinite if that holds to the ends of all axes."""
        return smallest(self.margins)

    @property
    def name(self) -> str:
        """The setting in words."""
        return setting_name(self.setting, self.tied)


@dataclass(frozen=True, slots=True)
class Untried:
    """A better candidate whose margin is not known, since the grid has no value where it ends.

    ``values`` maps axes to the values that would show whether the margin is wide enough, and ``between`` to the tried
    ones on both sides.
    """

    setting: Cell
    loss: float
    values: Mapping[str, float]
    between: Mapping[str, tuple[float, float]]
    name: str = hidden()


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The recommended setting or None, and what it was chosen from: stable candidates, the best ``measure`` first.

    ``islands`` are stable too, but cut off from the stable region, and not candidates. Margins are from ``stability``;
    axes ``without_order`` have none. ``untried`` is the best candidate that a finer grid might recommend instead.
    """

    chosen: Candidate | None
    candidates: tuple[Candidate, ...]
    islands: tuple[Candidate, ...]
    num_cells: int
    margin: float
    without_order: tuple[str, ...]
    untried: Untried | None
    measure: Measure = hidden()
    axes: tuple[Axis, ...] = hidden()
    stability: StabilityMap = hidden()

    @reported
    def metric(self) -> str:
        """The name of what was compared."""
        return self.measure.name

    @reported
    def maximize(self) -> bool:
        """Whether a higher value is better."""
        return self.measure.maximize

    @reported
    def is_fitted(self) -> bool:
        """Whether margins are from a surface."""
        return self.stability.is_fitted


def recommend(
    table: SweepTable,
    at_least: float = 2.0,
    metric: str | None = None,
    rule: StableRule = STABLE,
    maximize: bool | None = None,
) -> Recommendation:
    """Recommend the stable cell of best median ``metric`` with stable cells within a factor ``at_least`` of it.

    The ``metric`` and its direction ``maximize`` are read as in ``measure_of``. A direction in which every cell up to
    the axis's end is stable is open, and passes; an unknown cell is no margin. A degraded cell is never chosen, nor one
    outside of the largest connected stable region. Raises InputError for a metric without a direction, a factor below
    1, and too few scattered cells to fit a surface to.
    """
    if not at_least >= 1:
        raise InputError(
            Problem("--margin", "", f"{at_least:g} is not a factor", "write a number from 1 up, such as 2")
        )
    measure = measure_of(table, metric, maximize)
    stability = map_of(table, rule=rule)
    found = sorted(candidates(table, measure, stability), key=lambda candidate: measure.cost(candidate.loss))
    cut_off = stability.islands(candidate.setting for candidate in found)
    by_loss = tuple(candidate for candidate in found if candidate.setting not in cut_off)
    islands = tuple(candidate for candidate in found if candidate.setting in cut_off)
    chosen = next((candidate for candidate in by_loss if candidate.margin >= at_least), None)
    unordered = tuple(axis.name for axis in table.axes if len(axis.values) > 1 and not is_ordered(axis.values))
    num_cells = len(table.by_cell())
    better = by_loss[: by_loss.index(chosen)] if chosen is not None else by_loss
    untried = None if stability.is_fitted else next(filter(None, (_untried(each, at_least) for each in better)), None)
    return Recommendation(
        chosen, by_loss, islands, num_cells, at_least, unordered, untried, measure, stability.axes, stability
    )


def recommended(table: SweepTable) -> Recommendation | None:
    """What is recommended without options; None without axes, without a score, or with too few scattered cells."""
    try:
        return recommend(table)
    except InputError:
        return None


def _untried(candidate: Candidate, at_least: float) -> Untried | None:
    """What a finer grid would have to try; None if the grid says that the candidate is too near to an edge."""
    axes = {axis.name: axis for axis in candidate.stability.axes}
    values, between = {}, {}
    for margin in candidate.margins:
        if margin.is_open or margin.known >= at_least:
            continue
        axis, here = axes[margin.axis], candidate.setting[margin.axis]
        edge = margin.not_known[0] if margin.not_known else margin.first_not_stable
        if not (is_number(here) and is_number(edge)) or axis.zipped or axis.when:
            return None
        value = axis.moved(here, at_least * _BEYOND, margin.is_upwards)
        if all(isinstance(each, int) for each in axis.values):
            value = math.ceil(value) if margin.is_upwards else math.floor(value)
        else:
            value = float(number_text(value, 4))
        low, high = sorted((margin.last_stable, edge))
        if not low < value < high or axis.factor(here, edge) < at_least * _JUST_BEYOND:
            return None
        values[margin.axis], between[margin.axis] = value, (low, high)
    return Untried(candidate.setting, candidate.loss, values, between, candidate.name) if values else None


def measure_of(
    table: SweepTable, metric: str | None, maximize: bool | None = None, option: str = "--metric"
) -> Measure:
    """What cells are compared by: a loss, the sweep's score, or what a trainer printed, with its direction.

    By default the usual measure of the sweep. Raises InputError for any other metric, for a direction that is not known
    or does not apply, for a score that no trial has, and for a sweep without axes.
    """
    score = score_of(table.facts)
    if not table.axes:
        raise InputError(Problem(str(table.ledger.path), "", "the sweep has no axes, so there is nothing to choose"))
    measure = table.measure if metric is None else table.column_measure(metric)
    known = [*LOSSES, *([score.name] if score is not None else []), *table.printed_metrics]
    if metric in table.printed_metrics and measure != score:
        if maximize is None:
            message = f"nothing says whether more of {metric!r} is better"
            raise InputError(Problem(option, "", message, "add --maximize or --minimize"))
        measure = Measure(metric, metric, maximize, measured(table, [metric])[metric])
    elif metric is not None and measure != score and metric not in LOSSES:
        raise InputError(Problem(option, "", f"{metric!r} is not a loss", f"choose one of {', '.join(known)}"))
    if maximize is not None and maximize != measure.maximize:
        message = f"is for a metric that a trainer printed; of {measure.name}, {measure.better} is better"
        raise InputError(Problem("--maximize" if maximize else "--minimize", "", message, "leave it out"))
    if not measure.is_loss and all(measure.of(trial) is None for trial in table.trials):
        remedy = "`sweep check FILE` shows what the trainer prints; --metric final_loss compares by the loss"
        raise InputError(Problem(table.name, "", f"no trial has a value of {measure.name!r}", remedy))
    return measure


def candidates(table: SweepTable, measure: Measure, stability: StabilityMap) -> Iterator[Candidate]:
    """The stable cells with a value on every seed, in the order of the sweep."""
    states = table.states()
    for cell, runs in table.by_cell().items():
        loss = median_of_all(map(measure.of, runs))
        if states[cell] == "stable" and loss is not None:
            yield Candidate(cell, loss, len(runs), tied_settings(runs[0], table.ties), stability)


def smallest(margins: Iterable[Margin]) -> float:
    """The smallest factor up to which every cell is stable; infinite if all directions are open."""
    return min((margin.known for margin in margins if not margin.is_open), default=float("inf"))


def median_of_all(values: Iterable[float | None]) -> float | None:
    """The median, or None if one of ``values`` is None."""
    listed = list(values)
    known = [value for value in listed if value is not None]
    return median(known) if known and len(known) == len(listed) else None


def setting_name(setting: Cell, tied: Mapping[str, Any]) -> str:
    """A setting in words, with the values that follow from it in brackets."""
    following = Cell(tied).name
    return f"{setting.name} ({following})" if following else setting.name

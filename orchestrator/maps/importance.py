"""Which axis moves stability, and which the loss or the score, with the diverged runs in."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from orchestrator.base.errors import InputError, Problem
from orchestrator.base.measure import Measure
from orchestrator.base.query import hidden, reported
from orchestrator.base.space import Axis, is_number, is_ordered, on_natural_scale
from orchestrator.base.trial_result import TrialResult
from orchestrator.base.vocabulary import OUTCOMES, is_over_edge
from orchestrator.maps.axes import value_label
from orchestrator.maps.surface_map import SurfaceMap, surface_map
from orchestrator.maps.table import SweepTable, usual_measure
from orchestrator.search.study import EVALUATORS, Parameter, importances

_SURFACE = "surface"  # of P(stable), fitted to the trials
_BEST = 0.1  # share of the trials whose losses count as good
_POINTS = 1024  # that are shuffled
_FEWEST = 5  # trials that PED-ANOVA compares with all
_MOST_ON_PAGE = 1000  # trials of a grid

# Shares by target and evaluator: of each axis, or None where nothing moves the target.
Shares = Mapping[str, Mapping[str, Mapping[str, float] | None]]


@dataclass(frozen=True, slots=True)
class Importance:
    """The share of each axis in what moves stability and the loss, by evaluator, from ``num_trials`` trials.

    The ``measure`` is what settings are compared by. It is taken by its rank, with the diverged trials tied for
    the last place, so that the size of a blow-up does not matter. ``num_inside`` trials are inside the edge: stable or
    degraded. ``num_best`` trials are what PED-ANOVA takes as good. ``no_surface`` says why the surface has no shares.
    """

    sweep: str
    num_trials: int
    num_inside: int
    num_best: int
    shares: Shares
    no_surface: str | None
    doubts: tuple[str, ...]
    axes: tuple[str, ...] = hidden()
    measure: Measure = hidden()

    @reported
    def loss(self) -> str:
        """The name of the loss or score."""
        return self.measure.name


def importance(table: SweepTable, is_on_page: bool = False) -> Importance:
    """The importance of each axis of two values or more.

    A page has other use for a surface of scattered cells alone, so that a large grid has none there: the fit takes
    seconds. Raises InputError for a sweep without an axis of two values, or without two trials of known outcome.
    """
    name = table.name
    trials = [run for run in table.runs if run.outcome in OUTCOMES]
    if len(trials) < 2:
        remedy = "`sweep status NAME` says what is missing"
        raise InputError(Problem(name, "", "fewer than two trials have an outcome that tells", remedy))
    axes = [on_natural_scale(axis) for axis in table.axes if len(axis.values) > 1]
    if not axes:
        raise InputError(Problem(name, "", "no axis has two values, so there is nothing to compare"))
    parameters = [_parameter(axis) for axis in axes]
    place_of = {
        parameter.name: partial(value_label, axis) if parameter.choices else axis.position
        for parameter, axis in zip(parameters, axes, strict=True)
    }
    rows = [{name: place(trial.cell[name]) for name, place in place_of.items()} for trial in trials]
    unstable = [float(is_over_edge(trial.label)) for trial in trials]
    num, num_inside = len(trials), unstable.count(0.0)
    measure = usual_measure(trials, table.facts)
    num_best = min(num - 1, max(_FEWEST, math.ceil(_BEST * num)))
    # Half a trial less than the number, since Optuna rounds up the number that is meant.
    of_loss = importances(parameters, rows, loss_ranks(trials, measure), (num_best - 0.5) / num)
    of_stability: Mapping[str, Mapping[str, float] | None] = dict.fromkeys(EVALUATORS)
    on_surface: Mapping[str, float] | None = None
    no_surface: str | None = "all trials are on one side of the edge"
    if 0 < num_inside < num:
        of_stability = importances(parameters, rows, unstable, (num_inside - 0.5) / num)
        if is_on_page and table.is_grid and num > _MOST_ON_PAGE:
            no_surface = f"`sweep importance {name}` fits it to more than {_MOST_ON_PAGE:,} trials"
        else:
            on_surface, no_surface = surface_shares(table)
    return Importance(
        sweep=name,
        axes=tuple(axis.name for axis in axes),
        shares={"stability": {**of_stability, _SURFACE: on_surface}, "loss": of_loss},
        no_surface=no_surface,
        measure=measure,
        num_trials=num,
        num_inside=num_inside,
        num_best=num_best,
        doubts=tuple(_doubts(num, num_inside)),
    )


def loss_ranks(trials: Sequence[TrialResult], measure: Measure) -> list[float]:
    """The rank of each trial's loss or score in [0, 1], the best first; equal ones share the mean of their ranks.

    Diverged trials, and others without a value at their end, are tied for the last place.
    """
    from scipy.stats import rankdata

    costs = [_cost(trial, measure) for trial in trials]
    return [float(rank - 1) / max(1, len(trials) - 1) for rank in rankdata(costs)]


def _cost(trial: TrialResult, measure: Measure) -> float:
    found = measure.final_cost(trial)
    return math.inf if trial.outcome == "diverged" or found is None else float(found)


def _parameter(axis: Axis) -> Parameter:
    if all(map(is_number, axis.values)):
        places = [axis.position(value) for value in axis.values]
        return Parameter(axis.name, min(places), max(places))
    return Parameter(axis.name, choices=tuple(value_label(axis, value) for value in axis.values))


def _doubts(num: int, num_inside: int) -> list[str]:
    if num_inside in (0, num):
        return [f"{'all' if num_inside else 'none'} of the trials are inside the edge: nothing moves stability here"]
    fewer = min(num_inside, num - num_inside)
    kind = "inside" if num_inside == fewer else "over"
    return [f"only {fewer} of {num} trials are {kind} the edge: too few to compare"] if fewer < _FEWEST else []


def surface_shares(table: SweepTable) -> tuple[Mapping[str, float] | None, str | None]:
    """The share of each axis in what moves P(stable): its mean squared change when the values of the axis are shuffled.

    The points are drawn evenly over the part of the axes that trials reach. The second value is the reason why
    shares are missing. L. Breiman, Random forests, 2001, section 10.
    """
    if not any(axis.ends is not None or is_ordered(axis.values) for axis in table.axes):
        return None, "no axis has values in an order"
    try:
        changes = _changes(surface_map(table))
    except InputError as error:
        return None, "; ".join(each.message if isinstance(each, Problem) else each for each in error.problems)
    total = sum(changes.values())
    if not total > 0:
        return None, "no axis moves it"
    return {name: change / total for name, change in changes.items()}, None


def _changes(surface: SurfaceMap) -> dict[str, float]:
    random = np.random.default_rng(0)
    cells = [
        {
            axis.name: axis.values[random.integers(len(axis.values))] if axis.values else axis.at(random.random())
            for axis in surface.reach
        }
        for _ in range(_POINTS)
    ]
    stable_M = surface.probability(cells)
    changes = {}
    for axis in surface.axes:
        order = random.permutation(_POINTS)
        shuffled = [{**cell, axis.name: cells[i][axis.name]} for cell, i in zip(cells, order, strict=True)]
        changes[axis.name] = float(np.mean((surface.probability(shuffled) - stable_M) ** 2))
    return changes

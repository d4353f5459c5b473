"""Optuna's samplers: searches for the best setting, and samples of cells in place of a grid.

A search is rebuilt from what the ledger knows for each proposal. A diverged trial is a result: its loss counts as the
highest of all, and the share of stable seeds can be a constraint.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

from orchestrator.base.space import Axis, Cell, is_number
from orchestrator.base.vocabulary import PRUNED
from orchestrator.search.protocol import (
    EDGE,
    CellResult,
    Proposal,
    SeedResult,
    has_missing_results,
    within_budget,
)

if TYPE_CHECKING:
    import optuna

    from orchestrator.search.margins import EdgeMargins

    Sampler = optuna.samplers.BaseSampler
    Space = dict[str, optuna.distributions.BaseDistribution]

MARGIN = "margin"  # the metric of a cell that is its distance to the edge of stability
POPULATION = 16  # cells of a generation: they fill packs, and a usual budget has some tens of generations


@dataclass(frozen=True)
class OptunaSearch:
    """A search for low ``metrics``, or high ones if they are ``maximized``, over ``axes``, with ``num_trials`` at most.

    It is by the Optuna sampler ``method``. Each cell is trained with ``num_seeds`` seeds and judged by their mean. A
    cell whose share of stable seeds is below ``stable`` is infeasible. The metric ``MARGIN`` is computed by
    ``margins``, and is maximised.
    """

    method: str
    axes: tuple[Axis, ...]
    metrics: tuple[str, ...]
    num_trials: int
    num_seeds: int
    stable: float | None
    seed: int
    margins: EdgeMargins | None = None  # if a metric is MARGIN
    maximized: frozenset[str] = frozenset()

    def propose(self, known: Sequence[CellResult], room: int) -> list[Proposal] | None:
        """Propose cells for ``room`` trials, at least one cell."""
        num = max(1, room // self.num_seeds)
        if self.method in SPREADS:
            # An axis with values has no others, even if it has ends.
            axes = [replace(axis, ends=None) if axis.values else axis for axis in self.axes]
            cells = sample_cells(axes, SPREADS[self.method], len(known) + num, self.seed)[len(known) :]
        else:
            cells = self._sampled(known, num)
        kept = within_budget([Proposal(cell, self.num_seeds) for cell in cells], known, self.num_trials)
        if kept:
            return kept
        return [] if has_missing_results(known) else None

    def _sampled(self, known: Sequence[CellResult], num: int) -> list[dict[str, Any]]:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        space = {axis.name: _distribution(axis) for axis in self.axes}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            if self.method in GENERATIONS:
                return self._next_generation(known, space)
            study = self._study(SAMPLERS[self.method](self._seed_after(len(known))))
            penalties, margins = self._penalties(known), self._margins(known)
            for result, margin in zip(known, margins, strict=True):
                study.add_trial(self._optuna_trial(result, space, penalties, margin))
            return [self._cell(study.ask(fixed_distributions=space)) for _ in range(num)]

    def _next_generation(self, known: Sequence[CellResult], space: Space) -> list[dict[str, Any]]:
        """Return the missing cells of the first generation that is not complete in ``known``.

        The state of such a sampler is not in its trials alone, so all generations are replayed, each with what was
        known then.
        """
        results = {Cell(result.cell): result for result in known}
        study, replayed = self._study(GENERATIONS[self.method](self.seed)), list[CellResult]()
        while True:
            trials = [study.ask(fixed_distributions=space) for _ in range(POPULATION)]
            cells = [self._cell(trial) for trial in trials]
            generation = [results.get(Cell(cell)) for cell in cells]
            complete = [result for result in generation if result is not None]
            if len(complete) < len(generation) or has_missing_results(complete):
                return [cell for cell, result in zip(cells, generation, strict=True) if result is None]
            replayed += complete
            penalties, margins = self._penalties(replayed), self._margins(replayed)[-len(trials) :]
            for trial, result, margin in zip(trials, complete, margins, strict=True):
                finished = self._optuna_trial(result, space, penalties, margin)
                for name, value in finished.constraints.items():
                    trial.set_constraint(name, value)
                study.tell(trial, finished.values, state=finished.state)

    def _study(self, sampler: Sampler) -> optuna.Study:
        import optuna

        return optuna.create_study(directions=["minimize"] * len(self.metrics), sampler=sampler)

    def _cell(self, trial: optuna.Trial) -> dict[str, Any]:
        return {axis.name: _value(axis, trial.params[axis.name]) for axis in self.axes}

    def _seed_after(self, num_known: int) -> int:
        """Return a seed for each state of the search: a new sampler with the same seed would draw the same numbers."""
        return (self.seed * 1_000_003 + num_known) % 2**32

    def _penalties(self, known: Sequence[CellResult]) -> list[float]:
        return [_penalty(known, name, self._sign(name)) for name in self.metrics]

    def _sign(self, name: str) -> int:
        """The factor that makes a metric lower the better it is."""
        return -1 if name in self.maximized else 1

    def _margins(self, known: Sequence[CellResult]) -> list[float]:
        """Return the margin of each cell given all that is ``known``, or zeros if no metric is the margin."""
        return self.margins.of(known) if self.margins is not None else [0.0] * len(known)

    def _optuna_trial(
        self, result: CellResult, space: Space, penalties: Sequence[float], margin: float
    ) -> optuna.trial.FrozenTrial:
        """Make the Optuna trial of a cell: RUNNING while a result is missing, FAIL if all its trials were given up."""
        from optuna.trial import TrialState, create_trial

        params = {axis.name: _param(axis, result.cell[axis.name]) for axis in self.axes}
        judged = [seed for seed in result.seeds if seed.outcome is not None]
        if has_missing_results([result]) or not judged:
            state = TrialState.FAIL if not has_missing_results([result]) else TrialState.RUNNING
            return create_trial(params=params, distributions=space, state=state)
        values = [
            -margin if name == MARGIN else fmean(_cost_of(seed, name, self._sign(name), penalty) for seed in judged)
            for name, penalty in zip(self.metrics, penalties, strict=True)
        ]
        # A pruned trial was on its trend.
        share = sum(seed.outcome in ("stable", PRUNED) for seed in judged) / len(judged)
        constraints = {} if self.stable is None else {"stable": self.stable - share}  # infeasible if positive
        return create_trial(params=params, distributions=space, values=values, constraints=constraints)


def _cost_of(seed: SeedResult, name: str, sign: int, penalty: float) -> float:
    """Return a trial's metric times ``sign``, or the penalty if it diverged: its last finite loss says nothing."""
    if seed.outcome == "diverged" or name not in seed.metrics:
        return penalty
    return min(sign * seed.metrics[name], penalty)


def _penalty(known: Sequence[CellResult], name: str, sign: int) -> float:
    """Return the worst value of a metric in trials that did not diverge, times ``sign``.

    For a loss, that is at least the initial loss.
    """
    names = (name, "initial_loss") if name.endswith("loss") else (name,)
    values = [
        sign * seed.metrics[metric]
        for result in known
        for seed in result.seeds
        for metric in names
        if seed.outcome not in (None, "diverged") and metric in seed.metrics
    ]
    return max(values, default=1.0)


def _distribution(axis: Axis) -> optuna.distributions.BaseDistribution:
    """Describe a range as the unit interval, so that Optuna needs no scales, and listed numbers by their indices."""
    import optuna

    if axis.ends is not None and not axis.values:
        return optuna.distributions.FloatDistribution(0.0, 1.0)
    if all(is_number(value) for value in axis.values):
        return optuna.distributions.IntDistribution(0, len(axis.values) - 1)
    return optuna.distributions.CategoricalDistribution(list(range(len(axis.values))))


def _value(axis: Axis, param: Any) -> Any:
    return axis.values[param] if axis.values else axis.at(param)


def _param(axis: Axis, value: Any) -> Any:
    return axis.values.index(value) if axis.values else min(max(axis.unit(value), 0.0), 1.0)


def _sampler(name: str, **options: Any) -> Callable[[int], Sampler]:
    def make(seed: int) -> Sampler:
        import optuna

        return getattr(optuna.samplers, name)(seed=seed, **options)

    return make


# Searches whose state is in their trials.
SAMPLERS = {"tpe": _sampler("TPESampler", multivariate=True), "gp": _sampler("GPSampler")}
# Searches that go from generation to generation. CMA-ES knows no constraints: an infeasible cell has the penalty.
GENERATIONS = {
    "nsga2": _sampler("NSGAIISampler", population_size=POPULATION),
    "cmaes": _sampler("CmaEsSampler", popsize=POPULATION, n_startup_trials=0),
}
# Searches that learn nothing, with the name of the sample that they continue.
SPREADS = {"random": "random", "qmc": "sobol"}
SEARCHES = (EDGE, *SAMPLERS, *GENERATIONS, *SPREADS)  # the names for `search: {method: ...}`


# --- samples ---------------------------------------------------------------------------------------


def _sobol(cube: Space, seed: int) -> Sampler:
    import optuna

    class Sobol(optuna.samplers.QMCSampler):
        """Quasi-random points in a given search space, which is not inferred again from all trials each time."""

        def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, Any]:
            return cube

    return Sobol(qmc_type="sobol", scramble=True, seed=seed)


# The names for `sample: {method: ...}`; each makes a sampler of the unit cube from a seed.
METHODS: dict[str, Callable[[Space, int], Sampler]] = {
    "random": lambda cube, seed: _sampler("RandomSampler")(seed),
    "sobol": _sobol,
}


def sample_cells(axes: Sequence[Axis], method: str, num: int, seed: int) -> list[dict[str, Any]]:
    """Sample ``num`` cells, uniform on each axis's scale; a larger ``num`` starts with the same cells.

    ``method`` is one of ``METHODS``. Optuna samples the unit cube, so it needs no scales.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    cube: Space = {axis.name: optuna.distributions.FloatDistribution(0.0, 1.0) for axis in axes}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = METHODS[method](cube, seed)
    study = optuna.create_study(sampler=sampler)
    points = (study.ask(fixed_distributions=cube).params for _ in range(num))
    return [{axis.name: axis.at(point[axis.name]) for axis in axes} for point in points]

"""Searches for the best setting, by Optuna's samplers: Optuna proposes, and is rebuilt from what the ledger knows.

A diverged trial is a result: its loss counts as the highest of all, and the share of stable seeds can be a constraint.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

from orchestrator.base.cell import Cell
from orchestrator.base.space import Axis, is_number
from orchestrator.base.vocabulary import PRUNED
from orchestrator.search.batches import within
from orchestrator.search.protocol import CellResult, Proposal, SeedResult
from orchestrator.search.sampled import sample_cells

if TYPE_CHECKING:
    import optuna

    from orchestrator.search.margins import EdgeMargins

    Sampler = optuna.samplers.BaseSampler

MARGIN = "margin"  # the metric of a cell that is its distance to the edge of stability
POPULATION = 16  # cells of a generation: they fill packs, and a usual budget has some tens of generations


@dataclass(frozen=True)
class OptunaSearch:
    """A search for low ``metrics`` over ``axes``, by the Optuna sampler ``method``, with at most ``num_trials`` trials.

    Each cell is trained with ``num_seeds`` seeds and judged by the mean over them. Where ``stable`` is given, a cell
    with a smaller share of stable seeds is infeasible. The metric ``MARGIN`` is no result of a trial: it is to be high,
    and ``margins`` finds it.
    """

    method: str
    axes: tuple[Axis, ...]
    metrics: tuple[str, ...]
    num_trials: int
    num_seeds: int
    stable: float | None
    seed: int
    margins: EdgeMargins | None = None  # where a metric is MARGIN

    def propose(self, known: Sequence[CellResult], room: int) -> list[Proposal] | None:
        """Cells for ``room`` trials, at least one."""
        num = max(1, room // self.num_seeds)
        if self.method in SPREADS:
            # Of an axis with values only these are drawn, also where it has ends.
            axes = [replace(axis, ends=None) if axis.values else axis for axis in self.axes]
            cells = sample_cells(axes, SPREADS[self.method], len(known) + num, self.seed)[len(known) :]
        else:
            cells = self._sampled(known, num)
        kept = within([Proposal(cell, self.num_seeds) for cell in cells], known, self.num_trials)
        if kept:
            return kept
        return [] if any(not seed.is_over for result in known for seed in result.seeds) else None

    def _sampled(self, known: Sequence[CellResult], num: int) -> list[dict[str, Any]]:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        space = {axis.name: _distribution(axis) for axis in self.axes}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            if self.method in GENERATIONS:
                return self._next_generation(known, space)
            study = self._study(SAMPLERS[self.method](self._own_seed(len(known))))
            penalties, margins = self._penalties(known), self._margins(known)
            for result, margin in zip(known, margins, strict=True):
                study.add_trial(self._told(result, space, penalties, margin))
            return [self._cell(study.ask(fixed_distributions=space)) for _ in range(num)]

    def _next_generation(self, known: Sequence[CellResult], space: dict[str, Any]) -> list[dict[str, Any]]:
        """The cells of the first generation that is not complete in ``known``.

        What such a sampler has learned is not in its trials alone, so it is led through all generations again, each
        with what was known then.
        """
        results = {Cell(result.cell): result for result in known}
        study, told = self._study(GENERATIONS[self.method](self.seed)), list[CellResult]()
        while True:
            trials = [study.ask(fixed_distributions=space) for _ in range(POPULATION)]
            cells = [self._cell(trial) for trial in trials]
            found = [results.get(Cell(cell)) for cell in cells]
            if any(result is None or any(not seed.is_over for seed in result.seeds) for result in found):
                return [cell for cell, result in zip(cells, found, strict=True) if result is None]
            told += [result for result in found if result is not None]
            penalties, margins = self._penalties(told), self._margins(told)[-len(trials) :]
            for trial, result, margin in zip(trials, found, margins, strict=True):
                assert result is not None
                heard = self._told(result, space, penalties, margin)
                for name, value in heard.constraints.items():
                    trial.set_constraint(name, value)
                study.tell(trial, heard.values, state=heard.state)

    def _study(self, sampler: Sampler) -> optuna.Study:
        import optuna

        return optuna.create_study(directions=["minimize"] * len(self.metrics), sampler=sampler)

    def _cell(self, trial: optuna.Trial) -> dict[str, Any]:
        return {axis.name: _value(axis, trial.params[axis.name]) for axis in self.axes}

    def _own_seed(self, num_known: int) -> int:
        """A seed for each state of the search: a sampler that is made anew would draw the same numbers again."""
        return (self.seed * 1_000_003 + num_known) % 2**32

    def _penalties(self, known: Sequence[CellResult]) -> list[float]:
        return [_penalty(known, name) for name in self.metrics]

    def _margins(self, known: Sequence[CellResult]) -> list[float]:
        """The margin of each cell given all that is ``known``; of no meaning where it is no metric."""
        return self.margins.of(known) if self.margins is not None else [0.0] * len(known)

    def _told(
        self, result: CellResult, space: Mapping[str, Any], penalties: Sequence[float], margin: float
    ) -> optuna.trial.FrozenTrial:
        """The Optuna trial of a cell: RUNNING while a result is missing, FAIL where every trial was given up."""
        import optuna

        params = {axis.name: _param(axis, result.cell[axis.name]) for axis in self.axes}
        states = optuna.trial.TrialState
        judged = [seed for seed in result.seeds if seed.outcome is not None]
        if any(not seed.is_over for seed in result.seeds):
            return optuna.trial.create_trial(params=params, distributions=dict(space), state=states.RUNNING)
        if not judged:
            return optuna.trial.create_trial(params=params, distributions=dict(space), state=states.FAIL)
        values = [
            -margin if name == MARGIN else fmean(_value_of(seed, name, penalty) for seed in judged)
            for name, penalty in zip(self.metrics, penalties, strict=True)
        ]
        # A pruned trial was on its trend.
        share = sum(seed.outcome in ("stable", PRUNED) for seed in judged) / len(judged)
        lacking = {} if self.stable is None else {"stable": self.stable - share}  # infeasible where it is above zero
        return optuna.trial.create_trial(params=params, distributions=dict(space), values=values, constraints=lacking)


def _value_of(seed: SeedResult, name: str, penalty: float) -> float:
    """The metric of a trial; the penalty for one that diverged, whose last finite loss says nothing."""
    return penalty if seed.outcome == "diverged" else min(seed.metrics.get(name, penalty), penalty)


def _penalty(known: Sequence[CellResult], name: str) -> float:
    """The highest value of a metric among the trials that did not diverge; of a loss, at least that before training."""
    names = (name, "initial_loss") if name.endswith("loss") else (name,)
    values = [
        seed.metrics[each]
        for result in known
        for seed in result.seeds
        for each in names
        if seed.outcome not in (None, "diverged") and each in seed.metrics
    ]
    return max(values, default=1.0)


def _distribution(axis: Axis) -> optuna.distributions.BaseDistribution:
    """A range is the unit interval, so Optuna needs no knowledge of scales; listed numbers are their places."""
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


def _tpe(seed: int) -> Sampler:
    import optuna

    return optuna.samplers.TPESampler(seed=seed, multivariate=True)


def _gp(seed: int) -> Sampler:
    import optuna

    return optuna.samplers.GPSampler(seed=seed)


def _nsga2(seed: int) -> Sampler:
    import optuna

    return optuna.samplers.NSGAIISampler(seed=seed, population_size=POPULATION)


def _cmaes(seed: int) -> Sampler:
    import optuna

    # It knows no constraints: what is infeasible has the penalty.
    return optuna.samplers.CmaEsSampler(seed=seed, popsize=POPULATION, n_startup_trials=0)


# Searches whose state is in their trials.
SAMPLERS: dict[str, Callable[[int], Sampler]] = {"tpe": _tpe, "gp": _gp}
# Searches that go from generation to generation.
GENERATIONS: dict[str, Callable[[int], Sampler]] = {"nsga2": _nsga2, "cmaes": _cmaes}
# Searches that learn nothing, by the names of the samples that they continue.
SPREADS = {"random": "random", "qmc": "sobol"}

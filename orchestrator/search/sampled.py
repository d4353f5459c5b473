"""Cells for axes that are not a grid. Optuna proposes; the caller decides.

A new search method is a function here that makes an Optuna sampler, and a line in ``METHODS``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.base.space import Axis

if TYPE_CHECKING:
    import optuna

    Cube = dict[str, optuna.distributions.BaseDistribution]


def _random(cube: Cube, seed: int) -> optuna.samplers.BaseSampler:
    import optuna

    return optuna.samplers.RandomSampler(seed=seed)


def _sobol(cube: Cube, seed: int) -> optuna.samplers.BaseSampler:
    import optuna

    class Sobol(optuna.samplers.QMCSampler):
        """Quasi-random points in a known search space, which is not inferred from all trials before each one."""

        def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, Any]:
            return cube

    return Sobol(qmc_type="sobol", scramble=True, seed=seed)


# The names for `sample: {method: ...}`; each creates a sampler of the unit cube from a seed.
METHODS: dict[str, Callable[[Cube, int], optuna.samplers.BaseSampler]] = {"random": _random, "sobol": _sobol}


def sample_cells(axes: Sequence[Axis], method: str, num: int, seed: int) -> list[dict[str, Any]]:
    """``num`` cells, uniform on each axis's scale; a larger ``num`` starts with the same cells.

    ``method`` is one of ``METHODS``. Optuna works in the unit cube, so it needs no knowledge of scales.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    cube: Cube = {axis.name: optuna.distributions.FloatDistribution(0.0, 1.0) for axis in axes}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = METHODS[method](cube, seed)
    study = optuna.create_study(sampler=sampler)
    proposals = (study.ask(fixed_distributions=cube).params for _ in range(num))
    return [{axis.name: axis.at(proposed[axis.name]) for axis in axes} for proposed in proposals]

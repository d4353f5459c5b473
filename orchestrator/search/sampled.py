"""Cells for axes that are not a grid. Optuna proposes; the caller decides."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Literal

from orchestrator.space import Axis

Method = Literal["random", "sobol"]


def sample_cells(axes: Sequence[Axis], method: Method, num: int, seed: int) -> list[dict[str, Any]]:
    """``num`` cells, uniform on each axis's scale; a larger ``num`` starts with the same cells.

    Optuna works in the unit cube, so it needs no knowledge of scales.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    cube: dict[str, optuna.distributions.BaseDistribution] = {
        axis.name: optuna.distributions.FloatDistribution(0.0, 1.0) for axis in axes
    }

    class Sobol(optuna.samplers.QMCSampler):
        """Quasi-random points in a known search space, which is not inferred from all trials before each one."""

        def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, Any]:
            return cube

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler: optuna.samplers.BaseSampler
        if method == "sobol":
            sampler = Sobol(qmc_type="sobol", scramble=True, seed=seed)
        else:
            sampler = optuna.samplers.RandomSampler(seed=seed)
    study = optuna.create_study(sampler=sampler)
    proposals = (study.ask(fixed_distributions=cube).params for _ in range(num))
    return [{axis.name: axis.at(proposed[axis.name]) for axis in axes} for proposed in proposals]

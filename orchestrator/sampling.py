"""Which cells to try when the axes are not a grid. Optuna proposes; the caller decides."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Literal

from orchestrator.space import Axis

Method = Literal["random", "sobol"]


def sample_cells(axes: Sequence[Axis], method: Method, num: int, seed: int) -> list[dict[str, Any]]:
    """``num`` cells, even on each axis's own scale; a larger ``num`` begins with the same cells.

    Optuna works in the unit cube, so it needs to know nothing about scales.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    cube = {axis.name: optuna.distributions.FloatDistribution(0.0, 1.0) for axis in axes}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        if method == "sobol":
            sampler = optuna.samplers.QMCSampler(qmc_type="sobol", scramble=True, seed=seed)
        else:
            sampler = optuna.samplers.RandomSampler(seed=seed)
    study = optuna.create_study(sampler=sampler)
    # A quasi-random sampler learns the search space from a finished trial, so it is given one.
    centre = optuna.trial.create_trial(params=dict.fromkeys(cube, 0.5), distributions=cube, value=0.0)
    study.add_trial(centre)
    cells = []
    for _ in range(num):
        proposed = study.ask(fixed_distributions=cube)
        cells.append({axis.name: axis.at(proposed.params[axis.name]) for axis in axes})
        study.tell(proposed, 0.0)
    return cells

from __future__ import annotations

import sys
import warnings

import numpy as np
import optuna
import pytest

from orchestrator.base.space import Axis
from orchestrator.search.sampled import METHODS, sample_cells

AXES = [
    Axis("lr", "log", (), (1e-6, 1.0)),
    Axis("beta2", "log1m", (), (0.0, 0.9999)),
    Axis("warmup", "linear", (), (0, 100), is_integer=True),
    Axis("schedule", "values", ("cosine", "linear")),
]


@pytest.mark.parametrize("method", METHODS)
def test_a_larger_number_begins_with_the_same_cells(method: str) -> None:
    large = sample_cells(AXES, method, 40, seed=3)
    assert sample_cells(AXES, method, 11, seed=3) == large[:11]
    assert sample_cells(AXES, method, 11, seed=4) != large[:11]


@pytest.mark.parametrize("method", METHODS)
def test_cells_are_even_on_each_axis_own_scale(method: str) -> None:
    cells = sample_cells(AXES, method, 256, seed=0)
    lr, beta2 = (np.array([cell[name] for cell in cells]) for name in ("lr", "beta2"))
    assert np.mean(lr < 1e-3) == pytest.approx(0.5, abs=0.12)
    assert np.mean(beta2 < 0.99) == pytest.approx(0.5, abs=0.12)
    assert all(isinstance(cell["warmup"], int) for cell in cells)
    assert {cell["schedule"] for cell in cells} == {"cosine", "linear"}


def test_sobol_covers_more_evenly_than_chance() -> None:
    def largest_gap(method: str) -> float:
        lr = np.sort([np.log10(cell["lr"]) for cell in sample_cells(AXES, method, 128, seed=0)])
        return float(np.diff(lr).max())

    assert largest_gap("sobol") < 0.6 * largest_gap("random")


def test_optuna_proposes_the_same_when_it_is_asked_one_trial_after_the_other() -> None:
    # The trial in the middle stands for those from which Optuna's sampler learns the search space.
    cube = {axis.name: optuna.distributions.FloatDistribution(0.0, 1.0) for axis in AXES}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        study = optuna.create_study(sampler=optuna.samplers.QMCSampler(qmc_type="sobol", scramble=True, seed=5))
    study.add_trial(optuna.trial.create_trial(params=dict.fromkeys(cube, 0.5), distributions=cube, value=0.0))
    cells = []
    for _ in range(30):
        proposed = study.ask(fixed_distributions=cube)
        cells.append({axis.name: axis.at(proposed.params[axis.name]) for axis in AXES})
        study.tell(proposed, 0.0)
    assert sample_cells(AXES, "sobol", 30, seed=5) == cells


@pytest.mark.parametrize("method", METHODS)
def test_the_work_for_a_cell_does_not_grow_with_their_number(method: str) -> None:
    def num_calls(num: int) -> int:
        calls = 0

        def count(*_) -> None:
            nonlocal calls
            calls += 1

        before = sys.getprofile()
        sys.setprofile(count)
        try:
            sample_cells(AXES[:2], method, num, seed=0)
        finally:
            sys.setprofile(before)
        return calls

    num_calls(10)  # imports
    few, more, most = (num_calls(num) for num in (100, 200, 300))
    assert (most - more) - (more - few) < 0.01 * most

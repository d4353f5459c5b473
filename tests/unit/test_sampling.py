from __future__ import annotations

import numpy as np
import pytest

from orchestrator.sampling import sample_cells
from orchestrator.space import Axis

AXES = [
    Axis("lr", "log", (), (1e-6, 1.0)),
    Axis("beta2", "log1m", (), (0.0, 0.9999)),
    Axis("warmup", "linear", (), (0, 100), is_integer=True),
    Axis("schedule", "values", ("cosine", "linear")),
]


@pytest.mark.parametrize("method", ["random", "sobol"])
def test_a_larger_number_begins_with_the_same_cells(method: str) -> None:
    large = sample_cells(AXES, method, 40, seed=3)
    assert sample_cells(AXES, method, 11, seed=3) == large[:11]
    assert sample_cells(AXES, method, 11, seed=4) != large[:11]


@pytest.mark.parametrize("method", ["random", "sobol"])
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

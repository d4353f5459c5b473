"""What a comparison says of sweeps that differ only by their seeds, and of those that do not."""

from functools import partial

import numpy as np
import pytest
from sweep_cases import trial_row

from orchestrator.base.space import Axis, Cell
from orchestrator.maps.comparison import Difference, compare
from orchestrator.maps.table import SweepTable

LR = Axis("lr", "log", tuple(10 ** (-3 + 0.25 * i) for i in range(13)), (1e-3, 1.0))
BETA1 = Axis("beta1", "linear", (0.0, 0.2, 0.4, 0.6, 0.8), (0.0, 0.8))
SEED_CELLS, TRIAL_CELLS = 0.6, 0.3  # deviations of a seed's edge, shared by all its rows, and of each trial


def sweep(rng: np.random.Generator, seeds: range, shift: float = 0.0, num_scattered: int = 0) -> SweepTable:
    """A sweep whose edge is at the sixth to the eighth cell of a row, in each seed at another place."""
    cells = [Cell(lr=lr, beta1=beta1) for lr in LR.values for beta1 in BETA1.values]
    axes = (LR, BETA1)
    if num_scattered:
        cells = [Cell(lr=LR.at(x), beta1=BETA1.at(y)) for x, y in rng.random((num_scattered, 2))]
        axes = tuple(Axis(axis.name, axis.scale, (), axis.ends) for axis in axes)
    effects = dict(zip(seeds, shift + SEED_CELLS * rng.standard_normal(len(seeds)), strict=True))
    trials = []
    for cell in cells:
        edge = 5.5 + 2.5 * cell["beta1"]
        for seed, effect in effects.items():
            is_stable = 12 * LR.unit(cell["lr"]) < edge + effect + TRIAL_CELLS * rng.standard_normal()
            outcome = "stable" if is_stable else "diverged"
            trials.append(trial_row(cell=cell, seed=seed, status="finished", outcome=outcome))
    facts = {"name": "s", "is_sampled": "true" if num_scattered else "false"}
    return SweepTable(None, facts, axes, tuple(trials))


def difference(make, rng: np.random.Generator, num: int, is_paired: bool, shift: float = 0.0) -> Difference:
    first, second = range(num), range(num) if is_paired else range(num, 2 * num)
    return compare([make(rng, first), make(rng, second, shift)]).differences[0]


GRID, SCATTERED = sweep, partial(sweep, num_scattered=24)


@pytest.mark.parametrize("num", [2, 3, 5])
def test_few_paired_seeds_never_reach_five_percent_and_say_so(num: int) -> None:
    found = difference(GRID, np.random.default_rng(0), num, True, 5.0)
    assert found.p_value == found.least_p == 2.0 ** (1 - num)
    assert found.area_interval is None
    assert found.area_change > 0.2


def test_whole_seeds_are_permuted_exactly() -> None:
    found = difference(GRID, np.random.default_rng(0), 6, True, 5.0)
    assert (found.num_seeds, found.is_paired, found.p_value) == (6, True, pytest.approx(2 / 2**6))
    apart = difference(GRID, np.random.default_rng(0), 4, False, 5.0)
    assert (apart.num_seeds, apart.is_paired, apart.p_value) == (4, False, pytest.approx(2 / 70))


def test_of_several_sweeps_the_p_values_are_those_of_holm() -> None:
    rng, seeds = np.random.default_rng(0), range(8)
    tables = [sweep(rng, seeds, shift) for shift in (0.0, 5.0, 0.0, 5.0)]
    alone = [compare([tables[0], table]).differences[0].p_value for table in tables[1:]]
    together = [new.p_value for new in compare(tables).differences]
    assert alone[0] == alone[2] == 2.0**-7
    assert alone[1] > alone[0]
    assert together == pytest.approx([3 * alone[0], max(2 * alone[0] * 1.5, alone[1]), 3 * alone[0]])


def simulated(make, num: int, is_paired: bool, num_cases: int, shift: float = 0.0) -> list[Difference]:
    rng = np.random.default_rng(num + 100)
    return [difference(make, rng, num, is_paired, shift) for _ in range(num_cases)]


@pytest.mark.slow
@pytest.mark.parametrize("is_paired", [True, False], ids=["paired", "apart"])
@pytest.mark.parametrize("num", [2, 3, 6, 8])
def test_seeds_alone_are_more_than_chance_in_at_most_five_percent(num: int, is_paired: bool) -> None:
    """The figures are those of docs/maps.md, from 120 cases of grids each."""
    null = simulated(GRID, num, is_paired, 120)
    assert sum(found.p_value < 0.05 for found in null) <= (6 if num >= 6 else 0)
    intervals = [found.area_interval for found in null if found.area_interval]
    assert len(intervals) == (120 if num >= 6 else 0)
    if num >= 6:
        assert 0.93 <= np.mean([ends.low <= 0 <= ends.high for ends in intervals]) < 0.99
        for shift, least in ((1.0, 10), (2.0, 26)):
            assert sum(found.p_value < 0.05 for found in simulated(GRID, num, is_paired, 30, shift)) >= least


@pytest.mark.slow
def test_on_scattered_cells_seeds_alone_are_no_more_than_chance_and_a_shift_is() -> None:
    """The figures are those of docs/maps.md."""
    null = simulated(SCATTERED, 6, True, 30)
    assert sum(found.p_value < 0.05 for found in null) == 0
    assert all(found.area_interval.low <= 0 <= found.area_interval.high for found in null)
    assert sum(found.p_value < 0.05 for found in simulated(SCATTERED, 6, True, 30, 2.0)) >= 18

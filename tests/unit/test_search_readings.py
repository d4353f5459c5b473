"""The benchmark of readings: what trials tell beside their outcomes, and searches that are told."""

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks import search_readings
from benchmarks.search_readings import correlations, error, write_table
from benchmarks.search_told import FEWEST, SEEN, Cell, Grid, Told, ToldSearch, read_grid, result_of, told
from orchestrator.surface.surface import Surface
from orchestrator.sweepfile.spec import Sweep

SIZES = (4, 24)
EDGE = np.array([7.5, 9.5, 13.5, 15.5])
POINTS = np.array(list(np.ndindex(*SIZES))) / (np.array(SIZES) - 1)
BOTH = ("peak_factor", "largest_rise")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A table of four rows with a sharp edge and three seeds, whose readings are the distance to the edge and noise."""
    random = np.random.default_rng(0)
    lines = ["warmup,lr,seed,outcome,peak_factor,largest_rise"]
    for row, place, seed in np.ndindex(*SIZES, 3):
        away = place - EDGE[row] + 0.5 * random.standard_normal()
        lines.append(f"{row},{place},{seed}," + (f"stable,,{away}" if place < EDGE[row] else f"spiked,{away},"))
    path = tmp_path / "readings.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def grid(path: Path) -> Grid:
    return read_grid(path, "lr", ())


@pytest.fixture
def far() -> Counter[Cell]:
    """Trials from end to end of each row, few of them near its edge."""
    return Counter({(row, place): SEEN for row in range(4) for place in (0, 2, 4, 6, 17, 19, 21, 23)})


def surface_of(grid: Grid, counts: Counter[Cell]) -> Surface:
    """The surface by the outcomes alone."""
    return ToldSearch(grid, (), 96, 0).surface([result_of(grid, cell, num) for cell, num in counts.items()])


def test_readings_are_no_axes_of_a_table(path: Path) -> None:
    grid = read_grid(path, "lr", ())
    assert [axis.name for axis in grid.axes] == ["warmup", "lr"]
    np.testing.assert_allclose(grid.edge_of(range(grid.num_seeds)), EDGE)


def test_a_reading_counts_on_one_side_of_the_edge_where_a_trial_has_it(grid: Grid) -> None:
    np.testing.assert_array_equal(grid.has("largest_rise"), grid.is_stable_CS)
    np.testing.assert_array_equal(grid.has("peak_factor"), ~grid.is_stable_CS)


def test_a_reading_that_is_the_distance_is_correlated_with_it(grid: Grid) -> None:
    for name in BOTH:
        of_seeds, of_rows = correlations(grid, name, np.inf)
        assert len(of_seeds) == 3
        assert min(of_seeds) > 0.9
        assert min(of_rows) > 0.8


def test_too_few_readings_tell_nothing(grid: Grid) -> None:
    few = Counter({(0, place): 1 for place in range(FEWEST - 1)})
    plain = surface_of(grid, few)
    assert told(plain, grid, BOTH, few) is plain


def test_what_is_told_is_the_posterior_of_normal_observations(grid: Grid, far: Counter[Cell]) -> None:
    plain = surface_of(grid, far).best
    after = told(plain, grid, BOTH, far)
    assert isinstance(after, Told)
    before, points = plain.latent(POINTS, has_covariance=True), after.latent(POINTS)
    cross_MK = plain.covariance(before, after.seen) * after.slope_K
    system_KK = after.factor_KK @ after.factor_KK.T
    surprise_K = after.factor_KK @ after.surprise_K
    np.testing.assert_allclose(points.mean_M, before.mean_M + cross_MK @ np.linalg.solve(system_KK, surprise_K))
    covariance = plain.covariance(before, before) - cross_MK @ np.linalg.solve(system_KK, cross_MK.T)
    np.testing.assert_allclose(after.covariance(points, points), covariance, atol=1e-8)
    np.testing.assert_allclose(points.sd_M**2, np.diag(covariance), atol=1e-6)


def test_good_readings_bring_the_edge_closer_than_outcomes_alone(grid: Grid, far: Counter[Cell]) -> None:
    trials = list(far.elements())
    assert error(grid, BOTH, trials) < 0.7 * error(grid, (), trials)


@pytest.mark.slow
def test_a_search_that_is_told_repeats_itself_and_spends_its_budget(grid: Grid) -> None:
    some, again = (ToldSearch(grid, BOTH, 32, 3).trials() for _ in range(2))
    assert some == again
    assert len(some) == 32
    assert max(Counter(some).values()) <= SEEN


@pytest.mark.slow
def test_both_answers_are_shown(path: Path, capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    monkeypatch.setattr(search_readings, "BUDGETS", (16, 24))
    assert search_readings.main([str(path), "--along", "lr", "--searches", "1"]) == 0
    shown = capsys.readouterr().out
    assert "the search" in shown
    assert "24" in shown


def test_a_table_that_is_missing_ends_with_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert search_readings.main([str(tmp_path / "none.csv"), "--along", "lr"]) == 2
    assert "no such file" in capsys.readouterr().err


def test_a_ledger_gives_a_row_for_each_trial_with_the_readings_of_its_side(
    tmp_path: Path, quadratic_sweep: Sweep, train: Callable, rows: Callable
) -> None:
    train(quadratic_sweep)
    write_table(tmp_path / quadratic_sweep.name, tmp_path / "table.csv.gz")
    grid = read_grid(tmp_path / "table.csv.gz", "lr", ())
    trials = rows(quadratic_sweep.name)
    assert grid.is_stable_CS.size == len(trials)
    assert grid.is_stable_CS.sum() == sum(trial.outcome == "stable" for trial in trials)
    assert np.all(grid.readings["largest_rise"][grid.is_stable_CS] < 1)
    assert np.all(np.isfinite(grid.readings["onset_step"][~grid.is_stable_CS]))

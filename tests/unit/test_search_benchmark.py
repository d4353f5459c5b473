"""The benchmark of searches: truths, arms and figures."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks import search
from benchmarks.search_arms import ARMS, Trials, edges_of, grid
from benchmarks.search_truths import SHAPES, in_three_dimensions, random_edge, read_table, synthetic

COLUMNS = "warmup,lr,seed,outcome"


def table(path: Path, rows: list[str]) -> Path:
    path.write_text("\n".join([COLUMNS, *rows]) + "\n")
    return path


@pytest.fixture
def outcomes(tmp_path: Path) -> Path:
    """Two rows of four values with two seeds: the edge is behind two values, and behind three for one seed."""
    stable = {("0", 0): 2, ("0", 1): 2, ("100", 0): 3, ("100", 1): 2}
    values = ("1e-4", "1e-3", "1e-2", "1e-1")
    rows = [
        f"{warmup},{lr},{seed},{'stable' if i < num else 'spiked'}"
        for (warmup, seed), num in stable.items()
        for i, lr in enumerate(values)
    ]
    return table(tmp_path / "outcomes.csv", rows)


def test_quick_figures_have_every_arm_case_and_budget(tmp_path: Path, capsys) -> None:
    path = tmp_path / "figures.json"
    assert search.main(["--quick", "--seeds", "1", "--json", str(path)]) == 0
    figures = json.loads(path.read_text())
    cases = ["linear 0.15", "step 0.15"]
    assert set(figures["error"]) == set(ARMS) == {"ours", "random", "sobol_gp", "bisection", "tpe"}
    for of_arm in figures["error"].values():
        assert list(of_arm) == cases
        assert all(set(errors) == {"24", "32"} for errors in of_arm.values())
        assert all(0 <= error < 32 for errors in of_arm.values() for error in errors.values())
    assert list(figures["grid3"]) == list(figures["trials_to_match_grid3"]) == cases
    shown = capsys.readouterr().out
    assert "bisect" in shown


def test_a_sharp_grid_is_half_a_cell_off_at_most() -> None:
    for shape in SHAPES:
        truth = synthetic(shape, 0.0)
        for found in grid(Trials(truth, 0), 3).values():
            assert np.abs(found - truth.edge_R).max() <= 0.5


@pytest.mark.parametrize("make", [lambda: random_edge(1, 0.15), lambda: in_three_dimensions(0.15)])
def test_truths_have_an_edge_in_each_row_within_the_grid(make) -> None:
    truth = make()
    assert truth.edge_R.shape == (int(np.prod(truth.sizes[:-1])),)
    assert truth.edge_R.min() >= -0.5
    assert truth.edge_R.max() <= truth.sizes[-1] - 0.5


def test_the_share_of_stable_trials_is_a_half_at_the_edge() -> None:
    truth = synthetic("linear", 0.6)
    edge = int(np.argmin(np.abs(truth.edge_R - np.round(truth.edge_R))))
    cell = (edge, round(truth.edge_R[edge]))
    draws = np.linspace(0, 1, 1001)[:-1]
    share = np.mean([truth.outcome(cell, 0, draw) == "stable" for draw in draws])
    assert share == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize("arm", ARMS)
def test_an_arm_gives_the_same_edges_for_the_same_seed_and_spends_its_budget(arm) -> None:
    truth = synthetic("linear", 0.15)
    some, again = (ARMS[arm](truth, (16, 24), 3) for _ in range(2))
    assert set(some) == {16, 24}
    for num, edge_R in some.items():
        assert edge_R.shape == (32,)
        np.testing.assert_array_equal(edge_R, again[num])


def test_the_edge_of_a_surface_is_where_its_mean_crosses() -> None:
    trials = Trials(synthetic("linear", 0.0), 0)
    for row in range(0, 32, 4):
        for place in range(32):
            trials.train((row, place))
    assert np.abs(edges_of(trials.surface(), (32, 32)) - trials.truth.edge_R).mean() < 0.5


def test_trials_to_match_are_those_from_which_on_no_error_is_larger() -> None:
    assert search.first_as_good({"24": 0.5, "28": 0.1, "32": 0.3, "36": 0.2, "40": 0.1}, 0.2) == 36
    assert search.first_as_good({"24": 0.1, "28": 0.1}, 0.2) == 24
    assert search.first_as_good({"24": 0.1, "28": 0.3}, 0.2) is None


def test_a_table_of_outcomes_is_a_truth_with_the_shares_of_its_seeds(outcomes: Path) -> None:
    truth = read_table(outcomes, "lr", ["lr"])
    assert [axis.name for axis in truth.axes] == ["warmup", "lr"]
    assert truth.sizes == (2, 4)
    np.testing.assert_allclose(truth.edge_R, [1.5, 2.0])
    assert [truth.outcome((1, 2), seed, 0.0) for seed in (0, 1)] == ["stable", "spiked"]


def test_a_search_is_replayed_against_a_table(outcomes: Path, tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    chosen = ["--table", str(outcomes), "--along", "lr", "--log", "lr", "--seeds", "1", "--budgets", "12", "16"]
    assert search.main([*chosen, "--json", str(path)]) == 0
    assert set(json.loads(path.read_text())["error"]["ours"]["outcomes"]) == {"12", "16"}


@pytest.mark.parametrize(
    ("rows", "along", "message"),
    [
        (["0,1e-3,0,stable", "0,1e-2,0,stable", "1,1e-3,0,stable"], "lr", "each cell of the grid needs each seed once"),
        (["0,1e-3,0,stable", "0,1e-3,0,stable"], "lr", "each cell of the grid needs each seed once"),
        (["0,1e-3,0,stable"], "beta2", "the column is missing"),
        (["none,1e-3,0,stable"], "lr", "a value is not a number"),
    ],
    ids=["hole", "twice", "column", "number"],
)
def test_a_table_that_is_no_grid_ends_with_exit_code_2_and_a_message(tmp_path, capsys, rows, along, message) -> None:
    path = table(tmp_path / "outcomes.csv", rows)
    assert search.main(["--table", str(path), "--along", along]) == 2
    assert message in capsys.readouterr().err


def test_without_a_table_it_says_so(tmp_path: Path, capsys) -> None:
    assert search.main(["--table", str(tmp_path / "none.csv"), "--along", "lr"]) == 2
    assert "no such file" in capsys.readouterr().err

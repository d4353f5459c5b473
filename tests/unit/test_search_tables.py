"""Tables of trained outcomes as truths of the benchmark of searches: what is trained, and what is held out."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks import search
from benchmarks.search_arms import Trials, grid
from benchmarks.search_tables import TABLES, Table, read_table

COLUMNS = "warmup,lr,seed,outcome"
VALUES = ("1e-5", "1e-4", "1e-3", "1e-2", "1e-1", "1")


def table(path: Path, rows: list[str]) -> Path:
    path.write_text("\n".join([COLUMNS, *rows]) + "\n")
    return path


def outcomes(path: Path, stable: dict[tuple[str, int], set[int]]) -> Table:
    """A table with the places of the stable values of each warmup and seed."""
    rows = [
        f"{warmup},{lr},{seed},{'stable' if i in places else 'spiked'}"
        for (warmup, seed), places in stable.items()
        for i, lr in enumerate(VALUES)
    ]
    return Table(table(path, rows), "lr", log_axes=("lr",))


@pytest.fixture
def three_seeds(tmp_path: Path) -> Table:
    """Two rows; the last seed, which is held out, is stable for longer than the others."""
    lengths = {("0", 0): 2, ("0", 1): 2, ("0", 2): 4, ("100", 0): 3, ("100", 1): 2, ("100", 2): 5}
    return outcomes(tmp_path / "outcomes.csv", {key: set(range(num)) for key, num in lengths.items()})


def test_the_edge_of_reference_is_that_of_seeds_which_are_not_trained(three_seeds: Table) -> None:
    truth = read_table(three_seeds)
    assert [axis.name for axis in truth.axes] == ["warmup", "lr"]
    assert truth.sizes == (2, 6)
    assert truth.num_seeds == 2
    np.testing.assert_allclose(truth.edge_R, [3.5, 4.5])
    assert [truth.outcome((1, 2), seed, 0.0) for seed in (0, 1)] == ["stable", "spiked"]
    np.testing.assert_allclose(grid(Trials(truth, 0), 2)["grid3"], [1.5, 2.0])


def test_seeds_are_held_out_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    lengths = {("0", 2): 1, ("0", 10): 5}
    truth = read_table(outcomes(tmp_path / "t.csv", {key: set(range(num)) for key, num in lengths.items()}))
    np.testing.assert_allclose(truth.edge_R, [4.5])


@pytest.mark.parametrize("is_stable_first", [True, False])
@pytest.mark.parametrize("length", range(1, 6))
def test_with_one_seed_every_second_value_is_held_out_and_the_grid_is_a_quarter_off(
    tmp_path: Path, length: int, is_stable_first: bool
) -> None:
    places = set(range(length)) if is_stable_first else set(range(6 - length, 6))
    truth = read_table(outcomes(tmp_path / "t.csv", {("0", 0): places, ("100", 0): places}))
    assert truth.sizes == (2, 3)
    assert truth.num_seeds == 1
    found = grid(Trials(truth, 0), 1)["grid3"]
    np.testing.assert_allclose(np.abs(found - truth.edge_R), 0.25)


@pytest.mark.parametrize("places", [set(), set(range(6))], ids=["none", "all"])
def test_with_one_seed_a_row_without_an_edge_has_it_at_the_end_of_the_values_that_are_trained(
    tmp_path: Path, places: set[int]
) -> None:
    truth = read_table(outcomes(tmp_path / "t.csv", {("0", 0): places, ("100", 0): {0, 1, 2}}))
    assert truth.edge_R[0] == (2.5 if places else -0.5)


def test_the_first_seed_that_is_trained_depends_on_the_run(three_seeds: Table) -> None:
    truth = read_table(three_seeds)
    assert [Trials(truth, run).train((1, 2)) for run in (0, 1)] == [True, False]


@pytest.mark.parametrize("known", TABLES, ids=lambda known: known.path.name)
def test_the_tables_of_the_benchmark_have_an_edge_that_their_own_grid_finds_roughly(known: Table) -> None:
    truth = read_table(known)
    assert truth.name == known.path.name.removesuffix(".csv.gz")
    assert truth.axes[-1].name == known.along
    assert all(axis.scale == known.scale(axis.name) for axis in truth.axes)
    found = grid(Trials(truth, 0), min(3, truth.num_seeds))["grid3"]
    assert 0 < np.abs(found - truth.edge_R).mean() < 3


@pytest.mark.slow
def test_a_search_is_replayed_against_a_table_of_ones_own(three_seeds: Table, tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    chosen = ["--table", str(three_seeds.path), "--along", "lr", "--log", "lr", "--seeds", "1", "--budgets", "12", "16"]
    assert search.main([*chosen, "--json", str(path)]) == 0
    figures = json.loads(path.read_text())
    assert set(figures["error"]["ours"]["outcomes"]) == {"12", "16"}
    assert set(figures["grid3"]) == set(figures["trials_to_match_grid3"]) == {"outcomes"}


@pytest.mark.slow
def test_the_tables_are_among_the_cases(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    chosen = ["--cases", "tables", "--arms", "ours", "--seeds", "1", "--budgets", "24"]
    assert search.main([*chosen, "--json", str(path)]) == 0
    assert list(json.loads(path.read_text())["grid3"]) == [known.path.name.partition(".")[0] for known in TABLES]


@pytest.mark.parametrize(
    ("rows", "along", "message"),
    [
        (["0,1e-3,0,stable", "0,1e-2,0,stable", "1,1e-3,0,stable"], "lr", "each cell of the grid needs each seed once"),
        (["0,1e-3,0,stable", "0,1e-3,0,stable"], "lr", "each cell of the grid needs each seed once"),
        (["0,1e-3,0,stable"], "beta2", "the column is missing"),
        (["none,1e-3,0,stable"], "lr", "a value is not a number"),
        (["0,1e-3,0,stable", "0,1e-2,0,stable"], "lr", "two seeds or four values"),
    ],
    ids=["hole", "twice", "column", "number", "nothing to hold out"],
)
def test_a_table_that_is_no_grid_ends_with_exit_code_2_and_a_message(tmp_path, capsys, rows, along, message) -> None:
    path = table(tmp_path / "outcomes.csv", rows)
    assert search.main(["--table", str(path), "--along", along]) == 2
    assert message in capsys.readouterr().err


def test_without_a_table_it_says_so(tmp_path: Path, capsys) -> None:
    assert search.main(["--table", str(tmp_path / "none.csv"), "--along", "lr"]) == 2
    assert "no such file" in capsys.readouterr().err

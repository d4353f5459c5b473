"""The benchmark of searches: truths, arms and figures."""

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks import search
from benchmarks.search_arms import ARMS, DEFAULT_ARMS, Trials, edges_of, grid
from benchmarks.search_truths import SHAPES, in_three_dimensions, random_edge, synthetic


@pytest.mark.slow
def test_quick_figures_have_every_arm_case_and_budget(tmp_path: Path, capsys) -> None:
    path = tmp_path / "figures.json"
    assert search.main(["--quick", "--seeds", "1", "--json", str(path)]) == 0
    figures = json.loads(path.read_text())
    cases = ["linear 0.15", "step 0.15"]
    assert set(figures["error"]) == set(DEFAULT_ARMS) == {"ours", "random", "sobol_gp", "bisection", "tpe"}
    for of_arm in figures["error"].values():
        assert list(of_arm) == cases
        assert all(set(errors) == {"24", "32"} for errors in of_arm.values())
        assert all(0 <= error < 32 for errors in of_arm.values() for error in errors.values())
    assert list(figures["grid3"]) == list(figures["trials_to_match_grid3"]) == cases
    shown = capsys.readouterr().out
    assert "bisect" in shown


def test_flat_edges_are_as_wide_as_on_maps_of_training() -> None:
    cases = search._cases(search._parser().parse_args(["--cases", "flat"]))
    assert {case.arguments for case in cases} == {(s, w) for s in SHAPES for w in (0, 0.15, 0.6, 1, 2, 3)}


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


@pytest.mark.slow
@pytest.mark.parametrize("arm", DEFAULT_ARMS)
def test_an_arm_gives_the_same_edges_for_the_same_seed_and_spends_its_budget(arm) -> None:
    truth = synthetic("linear", 0.15)
    some, again = (ARMS[arm](truth, (16, 24), 3) for _ in range(2))
    assert set(some) == {16, 24}
    for num, edge_R in some.items():
        assert edge_R.shape == (32,)
        np.testing.assert_array_equal(edge_R, again[num])


@pytest.mark.slow
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


@pytest.mark.skipif(importlib.util.find_spec("botorch") is not None, reason="botorch is installed")
def test_an_engine_that_is_not_installed_ends_with_exit_code_2_and_what_to_install(capsys) -> None:
    assert search.main(["--quick", "--arms", "botorch", "--seeds", "1"]) == 2
    message = capsys.readouterr().err
    assert "--arms" in message
    assert "pip install botorch" in message


def test_botorch_spends_its_budget_on_cells_that_have_room_and_finds_the_same_edge_again() -> None:
    pytest.importorskip("botorch")
    truth = synthetic("linear", 0.15)
    some, again = (ARMS["botorch"](truth, (13, 16), 3) for _ in range(2))
    assert set(some) == {13, 16}
    for num, edge_R in some.items():
        assert edge_R.shape == (32,)
        np.testing.assert_array_equal(edge_R, again[num])


def test_the_information_of_an_outcome_is_that_of_simulated_ones() -> None:
    pytest.importorskip("botorch")
    import torch

    from benchmarks.search_botorch import GlobalInformation, fitted

    points_ND = torch.tensor([[0.1, 0.2], [0.4, 0.9], [0.8, 0.3]], dtype=torch.float64)
    model = fitted(points_ND, torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64), None, 50)
    pair_2D = torch.tensor([[0.5, 0.5], [0.4, 0.6]], dtype=torch.float64)
    with torch.no_grad():
        value = float(GlobalInformation(model, pair_2D[1:])(pair_2D[:1, None]))
        posterior = model.posterior(pair_2D)
        mean, covariance = posterior.mean[:, 0].numpy(), posterior.distribution.covariance_matrix.numpy()
    random = np.random.default_rng(0)
    latent_M2 = random.multivariate_normal(mean, covariance, size=400_000)
    stable_M = latent_M2[:, 0] + random.standard_normal(len(latent_M2)) > 0
    joint_22 = np.histogram2d(stable_M, latent_M2[:, 1] > 0, bins=2)[0] / len(latent_M2)
    apart_22 = joint_22.sum(axis=1, keepdims=True) * joint_22.sum(axis=0)
    assert value == pytest.approx(float((joint_22 * np.log(joint_22 / apart_22)).sum()), rel=0.05)

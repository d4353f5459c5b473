"""The fitted surface: equivalences, limits, and the edges that it reads off."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import approx_fprime
from scipy.special import expit
from threadpoolctl import threadpool_info, threadpool_limits

from orchestrator.surface import fitting
from orchestrator.surface.fitting import fit_surface, refitted
from orchestrator.surface.gaussian import Field, Layout, Shape
from orchestrator.surface.posterior import Counts, evidence_gradient, find_mode, matched
from orchestrator.surface.surface import Fit, Surface

ALONG_Y = Layout((False, False), along=1)
PLAIN = Layout((False, False))
PLACES = np.linspace(0, 1, 33)


def outcomes(num: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Points of the unit square and whether they are below the edge y = 0.3 + 0.4 x, with some noise."""
    random = np.random.default_rng(seed)
    points = random.random((num, 2))
    distance = 0.3 + 0.4 * points[:, 0] - points[:, 1]
    return points, (random.random(num) < expit(60 * distance)).astype(float)


def fitted(num: int = 40, layout: Layout = ALONG_Y) -> Surface:
    points, stable = outcomes(num)
    return fit_surface(points, stable, np.ones(num), layout)


def field(layout: Layout) -> Field:
    num = len(layout.numeric)
    lengths = tuple(0.3 + 0.1 * i for i in range(num))
    return Field(
        layout, Shape(lengths, 20.0, 0.3, 1.5) if layout.along is not None else Shape(lengths, 1.0, 3.0, 0.0), -1
    )


def basis(at: Field, points: np.ndarray) -> np.ndarray:
    return np.linalg.cholesky(at.kernel(points, points) + 1e-6 * np.eye(len(points)))


@pytest.mark.parametrize("layout", [ALONG_Y, PLAIN])
def test_counts_give_the_posterior_of_repeated_rows(layout) -> None:
    points, stable = outcomes(20)
    probes = np.random.default_rng(1).random((50, 2))
    counted = fit_surface(points, 2 * stable, np.full(20, 2.0), layout).latent(probes)
    # A mode has tolerances, and twice as many rows have others.
    repeated = fit_surface(np.repeat(points, 2, axis=0), np.repeat(stable, 2), np.ones(40), layout).latent(probes)
    np.testing.assert_allclose(repeated.mean_M, counted.mean_M, rtol=1e-2, atol=0.05)
    np.testing.assert_allclose(repeated.sd_M, counted.sd_M, rtol=1e-2, atol=0.05)


def test_a_fit_and_its_reading_have_one_thread_so_that_they_wait_for_no_trainer(monkeypatch) -> None:
    counts, explained = [], Fit.latent

    def counted() -> None:
        counts.append([one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"])

    def watched(*arguments):
        counted()
        return find_mode(*arguments)

    def read(*arguments):
        counted()
        return explained(*arguments)

    monkeypatch.setattr(fitting, "find_mode", watched)
    monkeypatch.setattr(Fit, "latent", read)
    with threadpool_limits(2, "blas"):
        surface = fitted()
        before = len(counts)
        surface.latent(np.zeros((3, 2)))
        assert len(counts) == before + len(surface.fits)
        after = [one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"]
    assert {num for each in counts for num in each} == {1}
    assert set(after) == {2}


@pytest.mark.parametrize("layout", [ALONG_Y, PLAIN])
def test_the_order_of_cells_does_not_matter(layout) -> None:
    points, stable = outcomes(40)
    order = np.random.default_rng(2).permutation(40)
    probes = np.random.default_rng(1).random((50, 2))
    some = fit_surface(points, stable, np.ones(40), layout).latent(probes)
    other = fit_surface(points[order], stable[order], np.ones(40), layout).latent(probes)
    np.testing.assert_allclose(other.mean_M, some.mean_M, rtol=1e-3, atol=1e-2)


def test_without_cells_it_is_the_prior() -> None:
    surface = fit_surface(np.zeros((0, 2)), np.zeros(0), np.zeros(0), ALONG_Y)
    latent = surface.latent(np.array([[0.2, 0.5], [0.9, 0.0], [0.9, 1.0]]))
    np.testing.assert_allclose(latent.mean_M[0], 0, atol=1e-6)
    assert latent.mean_M[1] == pytest.approx(-latent.mean_M[2])
    for fit, part in zip(surface.fits, latent.parts, strict=True):
        np.testing.assert_allclose(part.sd_M, math.sqrt(fit.field.variance()), rtol=1e-6)


def test_far_from_cells_it_returns_to_the_prior() -> None:
    points, stable = outcomes(20)
    latent = fit_surface(points, stable, np.ones(20), PLAIN).latent(np.array([[60.0, -40.0], [0.5, 0.5]]))
    near, far = latent.sd_M[1], latent.sd_M[0]
    # Its constant, which all cells share, stays known.
    assert far > near


@pytest.mark.parametrize("layout", [ALONG_Y, PLAIN, Layout((False, True, False), 2), Layout((False,), 0)])
def test_the_gradient_of_the_evidence_is_the_numeric_one(layout) -> None:
    random = np.random.default_rng(0)
    num = 15
    columns = [random.integers(0, 3, num) if c else random.random(num) for c in layout.is_categorical]
    points = np.column_stack(columns).astype(float)
    trials = random.integers(1, 4, num).astype(float)
    stable = np.minimum(trials, random.integers(0, 4, num)).astype(float)
    prior = field(layout)

    def evidence(logs: np.ndarray) -> float:
        at = prior.with_logs(logs)
        return find_mode(basis(at, points), at.mean(points), Counts(stable, trials), np.zeros(num)).evidence

    kernel, derivatives = prior.kernel_with_derivatives(points)
    kernel += 1e-6 * np.eye(num)
    mode = find_mode(np.linalg.cholesky(kernel), prior.mean(points), Counts(stable, trials), np.zeros(num))
    steepness = len(layout.numeric) + 1
    changes = [(d, prior.mean(points) if i == steepness else None) for i, d in enumerate(derivatives)]
    gradient = evidence_gradient(mode, kernel, Counts(stable, trials), changes)
    np.testing.assert_allclose(gradient, approx_fprime(prior.logs(), evidence, 1e-5), rtol=2e-3, atol=2e-3)


def test_the_kernel_with_derivatives_is_the_kernel() -> None:
    points, _ = outcomes(12)
    for layout in (ALONG_Y, PLAIN):
        np.testing.assert_allclose(
            field(layout).kernel_with_derivatives(points)[0], field(layout).kernel(points, points)
        )


@pytest.mark.parametrize(("steepness", "seed"), [(400.0, 0), (800.0, 3), (800.0, 9), (800.0, 18)])
def test_the_mode_solves_its_equation_beside_a_steep_mean(steepness: float, seed: int) -> None:
    """Whole steps of Newton's method diverge here, and some have to be halved more than a dozen times."""
    points, stable = outcomes(60, seed)
    steep = Field(ALONG_Y, Shape((0.3, 0.3), steepness, 0.25, 1.0), -1)
    root = basis(steep, points)
    mode = find_mode(root, steep.mean(points), Counts(stable, np.ones(60)), np.zeros(60))
    np.testing.assert_allclose(mode.coefficient_K, root.T @ (stable - expit(mode.latent_N)), atol=1e-3)


def test_the_start_does_not_change_the_mode() -> None:
    points, stable = outcomes(30)
    root, mean, counts = basis(field(ALONG_Y), points), field(ALONG_Y).mean(points), Counts(stable, np.ones(30))
    modes = [find_mode(root, mean, counts, start) for start in (np.zeros(30), 0.1 * (stable - 0.5))]
    np.testing.assert_allclose(modes[0].latent_N, modes[1].latent_N, atol=1e-3)


def test_the_covariance_of_a_point_with_itself_is_its_variance() -> None:
    surface = fitted().best
    latent = surface.latent(np.random.default_rng(3).random((20, 2)), has_covariance=True)
    np.testing.assert_allclose(np.diag(surface.covariance(latent, latent)), latent.sd_M**2, rtol=1e-6, atol=1e-6)


def test_points_that_are_read_in_blocks_have_the_posterior_of_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    surface, points = fitted(), np.random.default_rng(3).random((50, 2))
    assert len(surface.fits) > 1
    whole, covariance = surface.latent(points), surface.best.latent(points, has_covariance=True)
    monkeypatch.setattr("orchestrator.surface.surface._BLOCK", 7)
    for in_blocks in (surface.latent(points), surface.latent(points, has_covariance=True)):
        for part, expected in zip(in_blocks.parts, whole.parts, strict=True):
            np.testing.assert_allclose(part.mean_M, expected.mean_M, rtol=1e-9, atol=1e-9)
            np.testing.assert_allclose(part.sd_M, expected.sd_M, rtol=1e-6)
    some = surface.best.latent(points, has_covariance=True)
    np.testing.assert_allclose(
        surface.best.covariance(some, some), surface.best.covariance(covariance, covariance), atol=1e-9
    )


def test_values_that_express_covariances_are_not_kept_without_need() -> None:
    latent = fitted().latent(np.random.default_rng(3).random((50, 2)))
    assert all(part.explained_KM is None for part in latent.parts)


@pytest.mark.parametrize("rises", [False, True])
def test_it_finds_the_edge_and_the_direction_in_which_stability_falls(rises) -> None:
    points, stable = outcomes(120)
    surface = fit_surface(points, 1 - stable if rises else stable, np.ones(120), ALONG_Y)
    rows = np.array([[x, 0.0] for x in (0.1, 0.5, 0.9)])
    for row, found in zip(rows, surface.crossings(rows, PLACES), strict=True):
        (crossing,) = found
        assert crossing.at == pytest.approx(0.3 + 0.4 * row[0], abs=0.04)
        assert crossing.low < crossing.at < crossing.high
        assert crossing.rises == rises


def test_a_surface_that_is_turned_over_has_the_edge_turned_over() -> None:
    points, stable = outcomes(60)
    turned = np.column_stack([points[:, 0], 1 - points[:, 1]])
    probes = np.random.default_rng(1).random((30, 2))
    some = fit_surface(points, stable, np.ones(60), ALONG_Y).latent(probes)
    other = fit_surface(turned, stable, np.ones(60), ALONG_Y).latent(np.column_stack([probes[:, 0], 1 - probes[:, 1]]))
    np.testing.assert_allclose(other.mean_M, some.mean_M, rtol=1e-2, atol=0.05)


def test_more_trials_narrow_the_interval() -> None:
    row = np.array([[0.5, 0.0]])
    (few,), (many,) = (fitted(num).crossings(row, PLACES)[0] for num in (20, 200))
    assert many.high - many.low < few.high - few.low


@pytest.mark.slow
def test_the_edge_of_a_higher_level_is_on_the_stable_side() -> None:
    row = np.array([[0.5, 0.0]])
    edges = [fitted(120).crossings(row, PLACES, level)[0][0].at for level in (0.2, 0.5, 0.9)]
    assert edges == sorted(edges, reverse=True)


def test_a_row_that_is_surely_stable_has_no_crossing_and_a_doubtful_one_has_an_interval_without_a_place() -> None:
    points = np.column_stack([np.tile(np.linspace(0, 1, 6), 6), np.repeat(np.linspace(0, 1, 6), 6)])
    surface = fit_surface(points, np.full(36, 20.0), np.full(36, 20.0), ALONG_Y)
    assert surface.crossings(np.array([[0.5, 0.0]]), np.linspace(0.3, 0.7, 9)) == [()]
    few = fit_surface(points[:12], np.ones(12), np.ones(12), ALONG_Y)
    (crossing,) = few.crossings(np.array([[0.5, 0.0]]), np.linspace(0, 0.4, 9))[0]
    assert crossing.at is None
    assert crossing.high == math.inf


def test_without_an_axis_along_it_finds_a_closed_region() -> None:
    points = np.column_stack([np.tile(np.linspace(0, 1, 14), 14), np.repeat(np.linspace(0, 1, 14), 14)])
    inside = (np.hypot(*(points - 0.5).T) < 0.3).astype(float)
    chance = (
        fit_surface(points, inside, np.ones(len(points)), PLAIN)
        .latent(np.array([[0.5, 0.5], [0.5, 0.7], [0.1, 0.9], [0.95, 0.5]]))
        .probability()
    )
    assert (chance > 0.5).tolist() == [True, True, False, False]
    with pytest.raises(ValueError, match="no axis"):
        fit_surface(points, inside, np.ones(len(points)), PLAIN).crossings(points[:1], PLACES)


def test_a_row_may_have_more_than_one_edge_where_the_cells_say_so() -> None:
    """Stable below and above a band: no edge along the axis with stability falling, or rising, could be it."""
    points = np.column_stack([np.tile(np.linspace(0, 1, 10), 10), np.repeat(np.linspace(0, 1, 10), 10)])
    outside = (np.abs(points[:, 1] - 0.5) > 0.2).astype(float)
    found = fit_surface(points, outside, np.ones(100), ALONG_Y)
    for row in found.crossings(np.array([[0.2, 0.0], [0.8, 0.0]]), PLACES):
        assert [crossing.rises for crossing in row] == [False, True]
        assert [crossing.at for crossing in row] == pytest.approx([0.28, 0.72], abs=0.06)


def test_it_has_one_edge_where_the_cells_do_not_contradict_that() -> None:
    points, stable = outcomes(60)
    probes = np.random.default_rng(1).random((30, 2))
    some, told = (
        fit_surface(points, stable, np.ones(60), ALONG_Y, has_one_edge=one).latent(probes) for one in (None, True)
    )
    np.testing.assert_array_equal(some.mean_M, told.mean_M)


def test_the_moments_of_one_cell_are_those_of_its_posterior() -> None:
    basis_11, mean, counts = np.array([[30.0]]), np.array([4.0]), Counts(np.array([1.0]), np.array([3.0]))
    found = matched(find_mode(basis_11, mean, counts, np.zeros(1)), basis_11, mean, counts)
    latent = np.linspace(-400, 400, 80001)
    log = latent - 3 * np.logaddexp(0, latent) - 0.5 * ((latent - 4) / 30) ** 2
    weight = np.exp(log - log.max()) / np.exp(log - log.max()).sum()
    assert 4 + 30 * found.coefficient_K[0] == pytest.approx(weight @ latent, abs=0.05)
    variance = found.variance(basis_11)[0]
    assert variance == pytest.approx(weight @ latent**2 - (weight @ latent) ** 2, rel=0.05)
    assert 1 - (found.explained() ** 2).sum() == pytest.approx(variance / 900)


def test_cells_that_lie_evenly_about_an_edge_narrow_it_down_to_the_two_next_to_it() -> None:
    """There the means are right from the start, and only the deviations are still to be found."""
    place_N, steepness = np.array([-0.3, -0.1, 0.1, 0.3]), 200.0
    counts = Counts(np.where(place_N < 0, 6.0, 0.0), np.full(4, 6.0))
    basis_N1, mean_N = np.full((4, 1), steepness), -steepness * place_N
    found = matched(find_mode(basis_N1, mean_N, counts, np.zeros(1)), basis_N1, mean_N, counts)
    edge = np.linspace(-1, 1, 20001)
    log = np.array([counts.log_likelihood(steepness * (at - place_N)) for at in edge]) - 0.5 * edge**2
    weight = np.exp(log - log.max()) / np.exp(log - log.max()).sum()
    exact = float(np.sqrt(weight @ edge**2 - (weight @ edge) ** 2))
    assert np.sqrt(found.variance(basis_N1)[0]) / steepness == pytest.approx(exact, rel=0.25)


@pytest.mark.parametrize("layout", [ALONG_Y, PLAIN])
def test_fewer_coefficients_than_cells_give_nearly_the_exact_posterior(layout, monkeypatch) -> None:
    points, stable = outcomes(150)
    probes = np.random.default_rng(1).random((50, 2))
    exact = fit_surface(points, stable, np.ones(150), layout, has_one_edge=True).latent(probes)
    monkeypatch.setattr("orchestrator.surface.fitting._MOST_EXACT", 75)
    fewer = fit_surface(points, stable, np.ones(150), layout, has_one_edge=True).latent(probes)
    np.testing.assert_allclose(fewer.probability(), exact.probability(), atol=0.05)
    assert np.median(np.abs(fewer.mean_M - exact.mean_M) / exact.sd_M) < 0.4


def test_judging_fits_by_more_and_more_cells_keeps_what_all_of_them_would(monkeypatch) -> None:
    points, stable = outcomes(300)
    probes = np.random.default_rng(1).random((50, 2))
    monkeypatch.setattr("orchestrator.surface.fitting._MOST_EXACT", 30)
    in_rounds = fit_surface(points, stable, np.ones(300), ALONG_Y).latent(probes)
    monkeypatch.setattr("orchestrator.surface.fitting._MORE", 300)
    at_once = fit_surface(points, stable, np.ones(300), ALONG_Y).latent(probes)
    np.testing.assert_allclose(in_rounds.probability(), at_once.probability(), atol=0.01)


@pytest.mark.parametrize("layout", [ALONG_Y, PLAIN, Layout((False, False, True), along=1)])
def test_fields_with_the_same_lengths_share_their_correlations(layout: Layout) -> None:
    points = np.random.default_rng(0).random((9, 3))[:, : len(layout.is_categorical)].round(1)
    first = field(layout)
    steeper = replace(first, shape=replace(first.shape, steepness=55.0, spread=0.2, roughness=0.4))
    shared = steeper.kernel_of(first.correlations(points, points[:4]))
    np.testing.assert_array_equal(shared, steeper.kernel(points, points[:4]))


def test_cells_computed_part_by_part_give_the_fit_of_all_at_once(monkeypatch) -> None:
    points, stable = outcomes(150)
    probes = np.random.default_rng(1).random((50, 2))
    monkeypatch.setattr("orchestrator.surface.fitting._MOST_EXACT", 30)
    at_once = fit_surface(points, stable, np.ones(150), ALONG_Y, has_one_edge=True).latent(probes)
    monkeypatch.setattr("orchestrator.surface.posterior._BLOCK", 40)
    in_parts = fit_surface(points, stable, np.ones(150), ALONG_Y, has_one_edge=True).latent(probes)
    np.testing.assert_allclose(in_parts.mean_M, at_once.mean_M, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(in_parts.sd_M, at_once.sd_M, rtol=1e-6)


def test_between_a_stable_cell_and_an_unstable_one_the_edge_is_in_the_middle() -> None:
    """Laplace's approximation puts it wherever its mode happens to be."""
    points = np.array([[0.2], [0.6]])
    surface = fit_surface(points, np.array([1.0, 0.0]), np.ones(2), Layout((False,), 0))
    ((crossing,),) = surface.crossings(np.zeros((1, 1)), PLACES)
    assert crossing.at == pytest.approx(0.4, abs=0.04)


def test_categories_tell_less_of_each_other_than_of_themselves() -> None:
    layout = Layout((True, False), along=1)
    places = np.linspace(0, 1, 20)
    points = np.column_stack([np.zeros(20), places])
    surface = fit_surface(points, (places < 0.3).astype(float), np.ones(20), layout)
    own, other = (surface.latent(np.array([[category, 0.3]])) for category in (0.0, 1.0))
    assert own.sd_M[0] < other.sd_M[0]
    # Yet it is known from the first where the second may have its edge.
    assert surface.latent(np.array([[1.0, 0.2]])).mean_M[0] > surface.latent(np.array([[1.0, 0.6]])).mean_M[0]


def test_probabilities_are_drawn_to_a_half_by_doubt() -> None:
    latent = fitted(10).latent(np.random.default_rng(0).random((50, 2)))
    assert (np.abs(latent.probability() - 0.5) <= np.abs(expit(latent.mean_M) - 0.5)).all()


def test_the_interval_of_a_row_beside_a_jump_holds_the_edge_of_its_own_side() -> None:
    """The edge jumps from 0.25 to 0.75. Of the last row before it only a trial halfway is known, which is unstable.

    Some trials far from the edge show, as the first of a search do, that it is steep.
    """
    rows, step, last = np.linspace(0, 1, 17), 1 / 32, 7
    edges = np.where(rows < 0.5, 0.25, 0.75)
    below, above = (np.column_stack([rows, edges + side * step / 2]) for side in (-1, 1))
    near = np.vstack([np.delete(below, last, axis=0), np.delete(above, last, axis=0), [[rows[last], 0.5]]])
    far = np.array([[row, place] for place in (0.0, 1.0) for row in rows[::4]])
    stable = np.concatenate([np.ones(16), np.zeros(17), np.ones(5), np.zeros(5)])
    surface = fit_surface(np.vstack([near, far]), stable, np.ones(43), ALONG_Y, step, has_one_edge=True)
    (last_row,), (row_after,) = surface.crossings(np.array([[rows[last], 0.0], [rows[last + 1], 0.0]]), PLACES)
    assert last_row.low < 0.25 < last_row.high
    assert row_after.at == pytest.approx(0.75, abs=step)


@pytest.mark.parametrize("layout", [ALONG_Y, PLAIN], ids=["along", "plain"])
def test_a_field_that_is_fitted_again_to_the_same_cells_is_the_likeliest_one(layout: Layout) -> None:
    points, stable = outcomes(40)
    surface = fit_surface(points, stable, np.ones(40), layout)
    again = refitted(surface, points, stable, np.ones(40))
    expected, actual = surface.best.latent(points), again.latent(points)
    np.testing.assert_allclose(actual.mean_M, expected.mean_M, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(actual.sd_M, expected.sd_M, rtol=1e-4, atol=1e-4)

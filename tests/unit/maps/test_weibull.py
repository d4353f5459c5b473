import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.maps.weibull import WeibullFit, fit_weibull

SLOPES, SHAPE = np.array([-2.0, 0.5]), 1.7


def planted(num: int, censored_at: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Times of a Weibull law whose logarithm falls by 2 in the first covariate, and those that are censored."""
    random = np.random.default_rng(seed)
    row_NP = np.column_stack([random.uniform(-2, 2, num), random.normal(5, 3, num)])
    time_N = np.exp(6 + row_NP @ SLOPES) * random.weibull(SHAPE, num)
    return np.minimum(time_N, censored_at), time_N <= censored_at, row_NP


def slopes(fit: WeibullFit) -> np.ndarray:
    return np.log([fit.factor(place, 1.0)[0] for place in range(len(fit.centre_P))])


@pytest.mark.parametrize("censored_at", [np.inf, 3000.0, 300.0])
def test_it_finds_the_planted_coefficients_whatever_is_censored(censored_at: float) -> None:
    fits = [fit_weibull(*planted(2000, censored_at, seed)) for seed in range(10)]
    assert np.mean([slopes(fit) for fit in fits], axis=0) == pytest.approx(SLOPES, abs=0.06)
    assert np.mean([fit.shape for fit in fits]) == pytest.approx(SHAPE, rel=0.03)


def test_the_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    row_P, hits, held = np.array([0.3, 5.0]), 0, 0
    truth = np.exp(-((1500 / np.exp(6 + row_P @ SLOPES)) ** SHAPE))
    for seed in range(200):
        fit = fit_weibull(*planted(60, 1000.0, seed))
        _, low, high = fit.factor(0, 1.0)
        held += low <= np.exp(SLOPES[0]) <= high
        _, low, high = fit.survival(row_P, 0, 1500)
        hits += low <= truth <= high
    assert 0.88 <= held / 200 <= 0.99
    assert 0.88 <= hits / 200 <= 0.99


def test_without_covariates_it_is_the_likelihood_that_scipy_maximises() -> None:
    from scipy.stats import CensoredData, weibull_min

    time_N, has_onset_N, _ = planted(300, 1000.0)
    shape, _, scale = weibull_min.fit(CensoredData(uncensored=time_N[has_onset_N], right=time_N[~has_onset_N]), floc=0)
    fit = fit_weibull(time_N, has_onset_N, np.empty((300, 0)))
    assert fit.shape == pytest.approx(shape, rel=1e-2)
    assert fit.survival(np.empty(0), 0, 500)[0] == pytest.approx(np.exp(-((500 / scale) ** shape)), abs=5e-3)


def test_the_order_of_the_runs_and_the_units_change_nothing() -> None:
    time_N, has_onset_N, row_NP = planted(100, 1000.0)
    order_N = np.random.default_rng(1).permutation(100)
    first = fit_weibull(time_N, has_onset_N, row_NP)
    others = [
        fit_weibull(time_N[order_N], has_onset_N[order_N], row_NP[order_N]),
        fit_weibull(time_N, has_onset_N, 10 * row_NP - 3),
        fit_weibull(1000 * time_N, has_onset_N, row_NP),
    ]
    expected = first.survival(row_NP[0], 100, 2000)
    assert others[0].survival(row_NP[0], 100, 2000) == pytest.approx(expected, rel=1e-6)
    assert others[1].survival(10 * row_NP[0] - 3, 100, 2000) == pytest.approx(expected, rel=1e-6)
    assert others[2].survival(row_NP[0], 100_000, 2_000_000) == pytest.approx(expected, rel=1e-6)


def test_survival_falls_with_time_and_rises_with_what_was_survived() -> None:
    fit = fit_weibull(*planted(100, 1000.0))
    row_P = np.array([0.0, 5.0])
    by_time = [fit.survival(row_P, 0, until)[0] for until in (10, 100, 1000, 10_000)]
    by_past = [fit.survival(row_P, after, 10_000)[0] for after in (0, 10, 1000, 9999)]
    assert by_time == sorted(by_time, reverse=True)
    assert by_past == sorted(by_past)


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(1, 10**6), st.booleans(), st.integers(0, 2)), min_size=1, max_size=12).filter(
        lambda rows: any(row[1] for row in rows)
    )
)
def test_any_runs_with_an_onset_have_a_fit_of_probabilities(rows: list[tuple[int, bool, int]]) -> None:
    time_N, has_onset_N, place_N = (np.array(column) for column in zip(*rows, strict=True))
    fit = fit_weibull(time_N.astype(float), has_onset_N, place_N[:, None].astype(float))
    for after in (0, 1, 10**6):
        share, low, high = fit.survival(np.array([1.0]), after, 10**7)
        assert 0 <= low <= high <= 1
        assert 0 <= share <= 1
    factor, low, high = fit.factor(0, 1.0)
    assert 0 <= low <= factor <= high
    assert np.isfinite(high)


def test_an_axis_that_separates_the_failures_completely_has_a_finite_fit() -> None:
    place_N = np.repeat([0.0, 1.0], 20)
    fit = fit_weibull(np.where(place_N, 50.0, 100.0), place_N > 0, place_N[:, None])
    assert fit.survival(np.array([1.0]), 0, 100)[0] < 0.01
    assert fit.survival(np.array([0.0]), 0, 100)[0] > 0.75

"""The law over sizes holds the truth as often as it says, and says what it cannot know."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from orchestrator.maps.confirmation import LEAST_SUPPORT
from orchestrator.maps.law import Exponents, fit_centres, fit_edges
from orchestrator.maps.target import Target


@dataclass(frozen=True)
class Case:
    """Runs at a few sizes, and the log of the edge at a larger one."""

    size_NK: np.ndarray
    log_rate_N: np.ndarray
    unstable_N: np.ndarray
    target_K: np.ndarray
    truth: float
    width: float


def ladder(rng: np.random.Generator, num_sizes: int) -> Case:
    """A ladder with random exponents, scatter, width of transition, spacing, seeds, holes and ends of the axis."""
    num_axes = int(rng.integers(1, 3))
    exponent_K, scatter = rng.uniform(-1.5, 0.5, num_axes), rng.uniform(0, 0.3)
    width = np.exp(rng.uniform(np.log(0.02), np.log(0.3)))
    step_R = max(2.0, 4 ** (1 / (num_sizes - 1))) ** np.arange(num_sizes)
    size_RK = np.log(np.column_stack([step_R, *(rng.permutation(step_R) for _ in range(num_axes - 1))]))
    edge_R = size_RK @ exponent_K + scatter * rng.normal(size=num_sizes)
    target_K = size_RK.max(axis=0) + np.log(rng.choice([2, 4]))
    spacing = np.log(10) * rng.choice([0.15, 0.25, 0.5])
    rates = np.arange(edge_R.mean() - rng.uniform(1, 3), edge_R.mean() + rng.uniform(0.5, 3), spacing)
    runs = [
        (i, rate + rng.uniform(0, 0.01), rng.random() < 1 / (1 + np.exp(-(rate - edge_R[i]) / width)))
        for i in range(num_sizes)
        for rate in rates
        for _ in range(int(rng.integers(1, 4)))
        if rng.random() > 0.15
    ]
    row_N, log_rate_N, unstable_N = (np.array(column) for column in zip(*runs, strict=True))
    truth = float(target_K @ exponent_K + scatter * rng.normal())
    return Case(size_RK[row_N], log_rate_N, unstable_N, target_K, truth, width)


def coverage(num_sizes: int, num: int) -> float:
    held = 0
    for number in range(num):
        case = ladder(np.random.default_rng([num_sizes, number]), num_sizes)
        _, low, high = fit_edges(case.size_NK, case.log_rate_N, case.unstable_N).interval(case.target_K)
        held += low <= case.truth <= high
    return held / num


def test_the_interval_holds_most_truths() -> None:
    assert coverage(3, 20) >= 0.8


@pytest.mark.slow
@pytest.mark.parametrize("num_sizes", [2, 3, 4, 5, 6])
def test_the_interval_of_95_percent_holds_90_to_99_percent_of_500_truths(num_sizes: int) -> None:
    assert 0.9 <= coverage(num_sizes, 500) <= 0.99


def updated(num_sizes: int, num: int) -> Iterator[tuple[Case, Target]]:
    """Cases with what is known of the edge at the target after four runs there, each where it is as likely as not."""
    for number in range(num):
        rng = np.random.default_rng([num_sizes, number])
        case = ladder(rng, num_sizes)
        target = fit_edges(case.size_NK, case.log_rate_N, case.unstable_N).at(case.target_K, 16)
        for _ in range(4):
            rate = target.quantile(0.5)
            target = target.after([rate], [rng.random() < 1 / (1 + np.exp(-(rate - case.truth) / case.width))])
        yield case, target


@pytest.mark.slow
@pytest.mark.parametrize("num_sizes", [3, 4, 5])
def test_the_interval_after_four_runs_at_the_target_holds_90_to_99_percent_of_300_truths(num_sizes: int) -> None:
    cases = list(updated(num_sizes, 300))
    held = [target.quantile(0.025) <= case.truth <= target.quantile(0.975) for case, target in cases]
    assert 0.9 <= np.mean(held) <= 0.99
    near = [abs(target.quantile(0.5) - case.truth) < np.log(1.3) for case, target in cases]
    assert np.mean(near) >= 0.8
    assert np.mean([target.support() < LEAST_SUPPORT for _, target in cases]) < 0.02


def clean(widths: list[float], exponent: float = -1.0, top: float = 0.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Runs at each width, whose edge is 0.1 at width 16, up to the log rate ``top``."""
    rates = np.arange(-8.0, top, 0.35)
    size_N = np.log(np.repeat(widths, len(rates)))
    rate_N = np.tile(rates, len(widths))
    edge_N = np.log(0.1) + exponent * (size_N - np.log(16))
    return size_N[:, None], rate_N, rate_N > edge_N


def test_a_clean_ladder_finds_its_exponent_and_more_sizes_narrow_the_interval() -> None:
    few, many = (fit_edges(*clean(widths)) for widths in ([16, 64], [16, 24, 32, 48, 64]))
    at, low, high = many.exponent(0, np.zeros(1))
    assert low < -1 < high
    assert at == pytest.approx(-1, abs=0.15)
    target = np.log([128.0])
    (_, low_few, high_few), (at, low_many, high_many) = few.interval(target), many.interval(target)
    assert np.exp(at) == pytest.approx(0.1 / 8, rel=0.25)
    assert high_many - low_many < 0.8 * (high_few - low_few)


def test_a_size_without_an_edge_on_the_axis_is_censored_and_not_dropped() -> None:
    """The smallest width, whose edge lies beyond the axis, still says that edges fall."""
    size_NK, rate_N, unstable_N = clean([16, 32, 64, 128], top=np.log(0.06))
    kept = size_NK[:, 0] > np.log(17)
    assert not unstable_N[~kept].any()
    with_it, without = fit_edges(size_NK, rate_N, unstable_N), fit_edges(size_NK[kept], rate_N[kept], unstable_N[kept])
    assert with_it.exponent(0, np.zeros(1))[2] < without.exponent(0, np.zeros(1))[2]


def test_an_assumed_exponent_stays() -> None:
    law = fit_edges(*clean([16, 24, 32]), Exponents(np.array([-0.5]), np.array([1e-3])))
    assert law.exponent(0, np.zeros(1))[0] == pytest.approx(-0.5, abs=0.01)


def test_two_widths_of_many_batches_are_no_more_certain_about_width_than_they_may_be() -> None:
    size_NK, rate_N, unstable_N = clean([16, 32])
    batches = np.log([8.0, 16, 32, 64, 128])
    crossed_NK = np.concatenate([np.column_stack([size_NK, np.full(len(size_NK), batch)]) for batch in batches])
    rate_N, unstable_N = np.tile(rate_N, len(batches)), np.tile(unstable_N, len(batches))
    (_, low, high), (_, low_shared, high_shared) = (
        fit_edges(crossed_NK, rate_N, unstable_N, shared=shared).exponent(0, np.zeros(2)) for shared in ((), (0,))
    )
    assert high_shared - low_shared > 1.1 * (high - low)


def test_the_fit_repeats_and_a_rate_beyond_the_edge_is_unlikely_to_be_stable() -> None:
    first, second = (fit_edges(*clean([16, 32, 64])) for _ in range(2))
    target = np.log([128.0])
    assert first.interval(target) == second.interval(target)
    assert first.at(target).p_stable(np.log(0.001)) > 0.95
    assert first.at(target).p_stable(np.log(0.2)) < 0.05


def test_centres_of_flat_optima_follow_a_law_and_one_at_the_end_of_its_axis_is_a_bound() -> None:
    size_RK = np.log([[16.0], [32], [64], [128]])
    centre_R = -3 - 1.0 * size_RK[:, 0]
    spread_R, inside_R = np.full(4, 0.1), np.zeros(4)
    exact = fit_centres(size_RK, centre_R, spread_R, inside_R)
    assert exact.exponent(0, np.zeros(1))[0] == pytest.approx(-1, abs=0.1)
    beyond_R = np.array([1, 0, 0, 0])
    bounded = fit_centres(size_RK, centre_R - np.array([1.0, 0, 0, 0]), spread_R, beyond_R)
    assert bounded.exponent(0, np.zeros(1))[1] < -1 < bounded.exponent(0, np.zeros(1))[2]


def test_an_exponent_that_changes_with_size_is_found_if_it_may_bend() -> None:
    size_RK = np.linspace(0, 4, 9)[:, None]
    centre_R = 1.0 * size_RK[:, 0] - 0.12 * size_RK[:, 0] ** 2
    straight, bent = (fit_centres(size_RK, centre_R, np.full(9, 0.05), np.zeros(9), bent=axes) for axes in ((), (0,)))
    end = np.array([4.0])
    assert bent.exponent(0, end)[0] == pytest.approx(0.04, abs=0.1)
    assert straight.exponent(0, end)[0] > 0.3
    assert abs(bent.interval(end)[0] - centre_R[-1]) < abs(straight.interval(end)[0] - centre_R[-1])


def test_two_axes_that_bend_bend_together() -> None:
    """The batch at which the best rate stops growing grows with the tokens, as a critical batch does."""
    batch_R, tokens_R = (grid.ravel() for grid in np.meshgrid(np.linspace(0, 4, 6), np.linspace(0, 3, 4)))
    size_RK = np.column_stack([batch_R, tokens_R])

    def centre(size_RK: np.ndarray) -> np.ndarray:
        return 0.5 * size_RK[:, 0] - 0.1 * (size_RK[:, 0] - size_RK[:, 1]) ** 2

    law = fit_centres(size_RK, centre(size_RK), np.full(len(size_RK), 0.05), np.zeros(len(size_RK)), bent=(0, 1))
    ends = np.array([[4.0, 0.0], [4.0, 3.0]])
    assert [law.interval(end)[0] for end in ends] == pytest.approx(list(centre(ends)), abs=0.1)
    assert [law.exponent(0, end)[0] for end in ends] == pytest.approx([-0.3, 0.3], abs=0.1)

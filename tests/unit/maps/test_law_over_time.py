"""The law over steps holds the edge of longer runs as often as it says, though a run is judged at several lengths."""

from __future__ import annotations

import numpy as np
import pytest

from orchestrator.maps.law import Law, fit_edges, fit_edges_over_time

STEPS = 300


def case(rng: np.random.Generator, num_sizes: int) -> tuple[Law, np.ndarray, float] | None:
    """The law of random runs, a longer (and larger) target, and the log of its edge; None without two outcomes.

    Exponents, scatter between sizes, how the exponent of time changes, spacing, seeds and the ends of the axis are
    random. A run is as far from the edge all its life.
    """
    width, scatter = np.exp(rng.uniform(np.log(0.02), np.log(0.3))), rng.uniform(0, 0.3) if num_sizes > 1 else 0.0
    of_size, of_time, bend = rng.uniform(-1.5, 0.5), rng.uniform(-0.8, 0.1), rng.normal(0, 0.05)
    log_step_J = np.log(STEPS / 2.0 ** np.arange(int(rng.integers(3, 6)))[::-1])
    size_R = np.log(2.0 ** np.arange(num_sizes))

    def edge(size: float, log_step: np.ndarray) -> np.ndarray:
        ahead = log_step - np.log(STEPS)
        return of_size * size + scatter * rng.normal() + of_time * ahead + bend * ahead**2

    edge_RJ = np.array([edge(size, log_step_J) for size in size_R])
    spacing = np.log(10) * rng.choice([0.15, 0.25, 0.5])
    rates = np.arange(edge_RJ[:, -1].mean() - rng.uniform(1, 3), edge_RJ[:, -1].mean() + rng.uniform(0.5, 3), spacing)
    runs = []
    for row in range(num_sizes):
        for rate in rates:
            for _ in range(int(rng.integers(1, 4))):
                is_stable_J = rate + rng.uniform(0, 0.01) + rng.logistic(scale=width) < edge_RJ[row]
                runs.append((row, rate, int(np.minimum.accumulate(is_stable_J).sum())))
    row_N, log_rate_N, num_stable_N = (np.array(column) for column in zip(*runs, strict=True))
    if len(set(num_stable_N == len(log_step_J))) == 1:
        return None
    size_NK = size_R[row_N.astype(int)][:, None] if num_sizes > 1 else np.zeros((len(row_N), 0))
    target = np.log(STEPS * rng.choice([2, 4, 10]))
    larger = [size_R[-1] + np.log(rng.choice([2, 4]))] if num_sizes > 1 else []
    truth = float(edge(larger[0] if larger else 0.0, target))
    return fit_edges_over_time(size_NK, log_rate_N, num_stable_N, log_step_J), np.array([*larger, target]), truth


def coverage(num_sizes: int, num: int) -> float:
    held, told = 0, 0
    for number in range(num):
        found = case(np.random.default_rng([num_sizes, number]), num_sizes)
        if found is not None:
            law, target_K, truth = found
            _, low, high = law.interval(target_K)
            held, told = held + (low <= truth <= high), told + 1
    assert told > num / 2
    return held / told


@pytest.mark.slow
def test_the_interval_holds_most_truths() -> None:
    assert coverage(1, 5) >= 0.6


@pytest.mark.slow
@pytest.mark.parametrize("num_sizes", [1, 3])
def test_the_interval_of_95_percent_holds_90_to_99_percent_of_300_truths(num_sizes: int) -> None:
    assert 0.9 <= coverage(num_sizes, 300) <= 0.99


@pytest.mark.slow
def test_outcomes_of_one_length_are_those_of_a_law_without_steps() -> None:
    rng = np.random.default_rng(0)
    log_rate_N = np.tile(np.arange(-5.0, 0.0, 0.4), 3)
    size_NK = np.log(np.repeat([16.0, 32.0, 64.0], len(log_rate_N) // 3))[:, None]
    unstable_N = log_rate_N + 0.1 * rng.normal(size=len(log_rate_N)) > 1 - size_NK[:, 0]
    plain = fit_edges(size_NK, log_rate_N, unstable_N)
    timed = fit_edges_over_time(size_NK, log_rate_N, (~unstable_N).astype(int), np.log([300.0]))
    target = np.log([128.0])
    assert timed.interval(np.append(target, np.log(300.0))) == pytest.approx(plain.interval(target), abs=0.03)


def test_a_run_that_is_judged_at_more_lengths_is_no_more_runs() -> None:
    """Judging the same runs at lengths where nothing happened tells nothing."""
    log_rate_N = np.arange(-5.0, 0.0, 0.4)
    num_stable_N = np.where(log_rate_N > -2, 0, 1)
    once = fit_edges_over_time(np.zeros((len(log_rate_N), 0)), log_rate_N, num_stable_N, np.log([300.0]))
    assert once.width_S.mean() == pytest.approx(
        fit_edges_over_time(
            np.zeros((len(log_rate_N), 0)), log_rate_N, 2 * num_stable_N, np.log([299.9, 300.0])
        ).width_S.mean(),
        rel=0.1,
    )

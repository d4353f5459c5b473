"""Features look only back, and a reading's features do not depend on how long ago the run began."""

from __future__ import annotations

import numpy as np
import pytest

from orchestrator.detection.warning.risk import (
    COLUMNS,
    FEATURES,
    MEMORY,
    NAMES,
    features,
    held,
    running_median,
    slopes,
)


def telemetry(num: int = 300, seed: int = 0) -> dict[str, np.ndarray]:
    """Readings every 5 steps with the curvature at every 4th of them, all drawn at random."""
    random = np.random.default_rng(seed)
    columns = {name: np.exp(random.normal(size=num)) for name in COLUMNS}
    step_N = np.arange(num) * 5
    for name in ("lambda_max", "lambda_grad", "curvature_threshold"):
        columns[name][step_N % 20 != 0] = np.nan
    return {"step": step_N, **columns}


@pytest.mark.parametrize("place", [0, 1, 17, 150, 299])
def test_no_feature_knows_what_comes_later(place: int) -> None:
    whole = telemetry()
    past = {name: value_N[: place + 1] for name, value_N in whole.items()}
    np.testing.assert_array_equal(features(past), features(whole)[: place + 1])


def test_the_last_readings_are_all_that_a_feature_needs() -> None:
    whole = telemetry()
    for place in (MEMORY, 200, 299):
        tail = {name: value_N[place + 1 - MEMORY : place + 1] for name, value_N in whole.items()}
        np.testing.assert_allclose(features(tail)[-1], features(whole)[place], rtol=1e-12)


def test_features_of_columns_that_were_not_read_are_not_known() -> None:
    found_NF = features({"step": np.arange(3), "grad_norm/all": np.ones(3)})
    known = {NAMES[f] for f in np.flatnonzero(np.isfinite(found_NF[-1]))}
    assert known == {"norm_rise"}


def test_a_measured_curvature_stands_for_a_hundred_steps() -> None:
    is_measured_N = np.array([False, True, False, False, False])
    step_N = np.array([0, 10, 60, 110, 111])
    np.testing.assert_array_equal(held(step_N, is_measured_N, np.array([3.0])), [np.nan, 3, 3, 3, np.nan])


def test_the_curvature_s_features_double_with_the_learning_rate() -> None:
    """Twice the rate is half the threshold: one more power of two, wherever nothing is cut."""
    at_one, at_two = telemetry(), telemetry()
    for columns in (at_one, at_two):
        columns["lambda_max"] = np.where(np.isfinite(columns["lambda_max"]), 1.1, np.nan)
        columns["curvature_threshold"] = np.where(np.isfinite(columns["curvature_threshold"]), 2.0, np.nan)
    at_two["curvature_threshold"] /= 2
    edge = NAMES.index("edge")
    np.testing.assert_allclose(features(at_two)[:, edge] - features(at_one)[:, edge], 1.0)


def test_slopes_are_those_of_a_least_squares_line() -> None:
    random = np.random.default_rng(1)
    step_M, value_M = np.cumsum(random.integers(1, 9, 20)), random.normal(size=20)
    for place in range(4, 20):
        expected = np.polyfit(step_M[place - 4 : place + 1], value_M[place - 4 : place + 1], 1)[0]
        assert slopes(step_M, value_M, 5)[place] == pytest.approx(expected)


def test_a_running_median_leaves_out_what_is_not_finite() -> None:
    value_N = np.array([np.nan, 1.0, np.inf, 3.0, 9.0])
    np.testing.assert_array_equal(running_median(value_N, 3), [np.nan, 1, 1, 2, 6])


def test_each_feature_has_its_own_name_and_words() -> None:
    assert len({feature.name for feature in FEATURES}) == len({feature.phrase for feature in FEATURES}) == len(FEATURES)

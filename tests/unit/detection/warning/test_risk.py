"""The risk of an instability: features, the model and its fit, and a monitor that reads step by step."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit
from tiers import one_of

from benchmarks.warning_fit import fitted, models_as_text, risk_at_edge
from orchestrator.detection.warning.alarms import alarms
from orchestrator.detection.warning.monitor import RiskMonitor, model_for
from orchestrator.detection.warning.risk import (
    COLUMNS,
    FEATURES,
    MEMORY,
    NAMES,
    TREND_NAME,
    features,
    held,
    running_median,
    shipped,
    slopes,
)

F = len(NAMES)


def drawn(num: int, coefficients: dict[str, float], bias: float = -1.0) -> tuple[np.ndarray, np.ndarray]:
    """Features of unit spread, and outcomes drawn by a logistic law."""
    random = np.random.default_rng(0)
    feature_NF = random.normal(size=(num, F))
    logit_N = bias + sum(feature_NF[:, NAMES.index(name)] * value for name, value in coefficients.items())
    return feature_NF, random.random(num) < expit(logit_N)


def test_the_fit_finds_the_law_that_made_the_data() -> None:
    feature_NF, is_soon_N = drawn(40_000, {"edge": 1.5, "v_lag": 0.5})
    model = fitted(("edge", "v_lag"), feature_NF, is_soon_N, np.ones(len(is_soon_N)), 0.0)
    assert model.coefficient == pytest.approx((1.5, 0.5), abs=0.06)
    assert model.bias == pytest.approx(-1.0, abs=0.05)


def test_its_risks_are_calibrated() -> None:
    """Of the readings with a risk near p, a share of p is followed by an instability."""
    feature_NF, is_soon_N = drawn(40_000, {"edge": 1.5})
    risk_N = fitted(("edge",), feature_NF, is_soon_N, np.ones(len(is_soon_N)), 0.0).risks(feature_NF)
    for low in (0.1, 0.3, 0.5, 0.7):
        near_N = (risk_N >= low) & (risk_N < low + 0.1)
        assert is_soon_N[near_N].mean() == pytest.approx(risk_N[near_N].mean(), abs=0.04)


def test_a_feature_that_lowers_the_risk_gets_no_say() -> None:
    feature_NF, is_soon_N = drawn(5_000, {"edge": -1.5, "v_lag": 0.5})
    model = fitted(("edge", "v_lag"), feature_NF, is_soon_N, np.ones(len(is_soon_N)), 0.0)
    assert model.coefficient[0] == 0.0


@given(
    st.sampled_from(sorted(NAMES)), st.floats(-5, 5), st.floats(0, 5), st.sampled_from(["trend", "gradient", "cheap"])
)
def test_more_of_any_feature_never_lowers_the_risk_of_the_package_s_models(
    name: str, at: float, more: float, kind: str
) -> None:
    lower_1F, higher_1F = np.zeros((1, F)), np.zeros((1, F))
    lower_1F[0, NAMES.index(name)], higher_1F[0, NAMES.index(name)] = at, at + more
    model = shipped()[kind]
    assert model.risks(higher_1F)[0] >= model.risks(lower_1F)[0]


def test_a_feature_that_is_not_known_counts_neither_way() -> None:
    model = shipped()["cheap"]
    usual_1F = np.zeros((1, F))
    for name, centre in zip(model.names, model.centre, strict=True):
        usual_1F[0, NAMES.index(name)] = centre
    missing_1F = usual_1F.copy()
    missing_1F[0, NAMES.index("v_lag")] = np.nan
    assert model.risks(missing_1F)[0] == pytest.approx(model.risks(usual_1F)[0])


def test_where_nothing_is_known_there_is_no_risk() -> None:
    assert np.isnan(shipped()["trend"].risks(np.full((1, F), np.nan))[0])


def test_the_risk_at_the_edge_is_that_of_a_trend_of_one_with_all_else_usual() -> None:
    model = shipped()["trend"]
    reading_1F = np.zeros((1, F))
    for name, centre in zip(model.names, model.centre, strict=True):
        reading_1F[0, NAMES.index(name)] = 0.0 if name == TREND_NAME else centre
    assert risk_at_edge(model) == pytest.approx(model.risks(reading_1F)[0])
    assert model.threshold == risk_at_edge(model)
    with pytest.raises(ValueError, match="edge_ahead"):
        risk_at_edge(shipped()["cheap"])


def test_the_cheap_model_needs_no_curvature() -> None:
    costly = {feature.name for feature in FEATURES if feature.needs_curvature}
    assert not costly & set(shipped()["cheap"].names)
    assert costly & set(shipped()["gradient"].names)


def test_a_model_is_read_back_as_it_was_written() -> None:
    models = shipped()
    data = json.loads(models_as_text(models, {"by": "a test"}))
    assert data["models"]["cheap"]["coefficient"] == list(models["cheap"].coefficient)


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


@pytest.mark.parametrize("every", one_of(3, [5, 25, None]))
def test_the_risk_while_a_run_trains_is_that_of_its_whole_curve(every: int | None) -> None:
    whole, model = telemetry(), model_for(every)
    risk_N = model.risks(features(whole))
    model = replace(model, threshold=float(np.quantile(risk_N, 0.9)))
    monitor, raised = RiskMonitor(model), []
    for place, step in enumerate(whole["step"].tolist()):
        reading = {name: float(value_N[place]) for name, value_N in whole.items() if name != "step"}
        risk = monitor.read(step, reading)
        assert risk is not None
        assert risk.risk == pytest.approx(risk_N[place])
        raised += [step] if risk.is_alarm else []
    assert raised == alarms(whole["step"], risk_N, model.threshold)
    assert raised


def test_a_risk_names_what_raises_it() -> None:
    model = model_for(5)
    monitor = RiskMonitor(model)
    for step in range(0, 200, 5):
        risk = monitor.read(step, {"lambda_max": 4.0, "lambda_grad": 0.1, "curvature_threshold": 1.0})
    assert risk is not None
    assert "curvature" in risk.reasons[0]
    assert risk.text().startswith(f"risk {risk.risk:.0%} of an instability within 50 steps of step 195: ")


def test_without_a_reading_nothing_is_known() -> None:
    assert RiskMonitor(model_for(None)).read(0, {}) is None


def test_no_alarm_is_raised_while_the_run_is_off_its_trend() -> None:
    monitor = RiskMonitor(replace(model_for(None), threshold=0.0))
    first = monitor.read(0, {"v_lag/all": 1.0}, is_calm=False)
    assert first is not None
    assert not first.is_alarm
    second = monitor.read(5, {"v_lag/all": 1.0})
    assert second is not None
    assert second.is_alarm
    assert set(model_for(None).names) <= set(NAMES)


def test_the_trend_of_the_curvature_is_used_where_it_is_measured_often_enough() -> None:
    assert model_for(10) is model_for(5)
    assert "edge_ahead" in model_for(5).names
    assert "edge_ahead" not in model_for(25).names
    assert model_for(5, has_largest=False) is model_for(25)


def test_the_curvature_along_the_update_stands_for_the_one_along_the_gradient() -> None:
    """Where it was measured by forward passes; one by products counts first."""
    steps, ones = np.arange(0, 100, 5), np.ones(20)
    by_products = {"step": steps, "lambda_grad": 1.5 * ones, "curvature_threshold": ones}
    by_forwards = {"step": steps, "lambda_crit": 1.5 * ones, "curvature_threshold": ones}
    np.testing.assert_array_equal(features(by_forwards), features(by_products))
    np.testing.assert_array_equal(features({**by_products, "lambda_crit": 9 * ones}), features(by_products))

"""The risk model: monotone, and the fit finds what made the data."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit

from orchestrator.detection.warning.risk import NAMES, TREND_NAME, fitted, models_as_text, shipped

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
    assert model.risk_at_edge() == pytest.approx(model.risks(reading_1F)[0])
    assert model.threshold == model.risk_at_edge()
    with pytest.raises(ValueError, match="edge_ahead"):
        shipped()["cheap"].risk_at_edge()


def test_the_cheap_model_needs_no_curvature() -> None:
    assert not shipped()["cheap"].needs_curvature
    assert shipped()["gradient"].needs_curvature


def test_a_model_is_read_back_as_it_was_written() -> None:
    import json

    models = shipped()
    data = json.loads(models_as_text(models, {"by": "a test"}))
    assert data["models"]["cheap"]["coefficient"] == list(models["cheap"].coefficient)

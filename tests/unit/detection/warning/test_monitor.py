"""The warning reading by reading is that of a whole curve."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from orchestrator.detection.warning.alarms import alarms
from orchestrator.detection.warning.monitor import RiskMonitor, model_for
from orchestrator.detection.warning.risk import NAMES, features
from tests.unit.detection.warning.test_risk import telemetry


@pytest.mark.parametrize("every", [5, 25, None])
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

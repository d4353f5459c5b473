"""A `Watch` that reads the optimizer of a custom training loop."""

from __future__ import annotations

import math

import pytest

from orchestrator.detection.watch import Watch


@pytest.fixture
def loop():
    """A regression, its optimizer, and its loss."""
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(1, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    x = torch.linspace(-math.pi, math.pi, 64)[:, None]

    def loss() -> torch.Tensor:
        return (model(x) - torch.sin(x)).square().mean()

    return model, torch.optim.Adam(model.parameters(), lr=1e-2), loss


def train(watch: Watch, loop, num_steps: int) -> None:
    _, optimizer, loss = loop
    for step in range(num_steps):
        optimizer.zero_grad()
        value = loss()
        value.backward()
        optimizer.step()
        watch.report(step, value)


def test_two_lines_give_the_risk_of_a_run_with_its_curvature(loop) -> None:
    model, optimizer, loss = loop
    watch = Watch()
    watch.telemetry(model, optimizer, loss, every=5, curvature=25)
    train(watch, loop, 60)
    assert watch.risk is not None
    assert watch.risk.step == 55
    assert 0 < watch.risk.risk < 1
    assert "lambda_max" not in watch.readings  # step 55 is none of the 25th
    assert watch.readings["grad_norm/all"] > 0


def test_the_curvature_is_measured_when_it_is_due(loop) -> None:
    model, optimizer, loss = loop
    watch = Watch()
    watch.telemetry(model, optimizer, loss, every=5, curvature=25)
    train(watch, loop, 51)
    assert watch.readings["lambda_max"] > 0


def test_without_a_closure_the_risk_comes_from_the_cheap_readings(loop) -> None:
    model, optimizer, _ = loop
    watch = Watch()
    watch.telemetry(model, optimizer)
    train(watch, loop, 60)
    assert watch.risk is not None
    assert not [name for name in watch.readings if name.startswith("lambda")]


def test_a_warning_stands_while_its_alarm_does(loop, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from orchestrator.detection.warning import monitor

    always = replace(monitor.model_for(None), threshold=0.0)
    monkeypatch.setattr(monitor, "model_for", lambda every, has_largest: always)
    model, optimizer, _ = loop
    watch = Watch()
    watch.telemetry(model, optimizer)
    assert watch.warning is None
    train(watch, loop, 3)
    assert watch.warning is not None
    assert "of an instability within 50 steps" in watch.warning


def test_a_watch_without_telemetry_has_no_risk() -> None:
    watch = Watch()
    watch.report(0, 1.0)
    assert (watch.risk, watch.warning, watch.readings) == (None, None, {})


def test_a_second_call_replaces_the_first(loop) -> None:
    model, optimizer, loss = loop
    watch = Watch()
    watch.telemetry(model, optimizer, loss)
    watch.telemetry(model, optimizer)
    train(watch, loop, 11)
    assert not [name for name in watch.readings if name.startswith("lambda")]

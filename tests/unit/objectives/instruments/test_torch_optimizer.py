"""Telemetry of a user's own training loop equals that of the objectives' instruments."""

import math
from collections.abc import Callable

import pytest
import torch

from objectives.base import OBJECTIVES, ExecutionPlan, FunctionFitConfig
from objectives.instruments.torch_optimizer import OptimizerReadings


class Fit(torch.nn.Module):
    """The regression of `function_fit`, written by hand."""

    def __init__(self, weights: dict[str, torch.Tensor]) -> None:
        super().__init__()
        for name, weight in weights.items():
            self.register_parameter(name, torch.nn.Parameter(weight.clone()))
        self.register_buffer("num_losses", torch.zeros(()))

    def loss(self) -> torch.Tensor:
        self.num_losses += 1
        x_N = torch.linspace(-math.pi, math.pi, 200, dtype=torch.float64)
        hidden_NW = torch.tanh(x_N[:, None] * self.in_weight + self.in_bias)
        out_N = (hidden_NW @ self.out_weight).squeeze(-1) + self.out_bias
        return (out_N - torch.sin(x_N) - torch.sin(4 * x_N)).square().mean()


Make = Callable[[Fit], torch.optim.Optimizer]


def adamw(model: Fit) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.99), eps=1e-6, weight_decay=0.0)


def sgd(model: Fit) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-2)


def trained(make: Make, num_steps: int, watch: bool = True) -> tuple[Fit, list[tuple[int, dict[str, float]]]]:
    """The model after so many steps, and its readings."""
    start = OBJECTIVES["function_fit"].start([FunctionFitConfig(lr=1e-2, steps=100)], [3], "cpu", ExecutionPlan(1))
    model = Fit({name: weight[0].detach() for name, weight in start.weights.items()})
    optimizer, found = make(model), []
    readings = OptimizerReadings(model, optimizer, model.loss, every=2, curvature=4) if watch else None
    for _ in range(num_steps):
        optimizer.zero_grad()
        model.loss().backward()
        optimizer.step()
        if readings is not None and (reading := readings.take()) is not None:
            found.append(reading)
    return model, found


@pytest.mark.parametrize(
    ("make", "settings"),
    [
        (adamw, {"beta1": 0.9, "beta2": 0.99, "eps": 1e-6}),
        (sgd, {"optimizer": "sgd", "beta1": 0.0}),
    ],
)
def test_readings_equal_those_of_the_objective_s_own_instruments(make: Make, settings: dict[str, object]) -> None:
    config = FunctionFitConfig(lr=1e-2, steps=100, warmup=0, weight_decay=0.0, **settings)
    trainer = OBJECTIVES["function_fit"].start([config], [3], "cpu", ExecutionPlan(1))
    _, found = trained(make, 21)
    readings = dict(found)
    assert sorted(readings) == list(range(0, 21, 2))
    for step in range(21):
        if step % 2:
            trainer.step()
            continue
        _, expected = trainer.observed_step([0], [0] if step % 4 == 0 else [], 4)
        names = [name for name in expected if "/all" in name or name.startswith(("lambda", "curvature"))]
        assert ("lambda_max" in readings[step]) == (step % 4 == 0)
        for name in names:
            if name.startswith("direction_rms") and make is sgd:
                continue  # without momentum torch keeps no average, and ours is the gradient
            own = float(expected[name][0])
            assert readings[step][name] == pytest.approx(own, rel=1e-6, abs=1e-12, nan_ok=True), (step, name)


def test_reading_leaves_training_as_it_is_to_the_bit() -> None:
    watched, _ = trained(adamw, 9)
    plain, _ = trained(adamw, 9, watch=False)
    for (name, a), (_, b) in zip(watched.state_dict().items(), plain.state_dict().items(), strict=True):
        assert torch.equal(a, b), name


def test_reading_draws_no_random_numbers_of_the_training() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters())
    readings = OptimizerReadings(model, optimizer, lambda: model(torch.ones(3, 4)).square().mean(), 1, 1)
    torch.manual_seed(0)
    model(torch.ones(3, 4)).square().mean().backward()
    state = torch.get_rng_state()
    optimizer.step()
    assert torch.equal(torch.get_rng_state(), state)
    reading = readings.take()
    assert reading[1]["lambda_max"] != 0


def test_momentum_of_torch_is_a_larger_step_of_averaged_gradients() -> None:
    """On |x|^2 curvature / 2 heavy ball is stable up to lr = 2 (1 + momentum) / curvature."""
    x = torch.nn.Parameter(torch.ones(1, dtype=torch.float64))
    model = torch.nn.Module()
    model.register_parameter("x", x)

    def loss() -> torch.Tensor:
        return (x**2).sum() * 10 / 2

    for lr, is_stable in ((0.37, True), (0.39, False)):
        with torch.no_grad():
            x.fill_(1.0)
        optimizer = torch.optim.SGD([x], lr=lr, momentum=0.9)
        readings = OptimizerReadings(model, optimizer, loss, 1, 1)
        for _ in range(300):
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()
        reading = readings.take()
        ratio = reading[1]["lambda_max"] / reading[1]["curvature_threshold"]
        assert (ratio < 1) == is_stable == bool(x.abs().item() < 1)
        readings.close()


def test_a_layer_with_a_lower_rate_counts_with_its_own() -> None:
    """Two coordinates of equal curvature, one with half the rate: the edge is that of the faster one."""
    model = torch.nn.Module()
    model.register_parameter("a", torch.nn.Parameter(torch.tensor([1.0])))
    model.register_parameter("b", torch.nn.Parameter(torch.tensor([1.0])))
    optimizer = torch.optim.SGD([{"params": [model.a], "lr": 0.1}, {"params": [model.b], "lr": 0.05}])
    readings = OptimizerReadings(model, optimizer, lambda: (model.a**2 + 3 * model.b**2).sum(), 1, 1)
    (model.a**2 + 3 * model.b**2).sum().backward()
    optimizer.step()
    reading = readings.take()
    # 2 of a at the full rate, 6 of b at half of it.
    assert reading[1]["lambda_max"] == pytest.approx(3.0)
    assert reading[1]["curvature_threshold"] == pytest.approx(20.0)


def test_an_optimizer_of_unknown_state_is_read_without_its_moments() -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.Adagrad(model.parameters())
    readings = OptimizerReadings(model, optimizer, lambda: model(torch.ones(1, 2)).sum(), 1, 1)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    reading = readings.take()
    assert math.isnan(reading[1]["v_lag/all"])
    assert "lambda_max" not in reading[1]


def test_parameters_of_another_module_are_refused() -> None:
    with pytest.raises(ValueError, match="none of the module's parameters"):
        OptimizerReadings(torch.nn.Linear(2, 1), torch.optim.SGD(torch.nn.Linear(2, 1).parameters()), None, 1, None)

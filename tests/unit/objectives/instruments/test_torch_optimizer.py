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


def trained(
    make: Make, num_steps: int, watch: bool = True, products: int = 4
) -> tuple[Fit, list[tuple[int, dict[str, float]]]]:
    """The model after so many steps, and its readings."""
    start = OBJECTIVES["function_fit"].start([FunctionFitConfig(lr=1e-2, steps=100)], [3], "cpu", ExecutionPlan(1))
    model = Fit({name: weight[0].detach() for name, weight in start.weights.items()})
    optimizer, found = make(model), []
    readings = OptimizerReadings(model, optimizer, model.loss, 2, 4, products) if watch else None
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
@pytest.mark.parametrize(("products", "curvature"), [(4, "lambda_max"), (0, "lambda_crit")])
def test_readings_equal_those_of_the_objective_s_own_instruments(
    make: Make, settings: dict[str, object], products: int, curvature: str
) -> None:
    config = FunctionFitConfig(lr=1e-2, steps=100, warmup=0, weight_decay=0.0, **settings)
    trainer = OBJECTIVES["function_fit"].start([config], [3], "cpu", ExecutionPlan(1))
    _, found = trained(make, 21, products=products)
    readings = dict(found)
    assert sorted(readings) == list(range(0, 21, 2))
    for step in range(21):
        if step % 2:
            trainer.step()
            continue
        _, expected = trainer.observed_step([0], [0] if step % 4 == 0 else [], products)
        names = [name for name in expected if "/all" in name or name.startswith(("lambda", "curvature"))]
        assert (curvature in readings[step]) == (step % 4 == 0)
        for name in names:
            if name.startswith("direction_rms") and make is sgd:
                continue  # without momentum torch keeps no average, and ours is the gradient
            own = float(expected[name][0])
            assert readings[step][name] == pytest.approx(own, rel=1e-6, abs=1e-12, nan_ok=True), (step, name)


@pytest.mark.parametrize("products", [4, 0])
def test_reading_leaves_training_as_it_is_to_the_bit(products: int) -> None:
    watched, _ = trained(adamw, 9, products=products)
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
        for _ in range(100):
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


class Noisy(torch.nn.Module):
    """Draws random numbers and keeps statistics in a forward pass."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers = torch.nn.Linear(4, 16), torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.3), torch.nn.Linear(16, 1)
        self.layers = torch.nn.Sequential(*layers).to(dtype)
        self.inputs = torch.randn(32, 4, dtype=dtype)

    def loss(self) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=self.inputs.dtype == torch.float32):
            return (self.layers(self.inputs) - 1).square().mean()


OPTIMIZERS: dict[str, Make] = {
    "adamw": lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2),
    "fused": lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True),
    "nesterov": lambda model: torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9, nesterov=True),
    "unknown state": lambda model: torch.optim.Adagrad(model.parameters(), lr=1e-2),
}


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["autocast", "bfloat16"])
def test_forward_passes_leave_any_training_as_it_is_to_the_bit(make: Make, dtype: torch.dtype) -> None:
    """With dropout, batch norm, mixed and low precision, and optimizers whose state is not read."""

    def run(watch: bool) -> tuple[dict[str, torch.Tensor], list[float], torch.Tensor]:
        model = Noisy(dtype)
        optimizer, found = make(model), []
        readings = OptimizerReadings(model, optimizer, model.loss, 1, 1, 0) if watch else None
        for _ in range(6):
            optimizer.zero_grad()
            model.loss().backward()
            optimizer.step()
            found += [] if readings is None else [readings.take()[1]["lambda_crit"]]
        return model.state_dict(), found, torch.get_rng_state()

    (watched, found, stream), (plain, _, expected_stream) = run(True), run(False)
    assert all(torch.equal(watched[name], plain[name]) for name in plain)
    assert torch.equal(stream, expected_stream)
    assert sum(map(math.isfinite, found)) >= 4


def test_the_curvature_of_an_update_has_the_rate_of_each_group() -> None:
    """On a^2 + 3 b^2 from (1, 1) with rates of 0.1 and 0.05 the update is -(0.2, 0.3)."""
    model = torch.nn.Module()
    for name in "ab":
        model.register_parameter(name, torch.nn.Parameter(torch.tensor([1.0], dtype=torch.float64)))
    groups = [{"params": [model.a], "lr": 0.1}, {"params": [model.b], "lr": 0.05}]
    optimizer = torch.optim.SGD(groups)
    readings = OptimizerReadings(model, optimizer, lambda: (model.a**2 + 3 * model.b**2).sum(), 1, 1, 0)
    (model.a**2 + 3 * model.b**2).sum().backward()
    optimizer.step()
    reading = readings.take()[1]
    step = (2 * 0.2 + 6 * 0.3) / (0.2**2 + 3 * 0.3**2)
    assert reading["lambda_crit"] / reading["curvature_threshold"] == pytest.approx(1 / step, rel=1e-9)
    assert reading["curvature_threshold"] == pytest.approx(20.0)


def test_a_step_that_computes_its_own_gradient_is_read_with_it() -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters())
    readings = OptimizerReadings(model, optimizer, None, 1, None)

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        value = model(torch.ones(1, 2)).sum()
        value.backward()
        return value

    optimizer.step(loss)
    assert readings.take()[1]["grad_norm/all"] == pytest.approx(math.sqrt(3))

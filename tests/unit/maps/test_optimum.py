"""Scattered runs show the best rate by the loss that is fitted to them, or none where the loss says nothing."""

import math

import numpy as np
import pytest
from sweep_cases import table_with, trial_row

from orchestrator.base.space import Axis
from orchestrator.maps.form import Form, usual_prior
from orchestrator.maps.ladder import pooled, read_ladder
from orchestrator.maps.optimum import fitted_optimum

RATES = np.linspace(-6, -2, 30)
HERE = np.zeros((30, 1))


def parabola(best: float, bend: float = 0.1) -> list[float]:
    return [2 + bend * (rate - best) ** 2 for rate in RATES]


def test_the_lowest_place_of_a_parabola_is_found_with_what_is_as_good() -> None:
    found = fitted_optimum(RATES, parabola(-4.5), HERE)
    assert found is not None
    assert found.centre == pytest.approx(-4.5)
    assert found.high - found.low == pytest.approx(2 * math.sqrt(0.003 * 2 / 0.1))
    assert found.regret(-3.5) == pytest.approx(0.1, rel=0.05)


def test_a_loss_that_differs_between_sizes_moves_nothing() -> None:
    place_NK = np.tile([[-0.5], [0.5]], (15, 1))
    costs = [cost + 3 * place for cost, (place,) in zip(parabola(-4.5), place_NK, strict=True)]
    found = fitted_optimum(RATES, costs, place_NK)
    assert found is not None
    assert found.centre == pytest.approx(-4.5)


@pytest.mark.parametrize(
    "costs",
    [
        parabola(-7.0),  # its lowest place is not among the runs
        parabola(-4.5, -0.1),  # it has a highest place instead
        [2 + 0.1 * (-1) ** i for i in range(30)],
        [None] * 20 + parabola(-4.5)[20:27] + [math.nan, math.inf, None],  # too few are known
    ],
)
def test_a_loss_that_shows_no_best_rate_has_none(costs: list[float | None]) -> None:
    assert fitted_optimum(RATES, costs, HERE) is None


@pytest.mark.slow
def test_the_interval_at_twice_the_size_holds_the_best_rate_of_synthetic_sweeps() -> None:
    """40 to 160 runs scattered over three octaves of size, their loss twice as steep above the best rate as below."""
    inside = []
    for seed in range(90):
        rng = np.random.default_rng([7, seed])
        exponent, moves, below = rng.normal(-0.6, 0.4), rng.normal(-0.2, 0.2), math.log(rng.uniform(3, 8))
        bend, noise, num = rng.uniform(0.005, 0.03), rng.choice([0.001, 0.003, 0.01]), int(rng.choice([40, 80, 160]))
        trials = []
        for i, log_size in enumerate(rng.uniform(math.log(16), math.log(128), num)):
            edge = exponent * (log_size - math.log(45))
            best = edge - below + moves * (log_size - math.log(45))
            rate = rng.uniform(-5, 2)
            distance = rate - best
            loss = 2 * (1 + bend * distance**2 * (2 if distance > 0 else 1)) * (1 + noise * rng.normal())
            is_stable = rng.random() < 1 / (1 + math.exp((rate - edge) / 0.1))
            cell = {"lr": math.exp(rate), "width": math.exp(log_size)}
            outcome = {"outcome": "stable", "final_loss": loss} if is_stable else {"outcome": "diverged"}
            trials.append(trial_row(trial_id=str(i), cell=cell, status="finished", **outcome))
        axes = [Axis("lr", "log", (), (1e-3, 10.0)), Axis("width", "log", (), (16.0, 128.0))]
        few = pooled(read_ladder(table_with(trials, axes), ["width"], "lr"), "width", np.array([exponent]))
        law = Form(usual_prior(1), (0,), ()).best_law(few)
        if law is not None:
            _, low, high = law.interval(np.array([math.log(256)]))
            inside.append(low <= (exponent + moves) * math.log(256 / 45) - below <= high)
    assert len(inside) > 85
    assert np.mean(inside) > 0.95

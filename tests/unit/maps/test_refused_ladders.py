"""What a refusal is worth: a law that failed its backtest is more often wrong at the target."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from sweep_cases import table_with, trial_row

from orchestrator.base.errors import InputError
from orchestrator.base.space import Axis
from orchestrator.maps.backtest import MOST_OFF
from orchestrator.maps.prediction import Prediction, predict


@dataclass(frozen=True)
class Ladder:
    """A prediction, how far the true log edge at the target is from it, and the law's true exponent and scatter."""

    found: Prediction
    error: float
    exponent: float
    scatter: float

    @property
    def is_off(self) -> bool:
        return abs(self.error) > math.log(MOST_OFF)


def ladders(num: int) -> Iterator[Ladder]:
    """Ladders of 3 to 6 widths with random exponents, scatter, widths of transition, grids and seeds."""
    for number in range(num):
        rng = np.random.default_rng([7, number])
        num_sizes = int(rng.integers(3, 7))
        exponent = float(rng.choice([-1, -0.5, 0, rng.uniform(-1.5, 0.5)]))
        scatter, transition = (
            float(rng.choice([0, 0.1, 0.2, 0.3])),
            math.exp(rng.uniform(math.log(0.02), math.log(0.3))),
        )
        step = max(2.0, 4 ** (1 / (num_sizes - 1)))
        widths = [float(round(16 * step**i)) for i in range(num_sizes)]
        target = 2 * widths[-1]
        edge = {
            width: math.log(0.02) + exponent * math.log(width / 64) + scatter * rng.normal()
            for width in (*widths, target)
        }
        spacing, num_seeds = math.log(10) * rng.choice([0.1, 0.15, 0.25]), int(rng.choice([1, 3]))
        edges = [edge[width] for width in widths]
        log_rates = np.arange(min(edges) - rng.uniform(0.5, 2), max(edges) + rng.uniform(0.5, 2), spacing)
        trials = [
            trial_row(
                trial_id=f"{width} {rate} {seed}",
                cell={"lr": math.exp(rate), "width": width},
                outcome="diverged"
                if rng.random() < 1 / (1 + math.exp((edge[width] - rate) / transition))
                else "stable",
            )
            for width in widths
            for rate in map(float, log_rates)
            for seed in range(num_seeds)
        ]
        axes = [Axis("lr", "log", tuple(map(math.exp, log_rates))), Axis("width", "log", tuple(widths))]
        try:
            found = predict(table_with(trials, axes), {"width": target})
        except InputError:
            continue
        assert found.edge is not None
        yield Ladder(found, math.log(found.edge.at) - edge[target], exponent, scatter)


@pytest.mark.slow
def test_of_400_ladders_those_that_are_refused_are_twice_as_often_off() -> None:
    cases = list(ladders(400))
    refused, given = ([case for case in cases if bool(case.found.refused) == value] for value in (True, False))
    assert len(refused) / len(cases) == pytest.approx(0.22, abs=0.02)
    off, off_given = (float(np.mean([case.is_off for case in part])) for part in (refused, given))
    assert off == pytest.approx(0.37, abs=0.03)
    assert off_given == pytest.approx(0.17, abs=0.03)
    of_laws = [bool(case.found.refused) for case in cases if case.scatter <= 0.1]
    assert np.mean(of_laws) < 0.15, "where sizes do not scatter a true law is seldom refused"
    flat = [bool(case.found.refused) for case in cases if case.exponent == 0]
    assert np.mean(flat) < 0.25, "nor where nothing moves, though copying is always near then"

"""A single run that nothing ends is judged in one go, as members of a pack are."""

import math

import numpy as np
import pytest
from sweep_cases import learning

from orchestrator.detection.config import StoppingConfig
from orchestrator.detection.run_monitor import RunMonitor
from orchestrator.detection.trend import FEWEST_DIGITS, MANY_DIGITS, Trend, decimals

RULES = StoppingConfig(early_stop=False)
NORMS = np.random.default_rng(0).lognormal(size=1500)


def changed(values: np.ndarray, at: int, value: float) -> np.ndarray:
    return np.where(np.arange(len(values)) == at, value, values)


@pytest.mark.parametrize(
    "columns",
    [
        {"loss": learning(1500, changes=[(600, 640, 2.0), (900, 903, 5.0)])},
        {"loss": learning(1500, changes=[(800, 1500, 9.0)]), "grad_norm": NORMS},
        {"loss": changed(learning(1500), 700, math.nan), "grad_norm": changed(NORMS, 300, math.inf)},
        {"loss": learning(1500), "grad_norm": NORMS * (1 + 3 * (np.arange(1500) > 1000))},
        {"loss": changed(learning(1500), 700, math.inf), "rolled_back": 1.0 * (np.arange(1500) == 700)},
        {"loss": learning(1500), "is_skipped": 1.0 * (np.arange(1500) > 1000), "grad_norm": NORMS},
    ],
    ids=["spikes", "lost", "not finite", "norms rise", "rolled back", "skipped"],
)
def test_a_single_run_comes_to_what_it_comes_to_in_a_pack(columns: dict[str, np.ndarray]) -> None:
    single, pack = RunMonitor(RULES), RunMonitor(RULES, (False, False))
    for first in range(0, 1500, 300):
        part = {name: values[first : first + 300, None] for name, values in columns.items()}
        steps = 10 * np.arange(first, first + 300)[:, None]
        single.update(part, steps)
        pack.update({name: np.repeat(values, 2, axis=1) for name, values in part.items()}, np.repeat(steps, 2, axis=1))
        assert single.record() == pack.record(0) == pack.record(1)


def test_the_printed_digits_are_those_of_the_longest_loss() -> None:
    losses = [3.0, 2.5, 1e-5, 12.25, 0.1 + 0.2, 1e22, 2.675, 0.0, -1.125, 3.1415926]
    trend, most = Trend(RULES), FEWEST_DIGITS
    for loss in losses:
        trend.accept(loss)
        most = max(most, decimals(loss)) if most < MANY_DIGITS else most
        assert trend.digits == most

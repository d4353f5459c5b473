"""A run that is worse than at its best for a third of its steps has diverged, however slowly it rose."""

import numpy as np
import pytest
from tiers import thinned

from orchestrator.detection.config import StoppingConfig
from orchestrator.detection.outcomes import Verdict, judge
from orchestrator.detection.run_monitor import RunMonitor

NUM, LOWEST = 1000, 300  # losses, and where they are lowest


def judged(losses: np.ndarray, rise: float = 0.1) -> Verdict:
    """The verdict on a run, with a checkpoint between any two of its parts."""
    stopping = StoppingConfig().resolved(rise, 20)
    monitor = RunMonitor(stopping)
    for part in np.array_split(losses, 3):
        monitor.update({"loss": part[:, None]})
        state, monitor = monitor.state_dict(), RunMonitor(stopping)
        monitor.load_state_dict(state)
    return judge(monitor.record(), stopping)


def curve(rises: float, seed: int = 0, back: float = 0.0, noise: float = 0.05) -> np.ndarray:
    """A loss that learns 3, gives up a share from its lowest on, and at the end comes ``back`` by a part of that."""
    at = np.arange(NUM)
    falls = 8 + 3 * np.exp(-at / 60)
    up = 3 * rises * np.clip((at - LOWEST) / 400, 0, 1) * (1 - back * np.clip((at - 800) / 200, 0, 1))
    return falls + up + noise * np.random.default_rng(seed).normal(size=NUM)


@pytest.mark.parametrize("rises", [0.15, 0.2])
def test_a_loss_that_rises_slowly_and_stays_has_diverged(rises: float) -> None:
    verdict = judged(curve(rises))
    assert verdict.outcome == "diverged"
    assert LOWEST < verdict.onset_step < LOWEST + 150


@pytest.mark.parametrize(
    "losses",
    [
        pytest.param(curve(0.05), id="a little"),
        pytest.param(curve(0.2, back=0.5), id="it comes back"),
        pytest.param(curve(0.2)[:430], id="not for a third of its steps"),
        pytest.param(curve(0.2, noise=0.3), id="within the noise"),
        pytest.param(np.r_[curve(0)[:LOWEST], curve(0)[LOWEST:] + 0.45], id="a level shift"),
    ],
)
def test_other_rises_change_no_outcome(losses: np.ndarray) -> None:
    assert judged(losses).outcome in ("stable", "spiked")


def test_squared_errors_may_rise_slowly() -> None:
    assert judged(curve(0.2), rise=2.0).outcome == "stable"


@pytest.mark.parametrize("seeds", thinned([range(75), range(75, 300)], lambda seeds: seeds.start == 0), ids=str)
def test_no_healthy_run_rises_so(seeds: range) -> None:
    """With noise of many sizes, heavy tails, drifting levels and few losses."""
    found = []
    for seed in seeds:
        random = np.random.default_rng(seed)
        num = int(random.integers(30, 600))
        at = np.arange(num)
        level = 2 + 8 * np.exp(-at / random.uniform(2, num / 2))
        drift = np.cumsum(random.normal(size=num)) * random.uniform(0, 0.004)
        noise = random.standard_t(3, num) * random.uniform(0.005, 0.3)
        found.append(judged(np.maximum(level + drift + noise, 0.01)).reason)
    assert not [reason for reason in found if "rose slowly" in reason]

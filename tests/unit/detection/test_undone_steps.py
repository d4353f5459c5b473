"""Steps that a loss scaler skips or a rollback undoes say nothing against a run, unless it does nothing else."""

import numpy as np
import pytest

from orchestrator.detection.config import StoppingConfig
from orchestrator.detection.outcomes import Verdict, judge
from orchestrator.detection.run_monitor import RunMonitor

STOPPING = StoppingConfig().resolved(0.1, 20)
NOISE = np.random.default_rng(0)


def descent(num: int, start: int = 0) -> np.ndarray:
    return 2 + 8 * np.exp(-np.arange(start, start + num) / 15) + 0.03 * NOISE.normal(size=num)


def judged(losses: np.ndarray, undone: np.ndarray, name: str = "rolled_back", *, stops: bool = True) -> Verdict:
    """The verdict on a run, where it ends; with a checkpoint between any two of its parts."""
    stopping = STOPPING.model_copy(update={"early_stop": stops})
    norms = np.where(undone == 1, np.nan, 1.0)
    monitor = RunMonitor(stopping)
    for part in np.array_split(np.arange(len(losses)), 7):
        columns = {"loss": losses[part, None], "grad_norm": norms[part, None], name: undone[part, None]}
        if monitor.update(columns).has_ended_K[0]:
            break
        state, monitor = monitor.state_dict(), RunMonitor(stopping)
        monitor.load_state_dict(state)
    return judge(monitor.record(), stopping)


def then(num: int, *, fine: int = 60) -> np.ndarray:
    """Flags of a run that is fine at first, and then of ``num`` steps that were undone."""
    return np.r_[np.zeros(fine), np.ones(num)]


@pytest.mark.parametrize("stops", [True, False])
def test_a_run_whose_every_step_is_rolled_back_has_diverged(stops: bool) -> None:
    verdict = judged(np.r_[descent(60), np.full(200, np.nan)], then(200), stops=stops)
    assert (verdict.outcome, verdict.onset_step) == ("diverged", 60)


def test_so_has_one_whose_every_step_is_skipped() -> None:
    verdict = judged(np.r_[descent(60), np.full(200, 2.1)], then(200), "is_skipped")
    assert (verdict.outcome, verdict.onset_step) == ("diverged", 60)


def test_a_short_run_that_ends_on_them_has_diverged_too() -> None:
    assert judged(np.r_[descent(30), np.full(15, np.nan)], then(15, fine=30)).outcome == "diverged"


def cycles(num: int, falls: float) -> tuple[np.ndarray, np.ndarray]:
    """Losses and flags of a run that goes back to one snapshot each tenth step, and is lower by ``falls`` each time."""
    parts = [np.r_[2.1 - falls * i + 0.03 * NOISE.normal(size=9), np.nan] for i in range(num)]
    return np.r_[descent(80), np.concatenate(parts)], np.r_[np.zeros(80), np.tile(np.r_[np.zeros(9), 1], num)]


def test_a_run_that_is_rolled_back_again_and_again_and_gets_no_lower_has_diverged() -> None:
    verdict = judged(*cycles(20, falls=0.0))
    assert (verdict.outcome, verdict.onset_step) == ("diverged", 89)


def test_one_that_gets_lower_between_rollbacks_is_stable() -> None:
    assert judged(*cycles(20, falls=0.05)).outcome == "stable"


def test_nor_do_a_few_rollbacks_lose_a_run() -> None:
    assert judged(*cycles(5, falls=0.0)).outcome == "stable"


@pytest.mark.parametrize("name", ["rolled_back", "is_skipped"])
def test_a_run_that_goes_on_after_many_such_steps_is_stable(name: str) -> None:
    losses = np.r_[descent(60), np.full(40, 2.1), descent(60, 60)]
    undone = np.r_[np.zeros(60), np.ones(40), np.zeros(60)]
    assert judged(losses, undone, name).outcome == "stable"


def test_a_scaler_that_tries_a_higher_scale_now_and_then_loses_no_run() -> None:
    steps = np.arange(2000)
    assert judged(descent(2000), (steps % 50 == 49).astype(float), "is_skipped").outcome == "stable"


def test_one_that_ends_on_a_few_skipped_steps_is_stable() -> None:
    assert judged(np.r_[descent(60), np.full(5, 2.1)], then(5), "is_skipped").outcome == "stable"

"""Which first losses are no losses, by what the trials of a sweep show together."""

from collections.abc import Sequence

import numpy as np
import pytest
from sweep_cases import trial_row

from orchestrator.base.trial_result import TrialResult
from orchestrator.detection.config import StoppingConfig
from orchestrator.maps.first_losses import without_partial_firsts

NUM, EVERY = 80, 50
RULES = StoppingConfig().resolved(0.1, 20)
DESCENT = 2 + 8 * np.exp(-np.arange(NUM) / 15)


def judged(
    curves: Sequence[np.ndarray], outcomes: Sequence[str] = ("diverged",) * 9, every: int = EVERY, **changes
) -> list[TrialResult]:
    """Trials with these curves at rising learning rates, judged again."""
    steps = every * np.arange(NUM)
    traces = {str(i): {"step": steps, "loss": losses} for i, losses in enumerate(curves)}
    trials = [
        trial_row(
            trial_id=str(i), cell={"lr": 10.0**i}, objective="command", status="finished", outcome=outcome,
            initial_loss=losses[0], final_loss=losses[-1], reason="far", steps=int(steps[-1]) + 1,
            steps_done=int(steps[-1]) + 1, **changes,
        )
        for i, (losses, outcome) in enumerate(zip(curves, outcomes, strict=False))
    ]  # fmt: skip
    return without_partial_firsts(trials, [trial.cell["lr"] for trial in trials], RULES, traces.__getitem__)


def begun(share: float = 1 / EVERY, losses: np.ndarray = DESCENT) -> np.ndarray:
    """A curve whose first loss is this share of what it should be."""
    return np.r_[losses[0] * share, losses[1:]]


def test_first_losses_that_are_the_part_of_the_interval_everywhere_are_left_out() -> None:
    found = judged([begun(), begun(), begun(losses=np.r_[DESCENT[:30], np.full(50, 300.0)])])
    assert [trial.outcome for trial in found] == ["stable", "stable", "diverged"]
    assert [trial.initial_loss for trial in found] == [pytest.approx(DESCENT[1])] * 3
    assert "is a sum over fewer steps" in found[0].reason


@pytest.mark.parametrize(
    "curves",
    [
        pytest.param([begun()] * 2, id="two learning rates"),
        pytest.param([begun(1), begun(), begun()], id="one began with a loss"),
        pytest.param([begun(0.2)] * 3, id="another part than the interval's"),
        pytest.param([begun(), begun(), np.r_[DESCENT[0] / EVERY, 0.45 * DESCENT[1:]]], id="other losses follow"),
        pytest.param([np.r_[0.2, high * DESCENT[1:]] for high in (0.6, 0.8, 1.1)], id="more at a higher rate"),
        pytest.param([begun(losses=np.full(NUM, 10.0))] * 3, id="nothing learns"),
    ],
)
def test_less_evidence_changes_nothing(curves: list[np.ndarray]) -> None:
    assert {trial.reason for trial in judged(curves)} == {"far"}


def test_a_stable_trial_or_a_line_for_each_step_shows_that_first_losses_are_losses() -> None:
    assert {trial.reason for trial in judged([begun()] * 4, ("stable", *["diverged"] * 3))} == {"far"}
    assert {trial.reason for trial in judged([begun()] * 4, every=1)} == {"far"}


def test_a_trial_that_was_stopped_for_its_first_loss_is_unknown_and_one_that_ended_itself_stays_diverged() -> None:
    stopped = judged([begun()] * 3, verdict_step=EVERY * (NUM - 1))
    assert [trial.outcome for trial in stopped] == ["unknown"] * 3
    short = [trial.outcome for trial in judged([begun()] * 3, every=10)]
    assert short == ["diverged"] * 3


@pytest.mark.slow
def test_where_all_learning_rates_did_blow_up_they_stay_diverged() -> None:
    """By a height that grows with the learning rate, or the same everywhere, and that comes back or stays."""
    found = {True: 0, False: 0}
    for seed in range(4000):
        random = np.random.default_rng(seed)
        is_same = seed % 2 == 0
        rates = np.geomspace(1, 10 ** random.uniform(0.5, 2), 4)
        height = 10 ** random.uniform(0.3, 2.3) * rates ** (0.0 if is_same else random.uniform(0.5, 1))
        back = random.uniform(0, 1)
        curves = [
            np.r_[10.9, 10.9 * (high - (high - 1.5) * back * (1 - np.exp(-np.arange(NUM - 1) / 20)))]
            * (1 + 0.03 * random.standard_normal(NUM))
            for high in height
        ]
        found[is_same] += any(trial.reason != "far" for trial in judged(curves))
    assert found[False] == 0
    assert found[True] < 0.2 * 2000, found


@pytest.mark.slow
def test_the_partial_sums_of_healthy_trainings_are_found_at_most_speeds() -> None:
    num_found = 0
    for seed in range(500):
        random = np.random.default_rng(seed)
        every, speeds = int(10 ** random.uniform(0.7, 2.3)), 10 ** random.uniform(-2.5, 0.5) * np.geomspace(1, 10, 4)
        losses = [
            (2 + 8 * np.exp(-speed * np.arange(NUM) / 15)) * (1 + 0.03 * random.standard_normal(NUM))
            for speed in speeds
        ]
        curves = [np.r_[10 / every, curve[1:]] for curve in losses]
        num_found += all(trial.reason != "far" for trial in judged(curves, every=every))
    assert num_found > 0.75 * 500, num_found

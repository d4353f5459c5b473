"""A trainer may replace a loss that is not finite by 0: the best loss of a sweep, if it were believed."""

import numpy as np
import pytest

from orchestrator.detection.config import StoppingConfig
from orchestrator.detection.outcomes import judge
from orchestrator.detection.run_monitor import RunMonitor
from orchestrator.maps.replay import Curve, detect

DESCENT = 2 + 8 * np.exp(-np.arange(60) / 15)
ZEROS = np.zeros(20)


def outcome_of(losses: np.ndarray, norms: np.ndarray | None = None, rise: float = 0.1) -> str:
    stopping = StoppingConfig().resolved(rise, 20)
    monitor, halves = RunMonitor(stopping), None
    for part in np.array_split(np.arange(len(losses)), 3):  # with a checkpoint between any two
        columns = {"loss": losses[part, None]} | ({} if norms is None else {"grad_norm": norms[part, None]})
        monitor.update(columns)
        halves = monitor.state_dict()
        monitor = RunMonitor(stopping)
        monitor.load_state_dict(halves)
    return judge(monitor.record(), stopping).outcome


def test_a_loss_that_becomes_exactly_0_at_once_and_stays_so_has_diverged() -> None:
    assert outcome_of(np.r_[DESCENT, ZEROS]) == "diverged"


def test_a_log_with_a_line_in_ten_steps_has_few_of_them() -> None:
    assert outcome_of(np.r_[DESCENT[:48:4], ZEROS[:5]]) == "diverged"


def test_where_the_first_losses_are_too_few_to_know_a_level_the_outcome_is_unknown() -> None:
    assert outcome_of(np.r_[DESCENT[:3], ZEROS]) == "unknown"


@pytest.mark.parametrize(
    "losses",
    [
        pytest.param(np.r_[DESCENT, ZEROS[:4]], id="a few"),
        pytest.param(np.r_[DESCENT[:30], 0.0, DESCENT[30:], ZEROS[:9]], id="a few, and one before"),
        pytest.param(np.r_[np.round(10 * np.exp(-np.arange(80) / 8), 4), ZEROS], id="it fell there"),
        pytest.param(np.r_[DESCENT, np.where(np.arange(40) % 3, 0.0, 2.0)], id="batches without a target"),
    ],
)
def test_other_zeros_are_losses(losses: np.ndarray) -> None:
    assert outcome_of(losses) in ("stable", "spiked")


@pytest.mark.parametrize("norm", [1.0, 0.0])
def test_with_a_finite_gradient_a_loss_of_0_at_once_is_not_what_it_trains_on(norm: float) -> None:
    """A rank of a pipeline without the loss prints 0, and so do batches whose targets are all masked."""
    losses = np.r_[DESCENT, ZEROS]
    assert outcome_of(losses, np.where(losses == 0, norm, 1.0)) == "unknown"


def test_with_a_gradient_a_loss_that_falls_to_0_is_one() -> None:
    losses = np.r_[np.round(10 * np.exp(-np.arange(80) / 8), 4), ZEROS]
    assert outcome_of(losses, np.ones(len(losses))) == "stable"


def test_a_gradient_that_is_not_finite_shows_that_a_zero_is_no_loss() -> None:
    losses = np.r_[DESCENT, ZEROS]
    assert outcome_of(losses, np.where(losses == 0, np.nan, 1.0)) == "diverged"


def test_squared_errors_may_vanish_in_one_step() -> None:
    assert outcome_of(np.r_[DESCENT[:1], ZEROS], rise=2.0) == "stable"


def test_curves_that_are_judged_together_have_or_lack_a_gradient_norm_each_for_itself() -> None:
    stopping, losses = StoppingConfig().resolved(0.1, 20), np.r_[DESCENT, ZEROS]
    step_N = np.arange(len(losses))
    curves = [Curve(step_N, {"loss": losses}), Curve(step_N, {"loss": losses, "grad_norm": np.ones(len(losses))})]
    assert [judge(record, stopping).outcome for record in detect(curves, stopping)] == ["diverged", "unknown"]

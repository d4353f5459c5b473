"""What any monitor counts: numbers that are not finite, skipped steps, and the time that steps waited for data."""

import math

import numpy as np
import pytest

from orchestrator.detection.config import StoppingConfig
from orchestrator.detection.counters import WINDOW
from orchestrator.detection.outcomes import member_result
from orchestrator.detection.run_monitor import RunMonitor
from orchestrator.detection.watch import Watch

RUNS_ON = StoppingConfig(early_stop=False)
STEPS = 250


def columns(**changes: dict[int, float]) -> dict[str, np.ndarray]:
    """A calm run whose columns have other values at some steps."""
    found = {"loss": np.linspace(3, 1, STEPS), "grad_norm": np.ones(STEPS)}
    for name, values in changes.items():
        column = found.setdefault(name, np.zeros(STEPS))
        for step, value in values.items():
            column[step] = value
    return {name: column[:, None] for name, column in found.items()}


def result_of(monitor: RunMonitor):
    return member_result("trial", monitor.record(), RUNS_ON, STEPS, math.nan)


def test_losses_and_norms_that_are_not_finite_are_counted_with_their_recent_share() -> None:
    monitor = RunMonitor(RUNS_ON)
    monitor.update(columns(loss={10: math.nan, 160: math.inf}, grad_norm={160: math.nan, 200: math.inf}))
    result = result_of(monitor)
    assert (result.num_nonfinite, result.nonfinite_share) == (3, 2 / WINDOW)
    assert (result.num_skipped, result.data_share) == (None, None)
    assert monitor.num_nonfinite == 1


def test_a_step_that_a_loss_scaler_skips_is_counted_as_both() -> None:
    """It loses nobody, but its gradient was not finite."""
    monitor = RunMonitor(RUNS_ON)
    monitor.update(columns(grad_norm={180: math.inf}, is_skipped={180: 1, 200: 1}))
    result = result_of(monitor)
    assert (result.num_nonfinite, result.num_skipped, result.outcome) == (1, 2, "stable")


def test_counts_do_not_depend_on_how_steps_arrive_nor_on_a_resume() -> None:
    given = columns(loss={10: math.nan, 160: math.inf}, is_skipped={5: 1})
    whole, parts = RunMonitor(RUNS_ON), RunMonitor(RUNS_ON)
    whole.update(given)
    for first in range(0, STEPS, 60):
        resumed = RunMonitor(RUNS_ON)
        resumed.load_state_dict(parts.state_dict())
        parts = resumed
        parts.update({name: column[first : first + 60] for name, column in given.items()})
    assert parts.record().counts == whole.record().counts
    parts.arrange([0, None, 0], [False] * 3)
    assert [parts.record(k).counts.nonfinite for k in range(3)] == [2, 0, 2]


def test_steps_after_the_end_of_a_member_do_not_count() -> None:
    lost = columns(loss={step: math.nan for step in range(20, STEPS)})
    monitor = RunMonitor(StoppingConfig(early_stop=True, patience=5))
    update = monitor.update(lost)
    assert update.num_steps_K[0] < STEPS
    assert monitor.record().counts.nonfinite == update.num_steps_K[0] - 20


def test_the_time_that_a_trainer_waited_for_data_is_a_share_of_its_steps() -> None:
    watch = Watch(RUNS_ON)
    for step in range(20):
        watch.report(step, 1.0, data_time=0.1, step_time=0.4)
    assert watch.record().counts.data_share == pytest.approx(0.25)

"""Alarms about a run that is going on: typed, and each raised once."""

import math

import numpy as np
from sweep_cases import learning

from orchestrator.detection.config import StoppingConfig
from orchestrator.detection.run_alarms import RunAlarms
from orchestrator.detection.run_monitor import RunMonitor

CONFIG = StoppingConfig(early_stop=False, patience=100)


class Run:
    """A run whose points arrive in parts, and its alarms."""

    def __init__(self) -> None:
        self.monitor, self.alarms, self.now, self.step = RunMonitor(CONFIG), RunAlarms(600, 0.0), 0.0, 0

    def add(self, losses: np.ndarray, norm: float = 1.0) -> list[tuple[str, int | None]]:
        self.now += 1
        if len(losses):
            steps = self.step + np.arange(len(losses))
            self.step += len(losses)
            self.monitor.update({"loss": losses[:, None], "grad_norm": np.full((len(losses), 1), norm)}, steps[:, None])
        found = self.alarms.take(self.monitor.record(), self.step - 1, self.now, has_grown=len(losses) > 0)
        return [(alarm.kind, alarm.step) for alarm in found]


def test_a_spike_is_raised_once_while_it_lasts_and_never_again() -> None:
    losses, run = learning(2000, changes=[(1200, 1230, 2.0), (1600, 1620, 2.0)]), Run()
    found = [alarm for start in range(0, 2000, 10) for alarm in run.add(losses[start : start + 10])]
    assert found == [("spike", 1200), ("spike", 1600)]


def test_spikes_before_the_watch_are_known_but_one_that_lasts_is_raised() -> None:
    run = Run()
    losses = learning(1605, changes=[(1200, 1230, 2.0), (1600, 1700, 2.0)])
    run.monitor.update({"loss": losses[:, None]}, np.arange(1605)[:, None])
    run.alarms.pass_over(run.monitor.record())
    assert run.add(losses[:0]) == [("spike", 1600)]


def test_a_run_that_goes_back_and_meets_the_same_spike_raises_nothing_new() -> None:
    losses, run = learning(2000, changes=[(1200, 1230, 2.0)]), Run()
    assert run.add(losses[:1300]) == [("spike", 1200)]
    run.monitor, run.step = RunMonitor(CONFIG), 0
    run.monitor.update({"loss": losses[:1150, None]}, np.arange(1150)[:, None])
    run.step = 1150
    assert run.add(losses[1150:1250]) == []


def test_a_loss_that_is_not_finite_is_lost_and_single_broken_norms_are_not() -> None:
    losses, run = learning(300), Run()
    assert run.add(losses[:200]) == []
    assert run.add(losses[200:201], math.inf) == []
    assert run.add(losses[201:250]) == []
    assert run.add(losses[250:252], math.inf) == [("nan", 250)]
    assert run.add(np.array([math.nan])) == [("lost", 252)], "of the same breakdown"


def test_a_lost_run_is_raised_with_its_step_and_reason() -> None:
    losses, run = learning(2000, changes=[(1000, 2000, 9.0)]), Run()
    found = [alarm for start in range(0, 2000, 50) for alarm in run.add(losses[start : start + 50])]
    assert found == [("spike", 1000), ("lost", run.monitor.record().lost_step)]


def test_a_loss_that_is_not_finite_is_raised_of_a_run_that_is_lost_already() -> None:
    losses, run = learning(2000, changes=[(1000, 2000, 9.0)]), Run()
    assert [kind for kind, _ in run.add(losses)] == ["spike", "lost"]
    assert run.add(np.array([math.nan])) == [("nan", 2000)]
    assert run.add(np.array([math.nan] * 200)) == []


def test_a_log_that_stands_still_is_raised_once_until_it_grows_again() -> None:
    run = Run()
    run.add(learning(50))
    run.now = 599.0
    assert run.add(np.array([])) == []
    run.now = 601.0
    assert run.add(np.array([])) == [("stalled", 49)]
    assert run.add(np.array([])) == []
    run.add(np.array([2.9]))
    run.now += 700
    assert run.add(np.array([])) == [("stalled", 50)]


def test_a_gradient_norm_that_rises_is_a_warning() -> None:
    run = Run()
    losses = learning(500)
    run.add(losses[:400])
    assert run.add(losses[400:460], 3.0) == [("warning", run.monitor.norm_rises()[0])]


def test_a_norm_that_rises_in_a_spike_is_no_alarm_of_its_own() -> None:
    run = Run()
    losses = learning(500, changes=[(400, 460, 2.0)])
    run.add(losses[:400])
    assert run.add(losses[400:420], 3.0) == [("spike", 400)]
    assert run.add(losses[420:460], 3.0) == []
    (rise,) = run.monitor.norm_rises()
    assert 400 < rise < 460

"""When a score is an alarm."""

from __future__ import annotations

import numpy as np

from orchestrator.detection.warning.alarms import AlarmState, UnstableSpan, alarms, is_calm, unstable_spans

STEPS = np.arange(0, 400, 10)


def test_an_alarm_stands_for_fifty_steps_and_is_not_repeated() -> None:
    assert alarms(STEPS, np.where(STEPS >= 100, 1.0, 0.0), 0.5) == [100]


def test_a_run_that_stood_an_alarm_must_exceed_it() -> None:
    score_N = np.zeros(len(STEPS))
    score_N[[5, 7]] = 0.6, 0.8  # steps 50 and 70: one alarm, which stood a risk of 0.8
    score_N[20] = 0.7
    score_N[30] = 0.9
    assert alarms(STEPS, score_N, 0.5) == [50, 300]


def test_an_instability_wipes_the_slate() -> None:
    score_N = np.full(len(STEPS), 0.6)
    assert alarms(STEPS, score_N, 0.5, [UnstableSpan(90, 130)]) == [0, 130]


def test_no_alarm_is_raised_off_the_trend() -> None:
    assert alarms(STEPS, np.where((STEPS >= 90) & (STEPS < 130), 1.0, 0.0), 0.5, [UnstableSpan(90, 130)]) == []


def test_a_score_that_is_not_known_raises_no_alarm() -> None:
    assert alarms(STEPS, np.full(len(STEPS), np.nan), 0.0) == []
    state = AlarmState(0.5)
    assert not state.update(0, float("nan"))
    assert state.update(1, 0.6)
    assert not state.update(2, float("nan"))


def test_episodes_that_are_close_are_one_instability() -> None:
    episodes = [(300, 310), (100, 110), (159, 170), (380, None)]
    assert unstable_spans(episodes, 400) == [UnstableSpan(100, 170), UnstableSpan(300, 310), UnstableSpan(380, 400)]


def test_the_steps_of_an_instability_are_not_calm() -> None:
    np.testing.assert_array_equal(
        is_calm(np.array([9, 10, 19, 20]), [UnstableSpan(10, 20)]), [True, False, False, True]
    )

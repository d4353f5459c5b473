"""When a score is an alarm."""

import math

import numpy as np
import pytest

from benchmarks.warning_fit import best_threshold, intervals
from orchestrator.base.intervals import wilson
from orchestrator.detection.warning.alarms import (
    AlarmState,
    Onset,
    RunWarnings,
    ScoredRun,
    UnstableSpan,
    alarms,
    is_calm,
    quality,
    run_warnings,
    unstable_spans,
)

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


AT = np.arange(0, 1000, 5)


def run(*high: int, onset: int | None = None, num_steps: int = 1000) -> ScoredRun:
    """A run whose score is 1 at the steps ``high``, and 0 elsewhere."""
    unstable = () if onset is None else (UnstableSpan(onset, onset + 10),)
    return ScoredRun(AT, np.isin(AT, high).astype(float), unstable, num_steps)


def test_the_lead_is_counted_from_the_first_alarm_within_the_horizon() -> None:
    assert run_warnings(run(470, onset=500), 0.5).onsets == (Onset(500, 30),)
    assert run_warnings(run(450, onset=500), 0.5).onsets == (Onset(500, 50),)


def test_an_alarm_that_comes_too_early_is_false_and_warns_of_nothing() -> None:
    found = run_warnings(run(445, onset=500), 0.5)
    assert found.false_alarms == (445,)
    assert found.onsets == (Onset(500, None),)


def test_an_alarm_at_the_onset_is_no_warning() -> None:
    assert run_warnings(run(500, onset=500), 0.5).onsets == (Onset(500, None),)


def test_false_alarms_are_counted_per_thousand_calm_steps() -> None:
    found = quality([run_warnings(run(100), 0.5), run_warnings(run(470, onset=500), 0.5)])
    assert found.calm_steps == 1990
    assert found.false_per_1000 == pytest.approx(1000 / 1990)
    assert (found.precision, found.recall, found.good_share, found.median_lead) == (0.5, 1.0, 1.0, 30.0)


def test_an_alarm_in_the_last_steps_is_neither_right_nor_wrong() -> None:
    found = run_warnings(run(980), 0.5)
    assert found.alarms == (980,)
    assert found.false_alarms == ()
    assert math.isnan(quality([found]).precision)


def test_an_instability_at_the_start_leaves_no_time_to_warn() -> None:
    found = run_warnings(run(onset=40), 0.5)
    assert found.onsets == ()
    assert found.early_onsets == 1


def test_the_best_threshold_keeps_the_bound_on_false_alarms() -> None:
    """Scores of 1 are always right and those of 0.6 always wrong, so that the bound decides between the two."""
    step_N = np.arange(0, 2000, 5)
    score_N = np.zeros(len(step_N))
    score_N[(step_N == 470)] = 1.0
    score_N[(step_N == 1400)] = 0.7
    score_N[np.isin(step_N, [100, 200, 300])] = 0.6, 0.61, 0.62
    runs = [ScoredRun(step_N, score_N, (UnstableSpan(500, 510), UnstableSpan(1440, 1450)), 2000)]
    assert best_threshold(runs, 0.1) == 0.7
    assert quality(run_warnings(one, best_threshold(runs, 0.1)) for one in runs).good_share == 1.0


def test_without_a_threshold_that_keeps_the_bound_there_are_no_alarms() -> None:
    always = ScoredRun(AT, np.linspace(0.5, 1, len(AT)), (), 1000)
    assert math.isinf(best_threshold([always], 0.0))
    assert math.isinf(best_threshold([], 1.0))


# --- intervals -------------------------------------------------------------------------------------


def judged_run(lead: int | None, num_false: int = 0) -> RunWarnings:
    """A run with one onset, and alarms that were false."""
    true = () if lead is None else (300 - lead,)
    false = tuple(range(num_false))
    return RunWarnings((*false, *true), false, (Onset(300, lead),), 1000, 0)


def test_runs_of_one_onset_each_have_the_interval_of_a_share() -> None:
    """Of many runs the percentile interval of a share is near Wilson's."""
    found = intervals([judged_run(30)] * 60 + [judged_run(None)] * 40)
    assert found.good_share == pytest.approx(wilson(60, 100), abs=0.02)
    assert found.recall == found.good_share


def test_runs_that_are_all_alike_leave_no_doubt() -> None:
    found = intervals([judged_run(10, num_false=2)] * 20)
    assert found.good_share == (0.0, 0.0)
    assert found.recall == (1.0, 1.0)
    assert found.precision == pytest.approx((1 / 3, 1 / 3))
    assert found.false_per_1000 == pytest.approx((2.0, 2.0))


def test_onsets_of_one_run_count_as_one_draw() -> None:
    """Ten onsets that fall together in one of ten runs are as uncertain as ten runs, and not as a hundred."""
    together = [RunWarnings((), (), (Onset(300, 30 if k < 5 else None),) * 10, 1000, 0) for k in range(10)]
    apart = [judged_run(30 if k < 50 else None) for k in range(100)]
    wide, narrow = intervals(together).recall, intervals(apart).recall
    assert wide[1] - wide[0] > 2 * (narrow[1] - narrow[0])


def test_what_no_run_has_is_not_known() -> None:
    quiet = RunWarnings((), (), (), 1000, 0)
    found = intervals([quiet, quiet])
    assert all(map(math.isnan, (*found.recall, *found.precision)))
    assert found.false_per_1000 == (0.0, 0.0)
    with pytest.raises(ValueError, match="at least one run"):
        intervals([])


def test_intervals_are_the_same_each_time() -> None:
    runs = [judged_run(30, k % 3) for k in range(9)]
    assert intervals(runs) == intervals(runs)
    assert np.isfinite(intervals(runs).precision).all()

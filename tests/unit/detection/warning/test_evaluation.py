"""How good a warning is."""

from __future__ import annotations

import math

import numpy as np
import pytest

from orchestrator.detection.warning.alarms import Bout
from orchestrator.detection.warning.evaluation import Onset, Scored, best_threshold, quality, warned

STEPS = np.arange(0, 1000, 5)


def run(*high: int, onset: int | None = None, num_steps: int = 1000) -> Scored:
    """A run whose score is 1 at the steps ``high``, and 0 elsewhere."""
    bouts = () if onset is None else (Bout(onset, onset + 10),)
    return Scored(STEPS, np.isin(STEPS, high).astype(float), bouts, num_steps)


def test_the_lead_is_counted_from_the_first_alarm_within_the_horizon() -> None:
    assert warned(run(470, onset=500), 0.5).onsets == (Onset(500, 30),)
    assert warned(run(450, onset=500), 0.5).onsets == (Onset(500, 50),)


def test_an_alarm_that_comes_too_early_is_false_and_warns_of_nothing() -> None:
    found = warned(run(445, onset=500), 0.5)
    assert found.false_alarms == (445,)
    assert found.onsets == (Onset(500, None),)


def test_an_alarm_at_the_onset_is_no_warning() -> None:
    assert warned(run(500, onset=500), 0.5).onsets == (Onset(500, None),)


def test_false_alarms_are_counted_per_thousand_calm_steps() -> None:
    found = quality([warned(run(100), 0.5), warned(run(470, onset=500), 0.5)])
    assert found.calm_steps == 1990
    assert found.false_per_1000 == pytest.approx(1000 / 1990)
    assert (found.precision, found.recall, found.good_share, found.median_lead) == (0.5, 1.0, 1.0, 30.0)


def test_an_alarm_in_the_last_steps_is_neither_right_nor_wrong() -> None:
    found = warned(run(980), 0.5)
    assert found.alarms == (980,)
    assert found.false_alarms == ()
    assert math.isnan(quality([found]).precision)


def test_an_instability_at_the_start_leaves_no_time_to_warn() -> None:
    found = warned(run(onset=40), 0.5)
    assert found.onsets == ()
    assert found.early_onsets == 1


def test_the_best_threshold_keeps_the_bound_on_false_alarms() -> None:
    """Scores of 1 are always right and those of 0.6 always wrong, so that the bound decides between the two."""
    step_N = np.arange(0, 2000, 5)
    score_N = np.zeros(len(step_N))
    score_N[(step_N == 470)] = 1.0
    score_N[(step_N == 1400)] = 0.7
    score_N[np.isin(step_N, [100, 200, 300])] = 0.6, 0.61, 0.62
    runs = [Scored(step_N, score_N, (Bout(500, 510), Bout(1440, 1450)), 2000)]
    assert best_threshold(runs, 0.1) == 0.7
    assert quality(warned(one, best_threshold(runs, 0.1)) for one in runs).good_share == 1.0


def test_without_a_threshold_that_keeps_the_bound_there_are_no_alarms() -> None:
    always = Scored(STEPS, np.linspace(0.5, 1, len(STEPS)), (), 1000)
    assert math.isinf(best_threshold([always], 0.0))
    assert math.isinf(best_threshold([], 1.0))

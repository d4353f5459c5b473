"""Intervals of the numbers of a warning."""

from __future__ import annotations

import math

import numpy as np
import pytest

from orchestrator.base.intervals import wilson
from orchestrator.detection.warning.evaluation import Onset, RunWarnings
from orchestrator.detection.warning.uncertainty import intervals


def run(lead: int | None, num_false: int = 0) -> RunWarnings:
    """A run with one onset, and alarms that were false."""
    true = () if lead is None else (300 - lead,)
    false = tuple(range(num_false))
    return RunWarnings((*false, *true), false, (Onset(300, lead),), 1000, 0)


def test_runs_of_one_onset_each_have_the_interval_of_a_share() -> None:
    """Of many runs the percentile interval of a share is near Wilson's."""
    found = intervals([run(30)] * 60 + [run(None)] * 40)
    assert found.good_share == pytest.approx(wilson(60, 100), abs=0.02)
    assert found.recall == found.good_share


def test_runs_that_are_all_alike_leave_no_doubt() -> None:
    found = intervals([run(10, num_false=2)] * 20)
    assert found.good_share == (0.0, 0.0)
    assert found.recall == (1.0, 1.0)
    assert found.precision == pytest.approx((1 / 3, 1 / 3))
    assert found.false_per_1000 == pytest.approx((2.0, 2.0))


def test_onsets_of_one_run_count_as_one_draw() -> None:
    """Ten onsets that fall together in one of ten runs are as uncertain as ten runs, and not as a hundred."""
    together = [RunWarnings((), (), (Onset(300, 30 if k < 5 else None),) * 10, 1000, 0) for k in range(10)]
    apart = [run(30 if k < 50 else None) for k in range(100)]
    wide, narrow = intervals(together).recall, intervals(apart).recall
    assert wide[1] - wide[0] > 2 * (narrow[1] - narrow[0])


def test_what_no_run_has_is_not_known() -> None:
    quiet = RunWarnings((), (), (), 1000, 0)
    found = intervals([quiet, quiet])
    assert all(map(math.isnan, (*found.recall, *found.precision)))
    assert found.false_per_1000 == (0.0, 0.0)
    with pytest.raises(ValueError, match="without runs"):
        intervals([])


def test_intervals_are_the_same_each_time() -> None:
    runs = [run(30, k % 3) for k in range(9)]
    assert intervals(runs) == intervals(runs)
    assert np.isfinite(intervals(runs).precision).all()

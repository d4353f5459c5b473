import math

import pytest
from scipy.stats import binomtest, sem, t, ttest_1samp

from orchestrator.base.intervals import mean_interval, share_interval, wilson


@pytest.mark.parametrize(("num_hits", "num"), [(0, 1), (1, 1), (0, 3), (1, 3), (2, 3), (7, 20), (50, 50), (1, 1000)])
def test_the_interval_of_a_share_is_the_one_that_scipy_gives(num_hits: int, num: int) -> None:
    interval = binomtest(num_hits, num).proportion_ci(0.95, method="wilson")
    assert wilson(num_hits, num) == (pytest.approx(interval.low), pytest.approx(interval.high))


@pytest.mark.parametrize("num", [0, 1, 5, 6, 20])
def test_the_interval_of_a_mean_over_seeds_is_student_s_from_six_on(num: int) -> None:
    values = [float(i % 7) for i in range(num)]
    assert mean_interval([1.0] * num) is None, "no seed differs"
    if num < 6:
        assert mean_interval(values) is None
    else:
        assert mean_interval(values) == pytest.approx(tuple(ttest_1samp(values, 0).confidence_interval()))
        low, high = mean_interval(values, 0.5)
        assert high - low == pytest.approx(2 * t.isf(0.025, num - 1) * math.hypot(sem(values), 0.5))


def test_the_interval_of_a_share_takes_the_runs_of_a_seed_as_one() -> None:
    even = [(hits, 4) for hits in (1, 2, 3, 4, 2, 3)]
    assert share_interval(even) == pytest.approx(mean_interval([hits / 4 for hits, _ in even]))
    assert share_interval([(0, 4)] * 6) is None

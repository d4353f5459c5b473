from __future__ import annotations

import math

import pytest
from scipy.stats import binomtest

from orchestrator.base.intervals import median_interval, wilson


@pytest.mark.parametrize(("num_hits", "num"), [(0, 1), (1, 1), (0, 3), (1, 3), (2, 3), (7, 20), (50, 50), (1, 1000)])
def test_the_interval_of_a_share_is_the_one_that_scipy_gives(num_hits: int, num: int) -> None:
    interval = binomtest(num_hits, num).proportion_ci(0.95, method="wilson")
    assert wilson(num_hits, num) == (pytest.approx(interval.low), pytest.approx(interval.high))


@pytest.mark.parametrize(("num", "rank"), [(6, 1), (8, 1), (9, 2), (17, 5), (20, 6), (100, 40)])
def test_the_interval_of_a_median_has_the_ranks_of_the_sign_test(num: int, rank: int) -> None:
    values = [float(i) for i in range(num, 0, -1)]
    assert median_interval(values) == (rank, num + 1 - rank)
    outside = 2 * sum(math.comb(num, hits) for hits in range(rank)) / 2**num
    assert outside <= 0.05 < outside + 2 * math.comb(num, rank) / 2**num


@pytest.mark.parametrize("num", [0, 1, 5])
def test_a_median_of_fewer_than_six_values_has_no_interval(num: int) -> None:
    assert median_interval([1.0] * num) is None

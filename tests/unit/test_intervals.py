from __future__ import annotations

import pytest
from scipy.stats import binomtest

from orchestrator.intervals import wilson


@pytest.mark.parametrize(("num_hits", "num"), [(0, 1), (1, 1), (0, 3), (1, 3), (2, 3), (7, 20), (50, 50), (1, 1000)])
def test_the_interval_of_a_share_is_the_one_that_scipy_gives(num_hits: int, num: int) -> None:
    interval = binomtest(num_hits, num).proportion_ci(0.95, method="wilson")
    assert wilson(num_hits, num) == (pytest.approx(interval.low), pytest.approx(interval.high))

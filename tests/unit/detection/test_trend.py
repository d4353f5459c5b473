from __future__ import annotations

from statistics import median

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.detection.trend import Window, deviation, middle, noise, quantile

NUMBERS = st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=60)


@settings(max_examples=60, deadline=None)
@given(NUMBERS, st.integers(1, 20))
def test_a_window_holds_the_last_numbers_in_order_and_sorted(numbers: list[float], size: int) -> None:
    window = Window(size)
    for count, number in enumerate(numbers, 1):
        window.add(number)
        last = numbers[max(0, count - size) : count]
        assert window.values == last
        assert window.ordered == sorted(last)
    again = Window(size)
    again.reset(numbers)
    assert again == window


@settings(max_examples=60, deadline=None)
@given(NUMBERS)
def test_the_middle_is_the_median_and_never_overflows(numbers: list[float]) -> None:
    ordered = sorted(numbers)
    assert middle(ordered) == pytest.approx(median([number / 2 for number in numbers]) * 2, rel=1e-15, abs=1e-300)
    assert ordered[0] <= middle(ordered) <= ordered[-1]
    assert quantile(ordered, 0.0) == ordered[0]
    assert quantile(ordered, 1.0) == ordered[-1]


def test_both_measures_of_noise_are_the_deviation_of_normal_noise() -> None:
    values = (3 + 0.5 * np.random.default_rng(0).standard_normal(20_000)).tolist()
    assert deviation(sorted(values)) == pytest.approx(0.5, rel=0.03)
    spread, _ = noise(values, 0.9)
    assert spread == pytest.approx(0.5, rel=0.03)
    # A slow rise is no noise.
    spread, _ = noise([value + 0.01 * step for step, value in enumerate(values)], 0.9)
    assert spread == pytest.approx(0.5, rel=0.03)
    assert noise([1.0], 0.9) == (0.0, 0.0)

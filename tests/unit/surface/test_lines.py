"""The first place of a line below a level, beside reading all places."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.surface.lines import first_below

LEVELS = (1.96, 0.0)


def brute_force(value_SL: np.ndarray) -> np.ndarray:
    return np.array([
        [next((i for i, value in enumerate(value_L) if value < level), len(value_L)) for value_L in value_SL]
        for level in LEVELS
    ])  # fmt: skip


def found(value_SL: np.ndarray) -> tuple[np.ndarray, int]:
    """The first places, and how many places were read."""
    numbers = []

    def read(line_N: np.ndarray, place_N: np.ndarray) -> np.ndarray:
        numbers.append(len(line_N))
        return value_SL[line_N, place_N]

    return first_below(read, *value_SL.shape, LEVELS), sum(numbers)


def waves(seed: int, num_places: int) -> np.ndarray:
    """Smooth lines from certainly stable to certainly not, with waves of at most three deviations and four periods."""
    rng = np.random.default_rng(seed)
    x_L = np.linspace(0, 1, num_places)
    height_S1, slope_S1 = rng.normal(0, 4, (40, 1)), rng.normal(0, 10, (40, 1))
    wave_SL = rng.uniform(0, 3, (40, 1)) * np.sin(
        2 * np.pi * rng.uniform(0, 4, (40, 1)) * x_L + rng.uniform(0, 6, (40, 1))
    )
    return np.clip(height_S1 + slope_S1 * x_L + wave_SL, -8, 8)


@given(seed=st.integers(0, 10**6), num_places=st.sampled_from([1, 2, 7, 16, 129]))
def test_the_first_places_below_levels_are_those_of_reading_all(seed: int, num_places: int) -> None:
    value_SL = waves(seed, num_places)
    np.testing.assert_array_equal(found(value_SL)[0], brute_force(value_SL))


def test_a_steep_fall_is_found_where_it_is() -> None:
    value_SL = np.where(np.arange(129) < np.arange(1, 129)[:, None], 8.0, -8.0)
    np.testing.assert_array_equal(found(value_SL)[0], [range(1, 129)] * 2)


def test_a_quarter_of_the_places_is_read() -> None:
    value_SL = np.concatenate([waves(seed, 129) for seed in range(5)])
    assert found(value_SL)[1] < value_SL.size / 4


@pytest.mark.parametrize("value", [8.0, 1.0, -8.0])
def test_a_line_on_one_side_is_below_at_its_start_or_nowhere(value: float) -> None:
    first_VS = found(np.full((1, 129), value))[0]
    np.testing.assert_array_equal(first_VS, [[0 if value < level else 129] for level in LEVELS])

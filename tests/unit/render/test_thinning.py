from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from orchestrator.render.traces import thinned


def test_few_points_are_all_kept() -> None:
    assert thinned(np.arange(7.0), 7).tolist() == list(range(7))


def test_a_single_high_or_low_point_among_many_is_kept() -> None:
    values = np.ones(200_000)
    values[77_777], values[123_456] = 50.0, -50.0
    kept = thinned(values, 4000)
    assert {0, 77_777, 123_456, 199_999} <= set(kept.tolist())
    assert len(kept) <= 4002


@settings(max_examples=60, deadline=None)
@given(
    hnp.arrays(np.float64, st.integers(41, 400), elements=st.sampled_from([-3.0, -1.0, 0.5, 1.0, 2.0, 9.0, np.nan])),
    st.sampled_from([4, 10, 40]),
)
def test_of_every_stretch_the_extremes_are_kept(values: np.ndarray, max_points: int) -> None:
    kept = thinned(values, max_points)
    assert (np.diff(kept) > 0).all()
    assert (kept[0], kept[-1]) == (0, len(values) - 1)
    assert len(kept) <= max_points + 2
    size = math.ceil(len(values) / (max_points // 2))
    for start in range(0, len(values), size):
        end = start + size
        stretch = values[start:end]
        if not np.isfinite(stretch).any():
            continue
        shown = values[kept[(kept >= start) & (kept < end)]]
        assert np.nanmin(shown) == np.nanmin(stretch)
        assert np.nanmax(shown) == np.nanmax(stretch)

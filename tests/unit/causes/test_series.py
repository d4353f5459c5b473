from __future__ import annotations

import numpy as np
import pytest

from orchestrator.causes.series import series


@pytest.mark.parametrize(
    ("values", "began"),
    [
        ([], None),
        ([0, 0, 0], None),
        ([1, 1, 1], 0),
        ([0, 1, 1], 10),
        ([1, 0, 1, 1, 0], 20),  # the last stretch, which need not last
        ([1, 1, 0], 0),
    ],
)
def test_a_stretch_begins_after_the_last_reading_before_it_that_is_none(values: list[float], began: int | None) -> None:
    readings = series(10 * np.arange(len(values)), np.array(values, dtype=float))
    assert readings.began(lambda value_N: value_N > 0.5) == began

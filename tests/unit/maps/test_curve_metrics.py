from __future__ import annotations

import numpy as np
import pytest

from orchestrator.maps.curve_metrics import edge_crossings


def crossings(ratios: list[float]) -> int | None:
    return edge_crossings(np.arange(len(ratios)), np.array(ratios), np.ones(len(ratios)))


@pytest.mark.parametrize(
    ("ratios", "expected"),
    [
        ([0.5] * 10, 0),
        ([2.0] * 10, 0),
        ([0.5, 2.0, 0.5, 2.0, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5], 0),
        ([0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 2.0, 2.0, 0.5, 2.0], 2),
        ([0.5, 0.5, 0.5, 0.5, 0.5, np.nan, 2.0, np.nan, np.nan, 2.0], 1),
        ([np.nan] * 9 + [2.0], None),
    ],
    ids=["below", "always above", "only in the first half", "twice", "with holes", "measured once"],
)
def test_rises_above_the_threshold_are_counted_in_the_second_half(ratios, expected) -> None:
    assert crossings(ratios) == expected

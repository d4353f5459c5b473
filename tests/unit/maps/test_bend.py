"""Laws are straight in log sizes: where an exponent changes over the sizes, the answer says so."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from sweep_cases import table_with, trial_row

from orchestrator.answers.predict import PredictAnswer
from orchestrator.base.space import Axis
from orchestrator.maps.prediction import Prediction, predict

RATES = [float(rate) for rate in np.geomspace(1e-6, 0.1, 36)]


def straight(width: float) -> float:
    return 0.02 * (width / 16) ** -0.5


def bent(width: float) -> float:
    """An exponent of 0 at width 16 that falls by 0.4 for each doubling."""
    return 0.02 * 2 ** (-0.2 * math.log2(width / 16) ** 2)


def predicted(edge: Callable[[float], float], widths: list[float]) -> Prediction:
    trials = [
        trial_row(
            trial_id=f"{width} {rate}",
            cell={"lr": rate, "width": width},
            status="finished",
            outcome="stable" if rate < edge(width) else "diverged",
            final_loss=2 + 0.02 * math.log(4 * rate / edge(width)) ** 2 if rate < edge(width) else None,
        )
        for width in widths
        for rate in RATES
    ]
    axes = [Axis("lr", "log", tuple(RATES)), Axis("width", "log", tuple(widths))]
    return predict(table_with(trials, axes), {"width": 2 * widths[-1]})


def test_an_exponent_that_changes_is_said_for_edge_and_best_rate_and_is_a_doubt_beyond_the_sizes() -> None:
    found = predicted(bent, [16.0, 32.0, 64.0, 128.0, 256.0, 512.0])
    for exponent in (found.exponents["width"], found.best_exponents["width"]):
        assert exponent.bends
        assert exponent.bend is not None
        assert exponent.bend.low < -0.4 < exponent.bend.high
    assert any("bends along width" in doubt for doubt in found.doubts)
    assert found.edge is not None
    assert found.edge.at > bent(1024), "a straight law overshoots"
    lines = PredictAnswer(found, (), Path("results"), "", "", False, (), None).lines()
    assert [line.split()[1] for line in lines if line.strip().startswith("bends:")] == ["edge", "best"]


@pytest.mark.parametrize("widths", [[16.0, 32.0, 64.0, 128.0, 256.0], [16.0, 32.0, 64.0]])
def test_a_straight_law_has_no_bend_and_three_sizes_cannot_show_one(widths: list[float]) -> None:
    found = predicted(straight, widths)
    assert not found.exponents["width"].bends
    assert (found.exponents["width"].bend is None) == (len(widths) < 4)
    assert found.doubts == ()

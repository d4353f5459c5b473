"""What a trial is expected to tell: shares of variances."""

from __future__ import annotations

import numpy as np
import pytest

from orchestrator.search.edge import expected_share

STILL = np.zeros(1)


@pytest.mark.parametrize("moved", [0.5, 4.0, 30.0])
@pytest.mark.parametrize("mean", [0.0, 1.5, 4.0])
def test_a_share_is_the_mean_over_where_the_mean_may_have_moved_to(mean: float, moved: float) -> None:
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    means = mean + np.sqrt(moved) * nodes
    each = expected_share(means, np.full(60, 9.0), np.zeros(60))
    found = expected_share(np.array([mean]), np.array([9.0]), np.array([moved]))
    assert found[0] == pytest.approx(weights @ each / weights.sum(), rel=0.05)


def test_where_the_mean_may_move_a_trial_at_it_tells_less_and_one_far_from_it_more() -> None:
    for mean, is_more in ((0.0, False), (8.0, True)):
        still, moved = (
            expected_share(np.array([mean]), np.array([4.0]), np.array([variance])) for variance in (0.0, 9.0)
        )
        assert (moved[0] > still[0]) == is_more


def test_an_outcome_takes_at_most_what_a_surely_known_latent_value_would() -> None:
    variance = np.array([0.01, 1.0, 100.0])
    assert (expected_share(np.zeros(3), variance, np.zeros(3)) * variance < 1).all()

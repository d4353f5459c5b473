from __future__ import annotations

import numpy as np
import pytest
from sweep_cases import learning, noise

from benchmarks.detection_rules import six_sigma
from orchestrator.spike_score import spike_score


def test_it_is_the_share_of_steps_that_the_published_rule_flags() -> None:
    for seed in range(5):
        rng = np.random.default_rng(seed)
        loss = learning(600, seed, changes=[(300, 303, 2.0), (450, 470, 0.7)])
        norm = np.abs(1 + 0.1 * rng.standard_normal(600))
        norm[rng.integers(200, 600, size=3)] = 9.0
        flags, _ = six_sigma(loss.tolist(), norm.tolist())
        assert spike_score([loss, norm]) == pytest.approx(sum(flags) / 600)
        assert spike_score([loss, norm]) > 0


def test_windows_with_what_is_not_finite_tell_nothing() -> None:
    loss = noise(400)
    loss[[150, 300]] = np.nan, np.inf
    flags, _ = six_sigma(loss.tolist(), None)
    assert spike_score([loss]) == pytest.approx(sum(flags) / 400)


@pytest.mark.parametrize("num_steps", [0, 1, 128])
def test_a_curve_without_a_full_window_has_no_score(num_steps: int) -> None:
    assert spike_score([np.ones(num_steps)]) is None
    assert spike_score([]) is None


def test_a_flat_curve_never_spikes() -> None:
    loss = np.ones(300)
    loss[200] = 5.0
    assert spike_score([loss]) == 0.0, "without deviation there is no unit to measure in"

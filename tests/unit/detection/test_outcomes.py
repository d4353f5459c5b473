from dataclasses import replace
from math import nan
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.base.vocabulary import OUTCOMES
from orchestrator.detection.config import StoppingConfig
from orchestrator.detection.detector import MemberRecord, SpikeDetector
from orchestrator.detection.excursions import Episode
from orchestrator.detection.outcomes import judge, member_result
from orchestrator.detection.verdicts import Lost

CONFIG = StoppingConfig().resolved(0.1, 1)
STABLE = MemberRecord(
    num_steps=300,
    initial_loss=5.0,
    best_loss=2.0,
    recent_loss=2.1,
    lost=None,
    lost_step=None,
    lost_onset_step=None,
    lost_reason=None,
    is_finite=True,
    is_far=False,
    up_since_step=None,
    is_away=False,
    episodes=(),
    first_step=0,
)
RECOVERED = (Episode(100, 103, 8.0, 9, 110), Episode(200, 201, 6.0, 4, 205))
OPEN = Episode(290, 295, 7.0, 10)
LOST_AT_250 = {"lost": "far", "lost_step": 250, "lost_onset_step": 180, "lost_reason": "it stayed far above its past"}
NOT_FINITE = LOST_AT_250 | {"lost": "not_finite", "is_finite": False, "lost_reason": "the loss is not finite"}
NO_PROGRESS = {"lost": "no_progress", "lost_step": 250, "lost_onset_step": 250, "lost_reason": "never below the first"}


@pytest.mark.parametrize(
    ("changes", "outcome", "onset_step"),
    [
        ({}, "stable", None),
        ({"episodes": RECOVERED}, "spiked", 100),
        ({"episodes": (OPEN,)}, "spiked", 290),
        ({"episodes": (OPEN,), "is_away": True, "up_since_step": 280}, "diverged", 290),
        ({"episodes": (*RECOVERED, OPEN), "is_far": True, "up_since_step": 280}, "diverged", 290),
        ({"episodes": RECOVERED, "is_far": True, "up_since_step": 280}, "diverged", 280),
        ({"is_away": True, "up_since_step": 280}, "diverged", 280),
        (NOT_FINITE, "diverged", 180),
        (LOST_AT_250 | {"is_far": True, "up_since_step": 180}, "diverged", 180),
        (LOST_AT_250, "spiked", 180),
        (LOST_AT_250 | {"episodes": RECOVERED}, "spiked", 100),
        (NO_PROGRESS | {"best_loss": 5.1}, "stalled", 0),
        (NO_PROGRESS, "spiked", 250),
        ({"best_loss": 4.9}, "stalled", 0),
        ({"best_loss": 4.7}, "stable", None),
        ({"best_loss": None}, "stalled", 0),
        ({"best_loss": 4.9, "episodes": RECOVERED}, "stalled", 0),
        ({"initial_loss": -2.0, "best_loss": -2.2, "is_signed": True}, "unknown", None),
        ({"is_signed": True, "is_far": True, "up_since_step": 280}, "unknown", None),
        (NOT_FINITE | {"is_signed": True}, "diverged", 180),
        ({"has_grown": True, "is_far": True, "up_since_step": 280}, "unknown", None),
    ],
)
def test_a_run_is_judged_by_how_it_stands_at_its_end(changes: dict, outcome: str, onset_step: int | None) -> None:
    verdict = judge(replace(STABLE, **changes), CONFIG)
    assert (verdict.outcome, verdict.onset_step) == (outcome, onset_step)


def test_a_run_without_a_finite_loss_is_diverged_at_once() -> None:
    nothing = {"num_steps": 1, "initial_loss": None, "best_loss": None, "recent_loss": None}
    verdict = judge(replace(STABLE, **(NOT_FINITE | nothing | {"lost_step": 0, "lost_onset_step": 0})), CONFIG)
    assert (verdict.outcome, verdict.onset_step, verdict.reason) == ("diverged", 0, "the loss is not finite")


def test_every_episode_is_counted_and_the_peak_is_that_of_all() -> None:
    higher = replace(OPEN, peak_loss=9.0)
    found = [judge(replace(STABLE, episodes=episodes), CONFIG) for episodes in ((), RECOVERED, (*RECOVERED, higher))]
    assert [(verdict.num_spikes, verdict.peak_loss) for verdict in found] == [(0, None), (2, 8.0), (3, 9.0)]


def test_a_spiked_run_says_how_often_and_how_high_it_jumped_and_how_long_it_was_off() -> None:
    jumps = tuple(Episode(step, step, 4.5, 1, step + 1, 3.0, is_jump=True) for step in range(100, 200, 10))
    verdict = judge(replace(STABLE, episodes=jumps, num_episodes=10, off_share=0.05), CONFIG)
    assert (verdict.outcome, verdict.onset_step, verdict.num_spikes) == ("spiked", 100, 10)
    assert (verdict.peak_factor, verdict.off_share) == (1.5, 0.05)
    assert verdict.reason == (
        "it jumped to 1.5 times its level again and again (10 times, one every 10 steps) and recovered"
    )


def test_jumps_from_a_loss_of_exactly_zero_have_no_factor() -> None:
    losses = np.r_[np.linspace(5, 0, 100), np.zeros(200)]
    losses[150::10] = 0.3
    detector = SpikeDetector(1, CONFIG)
    for loss in losses:
        detector.update(loss)
    found = detector.record()
    assert any(episode.is_jump for episode in found.episodes)
    verdict = judge(found, CONFIG)
    assert (verdict.outcome, verdict.onset_step, verdict.peak_factor) == ("spiked", 150, None)
    assert verdict.reason.startswith("it jumped again and again (")


def test_a_slow_rise_is_said_and_changes_no_outcome() -> None:
    verdict = judge(replace(STABLE, risen_share=0.26, risen_since_step=120), CONFIG)
    assert (verdict.outcome, verdict.onset_step) == ("stable", None)
    assert verdict.reason.endswith("since step 120 it has given up 26% of what it had learned")


def test_the_reason_of_a_diverged_run_tells_a_verdict_from_an_end() -> None:
    found = [
        judge(replace(STABLE, up_since_step=280, **changes), CONFIG).reason
        for changes in (LOST_AT_250 | {"is_far": True}, {"is_far": True}, {"is_away": True}, LOST_AT_250)
    ]
    assert found[0] == LOST_AT_250["lost_reason"]
    assert "ended far above" in found[1]
    assert "had not come back" in found[2]
    assert "but it came back" in found[3]
    assert len(set(found)) == 4


def test_a_run_that_ends_off_its_trend_with_all_but_nothing_left_has_not_diverged() -> None:
    """A regression that had converged to 1e-9 and ended on a bump to 2.5e-7."""
    bump = {"episodes": (OPEN,), "is_away": True, "up_since_step": 280, "best_loss": 1e-9}
    verdict = judge(replace(STABLE, recent_loss=2.5e-7, **bump), CONFIG)
    assert (verdict.outcome, verdict.onset_step) == ("spiked", 290)
    assert "2.5e-07" in verdict.reason
    assert judge(replace(STABLE, recent_loss=0.1, **bump), CONFIG).outcome == "diverged"
    gone = judge(replace(STABLE, recent_loss=2.5e-7, **bump | {"episodes": ()}), CONFIG)
    assert (gone.outcome, gone.onset_step) == ("spiked", 280)


def any_record() -> st.SearchStrategy[MemberRecord]:
    losses = st.one_of(st.none(), st.floats(-10, 10))
    steps = st.integers(0, 299)
    lost = st.one_of(
        st.just({}),
        st.builds(
            lambda kind, step: {"lost": kind, "lost_step": 299, "lost_onset_step": step, "lost_reason": "because"},
            st.sampled_from([kind for kind in get_args(Lost) if kind != "not_finite"]),
            steps,
        ),
        st.just(NOT_FINITE),
    )
    high = st.one_of(
        st.just({}),
        st.builds(
            lambda is_far, is_away, step: {"is_far": is_far, "is_away": is_away, "up_since_step": step},
            st.booleans(),
            st.booleans(),
            steps,
        ),
    )
    return st.builds(
        lambda lost, high, initial, best, episodes: replace(
            STABLE, **lost, **high, initial_loss=initial, best_loss=best, episodes=episodes
        ),
        lost,
        high,
        losses,
        losses,
        st.sampled_from([(), RECOVERED, (OPEN,), (*RECOVERED, OPEN)]),
    )


def test_a_run_that_slowly_gave_up_all_that_it_learned_is_diverged_unless_that_is_too_little_to_tell() -> None:
    gone = replace(STABLE, risen_share=1.05, risen_since_step=120)
    verdict = judge(gone, CONFIG)
    assert (verdict.outcome, verdict.onset_step) == ("diverged", 120)
    assert judge(replace(gone, best_loss=4.9), CONFIG).outcome == "stalled"


@given(any_record())
def test_every_run_has_one_outcome_and_all_but_the_stable_and_the_unknown_an_onset(record: MemberRecord) -> None:
    verdict = judge(record, CONFIG)
    assert verdict.outcome in OUTCOMES
    assert verdict.reason
    assert (verdict.onset_step is None) == (verdict.outcome in ("stable", "unknown"))
    assert (verdict.outcome == "diverged") == (not record.is_finite or record.is_far or record.is_away)


@given(any_record(), st.floats(0, 1, exclude_max=True), st.floats(0, 1, exclude_max=True))
def test_a_stricter_stall_drop_makes_runs_stalled_and_nothing_else(
    record: MemberRecord, stall_drop: float, other: float
) -> None:
    low, high = sorted((stall_drop, other))
    lax, strict = (judge(record, CONFIG.model_copy(update={"stall_drop": drop})) for drop in (low, high))
    assert strict.outcome in (lax.outcome, "stalled")
    assert lax.outcome != "stalled" or strict.outcome == "stalled"


def test_a_loss_that_cannot_be_judged_leaves_a_finite_run_to_its_score() -> None:
    signed = replace(STABLE, is_signed=True)
    assert member_result("t", signed, CONFIG, 300, nan).outcome == "unknown"
    assert member_result("t", signed, CONFIG, 300, nan, has_score=True).outcome == "stable"
    lost = replace(signed, **NOT_FINITE)
    assert member_result("t", lost, CONFIG, 300, nan, has_score=True).outcome == "diverged"

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sweep_cases import trial_row

from orchestrator.detection.learned import with_learned_shares


def rows_of(*runs: tuple[str | None, float | None, float | None]):
    """Rows of one sweep from outcome, initial and final loss."""
    return [
        trial_row(
            trial_id=str(i),
            status="planned" if outcome is None else "finished",
            outcome=outcome,
            initial_loss=initial,
            final_loss=final,
        )
        for i, (outcome, initial, final) in enumerate(runs)
    ]


def shares_of(*runs: tuple[str | None, float | None, float | None]) -> list[float | None]:
    return [row.learned_share for row in with_learned_shares(rows_of(*runs))]


def test_a_share_is_what_was_learned_of_what_the_best_trial_learned() -> None:
    runs = [("stable", 4.0, 2.0), ("stable", 4.0, 3.0), ("spiked", 4.0, 3.5), ("diverged", 4.0, 5.0)]
    assert shares_of(*runs) == [1.0, 0.5, 0.25, -0.5]


def test_a_network_that_ends_dead_has_learned_nothing_however_high_it_began() -> None:
    """A start-up at 9e12 or at 3.5 that ends at ln 10 is no learning; the trials of a published table of 64 runs."""
    dead = [("stable", 9e12, math.log(10)), ("stable", 3.5, math.log(10)), ("stable", 2.4, math.log(10))]
    alive = [("stable", 2.4, 0.1), ("stable", 2.4, 0.2), ("stable", 2.4, 0.3)]
    rows = with_learned_shares(rows_of(*dead, *alive))
    assert [row.is_degraded for row in rows] == [True] * 3 + [False] * 3
    assert [row.label for row in rows] == ["degraded"] * 3 + ["stable"] * 3
    assert [row.outcome for row in rows] == ["stable"] * 6, "degraded is no outcome"


def test_a_lost_trial_does_not_set_what_could_be_learned() -> None:
    """A trial that was lost at a low loss has not shown that one can stay there."""
    assert shares_of(("diverged", 4.0, 0.5), ("stable", 4.0, 2.0)) == [1.75, 1.0]


def test_there_is_no_share_without_losses_or_where_no_trial_has_learned() -> None:
    assert shares_of(("stable", 4.0, 2.0), ("diverged", 4.0, None), (None, None, None), ("unknown", 4.0, 1.0)) == [
        1.0, None, None, None,
    ]  # fmt: skip
    assert shares_of(("stalled", 4.0, 4.0), ("stable", 4.0, 3.99)) == [None, None], "shares of noise"
    assert shares_of(("diverged", 4.0, 9.0)) == [None]
    assert shares_of() == []


@given(
    st.lists(st.floats(1, 10), min_size=1, max_size=8),
    st.floats(0.1, 100.0),
    st.floats(-50, 50),
)
def test_a_share_is_the_same_in_other_units_of_the_loss_and_the_best_has_all(
    finals: list[float], factor: float, shift: float
) -> None:
    runs = [("stable", 1000.0, final) for final in finals]
    shares = shares_of(*runs)
    scaled = shares_of(*(("stable", factor * 1000.0 + shift, factor * final + shift) for _, _, final in runs))
    assert shares == pytest.approx(scaled)
    assert max(shares) == 1.0
    assert shares[finals.index(min(finals))] == 1.0

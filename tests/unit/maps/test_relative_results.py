"""Learned shares and labels of learning rates, from the trials of a sweep."""

from __future__ import annotations

import pytest
from sweep_cases import trial_row

from orchestrator.base.trial_result import TrialResult
from orchestrator.maps.table import with_relative_results

ZIPPED = {"axes": '[{"name": "lr", "zipped": ["lr", "warmup"]}, {"name": "warmup", "zipped": ["lr", "warmup"]}]'}


def row(loss: float, outcome: str = "stable", initial: float = 4.0, **cell) -> TrialResult:
    """A finished trial of ``cell``."""
    return trial_row(
        trial_id=f"{cell}", cell=cell, status="finished", outcome=outcome, initial_loss=initial, final_loss=loss
    )


def relative(*rows: TrialResult) -> list[TrialResult]:
    return with_relative_results(rows, {})


@pytest.mark.parametrize("axis", ["lr", "learning_rate"])
def test_the_axis_of_learning_rates_is_the_field_or_what_a_custom_trainer_calls_it(axis: str) -> None:
    rows = relative(row(3.0, **{axis: 1e-3}), row(2.0, **{axis: 1e-2}), row(3.0, **{axis: 1e-1}))
    assert [trial.lr_health for trial in rows] == ["too slow", "right", "oscillating"]
    assert [trial.lr_regret for trial in rows] == [1.0, 0.0, 1.0]


def test_without_an_axis_of_learning_rates_or_another_value_on_it_nothing_is_said() -> None:
    for rows in (
        [row(2.0, momentum=0.1), row(3.0, momentum=0.2)],
        [row(2.0, lr=1e-3, beta2=0.9), row(3.0, lr=1e-2, beta2=0.99)],
        [row(2.0, lr="none"), row(3.0, lr=1e-2)],
        [],
    ):
        assert [trial.lr_health for trial in relative(*rows)] == [None] * len(rows)


def test_axes_that_advance_with_the_learning_rate_do_not_part_a_row() -> None:
    rows = [row(3.0, lr=1e-3, warmup=10), row(2.0, lr=1e-2, warmup=20), row(3.0, lr=1e-1, warmup=30)]
    assert [trial.lr_health for trial in relative(*rows)] == [None] * 3
    assert [trial.lr_health for trial in with_relative_results(rows, ZIPPED)] == ["too slow", "right", "oscillating"]


def test_a_stable_trial_that_learned_less_than_half_is_degraded_and_its_outcome_stays() -> None:
    rows = relative(row(3.5, lr=0.1), row(1.0, lr=0.2), row(1.2, "pruned", lr=0.3))
    assert [trial.label for trial in rows] == ["degraded", "stable", "pruned"]
    assert [trial.outcome for trial in rows] == ["stable", "stable", "pruned"]
    assert rows[2].learned_share is None, "nobody knows what a pruned trial would have learned"


def test_a_trial_that_stalled_below_one_that_learns_is_degraded_and_one_above_stays_stalled() -> None:
    rows = relative(row(4.0, "stalled", lr=1e-6), row(2.0, lr=1e-3), row(2.0, lr=1e-2))
    assert [(trial.lr_health, trial.label) for trial in rows] == [
        ("too slow", "degraded"), ("right", "stable"), ("right", "stable"),
    ]  # fmt: skip
    rows = relative(row(2.0, lr=1e-3), row(2.0, lr=1e-2), row(4.0, "stalled", lr=1e-1))
    assert rows[-1].label == "stalled"

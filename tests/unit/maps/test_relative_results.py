"""Learned shares and labels of learning rates, from the trials of a sweep."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from sweep_cases import trial_row

from orchestrator.base.space import Cell
from orchestrator.base.trial_result import TrialResult
from orchestrator.maps import relative_results

ZIPPED = {"axes": '[{"name": "lr", "zipped": ["lr", "warmup"]}, {"name": "warmup", "zipped": ["lr", "warmup"]}]'}


def row(loss: float, outcome: str = "stable", initial: float = 4.0, **cell) -> TrialResult:
    """A finished trial of ``cell``."""
    return trial_row(
        trial_id=f"{cell}", cell=cell, status="finished", outcome=outcome, initial_loss=initial, final_loss=loss
    )


def with_relative_results(rows: list[TrialResult], facts: dict[str, str]) -> list[TrialResult]:
    return relative_results.with_relative_results(rows, facts, lambda _: {})


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


def printed(*losses: tuple[float, float], outcomes: dict[int, str] | None = None, **settings) -> list[TrialResult]:
    """Trials of a custom trainer at rising learning rates, with first and last of the ``losses`` that it printed."""
    return [
        trial_row(
            trial_id=f"{i} {settings}", cell={"lr": 10.0**i, **settings}, objective="command", status="finished",
            outcome=(outcomes or {}).get(i, "stable"), initial_loss=first, final_loss=last, reason="it stayed",
        )
        for i, (first, last) in enumerate(losses)
    ]  # fmt: skip


@pytest.mark.parametrize("alone", ["stable", "spiked", "stalled"])
def test_a_blow_up_before_the_first_loss_is_seen_beside_trials_at_lower_learning_rates(alone: str) -> None:
    rows = relative(*printed((15.0, 9.0), (15.2, 6.0), (14.8, 6.5), (60.0, 49.0), outcomes={3: alone}))
    assert [trial.outcome for trial in rows] == ["stable"] * 3 + ["diverged"]
    assert rows[-1].onset_step == 0
    for number in ("60", "49", "15.2", "3 trials", "it stayed"):
        assert number in rows[-1].reason
    assert rows[-1].lr_health is None


def test_every_trial_above_the_edge_of_a_row_is_judged_by_what_began_below_it() -> None:
    blown = [(60.0, 40.0), (90.0, 70.0)]
    rows = relative(*printed((15.0, 9.0), (15.2, 6.0), (14.8, 6.5), *blown))
    assert [trial.outcome for trial in rows[3:]] == ["diverged"] * 2
    rows = relative(*printed((15.0, 9.0), (15.2, 6.0), (14.8, 6.5), *blown, outcomes={3: "diverged"}))
    assert rows[4].outcome == "diverged", "a diverged trial does not say where one begins"


@pytest.mark.parametrize(
    "losses",
    [
        pytest.param([(15.0, 14.0), (6.0, 1.0), (5.0, 0.9), (5.5, 0.8)], id="the slowest began above all others"),
        pytest.param([(15.0, 9.0), (15.0, 6.0), (60.0, 49.0)], id="two trials say too little"),
        pytest.param([(15.0, 9.0), (15.0, 6.0), (15.0, 6.0), (60.0, 12.0)], id="it came back"),
        pytest.param([(15.0, 9.0), (15.0, 6.0), (15.0, 6.0), (16.0, 49.0)], id="what happened later was seen"),
        pytest.param([(1.0, 0.9), (1.4, 0.6), (1.0, 0.7), (2.5, 2.4)], id="within twice the highest first loss"),
        pytest.param([(-15.0, -16.0), (-15.0, -20.0), (-15.0, -20.0), (6.0, 5.0)], id="losses below zero"),
    ],
)
def test_where_first_losses_do_not_prove_a_blow_up_outcomes_stay(losses: list[tuple[float, float]]) -> None:
    assert {trial.outcome for trial in relative(*printed(*losses))} == {"stable"}


def test_trials_that_differ_in_another_setting_do_not_say_where_one_begins() -> None:
    losses = [(15.0, 9.0), (15.0, 6.0), (15.0, 6.0), (15.0, 6.0)]
    other = [(60.0, 50.0), (60.0, 49.0), (60.0, 49.0), (60.0, 48.0)]
    rows = printed(*losses, reduction="mean") + printed(*other, reduction="sum")
    assert {trial.outcome for trial in relative(*rows)} == {"stable"}


@pytest.mark.parametrize("name", ["learning_rate", "peak_lr", "max_lr", "--lr", "learning-rate", "optim.lr", "lr_max"])
def test_an_axis_of_learning_rates_is_known_by_its_usual_names(name: str) -> None:
    rows = printed((15.0, 9.0), (15.2, 6.0), (14.8, 6.5), (60.0, 49.0))
    rows = [replace(row, cell=Cell({name: row.cell["lr"]})) for row in rows]
    assert [trial.outcome for trial in relative(*rows)] == ["stable"] * 3 + ["diverged"]


@pytest.mark.parametrize("name", ["min_lr", "lr_decay", "head_lr", "final_lr", "warmup_lr", "lr_scheduler", "lrs"])
def test_floors_decays_and_factors_of_layers_are_no_learning_rates(name: str) -> None:
    rows = printed((15.0, 9.0), (15.2, 6.0), (14.8, 6.5), (60.0, 49.0))
    rows = [replace(row, cell=Cell({name: row.cell["lr"]})) for row in rows]
    assert {trial.outcome for trial in relative(*rows)} == {"stable"}


def test_numbers_that_advance_with_the_learning_rate_may_differ_and_words_may_not() -> None:
    axes = [{"name": "lr", "zipped": ["lr", "warmup"]}, {"name": "warmup", "zipped": ["lr", "warmup"]}]
    rows = printed((15.0, 9.0), (15.2, 6.0), (14.8, 6.5), (60.0, 49.0))
    facts = {"axes": json.dumps(axes)}
    for values, outcome in (((1, 2, 3, 4), "diverged"), ((1, 2, 3, "long"), "stable")):
        with_warmup = [
            replace(row, cell=Cell({**row.cell, "warmup": value})) for row, value in zip(rows, values, strict=True)
        ]
        assert with_relative_results(with_warmup, facts)[-1].outcome == outcome


def scattered(*others: tuple[float, float], width: float = 4.0) -> list[TrialResult]:
    """Trials at low learning rates with each (width, first loss) of ``others``, and one that blew up at ``width``."""
    cells = [(0.01 + 0.001 * i, there, first, 6.0) for i, (there, first) in enumerate(others)]
    return [
        trial_row(
            trial_id=str(lr), cell={"lr": lr, "width": there}, objective="command", status="finished",
            outcome="stable", initial_loss=first, final_loss=last, reason="it stayed",
        )
        for lr, there, first, last in [*cells, (3.0, width, 60.0, 49.0)]
    ]  # fmt: skip


def test_scattered_trials_are_judged_by_those_around_them_in_other_axes() -> None:
    facts = {"is_sampled": "true"}
    around = [(1.0, 15.0), (3.0, 15.5), (8.0, 14.0)]
    assert with_relative_results(scattered(*around), facts)[-1].outcome == "diverged"
    assert with_relative_results(scattered(*around), {})[-1].outcome == "stable", "a grid has rows"
    assert with_relative_results(scattered(*around, width=9.0), facts)[-1].outcome == "stable", "wider than all others"
    assert with_relative_results(scattered(*around, (8.0, 50.0)), facts)[-1].outcome == "stable", "one began as high"


def test_a_loss_that_falls_over_decades_may_begin_a_thousand_times_as_high() -> None:
    rows = printed((15.0, 9.0), (15.0, 6.0), (15.0, 6.0), (60.0, 49.0))
    facts = {"stopping": '{"spike_rise": 2.0}'}
    assert with_relative_results(rows, facts)[-1].outcome == "stable"


def test_a_built_in_objective_prints_its_loss_before_the_first_update() -> None:
    rows = [replace(row, objective="quadratic") for row in printed((15, 9), (15, 6), (15, 6), (60, 49))]
    assert relative(*rows)[-1].outcome == "stable"


def test_seeds_that_repeat_a_run_say_once_where_it_begins() -> None:
    rows = printed((15.0, 9.0), (60.0, 49.0))
    repeats = [replace(rows[0], trial_id=f"seed {seed}", seed=seed) for seed in (1, 2)]
    assert relative(*rows, *repeats)[1].outcome == "stable"

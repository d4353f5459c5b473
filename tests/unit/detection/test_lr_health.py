from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sweep_cases import trial_row

from orchestrator.base.trial_result import TrialResult
from orchestrator.detection.lr_health import BEYOND_NOISE, LEAST_DIFFERENCE, LEAST_OF_ONE_SEED, with_lr_health

Loss = float | str | None


def row(rate: float, losses: Sequence[Loss], axis: str = "lr", **cell) -> list[TrialResult]:
    """The seeds of a cell by their final losses; a word is an outcome other than stable, which ends at 4."""
    return [
        trial_row(
            trial_id=f"{rate}-{cell}-{seed}",
            cell={axis: rate, **cell},
            seed=seed,
            status="finished",
            outcome=loss if isinstance(loss, str) else "stable",
            initial_loss=4.0,
            final_loss=4.0 if isinstance(loss, str) else loss,
        )
        for seed, loss in enumerate(losses)
    ]


def words(cells: Mapping[float, Sequence[Loss]], axis: str = "lr") -> list[str | None]:
    """The word on each learning rate, of the first seed."""
    rows = with_lr_health([each for rate, losses in cells.items() for each in row(rate, losses, axis)])
    return [each.lr_health for each in rows if each.seed == 0]


BOWL = {1e-4: (3.5, 3.6), 1e-3: (2.5, 2.55), 1e-2: (2.0, 2.05), 1e-1: (2.3, 2.4), 1.0: ("diverged", "diverged")}


@pytest.mark.parametrize("axis", ["lr", "learning_rate"])
def test_what_lies_below_the_lowest_loss_is_too_slow_and_what_lies_above_is_oscillating(axis: str) -> None:
    assert words(BOWL, axis) == ["too slow", "too slow", "right", "oscillating", None]


def test_the_loss_left_on_the_table_is_that_over_the_lowest_of_the_same_seed() -> None:
    rows = with_lr_health([each for rate, losses in BOWL.items() for each in row(rate, losses)])
    assert [each.lr_regret for each in rows] == pytest.approx(
        [1.5, 1.55, 0.5, 0.5, 0.0, 0.0, 0.3, 0.35, None, None], nan_ok=True
    )


def test_without_an_axis_of_learning_rates_or_another_value_on_it_nothing_is_said() -> None:
    assert words(BOWL, "momentum") == [None] * 5
    assert words({1e-3: (2.0, 2.1)}) == [None]
    scattered = with_lr_health([*row(1e-3, (2.0,), beta2=0.9), *row(1e-2, (3.0,), beta2=0.99)])
    assert [each.lr_health for each in scattered] == [None, None]


def test_axes_that_advance_with_the_learning_rate_do_not_part_a_row() -> None:
    rows = [*row(1e-3, (3.0,), warmup=10), *row(1e-2, (2.0,), warmup=20), *row(1e-1, (3.0,), warmup=30)]
    assert [each.lr_health for each in with_lr_health(rows)] == [None] * 3
    assert [each.lr_health for each in with_lr_health(rows, {"warmup"})] == ["too slow", "right", "oscillating"]


def test_a_difference_within_the_noise_of_the_seeds_is_none() -> None:
    noisy = {1e-4: (3.0, 2.0), 1e-3: (2.5, 1.5), 1e-2: (2.0, 3.0)}
    assert words(noisy) == ["right"] * 3, f"seeds scatter by 0.7, and it takes {BEYOND_NOISE} times that"
    least = 2.0 * (1 + LEAST_DIFFERENCE)
    assert words({1e-4: (least, least), 1e-3: (2.0, 2.0), 1e-2: (2.0, 2.0)})[0] == "right"
    assert words({1e-4: (least + 0.01,) * 2, 1e-3: (2.0, 2.0), 1e-2: (2.0, 2.0)})[0] == "too slow"


def test_a_single_seed_has_no_noise_and_needs_a_larger_difference() -> None:
    least = 2.0 * (1 + LEAST_OF_ONE_SEED)
    assert words({1e-4: (least,), 1e-3: (2.0,), 1e-2: (2.0,)})[0] == "right"
    assert words({1e-4: (least + 0.02,), 1e-3: (2.0,), 1e-2: (2.0,)})[0] == "too slow"


def test_where_all_is_learned_no_difference_matters() -> None:
    assert words({1e-4: (1e-5,), 1e-3: (1e-9,), 1e-2: (1e-12,)}) == ["right"] * 3


def test_the_lowest_loss_at_an_end_of_what_was_tried_is_not_known_to_be_right() -> None:
    assert words({1e-4: (3.0,), 1e-3: (2.5,), 1e-2: (2.0,)}) == ["too slow", "too slow", "unknown"]
    assert words({1e-4: (2.0,), 1e-3: (2.5,), 1e-2: (3.0,)}) == ["unknown", "oscillating", "oscillating"]
    assert words({1e-3: (2.5,), 1e-2: (2.0,), 1e-1: ("diverged",)})[1] == "right", "the edge ends the row there"
    assert words({1e-3: (2.0,), 1e-2: (2.0,)}) == ["right", "right"], "the row is flat"


def test_only_cells_whose_seeds_are_all_stable_draw_others_and_are_judged() -> None:
    cells = {1e-3: (2.5, 2.5), 1e-2: (2.48, 2.5), 1e-1: (1.0, "spiked")}
    assert words(cells) == ["right", "right", None]


def test_without_a_stable_neighbour_nobody_knows() -> None:
    assert words({1e-3: (2.5,), 1e-2: ("diverged",)}) == ["unknown", None]


def test_a_trial_that_stalled_below_one_that_learns_is_too_slow_and_degraded() -> None:
    rows = with_lr_health([*row(1e-6, ("stalled",)), *row(1e-3, (2.0,)), *row(1e-2, (2.0,))])
    assert [(each.lr_health, each.label, each.outcome) for each in rows] == [
        ("too slow", "degraded", "stalled"), ("right", "stable", "stable"), ("right", "stable", "stable"),
    ]  # fmt: skip


def test_a_trial_that_stalled_above_those_that_learn_stays_stalled() -> None:
    rows = with_lr_health([*row(1e-3, (2.0,)), *row(1e-2, (2.0,)), *row(1e-1, ("stalled",))])
    assert [(each.lr_health, each.label) for each in rows][-1] == ("unknown", "stalled")


@settings(deadline=None)
@given(st.lists(st.floats(0.5, 3.5), min_size=2, max_size=6), st.floats(0.5, 100.0))
def test_words_are_the_same_in_other_units_of_the_rate_and_the_lowest_loss_is_never_to_be_left(
    losses: list[float], factor: float
) -> None:
    rates = [10.0**i for i in range(len(losses))]
    rows = [each for rate, loss in zip(rates, losses, strict=True) for each in row(rate, (loss,))]
    found = [each.lr_health for each in with_lr_health(rows)]
    assert found[losses.index(min(losses))] in ("right", "unknown")
    other = [trial_row(**{**_plain(each), "cell": {"lr": each.cell["lr"] * factor}}) for each in rows]
    assert [each.lr_health for each in with_lr_health(other)] == found


def _plain(each: TrialResult) -> dict:
    names = ("trial_id", "seed", "status", "outcome", "initial_loss", "final_loss")
    return {name: getattr(each, name) for name in names}

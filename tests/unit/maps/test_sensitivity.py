import contextlib
import sqlite3
from pathlib import Path

import pytest
from sweep_cases import finished, ledger_at, sweep_of

from orchestrator.answers.sensitivity import SensitivityQuery
from orchestrator.base.errors import InputError
from orchestrator.base.packs import Completed, Report
from orchestrator.driver.facts import driver_facts
from orchestrator.driver.packing import make_packs
from orchestrator.maps.sensitivity import lr_sensitivity
from orchestrator.maps.table import read_table

TWO = "seeds: [0, 1]\naxes: {lr: {values: [0.1, 0.2, 0.4]}, clip: {values: [1.0, null]}}\n"


def fill(ledger, results: dict, body: str = TWO) -> None:
    """``results``: (lr, clip, seed) -> outcome, final loss, validation loss."""
    sweep = sweep_of(body)
    ledger.plan(sweep.objective.name, sweep.trials, driver_facts(sweep))
    for trial in sweep.trials:
        key = (trial.cell["lr"], trial.cell.get("clip"), trial.seed)
        if key in results:
            outcome, final, validation = results[key]
            (pack,) = make_packs(sweep, [trial], 1)
            ledger.start_pack(pack, "test")
            one = finished(trial.trial_id, outcome, final_loss=final, validation_loss=validation, initial_loss=5.0)
            ledger.record(Report(pack.pack_id, 20, 0, 0.5, {}, (one,), Completed()))


RESULTS = {
    (0.1, 1.0, 0): ("stable", 9.0, 2.0),
    (0.2, 1.0, 0): ("stable", 9.0, 1.0),
    (0.4, 1.0, 0): ("diverged", 700.0, None),  # counts as the initial loss, 5
    (0.1, 1.0, 1): ("stable", 9.0, 3.0),
    (0.2, 1.0, 1): ("stable", 9.0, 2.0),
    (0.4, 1.0, 1): ("diverged", None, None),
    (0.1, None, 0): ("stable", 9.0, 2.0),
    (0.2, None, 0): ("spiked", 9.0, 2.0),
    (0.4, None, 0): ("diverged", 4.0, None),  # stopped below its initial loss
    (0.1, None, 1): ("stable", 9.0, 2.0),
}


def test_it_is_the_mean_of_the_capped_losses_less_the_lowest(tmp_path: Path) -> None:
    with ledger_at(tmp_path) as ledger:
        fill(ledger, RESULTS)
        found = lr_sensitivity(read_table(ledger))
    clipped, free = found.settings
    assert clipped.setting == {"clip": 1.0}
    assert clipped.by_seed == {0: pytest.approx(8 / 3 - 1), 1: pytest.approx(10 / 3 - 2)}
    assert clipped.value == pytest.approx((5 / 3 + 4 / 3) / 2)
    assert (clipped.best, found.num_values, found.low, found.high) == (0.2, 3, 0.1, 0.4)
    assert found.measure.name == "validation_loss"
    assert free.by_seed == {0: pytest.approx(8 / 3 - 2)}, "seed 1 has not run at every learning rate"


def test_the_words_state_range_loss_and_spread(tmp_path: Path) -> None:
    with ledger_at(tmp_path) as ledger:
        fill(ledger, RESULTS)
        lines = SensitivityQuery().ask(read_table(ledger)).lines()
    assert "over 3 values from 0.1 to 0.4" in lines[0]
    assert "validation loss" in lines[0]
    assert lines[1:] == [
        "  clip=none: 0.667 (one seed), lowest loss at lr=0.1",
        "  clip=1: 1.5 (seeds 1.33 to 1.67), lowest loss at lr=0.2",
    ]


def test_without_validation_the_final_loss_is_taken_and_said(tmp_path: Path) -> None:
    body = "axes: {lr: {values: [0.1, 0.2]}}\n"
    with ledger_at(tmp_path) as ledger:
        fill(ledger, {(0.1, None, 0): ("stable", 2.0, None), (0.2, None, 0): ("stable", 1.0, None)}, body)
        found = lr_sensitivity(read_table(ledger))
    (whole,) = found.settings
    assert (found.measure.name, whole.value, whole.setting) == ("final_loss", pytest.approx(0.5), {})


@pytest.mark.parametrize("body", ["axes: {eps: {values: [1e-8, 1e-4]}}\n", "axes: {lr: {values: [0.1]}}\n"])
def test_it_needs_an_axis_of_learning_rates(tmp_path: Path, body: str) -> None:
    with ledger_at(tmp_path) as ledger:
        sweep = sweep_of(body)
        ledger.plan("quadratic", sweep.trials, driver_facts(sweep))
        with pytest.raises(InputError, match="'lr' is not an axis"):
            lr_sensitivity(read_table(ledger))


def test_a_sweep_without_results_says_so(tmp_path: Path) -> None:
    with ledger_at(tmp_path) as ledger:
        fill(ledger, {})
        assert SensitivityQuery().ask(read_table(ledger)).lines() == ["no trial has finished"]


def test_an_axis_of_words_has_no_sensitivity(tmp_path: Path) -> None:
    with ledger_at(tmp_path) as ledger:
        sweep = sweep_of("axes: {schedule: {values: [constant, linear]}}\n")
        ledger.plan("quadratic", sweep.trials, driver_facts(sweep))
        with pytest.raises(InputError, match="'schedule' is not an axis of two numbers"):
            lr_sensitivity(read_table(ledger), "schedule")


def test_a_seed_without_any_finite_loss_is_left_out(tmp_path: Path) -> None:
    body = "seeds: [0, 1]\naxes: {lr: {values: [0.1, 0.2]}}\n"
    results = {(lr, None, seed): ("stable", 1.0, None) for lr in (0.1, 0.2) for seed in (0, 1)}
    with ledger_at(tmp_path) as ledger:
        fill(ledger, results | {(0.2, None, 0): ("diverged", None, None)}, body)
        with contextlib.closing(sqlite3.connect(ledger.path)) as db, db:
            db.execute("UPDATE trials SET initial_loss = NULL")
        (found,) = lr_sensitivity(read_table(ledger)).settings
        assert found.by_seed == {1: 0.0}
        with contextlib.closing(sqlite3.connect(ledger.path)) as db, db:
            db.execute("UPDATE trials SET final_loss = NULL, validation_loss = NULL")
        lines = SensitivityQuery().ask(read_table(ledger)).lines()
    assert lines[1:] == ["  all: no seed has a loss at every lr"]


def test_a_range_counts_the_tried_values_in_it_with_its_ends_and_no_others(tmp_path: Path) -> None:
    with ledger_at(tmp_path) as ledger:
        fill(ledger, RESULTS)
        whole, of_part = lr_sensitivity(read_table(ledger)), lr_sensitivity(read_table(ledger), "lr", (0.1, 0.2))
        assert lr_sensitivity(read_table(ledger), "lr", (0.01, 4.0)) == whole
    clipped, free = of_part.settings
    assert (of_part.num_values, of_part.low, of_part.high) == (2, 0.1, 0.2)
    assert clipped.by_seed == {0: pytest.approx(0.5), 1: pytest.approx(0.5)}
    assert free.by_seed == {0: 0.0}


def test_the_lowest_loss_is_that_within_the_range(tmp_path: Path) -> None:
    with ledger_at(tmp_path) as ledger:
        fill(ledger, RESULTS)
        clipped, _ = lr_sensitivity(read_table(ledger), "lr", (0.15, 0.4)).settings
    assert clipped.by_seed[0] == pytest.approx((1 + 5) / 2 - 1)
    assert clipped.best == 0.2


@pytest.mark.parametrize(("between", "num"), [((0.15, 0.3), 1), ((1.0, 2.0), 0)])
def test_a_range_with_fewer_than_two_tried_values_is_refused(
    tmp_path: Path, between: tuple[float, float], num: int
) -> None:
    with ledger_at(tmp_path) as ledger:
        fill(ledger, RESULTS)
        with pytest.raises(InputError, match=f"{num} of the tried values of lr lie in it") as caught:
            lr_sensitivity(read_table(ledger), "lr", between)
    assert "tried: 0.1 to 0.4" in str(caught.value)

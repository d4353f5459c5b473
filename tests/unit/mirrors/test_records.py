from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sweep_cases import ledger_at, record, sweep_of
from tiers import examples

from orchestrator.maps.table import read_table
from orchestrator.mirrors.records import (
    MOST_POINTS,
    _curves,
    curve_points,
    differing,
    kept_rows,
    log_columns,
    reading_points,
    trial_record,
)
from orchestrator.mirrors.sweep_records import sweep_record

ROW = "seeds: [0, 1]\naxes: {lr: {log: [1e-3, 10], num: 5}}\n"
LABELS = ["stable", "stable", "stable", "stable", "stable", "spiked", "diverged", "diverged", "diverged", "diverged"]
LOSSES = [3.0, 3.0, 2.0, 2.0, 1.0, 1.0, None, None, None, None]


@pytest.fixture
def ledger(tmp_path: Path):
    with ledger_at(tmp_path) as made:
        record(made, sweep_of(ROW), LABELS, LOSSES)
        yield made


def test_a_sweep_has_the_size_of_its_stable_region_its_edge_and_the_setting_to_take(ledger) -> None:
    sweep = sweep_record(read_table(ledger))
    found = sweep.metrics
    assert sweep.tags["edge_axis"] == "lr"
    unstable = [cell.metrics["unstable_fraction/case"] for cell in sweep.cells]
    assert unstable == [1 - cell.metrics["stable_fraction"] for cell in sweep.cells]
    assert found["stable_fraction"] == pytest.approx((1 + 1 + 0.5 + 0 + 0) / 5)
    assert found["stable_cells"] == pytest.approx(2 / 5)
    assert (found["edge_low"], found["edge_high"]) == (pytest.approx(1e-2), pytest.approx(1e-1))
    assert found["recommended_lr"] == pytest.approx(1e-3), "a factor of 10 is below the edge's"
    assert found["num_diverged"] == 4


def test_its_settings_are_its_fixed_fields_and_the_ranges_of_its_axes(ledger) -> None:
    settings = sweep_record(read_table(ledger)).settings
    assert settings["lr"] == "0.001 .. 10 (5 values)"
    assert settings["objective"] == "quadratic"
    assert settings["steps"].isdigit()


def test_a_cell_has_its_distance_to_the_edge_in_decades_negative_beyond_it(ledger) -> None:
    cells = sweep_record(read_table(ledger)).cells
    assert [round(cell.metrics["distance_to_edge"], 6) for cell in cells] == [2, 1, -1, -2, -3]
    assert [cell.metrics["stable_fraction"] for cell in cells] == [1, 1, 0.5, 0, 0]
    assert [cell.key.values["log10_lr"] for cell in cells] == ["-3", "-2", "-1", "0", "1"]
    assert len({cell.key.cell_id for cell in cells}) == 5


def test_what_rules_did_is_a_tag_of_the_trial(ledger) -> None:
    row, plain = ledger.trials()[:2]
    did = {"at": 8, "set": {"lr": "x0.5"}}
    fired = [{"step": 8, "rule": 1, "on": "loss", "value": 1.5, "above": 1.2, "did": did}] * 25
    tags = trial_record(ledger, replace(row, fired=tuple(fired)), 10, {}, "s").tags
    assert tags["fired"].startswith("lr x0.5 at 8 (loss 1.5 > 1.2 at step 8), lr x0.5")
    assert tags["fired"].endswith(" and 5 more")
    assert "fired" not in trial_record(ledger, plain, 10, {}, "s").tags


def test_a_metric_has_a_name_that_every_tracker_takes(ledger) -> None:
    row = ledger.trials()[0]
    row = replace(row, config={**row.config, "domains": [["en/*.txt", 1.0], ["a+b", 1.0]]})
    read = {f"domain_loss/{name}": np.array([2.0, 1.0]) for name in ("*.txt", "a+b")}
    names = {point.name for point in _curves(row, {}, {"step": np.array([5, 10]), **read}, 10)}
    assert names == {"domain_loss/_.txt", "domain_loss/a_b"}


def test_a_blow_up_is_drawn_at_twice_the_initial_loss(ledger) -> None:
    logs = log_columns(read_table(ledger).axes)
    by_outcome = {row.outcome: row for row in ledger.trials()}
    initial = by_outcome["diverged"].initial_loss
    values = {
        outcome: {point.name: point.value for point in trial_record(ledger, row, "auto", logs, "edge").points}
        for outcome, row in by_outcome.items()
    }
    assert values["diverged"]["loss_capped"] == 2 * initial
    assert "log10_loss" not in values["diverged"]
    assert values["stable"]["loss_capped"] == values["stable"]["final_loss"]


def test_the_outcome_of_one_seed_changes_only_its_own_cell(tmp_path: Path, ledger) -> None:
    with ledger_at(tmp_path / "other") as other:
        record(other, sweep_of(ROW), ["diverged", *LABELS[1:]], [None, *LOSSES[1:]])
        before, after = sweep_record(read_table(ledger)).cells, sweep_record(read_table(other)).cells
    assert [a.key for a in after] == [b.key for b in before] or [a.key.cell_id for a in after] == [
        b.key.cell_id for b in before
    ]
    changed = [a.metrics["stable_fraction"] != b.metrics["stable_fraction"] for a, b in zip(after, before, strict=True)]
    assert changed == [True, False, False, False, False]


def test_settings_differ_where_two_sweeps_have_other_values_of_one() -> None:
    first = {"sweep": "a", "schedule": "constant", "width": "64", "lr": "0.1 .. 1 (3 values)"}
    second = {"sweep": "b", "schedule": "cosine", "width": "64", "lr": "0.1", "final_lr_fraction": "0"}
    assert differing([first, second]) == ["lr", "schedule"]
    assert differing([first]) == []


BUCKETS = 32


def curve_with(spikes: dict[int, float], num: int = 2000) -> np.ndarray:
    loss_N = 3.0 - np.arange(num) / num
    for step, height in spikes.items():
        loss_N[step] = height
    return loss_N


def test_the_height_of_every_spike_is_kept() -> None:
    spikes = {101 + 97 * i: 5.0 + i for i in range(19)}
    loss_N, step_N = curve_with(spikes), np.arange(2000)
    episodes = [(step, step + 1) for step in spikes]
    points = {point.step: point.value for point in curve_points({"step": step_N, "loss": loss_N}, episodes, "auto")}
    assert {step: points.get(step) for step in spikes} == spikes
    assert len(points) <= MOST_POINTS


def test_the_beginning_and_the_end_of_a_long_episode_are_kept_whole() -> None:
    loss_N = curve_with(dict.fromkeys(range(500, 700), 9.0) | {613: 20.0})
    kept = set(kept_rows(np.arange(2000), loss_N, [(500, 700)], BUCKETS))
    assert set(range(500, 510)) | set(range(690, 700)) | {613} <= kept
    assert len(kept) <= MOST_POINTS


def test_an_episode_without_an_end_lasts_to_the_last_step() -> None:
    loss_N = curve_with(dict.fromkeys(range(1900, 2000), 50.0) | {1950: 80.0})
    assert {*range(1900, 1910), 1950, *range(1990, 2000)} <= set(
        kept_rows(np.arange(2000), loss_N, [(1900, None)], BUCKETS)
    )


def test_more_episodes_than_points_keep_their_peaks() -> None:
    spikes = {3 + 7 * i: 10.0 + i for i in range(280)}
    kept = set(kept_rows(np.arange(2000), curve_with(spikes), [(step, step + 1) for step in spikes], BUCKETS))
    assert set(spikes) <= kept


@settings(max_examples=examples(60))
@given(st.integers(1, 700), st.data())
def test_lowest_highest_first_and_last_finite_values_are_always_there(num: int, data) -> None:
    finite = st.floats(-1e6, 1e6)
    value_N = np.array(data.draw(st.lists(st.one_of(finite, st.just(float("nan"))), min_size=num, max_size=num)))
    kept = kept_rows(np.arange(num), value_N, [], BUCKETS)
    assert (np.diff(kept) > 0).all()
    assert len(kept) <= MOST_POINTS
    if np.isfinite(value_N).any():
        found = value_N[kept]
        assert np.nanmin(found) == np.nanmin(value_N)
        assert np.nanmax(found) == np.nanmax(value_N)


def test_steps_that_were_asked_for_are_taken_as_they_are() -> None:
    trace = {"step": np.arange(10), "loss": np.array([1.0, np.inf, 2.0, 3.0, np.nan, 5.0, 6.0, 7.0, 8.0, 9.0])}
    assert [point.step for point in curve_points(trace, [], 2)] == [0, 2, 6, 8]
    assert curve_points({}, [], "auto") == []


def steps_of(column_N: np.ndarray) -> list[int]:
    trace = {"step": np.arange(len(column_N)), "lr": column_N}
    return [point.step for point in curve_points(trace, [(5, 9)], "auto")]


def test_a_column_without_spikes_has_the_points_between_which_it_is_straight() -> None:
    warmup = np.minimum(np.arange(2000) / 100, 1.0)
    assert steps_of(warmup) == [0, 100, 1999]
    assert steps_of(np.full(2000, 0.1)) == [0, 1999]
    assert steps_of(np.array([1.0])) == [0]


def test_a_column_with_many_bends_has_few_points_the_first_and_the_last_among_them() -> None:
    steps = steps_of(np.cos(np.linspace(0, 3, 2000)))
    assert (len(steps), steps[0], steps[-1]) == (12, 0, 1999)


def test_the_extremes_of_readings_are_kept_and_what_was_not_read_is_left_out() -> None:
    value_N = np.sin(np.arange(300) / 7)
    value_N[[50, 120]] = [9.0, -9.0]
    value_N[::3] = np.nan
    points = reading_points({"step": 10 * np.arange(300), "v_lag/all": value_N}, {"v_lag/all": "v_lag"}, 5)
    assert {(500, 9.0), (2990, value_N[299])} <= {(point.step, point.value) for point in points}
    assert {point.name for point in points} == {"v_lag"}
    assert len(points) <= 17
    assert not any(np.isnan(point.value) for point in points)
    assert reading_points({"step": np.arange(3), "v_lag/all": value_N[:3]}, {"noise": "noise"}, 5) == []


@pytest.mark.parametrize("num", [1, 3 * BUCKETS])
def test_a_short_curve_is_kept_whole(num: int) -> None:
    assert kept_rows(np.arange(num), np.ones(num), [], BUCKETS).tolist() == list(range(num))

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.mirrors.records import MOST_POINTS, curve_points, kept_rows, reading_points

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


@settings(deadline=None, max_examples=60)
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

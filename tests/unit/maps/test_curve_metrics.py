from collections.abc import Sequence
from fractions import Fraction
from math import isfinite
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sweep_cases import learning, ledger_at, noise, peak_bytes, record, sweep_of
from tiers import examples

from benchmarks.detection_rules import six_sigma
from orchestrator.answers.map import MapQuery
from orchestrator.base.files import LEDGER
from orchestrator.driver.runner import run_sweep
from orchestrator.executors.inline import InlineExecutor
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.curve_metrics import (
    OF_TELEMETRY,
    edge_crossings,
    headlines,
    loss_ratio_steps,
    measured,
    spike_score,
)
from orchestrator.maps.table import read_table


def crossings(ratios: list[float]) -> int | None:
    return edge_crossings(np.arange(len(ratios)), np.array(ratios), np.ones(len(ratios)))


@pytest.mark.parametrize(
    ("ratios", "expected"),
    [
        ([0.5] * 10, 0),
        ([2.0] * 10, 0),
        ([0.5, 2.0, 0.5, 2.0, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5], 0),
        ([0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 2.0, 2.0, 0.5, 2.0], 2),
        ([0.5, 0.5, 0.5, 0.5, 0.5, np.nan, 2.0, np.nan, np.nan, 2.0], 1),
        ([np.nan] * 9 + [2.0], None),
    ],
    ids=["below", "always above", "only in the first half", "twice", "with holes", "measured once"],
)
def test_rises_above_the_threshold_are_counted_in_the_second_half(ratios, expected) -> None:
    assert crossings(ratios) == expected


# --- headline readings ---


def telemetry_of(ratios: Sequence[float], lr: float = 0.01, every: int = 10) -> dict[str, np.ndarray]:
    step_N = every * np.arange(len(ratios))
    threshold_N = np.full(len(ratios), 2 / lr)
    return {
        "step": step_N,
        "lambda_max": np.array(ratios) * threshold_N,
        "curvature_threshold": np.where(np.isnan(ratios), np.nan, threshold_N),
        "update_rms/all": np.full(len(ratios), 0.5 * lr),
        "v_lag/all": np.arange(len(ratios), dtype=float),
    }


def trace_of(num_steps: int, lr: float = 0.01, every: int = 1) -> dict[str, np.ndarray]:
    step_N = np.arange(0, num_steps, every)
    return {"step": step_N, "lr": lr * (1 + step_N)}


@given(st.lists(st.floats(-1.0, 5.0), min_size=3, max_size=40))
def test_the_distance_to_the_edge_is_the_median_of_the_second_half_and_the_last_reading(ratios: list[float]) -> None:
    found = headlines(telemetry_of(ratios), {})
    late = [ratio for i, ratio in enumerate(ratios) if i > (len(ratios) - 1) / 2]
    assert found["late_edge_ratio"] == pytest.approx(float(np.median(late)), rel=1e-9, abs=1e-12)
    assert found["last_edge_ratio"] == pytest.approx(ratios[-1], rel=1e-9, abs=1e-12)


def test_a_run_that_stays_over_the_edge_has_a_ratio_above_one_and_no_crossing() -> None:
    found = headlines(telemetry_of([1.5] * 20), {})
    assert (found["late_edge_ratio"], found["edge_crossings"]) == (pytest.approx(1.5), 0)


def test_readings_that_were_not_made_and_steps_without_a_rate_are_left_out() -> None:
    telemetry = telemetry_of([0.5, 0.5, 0.7, np.nan, 0.9, np.nan])
    assert headlines(telemetry, {})["last_edge_ratio"] == pytest.approx(0.9)
    telemetry["curvature_threshold"][4] = np.inf  # the schedule has reached zero
    found = headlines(telemetry, {})
    assert found["last_edge_ratio"] == pytest.approx(0.7)
    assert "late_edge_ratio" not in found, "nothing is known of the second half"


def test_the_update_is_measured_by_the_rate_of_its_own_step_even_if_the_curve_was_thinned() -> None:
    telemetry = telemetry_of([0.5] * 11)
    telemetry["update_rms/all"] = 0.2 * 0.01 * (1 + telemetry["step"])
    for every in (1, 4, 100):
        assert headlines(telemetry, trace_of(101, every=every))["late_update_over_lr"] == pytest.approx(0.2)
    assert headlines(telemetry, trace_of(101))["late_v_lag"] == 8


def test_without_telemetry_there_are_no_readings(tmp_path: Path) -> None:
    assert headlines({}, trace_of(20)) == {}
    assert "late_update_over_lr" not in headlines(telemetry_of([0.5] * 4), {})
    sweep = sweep_of("axes: {lr: {values: [0.1, 0.2]}}\n")
    with ledger_at(tmp_path) as ledger:
        record(ledger, sweep, ["stable", "planned"])
        found = measured(read_table(ledger), [*OF_TELEMETRY, "spike_score", "final_loss"])
    assert found == {name: {} for name in (*OF_TELEMETRY, "spike_score")}


# --- the spike score ---


def test_the_spike_score_is_the_share_of_steps_that_the_published_rule_flags() -> None:
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


# --- against the definition, in exact arithmetic -------------------------------------------------

_NEAR = Fraction(1, 10**9)


def by_definition(curves: Sequence[np.ndarray], window: int, sigmas: int) -> tuple[int, int]:
    """The least and the most steps that may be flagged, as what is at the threshold may be rounded to either side."""
    surely, maybe = 0, 0
    for step in range(window, len(curves[0])):
        each = [_flags(curve[step - window : step], curve[step], sigmas) for curve in curves]
        surely += any(low for low, _ in each)
        maybe += any(high for _, high in each)
    return surely, maybe


def _flags(past: np.ndarray, value: float, sigmas: int) -> tuple[bool, bool]:
    if not all(map(isfinite, past)) or np.isnan(value) or value == -np.inf:
        return False, False
    numbers = [Fraction(float(one)) for one in past]
    mean = sum(numbers) / len(numbers)
    variance = sum((one - mean) ** 2 for one in numbers) / len(numbers)
    least = Fraction(1e-10) ** 2
    if value == np.inf:
        return variance > least * (1 + _NEAR), variance > least * (1 - _NEAR)
    over = Fraction(float(value)) - mean
    low, high = (
        over > 0 and over**2 > sigmas**2 * variance * (1 + side) and variance > least * (1 + side)
        for side in (_NEAR, -_NEAR)
    )
    return low, high


@st.composite
def some_curve(draw, num_steps: int) -> np.ndarray:
    """A constant, noise around an offset, or anything; with some values replaced by what should not be there."""
    offset = draw(st.sampled_from([0.0, 0.1, 2.0, 1e8 + 1 / 3, -1e8, 1e15, 1e300]))
    spread = draw(st.sampled_from([0.0, 1e-12, 1e-9, 1e-3, 1.0, 1e5, 1e200, 1e307]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    curve = offset + spread * rng.standard_normal(num_steps)
    odd = st.sampled_from([np.nan, np.inf, -np.inf, 1.7e308, -1.7e308, 5e-324, 0.0, 10.0, 1e8 + 5, 1e15 + 9])
    for _ in range(draw(st.integers(0, 3))):
        curve[draw(st.integers(0, num_steps - 1))] = draw(odd)
    return curve


@settings(max_examples=examples(80), derandomize=True, database=None)
@given(st.data(), st.sampled_from([(2, 1), (7, 2), (20, 4)]), st.integers(1, 2))
def test_the_score_is_what_exact_arithmetic_makes_of_the_definition(data, rule, num_curves) -> None:
    window, sigmas = rule
    num_steps = data.draw(st.integers(window + 1, 70))
    curves = [data.draw(some_curve(num_steps)) for _ in range(num_curves)]
    surely, maybe = by_definition(curves, window, sigmas)
    assert surely <= round(spike_score(curves, window, sigmas) * num_steps) <= maybe


def test_a_constant_curve_that_jumps_is_no_spike_whatever_its_offset() -> None:
    """Rounding of the mean of equal values is no deviation."""
    for level in (0.1, 1e8 + 1 / 3, 1e15 + 1 / 3, 1e300):
        loss = np.full(300, level)
        loss[200] = 2 * level
        assert spike_score([loss]) == 0.0


@pytest.mark.parametrize("num_steps", [129, 1151, 1152, 1153, 2500])
def test_where_a_long_curve_is_cut_into_parts_does_not_matter(num_steps: int) -> None:
    loss = learning(num_steps, 3)
    loss[128::97] += 1.0
    norm = np.abs(noise(num_steps, 4))
    flags, _ = six_sigma(loss.tolist(), norm.tolist())
    assert spike_score([loss, norm]) == pytest.approx(sum(flags) / num_steps)


def test_memory_does_not_grow_with_the_length_of_a_curve() -> None:
    loss = noise(300_000)
    assert peak_bytes(lambda: spike_score([loss])) < 8 * 2**20, "its 128 values for each step are 300 MB"


@given(st.lists(st.one_of(st.floats(0.1, 10), st.sampled_from([np.nan, np.inf])), min_size=2, max_size=30))
def test_steps_over_the_loss_ratio_are_those_of_its_definition(losses: list[float]) -> None:
    expected = 0
    for step in range(1, len(losses)):
        before = [loss for loss in losses[:step] if isfinite(loss)]
        is_over = bool(before) and losses[step] > 1.2 * min(before)
        expected += is_over or not isfinite(losses[step])
    assert loss_ratio_steps(np.array(losses)) == expected


def test_a_curve_of_one_step_has_no_loss_ratio_and_a_loss_of_zero_none_after_it() -> None:
    assert loss_ratio_steps(np.array([1.0])) is None
    assert loss_ratio_steps(np.array([2.0, 1.0, 1.2, 1.3, 0.0, 5.0])) == 1


def test_the_last_loss_on_each_text_is_a_metric_of_a_map(tmp_path: Path) -> None:
    body = (
        "axes: {domain_temperature: {values: [0.5, 1]}}\ntelemetry: {every: 2}\ntracking: {enabled: false}\n"
        "fixed: {domains: {tables: 1, python_docs: 2}, width: 8, depth: 1, context: 8, validation_batches: 1}\n"
    )
    sweep = sweep_of(body, "name: case\nobjective: gpt\nsteps: 5\n")
    assert run_sweep(sweep, tmp_path / "case", InlineExecutor).exit_code == 0
    names = ["domain_loss/tables", "domain_loss/python_docs"]
    with LedgerReader(tmp_path / "case" / LEDGER) as ledger:
        found = measured(read_table(ledger), names)
        for trial in ledger.trials():
            telemetry = ledger.telemetry(trial.trial_id)
            assert [found[name][trial.trial_id] for name in names] == [telemetry[name][-1] for name in names]
        answer = MapQuery(metric="domain_loss/python_docs").ask(read_table(ledger))
        assert "median_domain_loss/python_docs" in answer.frame().columns

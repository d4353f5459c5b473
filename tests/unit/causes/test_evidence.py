from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from diagnosis_cases import calm, noise, ratios, risen, row_of, series_of

from objectives.base import OBJECTIVES
from orchestrator.answers.diagnose import DiagnoseAnswer
from orchestrator.causes.diagnosis import rank
from orchestrator.causes.evidence import Evidence, gather
from orchestrator.causes.moments import beta2_of, clip_factors, is_adam, second_moment_sums, v_lags
from orchestrator.causes.series import NOTHING, series
from orchestrator.maps.neighbours import above, below, neighbours

# --- the second moment from norms ----------------------------------------------------------------


def adam_reference(grad_NP: np.ndarray, beta2: float, clip: float | None) -> tuple[np.ndarray, np.ndarray]:
    """|g|^2 / sum(vhat) and sum(vhat) of each step, from every coordinate's own second moment."""
    v_P, lag_N, sum_N = np.zeros(grad_NP.shape[1]), [], []
    for t, grad_P in enumerate(grad_NP, start=1):
        factor = 1.0 if clip is None else min(1.0, clip / (np.linalg.norm(grad_P) + 1e-6))
        v_P = beta2 * v_P + (1 - beta2) * (factor * grad_P) ** 2
        vhat = (v_P / (1 - beta2**t)).sum()
        lag_N.append(((factor * grad_P) ** 2).sum() / vhat)
        sum_N.append(vhat)
    return np.array(lag_N), np.array(sum_N)


@pytest.mark.parametrize("clip", [None, 3.0])
@pytest.mark.parametrize("beta2", [0.0, 0.9, 0.999])
def test_the_lag_of_v_follows_from_the_norms_alone_as_from_every_coordinate(beta2: float, clip: float | None) -> None:
    scale_N1 = np.exp(noise(60))[:, None]
    grad_NP = scale_N1 * np.random.default_rng(3).standard_normal((60, 7))
    norm_N = np.linalg.norm(grad_NP, axis=1)
    lag_N, sum_N = adam_reference(grad_NP, beta2, clip)
    np.testing.assert_allclose(v_lags(norm_N, beta2, clip), lag_N, rtol=1e-12)
    np.testing.assert_allclose(second_moment_sums(norm_N, beta2, clip), sum_N, rtol=1e-12)
    if clip is not None:
        assert (clip_factors(norm_N, clip) < 1).any(), "the case clips"


@pytest.mark.parametrize("clip", [None, 1.5])
def test_a_gradient_that_is_not_finite_leaves_v_as_it_is(clip: float | None) -> None:
    norm_N = np.array([1.0, 2.0, np.inf, 3.0, np.nan, 1.0])
    sums_N = second_moment_sums(norm_N, 0.9, clip)
    kept_N = np.isfinite(norm_N)
    assert np.isnan(sums_N[~kept_N]).all()
    np.testing.assert_array_equal(sums_N[kept_N], second_moment_sums(norm_N[kept_N], 0.9, clip))


def test_the_lag_is_that_of_the_norms_where_every_step_is_there_and_else_what_was_read() -> None:
    case = calm().reading(v_lag__all=0.25)
    assert len(case.evidence().v_lag) == 400
    sparse = case.with_trace(**{name: values[::4] for name, values in case.trace.items()}).evidence()
    assert set(sparse.v_lag.value_N) == {0.25}
    assert not sparse.has_every_step


@pytest.mark.parametrize(
    "config",
    [
        {"zclip": 2.5},
        {"adagc": 1.05},
        {"second_moment_start": "data"},
        {"weight_decay_kind": "coupled", "weight_decay": 0.1},
        {"rollback": 10},
        {"optimizer": "torch.optim.RAdam"},
    ],
)
def test_the_lag_is_not_told_from_norms_where_v_is_not_theirs(config: dict) -> None:
    assert set(calm(config=config).reading(v_lag__all=0.25).evidence().v_lag.value_N) == {0.25}
    assert len(calm(config=config).without_telemetry().evidence().v_lag) == 0


def test_what_was_read_of_a_clipped_gradient_is_that_of_the_part_that_v_has_seen() -> None:
    case = calm(config={"zclip": 2.5}).reading(v_lag__all=4.0, clip_factor=0.5)
    assert set(case.evidence().v_lag.value_N) == {1.0}


def test_sgd_has_an_effective_step_and_no_second_moment() -> None:
    evidence = calm(config={"optimizer": "sgd"}).without_telemetry().evidence()
    assert (evidence.is_adam, evidence.memory, len(evidence.v_lag)) == (False, None, 0)
    np.testing.assert_array_equal(evidence.effective_step.value_N, evidence.curves["lr"].value_N)


def test_the_effective_step_is_the_learning_rate_over_the_root_of_v() -> None:
    case = calm()
    evidence = case.evidence()
    root_N = np.sqrt(second_moment_sums(case.trace["grad_norm"], 0.95, None))
    np.testing.assert_allclose(evidence.effective_step.value_N, case.trace["lr"] / root_N)


# --- curvature -----------------------------------------------------------------------------------


def test_the_edge_is_the_larger_of_both_curvatures_at_the_steps_where_it_was_measured() -> None:
    case = calm()
    threshold_M = case.telemetry["curvature_threshold"]
    negative_M = -3.0 * threshold_M
    evidence = ratios(case, 0.5 + 0 * threshold_M).reading(lambda_max=negative_M).evidence()
    assert evidence.threshold_ratio.step_N.tolist() == list(range(0, 400, 20))
    np.testing.assert_allclose(evidence.threshold_ratio.value_N, 0.4)
    assert len(case.without_telemetry().evidence().threshold_ratio) == 0


# --- onset, peak and rate ------------------------------------------------------------------------


def test_the_onset_is_the_ledgers_and_the_peak_the_highest_loss_soon_after() -> None:
    evidence = risen(calm("diverged", 100), 100, 20.0).evidence()
    assert evidence.onset == 100
    assert 105 <= evidence.peak < 150
    assert (calm().evidence().onset, calm().evidence().peak) == (None, None)


def blown(outcome: str, onset: int | None, back: int, **changes):
    """A run that is at three times its first loss from step 2 to ``back``."""
    case = calm(outcome, onset, **changes)
    step_N = case.trace["step"]
    high_N = (step_N >= 2) & (step_N < back)
    return case.with_trace(loss=np.where(high_N, 16.0, case.trace["loss"]))


@pytest.mark.parametrize(
    ("outcome", "onset", "back", "found"),
    [
        ("diverged", 300, 280, 2),  # hardly back when the detector's onset came
        ("diverged", 300, 40, 300),  # back for long: another story
        ("stalled", None, 380, 2),
        ("stable", None, 100, None),  # no harm was done
        ("diverged", 2, 380, 2),
    ],
)
def test_a_blow_up_at_the_start_is_the_onset_where_the_run_was_not_back_for_long(outcome, onset, back, found) -> None:
    assert blown(outcome, onset, back).evidence().onset == found


def test_steps_at_the_full_learning_rate_count_from_nine_tenths_of_the_highest_before_the_onset() -> None:
    late = risen(calm("diverged", 100), 100, 20.0).evidence()
    assert late.full_rate_step == 35
    assert [late.had_full_rate_for(steps) for steps in (64, 65)] == [True, False]
    in_warmup = risen(calm("diverged", 20), 20, 20.0).evidence()
    assert in_warmup.full_rate_step == 18
    assert [in_warmup.had_full_rate_for(steps) for steps in (1, 2)] == [True, False]


def test_without_a_recorded_rate_the_warmup_says_when_it_is_full() -> None:
    case = calm("diverged", 100)
    del case.trace["lr"]
    assert case.evidence().full_rate_step == 36


def test_a_custom_trainer_has_a_full_rate_where_a_fact_says_how_long_its_warmup_is() -> None:
    case = calm("diverged", 100)
    del case.trace["lr"]
    del case.row.config["warmup"]
    row = replace(case.row, objective="command")
    unknown, known = (gather(row, case.trace, {}, facts=facts) for facts in ({}, {"warmup": 40}))
    assert (unknown.full_rate_step, known.full_rate_step) == (None, 36)
    assert [unknown.had_full_rate_for(steps) for steps in (99, 100)] == [None, False]
    assert known.number("warmup") == 40


def test_evidence_of_an_empty_curve_is_empty_and_no_fault() -> None:
    evidence = gather(row_of("diverged", 3), {}, {})
    assert (len(evidence.loss), evidence.peak, evidence.has_every_step) == (0, None, False)
    assert evidence.full_rate_step == 3


# --- what a configuration says -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("optimizer", "known"),
    [
        ("adamw", True), ("sgd", False), ("torch.optim.SGD", False), ("torch.optim.NAdam", True),
        ("pytorch_optimizer.Lion", None), (None, None), (3, None),
    ],
)  # fmt: skip
def test_optimizers_with_a_second_moment_are_told_by_their_name(optimizer, known: bool | None) -> None:
    assert is_adam({"optimizer": optimizer}) is known


@pytest.mark.parametrize(
    ("objective", "config", "beta2"),
    [
        ("command", {"beta2": 0.9}, 0.9),
        ("gpt", {"beta2": 0.9, "beta2_half_life": 256.0, "batch_size": 8, "context": 32}, 0.5),
        ("function_fit", {"beta2": 0.9, "beta2_half_life": 200.0, "batch_size": None, "num_points": 200}, 0.5),
        ("command", {"beta2": "high"}, None),
        ("command", {"beta2": 1.5}, None),
        ("command", {}, None),
    ],
)
def test_beta2_may_be_given_as_a_half_life_in_tokens(objective: str, config: dict, beta2: float | None) -> None:
    assert beta2_of(OBJECTIVES.get(objective), config) == beta2


# --- changes in mid-run --------------------------------------------------------------------------


def changed(entries: list[dict], onset: int = 200) -> Evidence:
    return calm("diverged", onset, {"interventions": entries}).reading(v_lag__all=0.25).evidence()


def test_what_training_did_is_judged_by_the_numbers_in_force_before_the_onset() -> None:
    entries = [{"at": 100, "set": {"beta2": 0.5, "eps": "x10"}}, {"at": 200, "set": {"beta1": 0.1}}]
    late, early = changed(entries), changed(entries, onset=100)
    nominal = calm("diverged", 200).evidence()
    assert (late.beta2, late.beta1) == (0.5, nominal.beta1)
    assert late.config_in_force["eps"] == pytest.approx(10 * nominal.config["eps"])
    assert early.beta2 == nominal.beta2 != 0.5
    assert late.config["beta2"] == nominal.config["beta2"], "cells are compared by what was written"


@pytest.mark.parametrize(
    ("entry", "follows"),
    [
        ({"set": {"lr": "x0.5"}}, True),
        ({"set": {"eps": 1e-6}}, True),
        ({"skip": 3}, True),
        ({"set": {"beta2": 0.9}}, False),
        ({"set": {"clip": 1.0}}, False),
        ({"set": {"zclip": 2.0}}, False),
        ({"reset": "moments"}, False),
        ({"reset": "second_moment"}, False),
        ({"rescale": 4.0}, False),
    ],
)
def test_v_follows_from_the_norms_only_where_nothing_else_changes_it(entry: dict, follows: bool) -> None:
    found = changed([{"at": 100, **entry}])
    assert (len(found.v_lag) == 400) == follows
    if not follows:
        assert set(found.v_lag.value_N) == {0.25}, "else it is what was read"


# --- the sweep's other cells ---------------------------------------------------------------------


def test_neighbours_differ_in_one_setting_alone_and_their_seeds_are_pooled() -> None:
    case = calm("diverged", 10).sister("stable", lr=0.1).sister("diverged", 5, seed=1, lr=0.1)
    case = case.sister("stable", lr=0.001).sister("stable", lr=0.001, warmup=0)
    found = neighbours((case.row, *case.sisters), case.row, "lr")
    assert [(cell.value, cell.num_stable, cell.num_finished) for cell in found] == [
        (0.001, 1, 1),
        (0.01, 0, 1),
        (0.1, 1, 2),
    ]
    assert found[2].onsets == (5,)
    assert not found[2].is_stable
    assert [cell.value for cell in below(found, 0.1)] == [0.01, 0.001]
    assert [cell.value for cell in above(found, 0.001)] == [0.01, 0.1]
    assert neighbours((case.row,), case.row, "nonsense") == []


def test_no_clipping_is_above_every_threshold() -> None:
    case = calm("diverged", 10, {"clip": 1.0}).sister("stable", clip=None).sister("stable", clip=0.1)
    cells = case.evidence().cells("clip")
    assert [cell.value for cell in above(cells, 1.0)] == [None]
    assert [cell.value for cell in below(cells, None)] == [0.1]


def test_trials_without_a_result_are_no_neighbours() -> None:
    case = calm("diverged", 10).sister("stable", lr=0.1)
    planned = replace(case.sisters[0], outcome=None)
    assert neighbours((case.row, planned), case.row, "lr")[0].value == 0.01
    assert len(neighbours((case.row, planned), case.row, "lr")) == 1


# --- series --------------------------------------------------------------------------------------


def test_a_series_keeps_what_is_finite_and_answers_with_none_where_nothing_is() -> None:
    found = series(np.arange(4), np.array([1.0, np.nan, 3.0, np.inf]))
    assert found.step_N.tolist() == [0, 2]
    assert (found.at(1), found.at(-1), found.median(), found.largest()) == (1.0, None, 2.0, 3.0)
    nothing = [NOTHING.median(), NOTHING.smallest(), NOTHING.largest(), NOTHING.at(3)]
    nothing += [NOTHING.share(lambda value_N: value_N > 0), NOTHING.first(lambda value_N: value_N > 0)]
    assert set(nothing) == {None}
    assert len(NOTHING.smoothed(5)) == 0


def test_smoothing_takes_medians_of_the_readings_so_far() -> None:
    smooth = series_of([1, 9, 2, 3, 4]).smoothed(3)
    assert smooth.value_N.tolist() == [1, 5, 2, 3, 3]


def test_the_answer_names_one_onset_and_says_what_the_detector_told() -> None:
    found = rank(blown("diverged", 300, 280).evidence(), "case", "it was asked for")
    onset = found.evidence.onset
    assert onset == 2
    assert found.headline.endswith(f"diverged, onset at step {onset}")
    text = " ".join(" ".join(DiagnoseAnswer.of(found, Path()).lines()).split())
    assert f"it had blown up at step {onset}, which counts as the onset here" in text
    assert "the detector, which knows no trend that early, says 300" in text


def test_the_interventions_of_a_trial_are_among_what_is_said_of_it() -> None:
    case = blown("diverged", 300, 280, config={"interventions": [{"at": 5, "set": {"lr": "x2"}}, {"at": 9, "skip": 1}]})
    lines = DiagnoseAnswer.of(rank(case.evidence(), "case", "it was asked for"), Path()).lines()
    assert "  interventions: lr x2 at 5, skip 1 at 9" in lines


@pytest.mark.parametrize(
    ("values", "began"),
    [
        ([], None),
        ([0, 0, 0], None),
        ([1, 1, 1], 0),
        ([0, 1, 1], 10),
        ([1, 0, 1, 1, 0], 20),  # the last stretch, which need not last
        ([1, 1, 0], 0),
    ],
)
def test_a_stretch_begins_after_the_last_reading_before_it_that_is_none(values: list[float], began: int | None) -> None:
    readings = series(10 * np.arange(len(values)), np.array(values, dtype=float))
    assert readings.began(lambda value_N: value_N > 0.5) == began

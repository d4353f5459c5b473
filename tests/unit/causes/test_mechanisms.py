import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from diagnosis_cases import (
    GROUPS,
    PLANTED,
    Case,
    bad_batch,
    calm,
    clipping_saturated,
    diagnosed,
    epsilon_floor,
    half_precision_overflow,
    learning_rate_too_low,
    logit_growth,
    over_the_threshold,
    planted_sweep,
    preconditioner_decay,
    ratios,
    risen,
    row_of,
    series_of,
    shallow_stall,
    short_memory,
    warmup_too_short,
)

from orchestrator.answers.explain import ExplainAnswer
from orchestrator.base.files import LEDGER
from orchestrator.causes.diagnosis import explain
from orchestrator.causes.evidence import Evidence, gather
from orchestrator.causes.mechanisms import limits
from orchestrator.causes.mechanisms.catalogue import MECHANISMS
from orchestrator.causes.mechanisms.data import jumps_at
from orchestrator.causes.mechanisms.mechanism import Finding, MakeFinding, Move, scaled
from orchestrator.causes.mechanisms.mechanism import mechanism as mechanism_of
from orchestrator.causes.mechanisms.second_moment import longest_after
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.table import read_table
from orchestrator.render.kind_maps import explanation_figure


def finding(case, mechanism: str, **options) -> Finding:
    return MECHANISMS[mechanism].examine(case.evidence(**options))


def changed(case, **config):
    """The case with other settings."""
    return replace(case, row=replace(case.row, config={**case.row.config, **config}))


def supported(evidence: Evidence) -> list[str]:
    return [m.key for m in MECHANISMS.values() if m.examine(evidence).verdict == "supported"]


@pytest.mark.parametrize("planted", PLANTED)
def test_the_planted_cause_is_supported_and_no_other(planted: str) -> None:
    assert supported(PLANTED[planted]().evidence()) == [planted]


@pytest.mark.parametrize("planted", PLANTED)
def test_a_finding_has_its_numbers_in_words_and_says_when_it_began(planted: str) -> None:
    found = finding(PLANTED[planted](), planted)
    assert found.numbers
    assert all(re.search(r"\d", number) for number in found.numbers)
    assert found.began_step is not None
    assert found.when.startswith(f"from step {found.began_step}")


def test_a_calm_run_supports_nothing() -> None:
    assert supported(calm().evidence()) == []


@pytest.mark.parametrize("planted", PLANTED)
def test_every_mechanism_has_something_to_say_about_every_run_with_and_without_telemetry(planted: str) -> None:
    case = PLANTED[planted]()
    thinned = case.with_trace(**{name: values[::7] for name, values in case.trace.items()})
    only_loss = replace(case.without_telemetry(), trace={name: case.trace[name] for name in ("step", "loss")})
    for one in (case, case.without_telemetry(), thinned, only_loss):
        for mechanism in MECHANISMS.values():
            found = mechanism.examine(one.evidence())
            assert (found.mechanism, bool(found.reason)) == (mechanism.key, True)
            assert found.verdict in ("supported", "excluded", "unknown")


@pytest.mark.parametrize("outcome", ["diverged", "spiked", "stalled", "stable"])
@pytest.mark.parametrize(
    ("steps", "losses"),
    [([], []), ([0], [np.nan]), ([0], [2.0]), ([0, 10, 20], [2.0, np.inf, 3.0]), (range(60), [0.0] * 60)],
    ids=["nothing", "not finite", "one step", "sparse", "zeros"],
)
def test_odd_curves_and_odd_settings_are_no_fault(outcome: str, steps, losses) -> None:
    config = {
        "lr": "fast",
        "warmup": None,
        "beta2": True,
        "eps": "tiny",
        "clip": False,
        "optimizer": 7,
        "precision": 16,
    }
    onset = None if outcome in ("stable", "stalled") else 0
    row = row_of(outcome, onset, config, initial_loss=None, steps_done=len(losses), objective="command")
    trace = {"step": np.array(steps, dtype=np.int64), "loss": np.array(losses), "grad_norm": np.array(losses)}
    other = replace(row, config={**row.config, "lr": None}, outcome="stable")
    for mechanism in MECHANISMS.values():
        assert mechanism.examine(gather(row, trace, {}, (row, other))).reason


def test_of_a_trainer_that_says_its_losses_only_nothing_is_made_up() -> None:
    config = {"steps": 100, "rate": 0.1, "command": ["python", "train.py"]}
    row = replace(row_of("diverged", 60, steps_done=100), objective="command", config=config)
    case = risen(calm("diverged", 60, steps_done=100), 60, 9.0)
    evidence = gather(row, {"step": case.trace["step"], "loss": case.trace["loss"]}, {}, (row,))
    verdicts = {m.key: m.examine(evidence).verdict for m in MECHANISMS.values()}
    assert "supported" not in verdicts.values()
    told_by_losses = {"bad_batch", "learning_rate_too_low", "over_the_threshold", "absorption"}
    assert {key for key, verdict in verdicts.items() if verdict == "excluded"} <= told_by_losses


# --- over the threshold, or a warmup that is too short ------------------------------------------------


def test_where_a_longer_warmup_helps_it_is_the_warmup_and_not_the_learning_rate() -> None:
    case = warmup_too_short()
    assert finding(case, "over_the_threshold").verdict == "excluded"
    alone = replace(case, sisters=())
    assert finding(alone, "warmup_too_short").verdict == "unknown", "the curvature of a lost run says nothing"
    back = replace(alone, row=replace(alone.row, outcome="spiked", episodes=((3, 40),)))
    assert finding(back, "warmup_too_short").verdict == "supported", "curvature is over only while v is young"
    assert finding(back.without_telemetry(), "warmup_too_short").verdict == "unknown"


def test_where_a_warmup_by_the_rule_fails_as_early_it_is_the_learning_rate() -> None:
    case = replace(warmup_too_short(), sisters=()).sister("diverged", 60, warmup=100).sister("stable", lr=0.01)
    assert finding(case, "warmup_too_short").verdict == "excluded"
    assert finding(case, "over_the_threshold").verdict == "supported"


def test_a_warmup_that_gets_a_run_through_its_start_helps_though_it_spikes_much_later() -> None:
    case = replace(warmup_too_short(), sisters=())
    assert finding(case.sister("spiked", 300, warmup=100), "warmup_too_short").verdict == "supported"
    assert finding(case.sister("diverged", 120, warmup=100), "warmup_too_short").verdict == "excluded"


def test_without_curvature_and_without_a_stable_cell_below_nobody_knows_whether_it_was_the_rate() -> None:
    case = replace(over_the_threshold(), sisters=()).without_telemetry()
    assert finding(case, "over_the_threshold").verdict == "unknown"
    assert finding(case.sister("stable", lr=0.1), "over_the_threshold").verdict == "supported"
    assert finding(case.sister("diverged", 50, lr=0.1), "over_the_threshold").verdict == "unknown"


def test_curvature_far_below_the_threshold_excludes_a_step_over_the_threshold() -> None:
    case = risen(calm("diverged", 60, steps_done=120), 60, 9.0).sister("stable", lr=0.001)
    assert finding(case, "over_the_threshold").verdict == "excluded"
    assert finding(case.without_telemetry(), "over_the_threshold").verdict == "supported"


@pytest.mark.parametrize(
    ("level", "precision", "verdict"),
    [
        (1e-6, "float32", "supported"),
        (1e-4, "float32", "unknown"),
        (1e-2, "float32", "excluded"),
        (1e-6, "bfloat16", "supported"),
        (5e-3, "bfloat16", "excluded"),  # its loss is of float32 all the same
    ],
)
def test_a_loss_that_rounding_leaves_nothing_of_is_absorption(level: float, precision: str, verdict: str) -> None:
    case = risen(calm("spiked", 300, {"precision": precision}), 300, 5.0)
    low = case.with_trace(loss=np.where(case.trace["step"] < 300, level, case.trace["loss"]))
    assert finding(low, "absorption").verdict == verdict
    removal = MECHANISMS["absorption"].removal(low.evidence(), 295)
    assert removal is not None
    assert (removal.entries, removal.step) == (({"at": 0, "precision": "float64"},), 285)


def test_whether_a_custom_trainer_in_half_precision_rounds_its_loss_to_16_bits_is_not_known() -> None:
    for precision, verdict in (("bfloat16", "unknown"), ("float32", "excluded")):
        case = risen(calm("spiked", 300, {"precision": precision}, objective="command"), 300, 5.0)
        low = case.with_trace(loss=np.where(case.trace["step"] < 300, 5e-3, case.trace["loss"]))
        assert finding(low, "absorption").verdict == verdict


def shrinking(left: float = 0.2, ratio: float = 1.3) -> Case:
    """Weights of the MLP that shrink to a share of their size at the onset, and curvature that ends over the step."""
    case = risen(calm("diverged", 300, {"weight_decay": 0.1}, steps_done=360), 300, 5.0, growth=1.3)
    case = ratios(case, np.where(case.telemetry["step"] >= 260, ratio, 0.3))
    step_M = case.telemetry["step"]
    return case.reading(update_rms__mlp=1e-3, update_to_weight__mlp=1e-2 / left ** np.minimum(step_M / 300, 1))


def test_weights_that_shrink_until_the_step_overshoots_are_the_cause_and_not_the_curvature() -> None:
    found = finding(shrinking(), "norm_collapse")
    assert (found.verdict, found.began_step is not None) == ("supported", True)
    assert diagnosed(shrinking().evidence()).to_plain()["cause"] == "norm_collapse"
    assert finding(shrinking(ratio=0.9), "norm_collapse").verdict == "unknown"
    assert finding(shrinking(left=0.7), "norm_collapse").verdict == "unknown"
    assert finding(shrinking(left=0.97), "norm_collapse").verdict == "excluded"
    assert finding(changed(shrinking(), weight_decay=0.0), "norm_collapse").verdict == "excluded"
    assert finding(shrinking().without_telemetry(), "norm_collapse").verdict == "unknown"


def test_the_curvature_of_collapsed_norms_is_read_where_that_of_sharpening_is() -> None:
    """A spike that came shortly before lets norms grow, so the last readings alone may be low."""
    step_M = shrinking().telemetry["step"]
    case = ratios(shrinking(), np.where((step_M >= 120) & (step_M < 200), 1.5, 0.3))
    assert finding(case, "norm_collapse").verdict == "supported"
    assert finding(ratios(shrinking(), np.where(step_M < 60, 1.5, 0.3)), "norm_collapse").verdict == "unknown"


def test_norms_are_held_from_where_they_were_half_again_as_large() -> None:
    evidence = shrinking().evidence()
    removal = MECHANISMS["norm_collapse"].removal(evidence, 100)
    assert removal is not None
    assert removal.entries == ({"at": 0, "norm": "hold"},)
    assert 200 < removal.step < 250, "0.2^(s / 300) is 1.5 times its last value at step 224"


def test_a_curvature_that_was_far_over_its_threshold_for_long_is_not_the_decay_of_v() -> None:
    """Whether v dipped below a limit shortly before the onset then depends on the last bits."""
    case = preconditioner_decay()
    assert supported(case.evidence()) == ["preconditioner_decay"]
    far = ratios(case, np.where(case.telemetry["step"] > 60, 5.0, 0.4))
    assert supported(far.evidence()) == ["sharpening"]


@pytest.mark.parametrize("planted", ["over_the_threshold", "sharpening", "preconditioner_decay"])
def test_with_weight_decay_a_curvature_below_two_over_lr_excludes_nothing(planted: str) -> None:
    """The sharpness of an MLP settles below 2 / lr there (arXiv 2605.16622), whatever makes it unstable."""
    early = risen(calm("diverged", 80, {"lr": 3.0}, steps_done=120), 80, 50.0)
    case = ratios(early if planted == "over_the_threshold" else PLANTED[planted](), 0.3)
    assert finding(case, planted).verdict == "excluded"
    found = finding(changed(case, weight_decay=0.1), planted)
    assert (found.verdict, "weight decay 0.1" in found.reason) == ("unknown", True)


def test_one_reading_far_below_the_threshold_contradicts_a_step_over_the_threshold_and_does_not_exclude_it() -> None:
    case = risen(calm("diverged", 35, {"lr": 3.0}, steps_done=120), 35, 50.0).sister("stable", lr=0.1)
    ratio_M = np.where(case.telemetry["step"] == 20, 0.367, np.nan)
    found = finding(ratios(case, ratio_M), "over_the_threshold")
    assert (found.verdict, "0.367" in found.reason) == ("unknown", True)
    assert finding(case.without_telemetry(), "over_the_threshold").verdict == "supported", "the cell below tells"


def test_an_onset_within_the_warmup_is_not_said_to_be_at_the_full_learning_rate() -> None:
    case = risen(calm("diverged", 340, {"warmup": 400}), 340, 9.0).sister("stable", lr=0.001)
    (age, *_) = finding(case.without_telemetry(), "over_the_threshold").numbers
    assert "was full" not in age
    assert "340 of 400 steps of its warmup" in age
    (age, *_) = finding(over_the_threshold(), "over_the_threshold").numbers
    assert "after the learning rate was full" not in age, "it is at 35 of 40 steps of its warmup"
    (age, *_) = finding(risen(calm("diverged", 60), 60, 9.0), "over_the_threshold").numbers
    assert "after the learning rate was full (step 35)" in age


def test_a_run_of_unknown_curvature_that_trained_before_may_be_over_the_threshold_where_a_lower_rate_is_stable() -> (
    None
):
    """A custom trainer: NaN at lr 3 after it had learned, stable at 0.1."""
    config = {"steps": 400, "lr": 3.0, "command": ["python", "train.py"]}
    row = replace(row_of("diverged", 200, steps_done=201, final_loss=None), objective="command", config=config)
    lower = row_of("stable", trial_id="1")
    lower = replace(lower, objective="command", config={**config, "lr": 0.1})
    trace = {"step": np.arange(201), "loss": calm().trace["loss"][:201]}
    found = MECHANISMS["over_the_threshold"].examine(gather(row, trace, {}, (row, lower)))
    assert found.verdict == "unknown"
    assert any("with lr 0.1: 1 of 1 seeds stable" in number for number in found.numbers)
    alone = [gather(row, trace, {}, (row,), facts=facts) for facts in ({}, {"warmup": 30})]
    assert [MECHANISMS["over_the_threshold"].examine(each).verdict for each in alone] == ["unknown", "excluded"]


def test_a_run_that_stalled_below_a_rate_that_learns_has_too_low_a_rate() -> None:
    case = learning_rate_too_low()
    assert finding(case, "learning_rate_too_low").verdict == "supported"
    assert finding(replace(case, sisters=()), "learning_rate_too_low").verdict == "unknown"
    assert finding(replace(case, sisters=()).sister("stable", lr=1e-7), "learning_rate_too_low").verdict == "unknown"
    higher = replace(case, sisters=()).sister("diverged", 3, lr=0.01)
    assert finding(higher, "learning_rate_too_low").verdict == "unknown"
    assert finding(over_the_threshold(), "learning_rate_too_low").verdict == "excluded"
    assert MECHANISMS["learning_rate_too_low"].probe(case.evidence()) == ("lr", [1e-5, 1e-4])


def test_curvature_over_the_threshold_is_a_risk_and_no_verdict() -> None:
    stable = ratios(calm(), 5.0 + 0 * calm().telemetry["step"])
    assert supported(stable.evidence()) == []


def test_a_run_that_trained_for_long_was_not_over_the_threshold_from_the_start() -> None:
    case = risen(calm("diverged", 200, steps_done=300), 200, 20.0).sister("stable", lr=0.001)
    assert finding(case, "over_the_threshold").verdict == "excluded"
    over = ratios(case, 2.0 + 0 * case.telemetry["step"])
    assert [finding(over, key).verdict for key in ("over_the_threshold", "sharpening")] == ["excluded", "supported"]


@pytest.mark.parametrize(
    ("last_ratios", "verdict"),
    [
        ([0.3] * 10, "excluded"),
        ([0.3] * 8 + [0.7, 0.9], "unknown"),
        ([0.3] * 8 + [1.5, 0.9], "unknown"),
        ([0.3] * 9 + [1.5], "supported"),
        ([0.3] * 7 + [1.5, 1.2, 0.9], "supported"),
    ],
)
def test_curvature_grew_to_the_threshold_where_it_is_over_it_at_the_onset_or_more_than_once_before(
    last_ratios: list[float], verdict: str
) -> None:
    case = risen(calm("diverged", 300, steps_done=360), 300, 5.0, growth=1.3)
    before_M = case.telemetry["step"] < 300
    ratio_M = np.full(len(before_M), 0.3)
    measured = np.flatnonzero(before_M & np.isfinite(case.telemetry["lambda_max"]))
    ratio_M[measured[-len(last_ratios) :]] = last_ratios
    assert finding(ratios(case, ratio_M), "sharpening").verdict == verdict
    assert finding(case.without_telemetry(), "sharpening").verdict == "unknown"


@pytest.mark.parametrize("change", [{"optimizer": "sgd"}, {"warmup": 100}])
def test_the_warmup_is_not_too_short_without_a_second_moment_or_by_the_rule(change: dict) -> None:
    assert finding(changed(warmup_too_short(), **change), "warmup_too_short").verdict == "excluded"


def test_where_no_step_before_the_onset_was_read_nobody_knows_how_near_to_sign_descent_it_was() -> None:
    case = risen(calm("diverged", 7, {"warmup": 20}, steps_done=120), 7, 9.0)
    found = finding(case, "warmup_too_short")
    assert found.verdict == "unknown"
    assert "0.00" not in " ".join(found.numbers)
    helped = case.sister("stable", warmup=100)
    assert finding(helped, "warmup_too_short").verdict == "supported", "the cells tell without a reading"


# --- preconditioner decay ------------------------------------------------------------------------


def test_decay_says_when_each_curvature_crossed_its_threshold() -> None:
    found = finding(preconditioner_decay(), "preconditioner_decay")
    assert any("lambda_max first over it at step 220" in number for number in found.numbers)
    assert found.began_step < 250


@pytest.mark.parametrize("planted", ["preconditioner_decay", "half_precision_overflow"])
def test_a_clear_cause_is_known_from_norms_and_losses_alone(planted: str) -> None:
    assert finding(PLANTED[planted]().without_telemetry(), planted).verdict == "supported"


def test_where_v_had_decayed_a_little_nobody_knows_whether_it_was_that() -> None:
    case = preconditioner_decay()
    norm_N = case.trace["grad_norm"].copy()
    before_N = (case.trace["step"] >= 60) & (case.trace["step"] < 238)
    norm_N[before_N] *= 13  # |g|^2 / sum v then falls to about 0.3
    norm_N[238:] *= 13
    assert finding(case.with_trace(grad_norm=norm_N), "preconditioner_decay").verdict == "unknown"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda case: ratios(case, 0.1 + 0 * case.telemetry["step"]), "curvature stayed"),
        (lambda case: case.with_trace(grad_norm=1.0 + 0 * case.trace["grad_norm"]), "never outgrew"),
        (lambda case: changed(case, optimizer="sgd"), "no second"),
        (lambda case: case.with_trace(lr=np.linspace(1e-5, 1e-2, 400)), "this high for a few steps only"),
    ],
    ids=["curvature", "gradient", "sgd", "warmup"],
)
def test_decay_is_excluded_where_a_part_of_it_is_known_not_to_be_so(change, reason: str) -> None:
    found = finding(change(preconditioner_decay()), "preconditioner_decay")
    assert (found.verdict, reason in found.reason) == ("excluded", True), found


def test_a_gradient_that_jumps_is_no_instability_that_grows() -> None:
    case = preconditioner_decay()
    norm_N = np.where(case.trace["step"] >= 238, 0.02, case.trace["grad_norm"])
    norm_N[250:252] = 3.0, 1.0
    found = finding(case.with_trace(grad_norm=norm_N), "preconditioner_decay")
    assert (found.verdict, "jumped" in found.reason) == ("excluded", True)


def test_a_burst_that_raised_v_is_no_decay() -> None:
    case = preconditioner_decay()
    norm_N = case.trace["grad_norm"].copy()
    norm_N[225] = 20.0  # |g|^2 / sum v is far below 1 before it and after it
    found = finding(case.with_trace(grad_norm=norm_N), "preconditioner_decay")
    assert (found.verdict, "raised v" in found.reason) == ("excluded", True)
    norm_N[225], norm_N[150] = norm_N[224], 20.0  # v has had time to decay since
    assert finding(case.with_trace(grad_norm=norm_N), "preconditioner_decay").verdict == "supported"


@pytest.mark.parametrize(
    ("case", "mechanism", "reason"),
    [
        (preconditioner_decay(), "sharpening", "the preconditioner grew"),
        # Late in a warmup that is too short by the rule, with v still young.
        (
            risen(calm("diverged", 60, {"beta2": 0.99}, steps_done=120), 60, 9.0).reading(direction_rms__all=0.2),
            "warmup_too_short",
            "far from sign descent",
        ),
        (over_the_threshold(), "preconditioner_decay", "any gradient that grows"),
    ],
    ids=["v had decayed before the curvature grew", "far from sign descent", "v lags as a consequence"],
)
def test_what_another_cause_explains_is_excluded_with_that_reason(case, mechanism: str, reason: str) -> None:
    found = finding(case, mechanism)
    assert (found.verdict, reason in found.reason) == ("excluded", True)


# --- epsilon, layers, logits, clipping -----------------------------------------------------------


@pytest.mark.parametrize(("ratio", "verdict"), [(9.9, "supported"), (10.1, "excluded")])
def test_the_floor_is_ten_eps_in_any_layer_group(ratio: float, verdict: str) -> None:
    case = calm("stalled").reading(grad_rms_over_eps__embedding=ratio)
    assert finding(case, "epsilon_floor").verdict == verdict


@pytest.mark.parametrize(
    ("outcomes_below", "verdict"),
    [([], "supported"), (["stable"], "supported"), (["stalled"], "excluded"), (["stalled", "stable"], "supported")],
)
def test_cells_with_a_lower_eps_that_are_no_more_stable_refute_the_floor(outcomes_below: list, verdict: str) -> None:
    case = epsilon_floor()
    for eps, outcome in zip((0.1, 0.01), outcomes_below, strict=False):
        case = case.sister(outcome, eps=eps)
    assert finding(case, "epsilon_floor").verdict == verdict


@pytest.mark.parametrize(("eps", "verdict"), [(1.0, "supported"), (1e-12, "excluded"), (1e-4, "unknown")])
def test_without_telemetry_the_norm_bounds_the_gradients_from_above_and_below(eps: float, verdict: str) -> None:
    case = calm("stalled", config={"eps": eps}).without_telemetry()
    assert finding(case, "epsilon_floor").verdict == verdict


def test_the_floor_counts_at_the_last_readings_before_the_onset() -> None:
    case = risen(calm("diverged", 300, steps_done=360), 300, 5.0)
    early, late = (
        np.where(is_low, 1.0, 1e5) for is_low in (case.telemetry["step"] < 200, case.telemetry["step"] >= 200)
    )
    assert finding(case.reading(grad_rms_over_eps__all=early), "epsilon_floor").verdict == "excluded"
    assert finding(case.reading(grad_rms_over_eps__all=late), "epsilon_floor").verdict == "supported"


@pytest.mark.parametrize(
    ("config", "verdict"),
    [
        ({"beta2": 0.7}, "supported"),
        ({"beta2": 0.81}, "excluded"),  # beta1^2 = 0.81, from where on steps are bounded
        ({"beta2": 0.7, "beta1": 0.8}, "excluded"),
        ({"beta2": 0.999, "beta2_half_life": 400}, "supported"),  # 256 tokens a step: beta2 = 0.64
        ({"beta2": None}, "unknown"),
        ({"beta1": None}, "unknown"),
        ({"optimizer": "sgd"}, "excluded"),
    ],
)
def test_memory_is_short_where_v_forgets_before_the_momentum(config: dict, verdict: str) -> None:
    assert finding(changed(short_memory(), **config), "short_memory").verdict == verdict


def test_long_steps_count_before_the_onset_and_not_after_it() -> None:
    case = short_memory()
    step_M, update_M = case.telemetry["step"], case.telemetry["update_rms/all"]
    rate_M = case.trace["lr"][step_M]
    late = case.reading(update_rms__all=np.where(step_M < 100, 0.1 * rate_M, update_M))
    assert finding(late, "short_memory").verdict == "excluded"
    found = finding(case, "short_memory")
    assert (found.began_step, found.when) == (60, "from step 60, 40 steps before the onset")


def test_steps_that_may_have_grown_since_the_last_reading_are_not_known_to_be_short() -> None:
    case = short_memory()
    case = case.reading(update_rms__all=1.5 * case.trace["lr"][case.telemetry["step"]])
    for onset, verdict in ((103, "excluded"), (107, "unknown")):  # up to 1.08 times a step since step 100
        assert finding(replace(case, row=replace(case.row, onset_step=onset)), "short_memory").verdict == verdict
    assert finding(short_memory().without_telemetry(), "short_memory").verdict == "unknown"
    forgetful = replace(case, row=replace(case.row, config={**case.row.config, "beta2": 0.0}, onset_step=101))
    assert finding(forgetful, "short_memory").verdict == "unknown"


def test_of_short_memory_the_cells_with_more_of_it_and_with_less_momentum_are_told() -> None:
    case = short_memory().sister("stable", beta2=0.95).sister("stable", beta1=0.5).sister("diverged", 90, beta2=0.75)
    numbers = finding(case, "short_memory").numbers
    assert numbers[-2:] == ("with beta2 0.95: 1 of 1 seeds stable", "with beta1 0.5: 1 of 1 seeds stable")


@pytest.mark.parametrize(("beta1", "beta2"), [(0.9, 0.7), (0.5, 0.2), (0.95, 0.9), (0.9, 0.05)])
def test_no_gradients_make_steps_longer_than_they_may_have_become(beta1: float, beta2: float) -> None:
    """Against Adam's own recursion for many coordinates, and gradients that fade, grow and jump as they like."""
    generator = np.random.default_rng(0)
    gradients = np.exp(np.cumsum(3 * generator.standard_normal((80, 500)), axis=0))
    m = v = np.zeros(500)
    sizes = []
    for gradient in gradients:
        m, v = beta1 * m + (1 - beta1) * gradient, beta2 * v + (1 - beta2) * gradient**2
        sizes.append(float(np.sqrt(np.mean(m**2 / v))))
    for first in range(0, 70):
        for gap in range(10):
            bound = longest_after(sizes[first], gap, beta1, beta2)
            assert sizes[first + gap] <= bound * (1 + 1e-9) or bound > limits.LONG_STEP
    assert longest_after(1.0, 200, beta1, beta2) > limits.LONG_STEP


def test_a_long_step_of_long_ago_is_no_cause() -> None:
    case = changed(bad_batch(), beta2=0.7)
    step_M, rate_M = case.telemetry["step"], case.trace["lr"][case.telemetry["step"]]
    early = case.reading(update_rms__all=rate_M * np.where(step_M == 10, 2.5, 0.1))
    assert finding(early, "short_memory").verdict != "supported"
    long = case.reading(update_rms__all=rate_M * np.where((step_M == 10) | (step_M >= 180), 2.5, 0.1))
    assert finding(long, "short_memory").began_step == 180


@pytest.mark.parametrize(
    ("config", "verdict"),
    [
        ({"optimizer": "stableadamw"}, "supported"),
        ({"optimizer": "torch.optim.NAdam"}, "supported"),
        ({"optimizer": "lion"}, "excluded"),
        ({"optimizer": "sophia"}, "excluded"),
        ({"optimizer": "adam8bit"}, "excluded"),  # whose steps are long where v is rounded to zero
        ({"optimizer": "adabelief"}, "excluded"),  # whose v is of g - m
        ({"optimizer": "radam", "radam_threshold": 5.0}, "supported"),
        ({"optimizer": "radam", "radam_threshold": 9.0}, "excluded"),  # it never divides
        ({"optimizer": "torch.optim.Rprop"}, "unknown"),
        ({"optimizer": None}, "unknown"),
        ({"embedding_lr": 1000.0}, "excluded"),  # steps are long because they are asked to be
        ({"beta1": 1e200}, "unknown"),
        ({"beta1": -0.9}, "unknown"),
    ],
)
def test_a_short_memory_is_one_of_averages_of_squares(config: dict, verdict: str) -> None:
    case = short_memory()
    case = replace(case, row=replace(case.row, config={**case.row.config, **config}, onset_step=101))
    assert finding(case, "short_memory").verdict == verdict


def test_a_step_that_was_not_taken_says_nothing_of_its_size() -> None:
    case = short_memory().reading(update_rms__all=0.0)
    assert finding(case, "short_memory").verdict == "unknown"


def test_layers_are_out_of_step_when_the_shallow_ones_stand_still_and_not_the_deep_ones() -> None:
    shallow = calm("stalled").reading(update_to_weight__embedding=9e-5)
    deep = calm("stalled").reading(update_to_weight__head=9e-5)
    assert finding(shallow, "layers_out_of_step").verdict == "supported"
    assert finding(deep, "layers_out_of_step").verdict == "excluded"
    assert finding(calm("stalled").without_telemetry(), "layers_out_of_step").verdict == "unknown"


def test_shallow_blocks_that_stand_still_lead_an_epsilon_floor_and_layers_out_of_step() -> None:
    case = shallow_stall().reading(grad_rms_over_eps__norm=0.1, update_to_weight__embedding=1e-5)
    assert supported(case.evidence()) == ["shallow_stall", "epsilon_floor", "layers_out_of_step"]


@pytest.mark.parametrize(("ratio", "verdict"), [(9.0, "excluded"), (11.0, "supported"), (np.inf, "supported")])
def test_shallow_blocks_stall_below_a_tenth_of_the_deep_ones(ratio: float, verdict: str) -> None:
    case = shallow_stall()
    found = finding(case.reading(update_rms__shallow=case.telemetry["update_rms/deep"] / ratio), "shallow_stall")
    assert found.verdict == verdict
    assert f"{ratio:.3g} times as much" in found.numbers[0]


def test_a_stall_counts_at_the_last_readings_before_the_onset() -> None:
    case = shallow_stall()
    shallow_M = case.telemetry["update_rms/deep"] * np.where(case.telemetry["step"] < 100, 0.02, 1.0)
    assert finding(case.reading(update_rms__shallow=shallow_M), "shallow_stall").verdict == "excluded"


def test_deep_blocks_that_stand_still_are_no_shallow_stall() -> None:
    case = shallow_stall()
    turned = case.reading(
        update_rms__shallow=case.telemetry["update_rms/deep"], update_rms__deep=case.telemetry["update_rms/shallow"]
    )
    assert finding(turned, "shallow_stall").verdict == "excluded"


def test_a_stall_without_a_burst_of_the_gradient_is_no_cause() -> None:
    case = shallow_stall()
    calm_N = np.minimum(case.trace["grad_norm"], 1.0)
    assert finding(case.with_trace(grad_norm=calm_N), "shallow_stall").verdict == "excluded"
    assert finding(case.with_trace(grad_norm=np.full(300, np.nan)), "shallow_stall").verdict == "unknown"


def test_a_stall_before_one_bad_batch_is_no_cause_unless_the_text_is_known_to_change_there() -> None:
    case = shallow_stall()
    jump_N = np.where(case.trace["step"] == 200, 8.0, calm().trace["loss"][:300])
    one_batch = case.with_trace(loss=jump_N)
    assert finding(one_batch, "shallow_stall").verdict == "excluded"
    known = finding(changed(one_batch, shift_at=200), "shallow_stall")
    assert known.verdict == "supported"
    assert "the text changes at step 200 (shift_at)" in known.numbers


def test_a_stall_is_unknown_where_updates_by_depth_were_hardly_read_and_excluded_in_a_single_block() -> None:
    case = shallow_stall()
    assert finding(case.without_telemetry(), "shallow_stall").verdict == "unknown"
    late_M = np.where(case.telemetry["step"] < 180, np.nan, case.telemetry["update_rms/shallow"])
    assert finding(case.reading(update_rms__shallow=late_M), "shallow_stall").verdict == "unknown"
    assert finding(changed(case, depth=1), "shallow_stall").verdict == "excluded"
    early = replace(case, row=replace(case.row, onset_step=5, episodes=((5, None),)))
    assert finding(early, "shallow_stall").verdict == "excluded"


@pytest.mark.parametrize(
    ("readings", "verdict"),
    [
        ({"attention_logit": 2e4}, "supported"),
        ({"attention_logit": np.geomspace(1, 2e3, 40)}, "supported"),
        ({"attention_logit": 2e3}, "unknown"),  # high from the first step on
        ({"attention_logit": 500.0}, "unknown"),
        ({"log_z": np.linspace(5, 30, 40)}, "supported"),
        ({"log_z": np.linspace(5, 15, 40)}, "unknown"),
        ({}, "excluded"),
    ],
)
def test_logits_are_judged_by_what_is_known_of_runs_that_were_lost(readings: dict, verdict: str) -> None:
    assert finding(calm().reading(**readings), "logit_growth").verdict == verdict


def test_logits_that_grow_after_the_onset_are_no_cause() -> None:
    case = logit_growth()
    late = np.where(case.telemetry["step"] > 300, 1e5, 10.0)
    assert finding(case.reading(attention_logit=late), "logit_growth").verdict == "excluded"


@pytest.mark.parametrize(
    ("clip", "saturated", "inactive"),
    [
        (None, "excluded", "excluded"),
        (1e-3, "supported", "excluded"),
        (1.0, "excluded", "excluded"),
        (100.0, "excluded", "supported"),
    ],
)
def test_clipping_is_told_from_the_norms(clip: float | None, saturated: str, inactive: str) -> None:
    case = calm(config={"clip": clip}).without_telemetry()
    assert finding(case, "clipping_saturated").verdict == saturated
    assert finding(case, "clipping_inactive").verdict == inactive


def test_clipping_is_told_from_the_factor_that_was_read_where_there_are_no_norms() -> None:
    case = clipping_saturated().reading(clip_factor=0.01)
    del case.trace["grad_norm"]
    assert finding(case, "clipping_saturated").verdict == "supported"
    assert finding(case.without_telemetry(), "clipping_saturated").verdict == "unknown"


def test_clipping_that_is_never_active_is_a_companion_and_no_cause() -> None:
    assert [m.key for m in MECHANISMS.values() if m.is_companion] == ["clipping_inactive"]


# --- single batches ------------------------------------------------------------------------------


def test_the_bad_batch_is_named_by_its_place_in_the_text() -> None:
    found = finding(bad_batch(), "bad_batch", batch_text=lambda step: f"bytes {step} of moby.txt")
    assert found.began_step == 200
    assert "the batch of step 200: bytes 200 of moby.txt" in found.numbers


def test_other_trials_that_saw_the_batch_tell_it_from_an_instability() -> None:
    alone = bad_batch().without_telemetry()
    assert finding(alone, "bad_batch").verdict == "unknown"
    jumping, quiet = series_of(bad_batch().trace["loss"]), series_of(calm().trace["loss"])
    assert finding(replace(alone, same_data=(jumping, jumping)), "bad_batch").verdict == "supported"
    assert finding(replace(bad_batch(), same_data=(quiet, quiet)), "bad_batch").verdict == "excluded"


def test_a_run_over_the_threshold_before_is_not_blamed_on_a_batch() -> None:
    over = ratios(bad_batch(), 3.0 + 0 * bad_batch().telemetry["step"])
    assert finding(over, "bad_batch").verdict == "excluded"


@pytest.mark.parametrize("change", [{"objective": "quadratic"}, {"objective": "function_fit"}])
def test_where_every_step_sees_the_same_data_no_batch_is_bad(change: dict) -> None:
    case = bad_batch()
    row = replace(case.row, **change, config={**case.row.config, "batch_size": None})
    assert finding(replace(case, row=row), "bad_batch").verdict == "excluded"


def test_a_loss_that_grows_over_several_steps_is_no_jump() -> None:
    growing = risen(calm("diverged", 200, steps_done=300), 200, 20.0, growth=1.2)
    assert finding(growing, "bad_batch").verdict == "excluded"


def test_a_loss_that_jumps_and_stays_is_no_bad_batch() -> None:
    case = calm("diverged", 200, steps_done=300)
    stays = case.with_trace(loss=np.where(case.trace["step"] >= 200, 9.0, case.trace["loss"]))
    assert finding(stays, "bad_batch").verdict == "excluded"


def test_a_change_of_the_text_is_no_bad_batch_though_all_trials_jump_with_it() -> None:
    case = calm("diverged", 200, steps_done=300)
    stays = case.with_trace(loss=np.where(case.trace["step"] >= 200, 9.0, case.trace["loss"]))
    shared = replace(stays, same_data=(series_of(stays.trace["loss"]),))
    assert finding(shared, "bad_batch").verdict == "supported"
    assert finding(changed(shared, shift_at=200), "bad_batch").verdict == "excluded"


def test_jumps_are_judged_against_the_noise_and_a_steep_descent_is_none() -> None:
    noisy = calm().trace["loss"].copy()
    assert not any(jumps_at(series_of(noisy), step) for step in range(20, 400))
    noisy[100] += 1.0
    assert jumps_at(series_of(noisy), 100)
    assert not jumps_at(series_of(noisy), 101)
    assert jumps_at(series_of(noisy), 5) is None, "there is no past"


def test_single_losses_must_be_there() -> None:
    case = bad_batch()
    thinned = case.with_trace(**{name: values[::2] for name, values in case.trace.items()})
    assert finding(thinned, "bad_batch").verdict == "unknown"


# --- half precision ------------------------------------------------------------------------------


def test_overflow_is_excluded_in_other_precisions_and_where_more_bits_do_not_help() -> None:
    case = half_precision_overflow()
    for precision in ("float32", "bfloat16"):
        assert finding(changed(case, precision=precision), "half_precision_overflow").verdict == "excluded"
    assert finding(case.sister("stable", precision="float32"), "half_precision_overflow").verdict == "supported"
    assert finding(case.sister("diverged", 9, precision="float32"), "half_precision_overflow").verdict == "excluded"


def test_where_more_bits_help_it_was_not_the_learning_rate() -> None:
    case = replace(changed(over_the_threshold(), precision="float16"), sisters=()).sister("stable", lr=0.1)
    assert finding(case, "over_the_threshold").verdict == "supported"
    assert finding(case.sister("stable", precision="float32"), "over_the_threshold").verdict == "excluded"


def test_a_few_skips_are_the_search_for_a_loss_scale() -> None:
    case = risen(calm("diverged", 200, {"precision": "float16"}, steps_done=300), 200, 9.0)
    case = case.reading(loss_scale=1024.0, is_skipped=np.where(case.telemetry["step"] == 190, 1.0, 0.0))
    assert finding(case, "half_precision_overflow").verdict == "excluded"


def test_a_loss_that_had_risen_before_it_broke_off_may_have_other_reasons() -> None:
    case = half_precision_overflow().without_telemetry()
    risen_N = np.where(case.trace["step"] >= 140, case.trace["loss"] + 9.0, case.trace["loss"])
    case = case.with_trace(loss=risen_N)
    assert finding(case, "half_precision_overflow").verdict == "unknown"
    assert finding(case.sister("stable", precision="bfloat16"), "half_precision_overflow").verdict == "supported"


# --- the list ------------------------------------------------------------------------------------


def test_the_page_has_every_mechanism_and_the_values_of_the_limits_that_it_shows() -> None:
    page = (Path(__file__).parents[3] / "docs" / "diagnosis.md").read_text()
    for title in (mechanism.title for mechanism in MECHANISMS.values()):
        assert f"**{title}**" in page.lower() or f"**{title[0].upper()}{title[1:]}**" in page, title
    rows = dict(re.findall(r"`([A-Z_]+)`\s+(?:\| )?([\d.e]*\d)", page))
    own = {name: value for name, value in vars(limits).items() if name.isupper()}
    assert len(rows) == 14
    assert {name: float(shown) for name, shown in rows.items()} == {name: float(own[name]) for name in rows}


def test_every_group_of_a_transformer_is_in_the_made_up_readings() -> None:
    assert {f"update_to_weight/{group}" for group in GROUPS} <= set(epsilon_floor().telemetry)


# --- a mechanism that is added to the table alone ------------------------------------------------


@mechanism_of(
    "a tired optimizer",
    label="zzz",
    colour="#123456",
    moves=(Move("lr", "lower", "it then has less to do", scaled("lr", 0.5)),),
)
def tiredness(evidence: Evidence, finding: MakeFinding) -> Finding:
    """Whatever the evidence is."""
    if evidence.outcome == "stable":
        return finding("excluded", "it is wide awake")
    return finding("supported", "it has trained all night", ["8 hours"], 7)


@pytest.fixture
def table(monkeypatch) -> None:
    """The table with one line more, the first one: it leads."""
    others = dict(MECHANISMS)
    for key in others:
        monkeypatch.delitem(MECHANISMS, key)
    monkeypatch.setitem(MECHANISMS, tiredness.key, tiredness)
    for key, other in others.items():
        monkeypatch.setitem(MECHANISMS, key, other)


@pytest.mark.usefixtures("table")
def test_the_page_of_a_diagnosis_names_it_with_its_numbers_and_its_advice() -> None:
    answer = diagnosed(calm("diverged", 300).evidence())
    lines = answer.lines()
    assert "cause: a tired optimizer, from step 7, 293 steps before the onset" in lines
    assert "  - 8 hours" in lines
    assert lines[lines.index("advice:") + 1] == "  lower lr: it then has less to do"
    assert answer.to_plain()["cause"] == "tiredness"


@pytest.mark.usefixtures("table")
def test_the_map_of_causes_shows_it_in_its_cells_and_its_legend(tmp_path: Path) -> None:
    with LedgerReader(planted_sweep(tmp_path / "planted") / LEDGER) as ledger:
        found = explain(read_table(ledger))
    assert "a tired optimizer: 2 cells" in str(ExplainAnswer.of(found, tmp_path))
    figure = explanation_figure.figure(found)
    assert "zzz" in [text.get_text() for text in figure.axes[0].texts]
    assert "zzz: a tired optimizer" in [text.get_text() for text in figure.legends[0].get_texts()]


@pytest.mark.parametrize(
    ("gini", "dead", "says"),
    [
        (0.38, 1.0, "the router sends hardly any token to 1 expert"),
        (0.8, 0.0, "the router sends nearly all tokens to a few experts"),
        (0.8, 2.0, "the router sends nearly all tokens to a few experts and hardly any to 2 experts"),
    ],
)
def test_the_collapse_of_a_router_is_told_as_it_was_found(gini: float, dead: float, says: str) -> None:
    case = calm().reading(router_gini=gini, router_dead=dead)
    found = finding(replace(case, row=replace(case.row, collapsed_step=0)), "router_collapse")
    assert (found.verdict, found.reason) == ("supported", says)
    assert f"{dead:.0f} dead expert{'s' * (dead != 1)} at the end" in found.numbers


@pytest.mark.parametrize(
    ("objective", "config", "verdict"),
    [
        ("gpt", {"norm": None}, "excluded"),
        ("gpt", {"norm": None, "qk_norm": True}, "supported"),
        ("function_fit", {}, "excluded"),
        ("command", {}, "unknown"),
        ("command", {"norm": "rms"}, "supported"),
        ("command", {"norm": "none"}, "excluded"),
        ("my_mlp", {}, "unknown"),
        ("my_mlp", {"norm": "layer"}, "supported"),
    ],
)
def test_norms_collapse_only_in_a_model_that_is_known_to_have_norms(objective: str, config: dict, verdict: str) -> None:
    assert finding(without_a_group_of_norms(objective, **config), "norm_collapse").verdict == verdict


def test_a_group_of_weights_named_norm_says_that_a_model_of_ones_own_has_norms() -> None:
    case = without_a_group_of_norms("my_mlp").reading(update_to_weight__norm=1e-2)
    assert finding(case, "norm_collapse").verdict == "supported"


def without_a_group_of_norms(objective: str, **config: Any) -> Case:
    """Shrinking weights of this objective, whose telemetry names no group `norm`."""
    case = changed(shrinking(), **config)
    kept = {name: value for name, value in case.telemetry.items() if not name.endswith("/norm")}
    return replace(case, row=replace(case.row, objective=objective), telemetry=kept)

"""What ends a run besides a verdict: slow trials, by the rules of Optuna, and validation losses."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sweep_cases import learning
from tiers import examples, one_of

from orchestrator.base.packs import ReferenceTrial, RungThreshold
from orchestrator.base.trial_result import MemberResult
from orchestrator.detection.config import SlowConfig, StoppingConfig
from orchestrator.detection.detector import SpikeDetector
from orchestrator.detection.outcomes import member_result
from orchestrator.detection.run_monitor import RunMonitor
from orchestrator.detection.slow import RungProgress, Rungs, rung_thresholds, rungs_of

STEPS = 48
UNSEEN = SpikeDetector().record()
SLOW = SlowConfig(method="median", startup_trials=0)
# Few different losses, so that some are equal.
LOSSES = st.one_of(st.integers(0, 4).map(float), st.floats(0.0, 10.0, allow_subnormal=False))
RULES = st.one_of(
    st.builds(
        SlowConfig,
        method=st.just("median"),
        startup_trials=st.integers(0, 4),
        warmup_steps=st.integers(1, 20),
        interval_steps=st.integers(3, 20),
    ),
    st.builds(
        SlowConfig,
        method=st.just("halving"),
        startup_trials=st.just(0),
        warmup_steps=st.integers(1, 20),
        reduction=st.integers(2, 5),
    ),
)


def compared(slow: SlowConfig, trials: Sequence[ReferenceTrial], losses: Sequence[float]) -> ReferenceTrial:
    """A trial with ``losses`` at its rungs, compared with ``trials``, as a trial of later ones."""
    rungs = Rungs(1, slow, rung_thresholds(slow, STEPS, trials))
    for threshold, loss in zip(rungs.thresholds, losses, strict=True):
        if rungs.reach(0, threshold.steps - 1, replace(UNSEEN, recent_loss=loss), may_end=True):
            return ReferenceTrial(rungs.of(0).losses, ran_to_its_end=False)
    return ReferenceTrial(rungs.of(0).losses, ran_to_its_end=True)


def study_of(slow: SlowConfig) -> optuna.Study:
    first, *_ = (*rungs_of(slow, STEPS), 1)
    pruner: optuna.pruners.BasePruner = (
        optuna.pruners.MedianPruner(slow.startup_trials, first, slow.interval_steps or 1)
        if slow.method == "median"
        else optuna.pruners.SuccessiveHalvingPruner(first, slow.reduction or 4)
    )
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(pruner=pruner)


def told(study: optuna.Study, slow: SlowConfig, losses: Sequence[float]) -> ReferenceTrial:
    """What becomes of a trial in Optuna."""
    trial = study.ask()
    for i, (steps, loss) in enumerate(zip(rungs_of(slow, STEPS), losses, strict=True)):
        trial.report(loss, steps)
        if trial.should_prune():
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
            return ReferenceTrial(tuple(losses[: i + 1]), ran_to_its_end=False)
    study.tell(trial, 0.0)
    return ReferenceTrial(tuple(losses), ran_to_its_end=True)


@settings(max_examples=examples(150))
@given(RULES, st.data())
def test_trials_one_after_the_other_are_pruned_where_optuna_prunes_them(slow: SlowConfig, data: st.DataObject) -> None:
    num_rungs = len(rungs_of(slow, STEPS))
    curves = data.draw(st.lists(st.lists(LOSSES, min_size=num_rungs, max_size=num_rungs), max_size=14))
    study, ours = study_of(slow), list[ReferenceTrial]()
    for losses in curves:
        ours.append(compared(slow, ours, losses))
        assert ours[-1] == told(study, slow, losses)


def test_both_rules_prune_some_and_keep_some_of_random_curves() -> None:
    curves = np.random.default_rng(0).uniform(1, 2, (40, 4)).tolist()
    for method in ("median", "halving"):
        slow = SlowConfig(method=method, warmup_steps=12, **({"interval_steps": 9} if method == "median" else {}))
        trials: list[ReferenceTrial] = []
        for losses in curves:
            trials.append(compared(slow, trials, losses[: len(rungs_of(slow, STEPS))]))
        kept = sum(trial.ran_to_its_end for trial in trials)
        assert 5 <= kept < 35, method


def test_rungs_begin_after_half_of_the_steps_and_end_before_the_last() -> None:
    assert rungs_of(SlowConfig(method="median"), 200) == (100, 120, 140, 160, 180)
    assert rungs_of(SlowConfig(method="halving"), 200) == (100,)
    assert rungs_of(SlowConfig(method="halving", warmup_steps=10), 200) == (10, 40, 160)
    assert rungs_of(SlowConfig(method="halving", warmup_steps=3, reduction=2), 40) == (3, 6, 12, 24)
    assert rungs_of(SlowConfig(method="median"), 1) == ()
    assert rungs_of(SlowConfig(method="halving", warmup_steps=50), 50) == ()


def test_without_enough_earlier_trials_there_is_no_threshold_but_still_a_rung() -> None:
    trials = [ReferenceTrial((1.0, 0.5), ran_to_its_end=True)] * 4 + [ReferenceTrial((3.0,), ran_to_its_end=False)] * 9
    slow = SlowConfig(method="median", startup_trials=5, warmup_steps=10, interval_steps=20)
    assert rung_thresholds(slow, 40, trials) == (RungThreshold(10, math.inf, 4), RungThreshold(30, math.inf, 4))
    fifth = ReferenceTrial((2.0, 1.5), ran_to_its_end=True)
    assert rung_thresholds(slow, 40, [*trials, fifth]) == (RungThreshold(10, 1.0, 5), RungThreshold(30, 0.5, 5))


@given(st.lists(st.lists(LOSSES, min_size=3, max_size=3), min_size=1, max_size=9), st.randoms())
def test_the_order_of_earlier_trials_changes_no_threshold(curves: list[list[float]], random) -> None:
    trials = [ReferenceTrial(tuple(losses), ran_to_its_end=True) for losses in curves]
    shuffled = random.sample(trials, len(trials))
    for slow in (SLOW, SlowConfig(method="halving", startup_trials=0, warmup_steps=4, reduction=3)):
        assert rung_thresholds(slow, STEPS, shuffled) == rung_thresholds(slow, STEPS, trials)


# --- in the loop that judges ----------------------------------------------------------------------

NUM_STEPS = 200
CALM = learning(NUM_STEPS)
LOST = learning(NUM_STEPS, changes=[(45, NUM_STEPS, 3.5)])  # off its trend at step 50, and lost at about 95
THRESHOLDS = tuple(RungThreshold(steps, 1.0, 7) for steps in range(50, NUM_STEPS, 50))


def judged(
    loss_TK: np.ndarray, config: StoppingConfig, audited: Sequence[bool] = (False,), num_at_once: int = 7
) -> RunMonitor:
    """Members that train until they end, or to their last step."""
    monitor = RunMonitor(config, audited, rung_thresholds=THRESHOLDS)
    for first in range(0, len(loss_TK), num_at_once):
        if monitor.update({"loss": loss_TK[first : first + num_at_once]}).has_ended_K.any():
            break
    return monitor


CONFIG = StoppingConfig(slow=SLOW)


@pytest.mark.parametrize("num_at_once", [1, 7, 200])
def test_a_slow_member_ends_at_the_rung_however_its_steps_arrive(num_at_once: int) -> None:
    monitor = judged(CALM[:, None], CONFIG, num_at_once=num_at_once)
    progress = monitor.rung_progress()
    assert (progress.slow_step, progress.is_pruned) == (49, True)
    assert progress.losses == (pytest.approx(np.median(CALM[40:50])),)
    assert monitor.record().num_steps == 50
    finished = member_result("t", monitor.record(), CONFIG, 50, math.nan, progress)
    assert (finished.outcome, finished.onset_step, finished.slow_step) == ("pruned", None, 49)
    assert finished.reason == (
        f"slow after 50 steps: its best loss {progress.losses[0]:.4g} was above 1, the median of 7 trials; "
        "until then it stayed on its trend"
    )


@pytest.mark.parametrize(
    ("config", "audited"), [(CONFIG, True), (CONFIG.model_copy(update={"early_stop": False}), False)]
)
def test_a_slow_member_that_is_audited_trains_to_its_end_and_its_outcome_is_that_of_its_end(config, audited) -> None:
    monitor = judged(CALM[:, None], config, [audited])
    progress = monitor.rung_progress()
    assert (progress.slow_step, progress.is_pruned, len(progress.losses)) == (49, False, 3)
    finished = member_result("t", monitor.record(), config, NUM_STEPS, 1.5, progress)
    assert (finished.outcome, finished.slow_step) == ("stable", 49)
    assert "audited: slow after 50 steps" in finished.reason


def test_whether_a_member_off_its_trend_is_lost_is_for_the_detector_to_say() -> None:
    monitor = judged(LOST[:, None], CONFIG)
    assert monitor.rung_progress().slow_step is None
    assert monitor.record().lost == "far"
    back = learning(NUM_STEPS, changes=[(45, 60, 3.5)])
    assert judged(back[:, None], CONFIG).rung_progress().slow_step == 99, "at the next rung it is back"


def test_without_thresholds_nobody_is_pruned_and_records_are_the_same() -> None:
    plain, slow = RunMonitor(StoppingConfig()), RunMonitor(CONFIG)
    for monitor in (plain, slow):
        assert not monitor.update({"loss": CALM[:, None]}).has_ended_K.any()
    assert plain.record() == slow.record()
    assert slow.rung_progress().losses == ()


def test_a_member_that_is_not_finite_is_compared_no_further() -> None:
    broken = np.where(np.arange(NUM_STEPS) >= 70, np.nan, CALM)
    config = CONFIG.model_copy(update={"early_stop": False, "slow": SLOW})
    assert len(judged(broken[:, None], config).rung_progress().losses) == 1


def test_points_far_apart_count_at_every_rung_that_they_have_passed() -> None:
    monitor = RunMonitor(CONFIG, rung_thresholds=[replace(threshold, loss=math.inf) for threshold in THRESHOLDS])
    for step, loss in ((0, 5.0), (60, 3.0), (190, 2.0)):
        assert not monitor.update_single(step, {"loss": loss})
    assert monitor.rung_progress().losses == (4.0, 3.0, 3.0)


def test_thresholds_that_come_later_do_not_judge_rungs_that_were_passed() -> None:
    monitor = RunMonitor(CONFIG, rung_thresholds=[replace(threshold, loss=math.inf) for threshold in THRESHOLDS])
    for step in range(60):
        assert not monitor.update_single(step, {"loss": CALM[step]})
    monitor.compare_with(THRESHOLDS)
    ended = [step for step in range(60, NUM_STEPS) if monitor.update_single(step, {"loss": CALM[step]})]
    assert ended[0] == 99


def test_what_is_resumed_keeps_its_progress_and_its_thresholds() -> None:
    before = RunMonitor(CONFIG, [False, False], rung_thresholds=THRESHOLDS[1:])
    loss_TK = np.stack([CALM, CALM + 1], axis=1)
    before.update({"loss": loss_TK[:60]})
    after = RunMonitor(CONFIG, [False, False], rung_thresholds=[RungThreshold(5, 0.0, 1)])
    after.load_state_dict(before.state_dict())
    ends = [monitor.update({"loss": loss_TK[60:]}).num_steps_K.tolist() for monitor in (before, after)]
    assert ends == [[40, 40]] * 2
    assert after.rung_progress(1) == before.rung_progress(1)


def test_a_checkpoint_of_an_earlier_version_is_resumed() -> None:
    rungs = Rungs(1, SLOW, ())
    rungs.load_state_dict(
        {
            "bars": [{"steps": 5, "loss": 2.0, "num_rivals": 3}, {"steps": 9, "loss": 1.0, "num_rivals": 3}],
            "climbs": [{"losses": [1.5], "slow_step": None, "reason": None, "is_pruned": False}],
        }
    )
    assert rungs.thresholds == (RungThreshold(5, 2.0, 3), RungThreshold(9, 1.0, 3))
    assert rungs.of(0) == RungProgress((1.5,))
    assert rungs.due(np.array([8])) == []
    assert rungs.due(np.array([9])) == [0]


VALIDATING = StoppingConfig(spike_rise=0.1, gradient_patience=1)
EVERY, NUM_VALIDATED = 20, 400
AT = np.arange(EVERY - 1, NUM_VALIDATED, EVERY)


def result(train: np.ndarray, held_out: np.ndarray, config: StoppingConfig = VALIDATING) -> MemberResult:
    """The result of a run with these training losses, validated at every ``EVERY`` steps."""
    monitor = RunMonitor(config)
    by_step = dict(zip(AT.tolist(), held_out.tolist(), strict=True))
    for step, loss in enumerate(train.tolist()):
        monitor.update_single(step, {"loss": loss, "grad_norm": 1.0})
        if step in by_step:
            monitor.validated(0, step, by_step[step])
    last = float(held_out[-1])
    return member_result(
        "t", monitor.record(), config, len(train), last, monitor.rung_progress(), monitor.validations()
    )


def falling(seed: int = 0, spread: float = 0.01) -> np.ndarray:
    noise = spread * np.random.default_rng(seed).standard_normal(len(AT))
    return 2.0 + 2.0 * np.exp(-AT / 60) + noise


def rising_from(step: int, slope: float = 0.002) -> np.ndarray:
    return falling() + slope * np.maximum(0, AT - step)


TRAIN = learning(NUM_VALIDATED)


def test_a_rise_of_the_validation_loss_alone_is_overfitting_and_changes_no_outcome() -> None:
    found, plain = result(TRAIN, rising_from(200)), result(TRAIN, falling())
    assert found.overfit_step == found.best_validation_step
    assert found.best_validation_loss == rising_from(200).min()
    assert abs((found.overfit_step or 0) - 200) <= 2 * EVERY
    assert f"since step {found.overfit_step} it overfits" in found.reason
    assert (plain.overfit_step, plain.reason) == (None, "it stayed on its trend")
    assert (found.outcome, found.onset_step, found.num_spikes) == (plain.outcome, plain.onset_step, plain.num_spikes)


@pytest.mark.parametrize("seed", one_of(4, range(20)))
def test_noise_about_a_flat_end_is_no_overfitting(seed: int) -> None:
    assert result(TRAIN, falling(seed, spread=0.05)).overfit_step is None


def test_a_rise_that_came_back_is_no_overfitting() -> None:
    held_out = rising_from(200)
    held_out[-1] = held_out.min() - 0.01
    assert result(TRAIN, held_out).overfit_step is None


def test_where_the_training_loss_rises_as_well_it_is_instability() -> None:
    drift = np.maximum(0, np.arange(NUM_VALIDATED) - 200)
    for slope in (0.001, 0.002):
        train = TRAIN + slope * drift
        found = result(train, rising_from(200, slope))
        assert found.overfit_step is None, found.reason
    assert result(TRAIN, rising_from(200, 0.001)).overfit_step is not None


def test_a_run_that_diverged_or_never_learned_does_not_overfit() -> None:
    broken = TRAIN.copy()
    broken[-30:] = np.nan
    assert result(broken, rising_from(200)).overfit_step is None
    assert result(np.full(NUM_VALIDATED, 4.0), rising_from(200)).overfit_step is None


def test_a_squared_error_overfits_by_its_logarithm() -> None:
    decades = VALIDATING.model_copy(update={"spike_rise": 2.0})
    train = 10.0 ** (-np.arange(NUM_VALIDATED) / 100)
    held_out = 10.0 ** (-np.minimum(AT, 200) / 100 + np.maximum(0, AT - 200) / 400)
    assert result(train, held_out, decades).overfit_step == 199
    assert result(train, held_out).overfit_step is None, "on the scale of the losses themselves it is next to nothing"


def test_validations_that_are_not_finite_are_left_out() -> None:
    held_out = falling()
    held_out[3] = math.nan
    found = result(TRAIN, held_out)
    assert found.best_validation_loss == np.nanmin(held_out)


PATIENT = VALIDATING.model_copy(update={"validation_patience": 4})


def ends_at(train: np.ndarray, held_out: np.ndarray, config: StoppingConfig, *, is_audited: bool = False) -> list[int]:
    """The steps at which it would end."""
    monitor, found = RunMonitor(config, [is_audited]), []
    by_step = dict(zip(AT.tolist(), held_out.tolist(), strict=True))
    for step, loss in enumerate(train.tolist()):
        monitor.update_single(step, {"loss": loss, "grad_norm": 1.0})
        if step in by_step and monitor.validated(0, step, by_step[step]):
            found.append(step)
    return found


def test_a_run_ends_after_as_many_validations_without_a_new_best_as_are_allowed() -> None:
    held_out = rising_from(200)
    assert ends_at(TRAIN, held_out, PATIENT) == [AT[int(held_out.argmin()) + 4]]
    assert ends_at(TRAIN, held_out, VALIDATING) == []
    assert ends_at(TRAIN, -AT.astype(float), PATIENT) == [], "one that goes on improving never does"


def test_an_audited_run_and_one_without_early_stopping_go_on_and_remember_where_they_would_have_ended() -> None:
    held_out = rising_from(200)
    (end,) = ends_at(TRAIN, held_out, PATIENT)
    assert ends_at(TRAIN, held_out, PATIENT, is_audited=True) == []
    patient_recorder = PATIENT.model_copy(update={"early_stop": False})
    assert ends_at(TRAIN, held_out, patient_recorder) == []
    found = result(TRAIN, held_out, patient_recorder)
    assert found.plateau_step == end
    assert f"not ended at step {end}, where 4 validations in a row had not been the best" in found.reason


def test_a_run_off_its_trend_is_left_to_the_detector() -> None:
    held_out = rising_from(200)
    (end,) = ends_at(TRAIN, held_out, PATIENT)
    spiking = TRAIN.copy()
    spiking[end - 10 : end + 5] += 5
    assert ends_at(spiking, held_out, PATIENT) == [end + EVERY]


def test_a_run_goes_on_from_its_state_as_if_nothing_had_happened() -> None:
    held_out = rising_from(200)
    (end,) = ends_at(TRAIN, held_out, PATIENT)
    monitor, found = RunMonitor(PATIENT), []
    by_step = dict(zip(AT.tolist(), held_out.tolist(), strict=True))
    for step, loss in enumerate(TRAIN.tolist()):
        monitor.update_single(step, {"loss": loss, "grad_norm": 1.0})
        if step in by_step and monitor.validated(0, step, by_step[step]):
            found.append(step)
        state, monitor = monitor.state_dict(), RunMonitor(PATIENT)
        monitor.load_state_dict({**state, "validations": json.loads(json.dumps(state["validations"]))})
    assert found == [end]

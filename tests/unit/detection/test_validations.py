"""Validation losses of a run: its best, where it stops improving, and overfitting told apart from instability."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from sweep_cases import learning

from orchestrator.base.trial_result import MemberResult
from orchestrator.detection.config import StoppingConfig
from orchestrator.detection.outcomes import member_result
from orchestrator.detection.run_monitor import RunMonitor

CONFIG = StoppingConfig(spike_rise=0.1, gradient_patience=1)
EVERY, NUM_STEPS = 20, 400
AT = np.arange(EVERY - 1, NUM_STEPS, EVERY)


def result(train: np.ndarray, held_out: np.ndarray, config: StoppingConfig = CONFIG) -> MemberResult:
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


TRAIN = learning(NUM_STEPS)


def test_a_rise_of_the_validation_loss_alone_is_overfitting_and_changes_no_outcome() -> None:
    found, plain = result(TRAIN, rising_from(200)), result(TRAIN, falling())
    assert found.overfit_step == found.best_validation_step
    assert found.best_validation_loss == rising_from(200).min()
    assert abs((found.overfit_step or 0) - 200) <= 2 * EVERY
    assert f"since step {found.overfit_step} it overfits" in found.reason
    assert (plain.overfit_step, plain.reason) == (None, "it stayed on its trend")
    assert (found.outcome, found.onset_step, found.num_spikes) == (plain.outcome, plain.onset_step, plain.num_spikes)


@pytest.mark.parametrize("seed", range(20))
def test_noise_about_a_flat_end_is_no_overfitting(seed: int) -> None:
    assert result(TRAIN, falling(seed, spread=0.05)).overfit_step is None


def test_a_rise_that_came_back_is_no_overfitting() -> None:
    held_out = rising_from(200)
    held_out[-1] = held_out.min() - 0.01
    assert result(TRAIN, held_out).overfit_step is None


def test_where_the_training_loss_rises_as_well_it_is_instability() -> None:
    drift = np.maximum(0, np.arange(NUM_STEPS) - 200)
    for slope in (0.001, 0.002):
        train = TRAIN + slope * drift
        found = result(train, rising_from(200, slope))
        assert found.overfit_step is None, found.reason
    assert result(TRAIN, rising_from(200, 0.001)).overfit_step is not None


def test_a_run_that_diverged_or_never_learned_does_not_overfit() -> None:
    broken = TRAIN.copy()
    broken[-30:] = np.nan
    assert result(broken, rising_from(200)).overfit_step is None
    assert result(np.full(NUM_STEPS, 4.0), rising_from(200)).overfit_step is None


def test_a_squared_error_overfits_by_its_logarithm() -> None:
    decades = CONFIG.model_copy(update={"spike_rise": 2.0})
    train = 10.0 ** (-np.arange(NUM_STEPS) / 100)
    held_out = 10.0 ** (-np.minimum(AT, 200) / 100 + np.maximum(0, AT - 200) / 400)
    assert result(train, held_out, decades).overfit_step == 199
    assert result(train, held_out).overfit_step is None, "on the scale of the losses themselves it is next to nothing"


def test_validations_that_are_not_finite_are_left_out() -> None:
    held_out = falling()
    held_out[3] = math.nan
    found = result(TRAIN, held_out)
    assert found.best_validation_loss == np.nanmin(held_out)


PATIENT = CONFIG.model_copy(update={"validation_patience": 4})


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
    assert ends_at(TRAIN, held_out, CONFIG) == []
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

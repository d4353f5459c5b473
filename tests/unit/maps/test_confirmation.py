"""Runs at the target narrow the edge there, or show that it is not as on the ladder."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from sweep_cases import table_with, trial_row

from orchestrator.base.space import Axis
from orchestrator.base.trial_result import TrialResult
from orchestrator.maps.prediction import Prediction, confirmed, predict

RATES = [float(rate) for rate in np.geomspace(1e-4, 0.1, 19)]
WIDTHS = (16, 32, 64)
TRUTH = 0.4 / 256


def trial(rate: float, width: float, **fields) -> TrialResult:
    """A run of 300 steps; beyond 0.4 / width it breaks, the sooner the farther beyond."""
    is_broken = rate > 0.4 / width
    usual = {
        "outcome": "diverged" if is_broken else "stable",
        "onset_step": round(100 * 0.4 / width / rate) if is_broken else None,
        "steps": 300,
        "steps_done": 300,
        "initial_loss": 4.0,
    }
    cell = {"lr": rate, "width": width}
    return trial_row(trial_id=str(cell), cell=cell, status="finished", **{**usual, **fields})


@pytest.fixture(scope="module")
def predicted() -> Prediction:
    trials = [trial(rate, width) for width in WIDTHS for rate in RATES]
    table = table_with(trials, [Axis("lr", "log", tuple(RATES)), Axis("width", "log", WIDTHS)])
    return predict(table, {"width": 256}, rate=TRUTH / 2)


def after(found: Prediction, num: int, run: Callable[[float], TrialResult]) -> Prediction:
    """The prediction after runs at its target, each where the edge is as likely below as above."""
    trials: list[TrialResult] = []
    now = found
    for _ in range(num):
        trials.append(run(math.exp(now.target_edge().quantile(0.5))))
        now = confirmed(found, trials)
    return now


def test_whole_runs_narrow_the_edge_around_the_truth(predicted: Prediction) -> None:
    found = after(predicted, 4, lambda rate: trial(rate, 256))
    assert found.edge.low < TRUTH < found.edge.high
    assert found.edge.high / found.edge.low < 0.75 * predicted.edge.high / predicted.edge.low
    assert found.confirmation.is_bracketed
    assert found.confirmation.reasons == ()
    assert found.p_stable > predicted.p_stable
    assert found.doubts == predicted.doubts


def test_runs_that_all_agree_do_not_bracket_the_edge_and_are_a_doubt(predicted: Prediction) -> None:
    found = after(predicted, 4, lambda rate: trial(rate, 256, outcome="stable", onset_step=None))
    assert not found.confirmation.is_bracketed
    assert len(found.doubts) == len(predicted.doubts) + 1
    assert found.edge.at > predicted.edge.at


def test_runs_that_bracket_the_edge_lift_the_refusal_of_a_law_and_its_doubt_stays(predicted: Prediction) -> None:
    refused = replace(predicted, refused=("it misses",), doubts=("it misses",))
    assert refused.withheld().edge is None
    found = after(refused, 4, lambda rate: trial(rate, 256)).withheld()
    assert found.edge.low < TRUTH < found.edge.high
    assert found.doubts == ("it misses",)
    open_ended = after(refused, 2, lambda rate: trial(rate, 256, outcome="stable", onset_step=None)).withheld()
    assert open_ended.is_withheld
    assert open_ended.refused == ("it misses",)


def test_outcomes_that_the_law_cannot_explain_void_it(predicted: Prediction) -> None:
    low, high = predicted.edge.low / 20, predicted.edge.high * 20
    for broke, rate in ((True, low), (False, high)):
        outcome = "diverged" if broke else "stable"
        run = trial(rate, 256, outcome=outcome, onset_step=90 if broke else None)
        found = confirmed(predicted, [run])
        assert found.is_void
        assert (found.edge, found.take, found.p_stable, found.headroom) == (None,) * 4


def test_a_short_run_that_is_stable_is_no_evidence_and_one_that_broke_is(predicted: Prediction) -> None:
    short = trial(predicted.edge.at, 256, steps=30, steps_done=30, outcome="stable", onset_step=None)
    stable = confirmed(predicted, [short])
    assert stable.edge.at == pytest.approx(predicted.edge.at, rel=0.05)
    broke = confirmed(predicted, [replace(short, outcome="diverged", onset_step=28)])
    assert broke.edge.at < 0.9 * predicted.edge.at


@pytest.mark.parametrize(("loss", "is_void"), [(4.0, False), (5.0, False), (200.0, True), (0.01, True)])
def test_an_initial_loss_far_outside_of_the_law_of_initial_losses_voids_it(
    predicted: Prediction, loss: float, is_void: bool
) -> None:
    short = trial(predicted.edge.low, 256, steps=30, outcome="stable", onset_step=None, initial_loss=loss)
    assert confirmed(predicted, [short]).is_void == is_void


@pytest.mark.parametrize(("onset", "is_void"), [(5, True), (60, False)])
def test_a_break_far_earlier_than_as_near_to_the_edge_on_the_ladder_voids_it(
    predicted: Prediction, onset: int, is_void: bool
) -> None:
    run = trial(predicted.edge.low, 256, outcome="diverged", onset_step=onset)
    assert confirmed(predicted, [run]).is_void == is_void


def test_an_early_break_beyond_the_interval_is_as_on_the_ladder(predicted: Prediction) -> None:
    run = trial(predicted.edge.high * 1.5, 256, outcome="diverged", onset_step=3)
    assert not confirmed(predicted, [run]).is_void


def test_without_losses_only_onsets_and_outcomes_are_judged(predicted: Prediction) -> None:
    run = trial(predicted.edge.low, 256, initial_loss=None)
    assert not confirmed(predicted, [run]).is_void

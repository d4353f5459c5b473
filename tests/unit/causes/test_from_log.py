"""What a log alone says of a run that left its trend: likely cause, what is missing, and what to do."""

import math

import numpy as np
import pytest
from sweep_cases import learning

from orchestrator.causes.from_log import LogExplanation, explain_log
from orchestrator.causes.remedies.saved import SavedRuns
from orchestrator.detection.config import StoppingConfig
from orchestrator.logs.columns import Columns
from orchestrator.logs.tables import Log
from orchestrator.maps.replay import replay_logs
from orchestrator.render.answer import to_plain

NUM = 2000
NORM = np.random.default_rng(0).uniform(0.9, 1.1, NUM)
WARMUP = 3e-4 * np.minimum(1, (np.arange(NUM) + 1) / 200)
RUNS = SavedRuns(
    "fit", num_off=6, num_back=4, num_cells=5, num_saved=3, remedy="lr x0.1", num_by_remedy=2, steps_before=80
)


def explained(losses: np.ndarray, norms=NORM, rates=WARMUP, runs=None, every: int = 1, **more) -> LogExplanation | None:
    log = Log("run.log", Columns("step", "loss"), every * np.arange(len(losses)), losses, norms, lr_N=rates, **more)
    return explain_log(replay_logs([log], StoppingConfig())[0], runs)


def rising(at: int, over: int, height: float) -> np.ndarray:
    """A loss that rises over some steps, and takes its time to fall."""
    losses = learning(NUM)
    losses[at : at + over] += np.linspace(0, height, over)
    losses[at + over : at + 5 * over] += np.linspace(height, 0, 4 * over)
    return losses


def test_a_loss_that_jumps_with_its_gradient_and_falls_back_is_one_bad_batch() -> None:
    norms = NORM.copy()
    norms[1200] = 9.0
    losses, validation = learning(NUM, changes=[(1200, 1202, 3.0)]), (np.array([1100, 1300]), np.array([2.2, 2.1]))
    why = explained(losses, norms, validation=validation)
    assert (why.onset_step, why.shape) == (1200, "one jump")
    assert "one bad batch" in why.likely
    assert why.norm.before == pytest.approx(1.0, abs=0.1)
    assert (why.norm.highest, why.norm.steps_ahead) == (9.0, None)
    assert why.norm_factor == pytest.approx(9.0, rel=0.1)
    assert (why.rate.value, why.rate.phase, why.rate.full_step) == (pytest.approx(3e-4), "full", 179)
    assert why.validation == (2.2, 2.1)
    first, second, third = why.actions
    assert first.what.startswith("nothing")
    assert (second.remedy, second.from_step) == ("skip 52", 1150)
    assert "next(batches)" in second.code
    assert third.remedy == "lr x0.5"
    assert [each.what for each in why.missing] == ["which batch it was, and whether it does that again"]


def test_a_gradient_that_grows_before_the_loss_speaks_for_steps_that_grew_too_long() -> None:
    norms = NORM.copy()
    norms[1185:1260] = 3.0
    why = explained(rising(1200, 20, 2.5), norms)
    assert why.shape == "rise"
    assert why.norm.steps_ahead == why.onset_step - 1185
    assert "gradient norm rose first" in why.likely
    assert any("curvature" in each.what for each in why.missing)


@pytest.mark.parametrize(("at", "phase"), [(150, "warmup"), (205, "full")])
def test_a_run_that_fails_in_its_warmup_or_at_its_end_has_too_high_a_rate(at: int, phase: str) -> None:
    why = explained(learning(NUM, changes=[(at, at + 250, 4.0)]))
    assert why.rate.phase == phase
    assert "learning rate is too high for so young a run" in why.likely
    assert any("longer warmup" in action.what for action in why.actions)


def test_many_departures_are_a_regime_and_no_single_batch() -> None:
    at_no_interval = (800, 873, 1010, 1066, 1190, 1247, 1395, 1450, 1522, 1661, 1705, 1838)
    losses = learning(NUM, changes=[(at, at + 2, 2.0) for at in at_no_interval])
    why = explained(losses)
    assert (why.shape, why.actions[0].what[:11]) == ("jumps", "nothing yet")
    assert [action.remedy for action in why.actions[1:]] == ["lr x0.5", "eps x100"]


def test_jumps_of_single_points_are_bad_batches_also_in_the_warmup() -> None:
    losses = learning(NUM)
    losses[[700, 733, 1100, 1555]] += 3.0
    why = explained(losses, rates=np.minimum(1, np.arange(NUM) / 900))
    assert (why.shape, why.onset_step, why.rate.phase) == ("single jumps", 700, "warmup")
    assert why.likely.startswith("bad batches: 4 times")
    assert "batches of these steps" in why.actions[1].what


@pytest.mark.parametrize(("height", "norm"), [(30.0, 1.0), (3.0, 200.0)], ids=["loss", "gradient"])
def test_a_jump_higher_than_a_bad_batch_makes_it_is_an_overshoot(height: float, norm: float) -> None:
    norms, losses = NORM.copy(), learning(NUM)
    norms[1200], losses[1200] = norm, 2.0 + height
    why = explained(losses, norms)
    assert (why.shape, why.onset_step) == ("rise", 1200)
    assert "overshot" in why.likely


def test_a_run_that_does_not_come_back_had_no_single_bad_batch() -> None:
    why = explained(learning(NUM, changes=[(1200, 1202, 3.0), (1203, NUM, 6.0)]))
    assert why.shape == "rise"


def test_a_loss_that_is_not_finite_at_once_is_a_number_out_of_range() -> None:
    losses = learning(NUM)
    losses[1500:] = math.nan
    why = explained(losses)
    assert (why.shape, why.onset_step) == ("not finite", 1500)
    assert all(action.from_step is not None for action in why.actions), "it does not come back without help"


def test_a_spike_that_was_over_says_nothing_of_a_loss_that_is_not_finite_later() -> None:
    losses = learning(NUM, changes=[(600, 660, 4.0)])
    losses[1700:] = math.nan
    why = explained(losses)
    assert (why.onset_step, why.shape) == (1700, "not finite")


def test_a_lost_run_goes_back_to_where_such_runs_of_a_sweep_were_saved() -> None:
    why = explained(learning(NUM, changes=[(1200, NUM, 6.0)]), runs=RUNS)
    assert (why.actions[0].from_step, why.actions[0].what) == (
        1120, "go back to a checkpoint of step 1,120 or before, then lr x0.1: it saved most cells of fit",
    )  # fmt: skip


def test_a_spike_says_how_often_such_runs_of_a_sweep_came_back() -> None:
    why = explained(learning(NUM, changes=[(1200, 1230, 2.0)]), runs=RUNS)
    assert why.actions[0].what.endswith("4 of 6 runs of fit that left the trend came back without help")


def test_a_run_that_never_learned_starts_again_at_other_rates() -> None:
    why = explained(4 + 0.01 * np.random.default_rng(1).normal(size=NUM))
    assert (why.shape, why.rate, why.norm) == ("stall", None, None)
    assert len(why.actions) == 1


def test_what_the_log_lacks_is_named_with_the_reading_that_would_tell() -> None:
    why = explained(learning(NUM, changes=[(1200, 1230, 2.0)]), None, None, every=10)
    named = [each.what for each in why.missing]
    assert named[:3] == [
        "the learning rate at the onset", "whether the gradient rose first", "whether it was one batch or several",
    ]  # fmt: skip
    assert "a validation loss before and after" in [each.reading for each in why.missing]


def test_a_rate_that_has_decayed_says_to_what() -> None:
    rates = WARMUP * np.linspace(1, 0.1, NUM)
    why = explained(learning(NUM, changes=[(1500, 1530, 2.0)]), rates=rates)
    assert why.rate.phase == "decay"
    assert any("of its highest" in fact for fact in why.facts)


@pytest.mark.parametrize("losses", [learning(NUM), learning(5)], ids=["stable", "too short"])
def test_a_run_on_its_trend_needs_no_explanation(losses: np.ndarray) -> None:
    assert explained(losses, NORM[: len(losses)], WARMUP[: len(losses)]) is None


@pytest.mark.parametrize("seed", range(30))
def test_any_log_has_an_explanation_that_can_be_written(seed: int) -> None:
    rng = np.random.default_rng(seed)
    num = int(rng.integers(12, 300))
    losses, norms, rates = learning(num, seed), rng.lognormal(size=num), rng.lognormal(size=num)
    start = int(rng.integers(0, num))
    losses[start : start + int(rng.integers(1, num))] += float(rng.choice([0.5, 3, 50, np.nan, np.inf]))
    for column in (norms, rates):
        column[rng.random(num) < rng.choice([0, 0.1, 1])] = rng.choice([np.nan, np.inf, 0])
    why = explained(losses, norms, rates, rng.choice([None, RUNS]), int(rng.choice([1, 7])))
    assert why is None or (to_plain(why)["actions"] and all(text for text, _ in why.lines()))


def test_a_log_of_one_loss_that_is_not_finite_is_explained() -> None:
    why = explained(np.array([math.nan]), norms=None, rates=None)
    assert (why.onset_step, why.shape) == (0, "not finite")

"""What recurs in a log belongs to it, noise is no blow-up, and what a zero at the start or to the end says."""

import json

import numpy as np
import pytest
from sweep_cases import learning

from orchestrator.detection.config import StoppingConfig
from orchestrator.detection.detector import MemberRecord, SpikeDetector
from orchestrator.detection.outcomes import judge
from orchestrator.detection.recurring import scheduled, strength_of_mode
from orchestrator.logs.columns import Columns
from orchestrator.logs.tables import Log
from orchestrator.maps.replay import replay_logs

CONFIG = StoppingConfig(early_stop=False)


def record(losses: np.ndarray, all_steps: float | None = None) -> MemberRecord:
    detector = SpikeDetector(1, CONFIG, len(losses) if all_steps is None else all_steps)
    detector.follow(losses, None, np.arange(len(losses)))
    return detector.record()


def outcome(found: MemberRecord) -> str:
    return judge(found, CONFIG).outcome


# --- schedules -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "onsets",
    [[200, 400, 600], [201, 400, 601, 1000], [200, 400, 425, 600, 631], [107, 213, 320, 428, 534], [90, 250, 410, 570]],
)
def test_episodes_at_multiples_of_an_interval_are_on_a_schedule(onsets: list[int]) -> None:
    assert scheduled(tuple(onsets)) == set(onsets)


@pytest.mark.parametrize("onsets", [[], [200], [200, 400], [150, 290, 600], [90, 250, 410], [10, 20, 30, 40]])
def test_few_or_irregular_episodes_and_short_intervals_are_no_schedule(onsets: list[int]) -> None:
    assert scheduled(tuple(onsets)) == set()


def test_episodes_at_any_time_are_hardly_ever_taken_for_a_schedule() -> None:
    random = np.random.default_rng(0)
    draws = [sorted(random.choice(1000, 4 + i % 5, replace=False).tolist()) for i in range(500)]
    assert sum(bool(scheduled(tuple(onsets))) for onsets in draws) <= 10


def restarts(num: int, height: float) -> np.ndarray:
    """A descent whose learning rate restarts ``num`` times: at each the loss rises and comes back within 20 losses."""
    at = np.arange(200 * (num + 1))
    back = np.where(at < 200, 0.0, np.exp(-(at % 200) / 20))
    noise = 0.01 * np.random.default_rng(num).standard_normal(len(at))
    return (2 + 6 * np.exp(-at / 60)) * (1 + height * back) + noise


def test_restarts_of_the_learning_rate_are_faint_and_a_spike_between_them_is_not() -> None:
    found = record(restarts(4, 0.3))
    assert (found.episodes, outcome(found)) == ((), "stable")
    assert [round(episode.onset_step / 200) for episode in found.faint] == [1, 2, 3, 4]
    assert len(record(restarts(2, 0.3)).episodes) == 2, "two may be a chance"
    losses = restarts(5, 0.3)
    losses[720:740] *= 2
    found = record(losses)
    assert [episode.onset_step for episode in found.episodes] == [720]


@pytest.mark.parametrize("jitter", [0.1, 0.2])
@pytest.mark.parametrize("interval", [60, 120, 250])
def test_instabilities_that_recur_at_a_jittered_interval_stay_clear(interval: int, jitter: float) -> None:
    """As of Adam with a long memory: each blows up within two losses and decays in twenty."""
    num_spikes = num_clear = 0
    for seed in range(6):
        random = np.random.default_rng(seed)
        losses = 3 + 7 * np.exp(-np.arange(1500) / 60) + 0.03 * random.standard_normal(1500)
        onsets = 300 + np.cumsum(interval * np.maximum(0.4, 1 + jitter * random.standard_normal(40))).astype(int)
        for onset in onsets[onsets < 1450]:
            losses[onset : onset + 40] += 3 * np.exp(random.normal(0, 0.3)) * np.exp(-np.arange(40) / 6)
            num_spikes += 1
        found = record(losses)
        num_clear += len(found.episodes)
        assert outcome(found) == "spiked"
    assert num_clear >= 0.97 * num_spikes


def test_a_schedule_is_known_after_a_checkpoint() -> None:
    losses = restarts(5, 0.3)
    before, after = SpikeDetector(1, CONFIG, len(losses)), SpikeDetector(1, CONFIG, len(losses))
    before.follow(losses[:700], None, np.arange(700))
    after.load_state_dict(json.loads(json.dumps(before.state_dict())))
    after.follow(losses[700:], None, np.arange(700, len(losses)))
    assert after.record() == record(losses)
    assert (after.record().episodes, len(after.record().faint)) == ((), 5)


# --- a second mode of the noise --------------------------------------------------------------------


def with_odd_batches(first: int, seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    losses = 3 + 7 * np.exp(-np.arange(2000) / 40) + 0.1 * random.standard_normal(2000)
    losses[first:] *= np.where(random.random(2000 - first) < 0.04, 2.2, 1.0)
    return losses


def test_odd_batches_that_come_from_the_start_on_are_noise() -> None:
    found = record(with_odd_batches(100, 0))
    assert (found.episodes, outcome(found)) == ((), "stable")
    assert len(found.faint) >= 20


def test_jumps_that_begin_later_are_none() -> None:
    found = record(with_odd_batches(900, 0))
    assert outcome(found) == "spiked"
    assert len(found.episodes) >= 20


def test_a_spike_stands_out_of_odd_batches() -> None:
    losses = with_odd_batches(100, 0)
    losses[1500:1530] *= 30
    assert [episode.onset_step for episode in record(losses).episodes] == [1500]


@pytest.mark.parametrize(
    ("num", "num_short", "first_at", "is_mode"),
    [(40, 40, 100, True), (19, 19, 100, False), (40, 20, 100, False), (40, 40, 300, False)],
)
def test_a_mode_is_common_short_and_there_from_the_start(
    num: int, num_short: int, first_at: int, is_mode: bool
) -> None:
    assert (strength_of_mode([10.0] * num, first_at, num, num_short, 900) > 10) == is_mode


# --- a level that shifts ---------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.09, 0.115, 0.14])
def test_a_shift_of_the_level_that_is_hardly_off_the_trend_is_no_episode(share: float) -> None:
    for seed in range(5):
        losses = 3 + 7 * np.exp(-np.arange(600) / 40) + 0.03 * np.random.default_rng(seed).standard_normal(600)
        losses[300:] += 3 * share
        found = record(losses)
        assert (found.episodes, outcome(found)) == ((), "stable")


# --- short logs ------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [45, 60])
def test_a_spike_soon_after_a_steep_descent_is_found(first: int) -> None:
    """The residuals of the descent are below zero, as those of noise with two levels."""
    losses = 3 + 7 * np.exp(-np.arange(80) / 6) + 0.03 * np.random.default_rng(first).standard_normal(80)
    losses[first : first + 5] += [4, 3, 2, 1, 0.6]
    assert [episode.onset_step for episode in record(losses).episodes] == [first]


def test_losses_that_are_printed_several_times_have_the_noise_of_one() -> None:
    random = np.random.default_rng(0)
    for repeats in (1, 4):
        losses = np.repeat(3 + 5 * np.exp(-np.arange(500) / 50) + 0.1 * random.standard_normal(500), repeats)
        losses[-100 * repeats : -99 * repeats] += 0.55
        assert record(losses).episodes == ()


# --- noise at the start ----------------------------------------------------------------------------


def test_a_flat_loss_with_heavy_noise_is_not_stopped() -> None:
    """Its first loss may be a low one, and two tall ones after it looked like a blow-up."""
    found = []
    for seed in range(30):
        random = np.random.default_rng(seed)
        found.append(record(np.exp(0.5 * random.standard_normal(300))))
    assert [one.lost for one in found] == [None] * 30
    assert sum(len(one.episodes) for one in found) <= 3


def test_a_signed_loss_that_is_flat_is_not_stopped() -> None:
    for seed in range(20):
        assert record(0.02 * np.random.default_rng(seed).standard_t(3, 600)).lost is None


# --- zeros -----------------------------------------------------------------------------------------


def test_a_loss_that_grows_from_exactly_0_has_no_outcome() -> None:
    """As the divergence from a reference policy."""
    random = np.random.default_rng(0)
    growing = np.r_[0.0, 0.02 * np.minimum(1, np.arange(1, 400) / 100) * np.exp(0.5 * random.standard_normal(399))]
    found = record(growing)
    assert (found.lost, found.episodes, found.faint, outcome(found)) == (None, (), (), "unknown")
    assert judge(found, CONFIG).reason.startswith("its first loss is exactly 0")
    growing[300:] = np.nan
    assert outcome(record(growing)) == "diverged"


def test_zeros_before_a_descent_are_left_out_of_a_replay() -> None:
    def replayed(losses: np.ndarray) -> tuple[str, float | None, tuple[str, ...]]:
        log = Log("a.csv", Columns("step", "loss"), np.arange(len(losses)), losses, None)
        (one,) = replay_logs([log], CONFIG)
        return one.result.outcome, one.record.initial_loss, one.log.notes

    falling = learning(200)
    told, first, (note,) = replayed(np.r_[0.0, 0.0, falling])
    assert (told, first) == ("stable", falling[0])
    assert note == "its first 2 losses are exactly 0 and not judged"
    assert replayed(np.r_[0.0, falling[::-1]])[0] == "unknown"
    assert replayed(falling)[2] == ()
    assert replayed(np.zeros(200))[0] == "stalled"


def test_a_run_whose_loss_is_exactly_0_for_longer_than_its_patience_is_lost() -> None:
    losses = learning(600)
    losses[200:] = 0.0
    found = record(losses)
    assert (found.lost, found.lost_step, found.lost_onset_step) == ("no_progress", 249, 200)
    assert outcome(found) == "diverged"
    detector = SpikeDetector(1, CONFIG)
    detector.follow(losses, np.ones(600), np.arange(600))
    assert detector.record().lost is None, "its gradient is finite: another loss is trained on"
    assert record(losses[:240]).lost is None

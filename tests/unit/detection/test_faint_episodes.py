"""Logs that raised false alarms, or hid a lost run: printed, tiny, signed, resumed and heavy-tailed losses."""

import pickle
from collections.abc import Callable

import numpy as np
import pytest
from sweep_cases import learning

from orchestrator.detection.config import StoppingConfig
from orchestrator.detection.detector import MemberRecord, SpikeDetector
from orchestrator.detection.episodes import Episodes
from orchestrator.detection.excursions import CLEAR, Episode
from orchestrator.detection.outcomes import judge
from orchestrator.detection.trend import Progress, Trend, decimals
from orchestrator.logs.columns import Columns
from orchestrator.logs.tables import Log
from orchestrator.maps.replay import Replayed, replay_logs

CONFIG = StoppingConfig()
Make = Callable[[np.random.Generator], np.ndarray]


def record(losses: np.ndarray, all_steps: float = float("inf")) -> MemberRecord:
    detector = SpikeDetector(1, CONFIG, all_steps)
    for loss in losses.tolist():
        detector.update(loss)
    return detector.record()


def replayed(losses: np.ndarray, first: int = 0, every: int = 1, step: str | None = "step") -> Replayed:
    steps = first + every * np.arange(len(losses))
    (one,) = replay_logs([Log("a.csv", Columns(step, "loss"), steps, losses, None)], CONFIG)
    return one


def outcome(found: MemberRecord) -> str:
    return judge(found, CONFIG).outcome


def flat_from(level: float, first: float, random: np.random.Generator) -> np.ndarray:
    """A loss that falls from ``first`` to ``level`` at once, with noise of about the third digit."""
    fall = (first - level) * np.exp(-np.arange(1500) / 20)
    return np.abs(level + fall + 0.0006 * random.standard_normal(1500))


# --- how losses are printed ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loss", "digits"), [(0.001, 3), (1.25, 2), (3.0, 0), (0.0, 0), (1e20, 0), (1.02e-3, 5), (-0.5, 1), (1 / 3, 16)]
)
def test_digits_after_the_point_are_counted_as_printed(loss: float, digits: int) -> None:
    assert decimals(loss) == digits


@pytest.mark.parametrize("level", [0.002, 0.005])
def test_the_rounding_of_printed_losses_is_noise(level: float) -> None:
    for seed in range(4):
        found = record(np.round(flat_from(level, 0.05, np.random.default_rng(seed)), 3))
        assert (found.episodes, found.faint, outcome(found)) == ((), (), "stable")


def test_a_spike_of_a_printed_loss_is_still_found() -> None:
    losses = np.round(flat_from(0.002, 0.05, np.random.default_rng(0)), 3)
    losses[800:810] = 0.04
    assert [episode.onset_step for episode in record(losses).episodes] == [800]
    losses[:] = 0.0
    losses[:300] = np.round(4 * np.exp(-np.arange(300) / 30), 3)
    losses[800:812] = 0.9
    assert [episode.onset_step for episode in record(losses).episodes] == [800]


# --- noise that is proportional to the level -------------------------------------------------------


def over_decades(random: np.random.Generator, num_to_fall: int, tail: float = 4.0) -> np.ndarray:
    """A loss that falls over four decades with noise of the size of its level, and heavy tails."""
    steps = np.arange(2000)
    noise = 0.6 * random.standard_t(tail, 2000) * np.minimum(1, steps / 20)
    return 2 * 10 ** (-4 * np.minimum(1, steps / num_to_fall)) * np.exp(noise)


@pytest.mark.parametrize("num_to_fall", [12, 1400])
def test_noise_that_shrinks_over_decades_has_hardly_an_episode(num_to_fall: int) -> None:
    found = [record(over_decades(np.random.default_rng(seed), num_to_fall)) for seed in range(5)]
    assert sum(len(one.episodes) for one in found) <= 5, "there were 10 to 60 in each of these logs"
    assert not any(one.lost for one in found)


def test_a_spike_after_a_fall_over_decades_is_found() -> None:
    losses = over_decades(np.random.default_rng(0), 700, tail=50.0)
    losses[1500:1512] = 0.8
    assert [episode.onset_step for episode in record(losses).episodes] == [1500]


@pytest.mark.parametrize("spread", [0.3, 0.5])
def test_noise_at_the_start_is_no_blow_up(spread: float) -> None:
    """Its first loss may be a low one; so many of these logs had an episode: 2 and 39 of 100."""
    found = []
    for seed in range(100):
        random = np.random.default_rng(seed)
        falling = 2 + 3 * np.exp(-np.arange(60) / 20)
        found.append(record(falling * np.exp(spread * random.standard_normal(60))).episodes)
    assert sum(any(episode.onset_step < 20 for episode in episodes) for episodes in found) <= 100 * spread / 4


def test_one_print_of_more_than_twice_the_first_loss_is_a_blow_up_if_the_noise_is_small() -> None:
    random = np.random.default_rng(0)
    frozen = np.r_[7.39, 18.9, 6.91, 7.85, 6.92 + 0.003 * random.standard_normal(200)]
    assert outcome(record(frozen)) == "diverged"
    learning = np.r_[7.3, 17.4, 6.9 * np.exp(-np.arange(300) / 600) + 0.01 * random.standard_normal(300)]
    found = record(learning)
    assert ([episode.onset_step for episode in found.episodes], outcome(found)) == ([1], "spiked")
    assert record(learning[:10]).episodes, "while the noise is not known it counts"


def test_a_plateau_at_twice_the_level_is_no_new_normal_however_much_was_learned_at_the_start() -> None:
    random = np.random.default_rng(0)
    losses = np.r_[33.0, 6 - 3.3 * (1 - np.exp(-np.arange(150) / 30)), 5.0 + 0.9 * np.exp(-np.arange(300) / 10)]
    found = record(losses + 0.04 * random.standard_normal(len(losses)))
    assert [episode.onset_step for episode in found.episodes] == [151]
    assert outcome(found) == "diverged"


def test_an_episode_is_stronger_than_all_excursions_that_are_none() -> None:
    """Single tall losses show how heavy the tail is; two of them in a row are no spike."""
    random = np.random.default_rng(0)
    losses = 3 + np.exp(-np.arange(4000) / 100) + 0.02 * random.standard_normal(4000)
    losses[200:3900:400] *= 1.6
    odd = losses.copy()
    odd[3950:3952] = 4.0
    assert (len(record(odd).episodes), len(record(odd).faint)) == (0, 1)
    losses[3950:3960] = 6.0
    assert [episode.onset_step for episode in record(losses).episodes] == [3950]


# --- what cannot be judged -------------------------------------------------------------------------


def test_a_signed_loss_has_no_episodes() -> None:
    random = np.random.default_rng(0)
    losses = 2 * random.standard_normal(1000) * (random.random(1000) < 0.1) + 0.1 * random.standard_normal(1000)
    found = record(losses)
    assert (found.episodes, found.faint, found.num_episodes, found.off_share) == ((), (), 0, 0.0)
    verdict = judge(found, CONFIG)
    assert (verdict.outcome, verdict.num_spikes, verdict.peak_loss) == ("unknown", 0, None)


DESCENT = 3 + 2 * np.exp(-np.arange(300) / 150)


@pytest.mark.parametrize("partial", [[0.3], [0.31, 0.4]])
def test_the_partial_first_lines_of_a_resumed_log_are_no_past(partial: list[float]) -> None:
    resumed = replayed(np.r_[partial, DESCENT], first=5000, every=10)
    assert (resumed.record.lost, resumed.result.outcome) == (None, "stable")
    (note,) = resumed.log.notes
    assert note.startswith(f"it resumes at step 5,000; its first {len(partial)} losses are not judged")


def test_a_log_of_each_step_that_begins_where_its_training_does_is_judged_from_its_first_line() -> None:
    assert replayed(np.r_[0.3, DESCENT], first=0).result.outcome == "diverged"
    assert replayed(np.r_[0.3, DESCENT], first=1).log.notes == ()


@pytest.mark.parametrize("first", [0, 10])
def test_a_log_that_leaves_out_steps_may_begin_with_a_partial_line_and_gets_no_verdict(first: int) -> None:
    """Also where its steps begin at 0 again, as those of a resumed training may."""
    found = replayed(np.r_[1.5, DESCENT], first=first, every=10)
    assert (found.record.lost, found.result.outcome, found.result.onset_step) == (None, "unknown", None)
    rose = replayed(np.r_[10.9, 25.0, 40.0, 60.0, 12 + 40 * np.exp(-np.arange(200) / 30)], first=first, every=10)
    assert rose.result.outcome == "diverged", "a partial line is followed by a training, not by a rise"
    far = replayed(np.r_[0.3, DESCENT], first=first, every=10)
    assert far.result.outcome == "diverged", "a mean over at least one of ten steps is a tenth or more"
    flat = replayed(np.r_[2.0, 6 + 0.1 * np.random.default_rng(0).standard_normal(200)], first=first, every=10)
    assert flat.result.outcome == "diverged", "nor does it learn"


@pytest.mark.parametrize(("first", "every", "count"), [(0, 100, 1), (0, 8, 1), (1, 20, 1), (1, 20, 2), (9, 100, 10)])
def test_a_sum_over_fewer_steps_that_is_divided_by_the_interval_gives_no_verdict(
    first: int, every: int, count: int
) -> None:
    """As by a trainer that prints `running_loss / every`, also at its first step: a blow-up may look the same."""
    losses = np.r_[DESCENT[0] * count / every, DESCENT]
    found = replayed(losses, first=first, every=every)
    assert (found.record.lost, found.result.outcome) == (None, "unknown")


@pytest.mark.parametrize("every", [10, 50])
def test_a_blow_up_between_the_first_two_lines_whose_height_is_the_interval_is_a_blow_up(every: int) -> None:
    plateau = 2.9 * every * (1 + 0.3 * np.random.default_rng(0).standard_normal(120))
    found = replayed(np.r_[2.9, plateau], every=every)
    assert found.result.outcome == "diverged"


def test_a_first_loss_of_one_step_is_a_past() -> None:
    """It is no partial sum: the run blew up between its first line and its second one."""
    flat = 40 + np.random.default_rng(0).standard_normal(200)
    assert replayed(np.r_[10.9, flat], every=10).result.outcome == "diverged"
    assert replayed(np.r_[4.0, flat], every=1).result.outcome == "diverged"


@pytest.mark.parametrize("partial", [[0.3], [0.31, 0.4], [1.0]])
def test_a_log_without_steps_may_resume_a_training_and_gets_no_verdict(partial: list[float]) -> None:
    found = replayed(np.r_[partial, DESCENT], step=None)
    assert (found.record.lost, found.result.outcome, found.result.onset_step) == (None, "unknown", None)
    assert f"first {len(partial)} loss" in found.result.reason
    assert len(found.log.loss_N) == len(partial) + len(DESCENT), "nothing is left out of the picture"


@pytest.mark.parametrize(
    "losses",
    [
        pytest.param(np.r_[10.9, 25.0, 40.0, 60.0, 12 + 40 * np.exp(-np.arange(200) / 30)], id="it rose on"),
        pytest.param(np.r_[7.0, 190 + np.random.default_rng(0).standard_normal(200)], id="it stayed"),
        pytest.param(np.r_[3.0, 2 + DESCENT[:150], 40 + np.arange(150.0)], id="it was lost later"),
    ],
)
def test_a_log_without_steps_that_blew_up_is_diverged(losses: np.ndarray) -> None:
    assert replayed(losses, step=None).result.outcome == "diverged"


def test_a_descent_from_above_a_single_first_loss_is_not_stopped() -> None:
    """Nor is it followed for ever: once it is flat it is lost."""
    falling = 3 + 6 * 0.98 ** np.arange(60)
    assert record(np.r_[2.0, falling]).lost is None
    assert record(np.r_[2.0, falling, np.full(200, 4.8)]).lost == "far"


# --- lost from the start ---------------------------------------------------------------------------


def test_a_run_ten_times_above_its_first_losses_is_lost_after_a_third_of_its_steps() -> None:
    losses = np.r_[7.0, 190 + np.random.default_rng(0).standard_normal(44)]
    assert replayed(losses).record.lost_step in range(14, 20)
    assert record(losses, all_steps=45).lost_step in range(14, 20)
    assert record(losses).lost_step is None, "without the number of steps its patience counts"
    # Not ten times as high: the patience counts.
    assert record(np.r_[7.0, 60 + np.random.default_rng(0).standard_normal(44)], all_steps=45).lost_step is None


def test_a_blow_up_at_the_start_that_comes_back_is_not_lost() -> None:
    losses = np.r_[7.0, 6 + 190 * np.exp(-np.arange(20) / 5), 6 - np.arange(40) / 20]
    found = replayed(losses)
    assert (found.record.lost, found.result.outcome) == (None, "spiked")


@pytest.mark.parametrize("end", [6.0, 7.0])
def test_a_blow_up_at_the_start_that_comes_half_way_back_has_not_grown_slowly(end: float) -> None:
    found = record(np.r_[4.2, 5.0, 20.0, end + (60 - end) * 0.95 ** np.arange(100)])
    assert (outcome(found), len(found.episodes)) == ("diverged", 1)


def test_the_steps_of_a_run_are_kept_by_new_members_and_through_a_checkpoint() -> None:
    losses = [7.0, *[190.0 + step % 3 for step in range(44)]]
    first = SpikeDetector(1, CONFIG, all_steps=45)
    for loss in losses[:8]:
        first.update(loss)
    second = SpikeDetector(1, CONFIG, all_steps=45)
    second.load_state_dict(pickle.loads(pickle.dumps(first.state_dict())))
    second.arrange([0, None])
    for loss in losses[8:]:
        second.update(np.array([loss, loss]))
        first.update(loss)
    assert second.record(0) == first.record()
    assert first.record().lost_step in range(14, 20)


def test_a_run_that_blew_up_and_never_fell_again_is_diverged() -> None:
    for losses in (np.r_[7.0, 5e4, np.full(60, 7.4)], np.r_[7.0, 6.9, 5e4, 3e3, np.full(60, 6.908)]):
        verdict = judge(record(losses), CONFIG)
        assert verdict.outcome == "diverged"
        assert verdict.reason.startswith("it blew up at its start")
    assert outcome(record(np.full(60, 7.0))) == "stalled"


@pytest.mark.parametrize(("end", "expected"), [(2.303, "diverged"), (2.0, "spiked"), (1.5, "spiked")])
def test_a_run_that_froze_where_it_came_back_to_after_a_blow_up_is_diverged(end: float, expected: str) -> None:
    """A network that died at chance has not recovered; one that goes on learning has."""
    losses = np.r_[2.6, 40.0, 30.0, 9.0, end + (2.303 - end) * np.exp(-np.arange(200) / 60)]
    assert outcome(record(losses)) == expected


def test_a_run_ten_times_above_its_first_losses_is_lost_whatever_it_had_learned() -> None:
    losses = np.r_[19.9, 12, 8, 6, 5, 4, 3.5, 3.3, 1e5, 5e3, np.full(50, 220.0)]
    assert record(losses, all_steps=60).lost_step in range(28, 45)
    later = np.r_[3 + np.exp(-np.arange(40) / 10), np.full(60, 90.0)]
    assert record(later, all_steps=100).lost_step in range(73, 90)


# --- strength --------------------------------------------------------------------------------------


def test_the_strength_is_the_height_in_deviations_times_the_root_of_the_length() -> None:
    found = []
    for length in (4, 16):
        losses = learning(400)
        losses[300 : 300 + length] *= 2.0
        (episode,) = record(losses).episodes
        assert (episode.onset_step, episode.num_steps) == (300, length)
        found.append(episode.strength)
    assert found[1] == pytest.approx(2 * found[0], rel=0.1)
    assert found[0] > CLEAR


def test_tall_points_of_a_heavy_tail_are_faint_and_make_no_run_spiked() -> None:
    random = np.random.default_rng(3)
    losses = (1 + 3 * np.exp(-np.arange(3000) / 50)) * np.exp(0.3 * random.standard_t(5, 3000))
    found = record(losses)
    assert len(found.faint) >= 5
    assert all(not episode.is_clear and episode.strength < CLEAR for episode in found.faint)
    assert (found.episodes, outcome(found), found.off_share) == ((), "stable", 0.0)
    losses[1500:1530] *= 30
    found = record(losses)
    assert found.episodes[0].onset_step == 1500
    assert outcome(found) == "spiked"


def test_jumps_on_a_schedule_are_faint_from_the_fifth_on_and_irregular_ones_are_clear() -> None:
    random = np.random.default_rng(0)
    calm = (1 + 3 * np.exp(-np.arange(1000) / 50)) * np.exp(0.05 * random.standard_normal(1000))
    regular, irregular = calm.copy(), calm.copy()
    regular[100::50] *= 4.0
    irregular[100 + np.cumsum(random.integers(20, 80, 18))] *= 4.0
    assert len(record(regular).episodes) <= 5
    assert len(record(regular).faint) >= 12
    assert len(record(irregular).episodes) >= 15


@pytest.mark.parametrize(("num_faint", "num_clear"), [(4, 3), (5, 2)])
def test_an_episode_among_many_faint_ones_must_stand_out_of_them(num_faint: int, num_clear: int) -> None:
    """Whether they came before it or come later: heavy tails bring a tall one at any time."""
    trend = Trend(CONFIG)
    episodes = Episodes(CONFIG, trend, Progress(CONFIG, trend))
    for at, strength in ((0, 15.0), (130, 18.0), (200, 1000.0)):
        episodes.closed.append(Episode(at, at, 9.0, strength=strength))
    for at in range(num_faint):
        episodes.faint.append(Episode(50 + 100 * at, 50 + 100 * at, 9.0, strength=11.0))
    clear, faint = episodes.clear_and_faint()
    assert (len(clear), len(faint)) == (num_clear, num_faint + 3 - num_clear)
    assert clear[-1].strength == 1000.0
    assert all(episode.strength < CLEAR for episode in faint)
    assert [episode.onset_step for episode in faint] == sorted(episode.onset_step for episode in faint)


def test_what_is_counted_leaves_out_all_faint_episodes() -> None:
    found = [record(over_decades(np.random.default_rng(seed), 1400)) for seed in range(20)]
    for one in found:
        assert one.num_episodes == len(one.episodes)
        assert one.off_share == pytest.approx(sum(episode.num_steps for episode in one.episodes) / one.num_steps)


def test_faint_episodes_survive_a_checkpoint() -> None:
    random = np.random.default_rng(3)
    losses = (1 + 3 * np.exp(-np.arange(3000) / 50)) * np.exp(0.3 * random.standard_t(5, 3000))
    first, second = SpikeDetector(1, CONFIG), SpikeDetector(1, CONFIG)
    for loss in losses[:2000]:
        first.update(loss)
    second.load_state_dict(pickle.loads(pickle.dumps(first.state_dict())))
    for loss in losses[2000:]:
        first.update(loss)
        second.update(loss)
    assert first.record() == second.record()
    assert first.record().faint


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "most"),
    [
        (lambda random: 3 + 2 * np.exp(-np.arange(3000) / 100) + 0.05 * random.standard_t(3, 3000), 0.1),
        (lambda random: (1 + 2 * np.exp(-np.arange(3000) / 100)) * np.exp(0.5 * random.standard_normal(3000)), 1.0),
        (lambda random: over_decades(random, 12), 0.4),
        (lambda random: over_decades(random, 1400), 0.8),
        (lambda random: np.round(flat_from(0.002, 0.05, random), 3), 0.05),
    ],
    ids=["heavy tails", "half its level", "decades at once", "decades in all", "printed"],
)
def test_healthy_logs_with_hard_noise_have_few_clear_episodes(make: Make, most: float) -> None:
    """The figures of docs/detection.md, over 100 logs each."""
    found = [record(make(np.random.default_rng(seed))) for seed in range(100)]
    assert sum(len(one.episodes) for one in found) / len(found) <= most
    assert not any(one.lost == "far" for one in found)

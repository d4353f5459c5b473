import copy
import pickle
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from statistics import median

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sweep_cases import learning, noise
from tiers import examples, thinned

from orchestrator.detection import trend
from orchestrator.detection.config import StoppingConfig
from orchestrator.detection.detector import MemberRecord, SpikeDetector
from orchestrator.detection.noise import deviation, middle, quantile
from orchestrator.detection.outcomes import judge
from orchestrator.detection.trend import Window

# Shapes: K members, T steps.

CONFIG = StoppingConfig().resolved(0.1, 1)


def watch(curves: np.ndarray | Sequence[float], config: StoppingConfig = CONFIG) -> SpikeDetector:
    """A detector that has seen ``curves``, (T,) or (T, K)."""
    curves = np.atleast_2d(np.asarray(curves, dtype=float).T).T
    detector = SpikeDetector(curves.shape[1], config)
    for loss_K in curves:
        detector.update(loss_K)
    return detector


def record(curve: np.ndarray | Sequence[float], config: StoppingConfig = CONFIG) -> MemberRecord:
    return watch(curve, config).record(0)


def records(curves: Sequence[np.ndarray], config: StoppingConfig = CONFIG) -> list[MemberRecord]:
    """One record for each curve, all judged together."""
    detector = watch(np.stack(curves, axis=1), config)
    return [detector.record(k) for k in range(len(curves))]


def outcome(found: MemberRecord) -> str:
    return judge(found, CONFIG).outcome


def spans(found: MemberRecord) -> list[tuple[int, int | None]]:
    """First step of each episode and first step after it."""
    return [(episode.onset_step, episode.recovery_step) for episode in found.episodes]


def is_quiet(found: MemberRecord) -> bool:
    """Neither an episode nor a verdict."""
    return found.episodes == () and found.lost is None


def two_levels(num_steps: int, height: float, share: float, seed: int, spread: float = 0.02) -> np.ndarray:
    """A loss near 1 of which a random ``share`` is ``height`` times as large."""
    is_high = np.random.default_rng(seed).random(num_steps) < share
    return np.where(is_high, height, 1.0) + noise(num_steps, seed, 0.0, spread)


def settled(num_steps: int, step: int, rise: float, seed: int = 0) -> np.ndarray:
    """A loss that has come down from 5 to 2 by step 150, with little noise, and is higher from ``step`` on."""
    steps = np.arange(num_steps)
    return 2 + 3 * np.exp(-steps / 20) + noise(num_steps, seed, 0.0, 0.01) + rise * (steps >= step)


NUM_STEPS = 300
STEP = np.arange(NUM_STEPS)
CURVES = {
    "learning": learning(300),
    "one spike": learning(300, changes=[(150, 160, 3.0)]),
    "two spikes": learning(300, changes=[(150, 160, 3.0), (220, 225, 50.0)]),
    "lost": learning(300, changes=[(150, 300, 4.0)]),
    "lost for a while": learning(300, changes=[(100, 190, 4.0)]),
    "slow divergence": learning(300) + np.clip(STEP - 100, 0, None) * 0.05,
    "not finite": np.where(STEP == 120, np.nan, learning(300)),
    "blow-up at the start": np.where(STEP < 12, 5.0 + 4.0 ** STEP.clip(max=8), learning(300)),
    "blow-up that stays": np.where(STEP < 5, 5.0, 50.0),
    "odd losses": np.where(STEP % 12 == 7, 3.0, 1.0) * learning(300),
    "shift of level": settled(300, 200, 0.4),
    "two levels": two_levels(300, 1.6, 0.5, 3) * learning(300),
    "stalled": noise(300, level=5.0),
}
OUTCOMES = {
    "learning": "stable",
    "one spike": "spiked",
    "two spikes": "spiked",
    "lost": "diverged",
    "lost for a while": "spiked",
    "slow divergence": "diverged",
    "not finite": "diverged",
    "blow-up at the start": "spiked",
    "blow-up that stays": "diverged",
    "odd losses": "stable",
    "shift of level": "stable",
    "two levels": "stable",
    "stalled": "stalled",
}


@cache
def alone(name: str) -> list[MemberRecord]:
    """What is known of a curve that is judged alone, after each number of steps."""
    detector = SpikeDetector(1, CONFIG)
    found = [detector.record()]
    for loss in CURVES[name]:
        detector.update(np.array([loss]))
        found.append(detector.record())
    return found


@pytest.mark.parametrize("curve", CURVES)
def test_outcomes_of_curves_that_anyone_can_judge(curve: str) -> None:
    assert outcome(alone(curve)[-1]) == OUTCOMES[curve]


# Who else is in the pack, and when.


@settings(max_examples=10)
@given(st.permutations(list(CURVES)), st.integers(1, len(CURVES)))
def test_members_are_judged_as_if_alone(names: list[str], count: int) -> None:
    together = watch(np.stack([CURVES[name] for name in names[:count]], axis=1))
    assert [together.record(k) for k in range(count)] == [alone(name)[-1] for name in names[:count]]


def test_members_that_stay_are_judged_as_before() -> None:
    names = ["one spike", "lost", "learning", "two spikes"]
    curves = np.stack([CURVES[name] for name in names], axis=1)
    detector = SpikeDetector(4, CONFIG)
    for step in range(NUM_STEPS):
        if step == 155:
            detector.arrange([0, 3])
        detector.update(curves[step] if step < 155 else curves[step, [0, 3]])
    assert [detector.record(k) for k in range(2)] == [alone(name)[-1] for name in ("one spike", "two spikes")]


@settings(max_examples=examples(12))
@given(st.data(), st.lists(st.sampled_from(list(CURVES)), min_size=2, max_size=8), st.integers(1, 4))
def test_members_of_different_ages_get_the_record_that_they_would_get_alone(data, names: list[str], width: int) -> None:
    """Members take free places in any order, and some leave before their end."""
    lengths = [data.draw(st.integers(1, NUM_STEPS)) for _ in names]
    waiting, training, age = list(range(len(names))), [], [0] * len(names)
    detector = SpikeDetector(0, CONFIG)
    while waiting or training:
        ended = [m for m in training if age[m] == lengths[m]]
        for member in ended:
            assert detector.record(training.index(member)) == alone(names[member])[lengths[member]]
        staying = data.draw(st.permutations([m for m in training if m not in ended]))
        new = [waiting.pop(0) for _ in range(min(len(waiting), width - len(staying)))]
        detector.arrange([training.index(m) for m in staying] + [None] * len(new))
        training = staying + new
        for _ in range(min((lengths[m] - age[m] for m in training), default=0)):
            detector.update(np.array([CURVES[names[m]][age[m]] for m in training]))
            for member in training:
                age[member] += 1


def test_a_fresh_member_inherits_nothing_from_whoever_had_its_place() -> None:
    detector = watch(np.stack([CURVES["lost"], CURVES["not finite"], CURVES["two spikes"]], axis=1))
    detector.arrange([None, 2, None])
    assert detector.record(0) == detector.record(2) == SpikeDetector(1, CONFIG).record(0)
    assert detector.record(1) == alone("two spikes")[-1]
    for loss in CURVES["one spike"]:
        lost_K = detector.update(np.array([loss, 2.0, loss]))
        assert not lost_K.any()
    assert detector.record(0) == detector.record(2) == alone("one spike")[-1]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda state: pickle.loads(pickle.dumps(state))])
@pytest.mark.parametrize("cut", thinned([0, 1, 19, 152, 158, 222], [0, 19, 158].__contains__))
def test_a_resumed_detector_goes_on_as_if_uninterrupted(cut: int, copied: Callable) -> None:
    curves = np.stack(list(CURVES.values()), axis=1)
    first = watch(curves[:cut]) if cut else SpikeDetector(len(CURVES), CONFIG)
    state = first.state_dict()
    before = copied(state)
    for step in range(cut, cut + 5):  # must not leak into the snapshot
        first.update(curves[step] + 100)
    second = SpikeDetector(len(CURVES), CONFIG)
    second.load_state_dict(state)
    third = SpikeDetector(len(CURVES), CONFIG)
    third.load_state_dict(before)
    for step in range(cut, NUM_STEPS):
        second.update(curves[step])
        third.update(curves[step])
    expected = [alone(name)[-1] for name in CURVES]
    assert [second.record(k) for k in range(len(CURVES))] == expected
    assert [third.record(k) for k in range(len(CURVES))] == expected


def test_memory_does_not_grow_with_the_number_of_steps() -> None:
    curves = np.stack([noise(2000, seed) for seed in range(3)], axis=1)
    detector = SpikeDetector(3, CONFIG)
    seen = {}
    for step, loss_K in enumerate(curves, 1):
        detector.update(loss_K)
        if step in (200, 2000):
            seen[step] = len(pickle.dumps(detector.state_dict()))
    assert seen[2000] < 1.1 * seen[200], "windows are full after 50 losses"


# What is the same run is judged the same.


@pytest.mark.parametrize(
    "kind", thinned([float, np.float32, np.array, lambda loss: np.array([loss])], [float].__contains__)
)
def test_a_number_is_a_pack_of_one(kind: Callable) -> None:
    for curve in ("two spikes", "lost"):
        losses = CURVES[curve].astype(np.float32)
        detector = SpikeDetector(config=CONFIG)
        for loss in losses:
            detector.update(kind(loss))
        assert detector.record() == record(losses)


def test_anyone_can_stop_a_loop_with_it() -> None:
    detector, steps = SpikeDetector(), 0
    for loss in CURVES["lost"].tolist():
        steps += 1
        if detector.update(loss):
            break
    assert detector.record().lost == "far"
    assert detector.record() == alone("lost")[steps]
    assert alone("lost")[steps - 1].lost is None


@settings(max_examples=6)
@given(st.lists(st.integers(1, 500), min_size=NUM_STEPS, max_size=NUM_STEPS), st.integers(0, 10**9))
def test_steps_are_names_in_the_record_and_change_no_judgement(gaps: list[int], first: int) -> None:
    names = list(CURVES)
    step_T = first + np.cumsum(gaps)
    detector = SpikeDetector(len(names), CONFIG)
    for step, loss_K in zip(step_T, np.stack([CURVES[name] for name in names], axis=1), strict=True):
        detector.update(loss_K, None, step)

    def named(step: int | None) -> int | None:
        return None if step is None else int(step_T[step])

    for k, name in enumerate(names):
        found = alone(name)[-1]
        episodes, faint = (
            tuple(
                replace(e, **{key: named(getattr(e, key)) for key in ("onset_step", "peak_step", "recovery_step")})
                for e in of_record
            )
            for of_record in (found.episodes, found.faint)
        )
        keys = ("lost_step", "lost_onset_step", "up_since_step", "first_step", "risen_since_step", "worse_since_step")
        keys = (*keys, "not_finite_step")
        steps = {key: named(getattr(found, key)) for key in keys}
        assert detector.record(k) == replace(found, episodes=episodes, faint=faint, **steps)


@settings(max_examples=6)
@given(st.integers(-100, 0))  # a blow-up by 20 points of a cross-entropy has a unit
def test_the_unit_of_the_loss_does_not_matter(exponent: int) -> None:
    factor = 2.0**exponent  # exact
    scaled = records([factor * curve for curve in CURVES.values()])
    for found, name in zip(scaled, CURVES, strict=True):
        expected = alone(name)[-1]
        levels = {key: getattr(expected, key) for key in ("initial_loss", "start_loss", "best_loss", "recent_loss")}
        episodes, faint = (
            tuple(replace(e, peak_loss=factor * e.peak_loss, level=factor * e.level) for e in of_record)
            for of_record in (expected.episodes, expected.faint)
        )
        levels = {key: None if value is None else factor * value for key, value in levels.items()}
        assert found == replace(expected, episodes=episodes, faint=faint, **levels)


@settings(max_examples=6)
@given(st.integers(0, 2**32 - 1))
def test_finite_gradients_change_nothing(seed: int) -> None:
    norm_TK = 10.0 ** np.random.default_rng(seed).uniform(-300, 300, (NUM_STEPS, len(CURVES)))
    detector = SpikeDetector(len(CURVES), CONFIG)
    for loss_K, norm_K in zip(np.stack(list(CURVES.values()), axis=1), norm_TK, strict=True):
        detector.update(loss_K, norm_K)
    assert [detector.record(k) for k in range(len(CURVES))] == [alone(name)[-1] for name in CURVES]


SEGMENT = st.tuples(
    st.one_of(st.floats(-10, 10), st.floats(1, 1e6), st.sampled_from([1.0, 2.0, 5.0, 1e3, np.nan, np.inf])),
    st.integers(1, 70),
    st.sampled_from([0.01, 0.05, 0.5]),
)


@settings(max_examples=examples(25))
@example([(252036.0, 64, 0.5), (650737.0, 14, 0.5)], 169, None)  # a loss back on the trend is higher than the peak
@given(st.lists(SEGMENT, min_size=1, max_size=8), st.integers(0, 2**32 - 1), st.sampled_from([None, 1, 7, 50]))
def test_whatever_the_losses_the_record_makes_sense_and_nothing_said_is_taken_back(
    segments: list[tuple[float, int, float]], seed: int, patience: int | None
) -> None:
    config = CONFIG.model_copy(update={"patience": patience})
    normal = np.random.default_rng(seed).standard_normal
    curve = np.concatenate([level * (1 + spread * normal(n)) for level, n, spread in segments])
    detector = SpikeDetector(1, config)
    before = detector.record()
    for step, loss in enumerate(curve):
        (is_lost,) = detector.update(loss)
        found = detector.record()
        assert is_lost == (found.lost is not None) == (found.lost_step is not None) == (found.lost_reason is not None)
        assert found.num_steps == step + 1
        assert found.is_finite == bool(np.isfinite(curve[: step + 1]).all())
        over = [e for e in before.episodes if e.recovery_step is not None]
        if found.is_signed or found.has_grown:
            over = []  # its outcome is unknown
        # A regime is recognised after several jumps, which are then inserted at their onsets. What was clear may turn
        # out to be faint, once the noise is known or many excursions were as strong.
        assert {e.onset_step for e in over} <= {e.onset_step for e in (*found.episodes, *found.faint)}
        if before.lost:
            assert [getattr(found, f"lost{part}") for part in ("", "_step", "_onset_step", "_reason")] == [
                getattr(before, f"lost{part}") for part in ("", "_step", "_onset_step", "_reason")
            ]
        elif found.lost:
            assert 0 <= found.lost_onset_step <= found.lost_step == step
        before = found
    end = -1
    for episode in found.episodes:
        after = found.num_steps if episode.recovery_step is None else episode.recovery_step
        assert end <= episode.onset_step <= episode.peak_step < after <= found.num_steps
        assert episode.peak_loss == curve[episode.peak_step]
        # Of the losses that are back, some may still be half-way off.
        back = 0 if episode.recovery_step is None else CONFIG.recovery_steps
        assert 1 <= episode.num_steps <= after - episode.onset_step + back
        end = after
    assert all(e.recovery_step is not None for e in found.episodes[:-1])
    verdict = judge(found, config)
    assert (verdict.onset_step is None) == (verdict.outcome in ("stable", "unknown"))


# Noise and other things that are no episodes.


@settings(max_examples=6)
@given(st.lists(st.one_of(st.just(0.0), st.floats(-1e300, 1e300)), min_size=1, max_size=20))
def test_a_constant_loss_never_alarms(levels: list[float]) -> None:
    levels = [0.0, -3.0, *levels]
    for level, one in zip(levels, records([np.full(200, level) for level in levels]), strict=True):
        assert is_quiet(one)
        assert outcome(one) == ("unknown" if level < 0 else "stalled")


def test_a_loss_that_jumps_between_two_levels_never_alarms_however_long() -> None:
    heights = (1.15, 1.3, 1.6)
    descent = 1 + 3 * np.exp(-np.arange(1500) / 50)
    found = records([two_levels(1500, height, 0.5, seed) * descent for height in heights for seed in range(16)])
    assert all(is_quiet(one) and outcome(one) == "stable" for one in found)


def test_a_flat_loss_that_jumps_between_two_levels_is_not_lost() -> None:
    found = records([two_levels(1500, 1.6, 0.5, seed) for seed in range(48)])
    assert {(one.lost, outcome(one)) for one in found} <= {(None, "stable"), (None, "stalled")}


def test_every_second_to_fifth_loss_may_be_odd() -> None:
    curves = []
    for nth in range(2, 6):
        curve = learning(800, nth)
        curve[nth - 1 :: nth] *= 1.5
        curves.append(curve)
    assert all(is_quiet(one) and outcome(one) == "stable" for one in records(curves))


@pytest.mark.parametrize("height", [1.5, 1.9])
def test_jumps_that_recur_are_a_regime_with_its_onset_at_the_first(height: float) -> None:
    """None of them is a spike alone; each counts once they are many."""
    places, curves = [], []
    for nth in range(10, 40, 3):  # on average; at equal intervals they would be a schedule
        gaps = np.random.default_rng(nth).integers(nth - nth // 3, nth + nth // 3 + 1, 30)
        jumps = np.r_[100, 100 + gaps.cumsum()]
        places.append(jumps[jumps < 400])
        curve = settled(400, 400, 0.0, nth)
        curve[places[-1]] *= height
        curves.append(curve)
    for jumps, one in zip(places, records(curves), strict=True):
        # The last two may not have ended, or be too few in the last losses.
        assert [onset for onset, _ in spans(one)] == [*jumps][: one.num_episodes]
        assert one.num_episodes >= len(jumps) - 1
        assert all(episode.is_jump for episode in one.episodes)
        assert (outcome(one), judge(one, CONFIG).onset_step) == ("spiked", 100)


def test_three_jumps_in_a_long_run_are_ordinary_odd_losses() -> None:
    curve = settled(1000, 1000, 0.0)
    curve[[100, 500, 900]] *= 1.5
    assert is_quiet(record(curve))


@pytest.mark.slow
def test_odd_losses_that_are_common_lose_nobody() -> None:
    """Low ones must be seen to be common; then hardly any two in a row are an episode."""
    seeds, num_steps, learned = 12, 2500, 500
    descent = 1 + 3 * np.exp(-np.arange(num_steps) / 50)
    for heights, is_low in (((1.15, 1.25), True), ((3.0, 10.0), False)):
        cases = [(share, height) for share in (0.05, 0.075, 0.1) for height in heights]
        curves = [two_levels(num_steps, height, share, seed) for share, height in cases for seed in range(seeds)]
        found = records([curve * descent for curve in curves])
        assert all(one.lost is None for one in found)
        if is_low:
            odd_KT = np.stack(curves)[:, learned:] > 1.08
            pairs = (odd_KT[:, 1:] & odd_KT[:, :-1]).sum()
            assert pairs > 500
            assert sum(onset >= learned for one in found for onset, _ in spans(one)) < pairs / 20


ODD_PLACES = st.lists(st.integers(0, 1), min_size=1, max_size=3, unique=True).map(lambda i: 60 + np.array(i) * 150)


@settings(max_examples=8)
@given(st.lists(st.tuples(ODD_PLACES, st.floats(0.1, 1.8), st.integers(0, 99)), min_size=1, max_size=20))
def test_a_single_odd_loss_is_no_episode_before_it_has_doubled(cases: list[tuple]) -> None:
    curves = []
    for places, factor, seed in cases:
        curve = settled(300, 300, 0.0, seed)
        curve[places] *= factor
        curves.append(curve)
    assert all(is_quiet(one) and outcome(one) == "stable" for one in records(curves))


@settings(max_examples=8)
@given(st.lists(st.tuples(st.integers(25, 290), st.floats(0.55, 6), st.integers(0, 99)), min_size=1, max_size=20))
def test_one_tall_loss_is_a_spike(cases: list[tuple[int, float, int]]) -> None:
    curves = []
    for place, exponent, seed in cases:
        curve = settled(300, 300, 0.0, seed)
        curve[place] *= 10.0**exponent
        curves.append(curve)
    for one, (place, _, _) in zip(records(curves), cases, strict=True):
        assert (spans(one), one.lost) == ([(place, place + 1)], None)


def test_an_odd_loss_hides_no_spike_and_makes_none() -> None:
    curves = []
    for place in [*range(140), *range(170, 300)]:
        curve = settled(300, 300, 0.0)
        curve[150:160] += 3.0
        curve[place] *= 1.8
        curves.append(curve)
    assert {tuple(spans(one)) for one in records(curves)} == {((150, 160),)}


@settings(max_examples=8)
@given(st.lists(st.tuples(st.floats(0.3, 0.5), st.integers(150, 280), st.integers(0, 99)), min_size=1, max_size=20))
def test_a_shift_of_level_is_no_episode_and_the_next_spike_is_told_from_the_new_level(cases: list[tuple]) -> None:
    shifted = []
    for rise, step, seed in cases:
        curve = settled(450, step, rise, seed)
        curve[400:408] += 1.0
        shifted.append(curve)
    for one in records(shifted):
        assert spans(one) == [(400, 408)]
        assert one.lost is None


def streams(num_steps: int, seeds: int) -> list[np.ndarray]:
    """Stable losses with the noise of real ones and more."""
    found = []
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        found += [
            2 * (1 + 0.05 * rng.standard_normal(num_steps)),
            2 * np.exp(0.1 * rng.standard_normal(num_steps)),
            2 * (1 + 0.02 * rng.standard_t(5, num_steps)),
        ]
    return found


@pytest.mark.parametrize(
    ("num_steps", "seeds"),
    [
        (4000, 8),
        pytest.param(4000, 24, marks=pytest.mark.slow),
        pytest.param(100_000, 8, marks=pytest.mark.slow),
    ],
)
def test_stable_losses_with_heavy_noise_never_alarm(num_steps: int, seeds: int) -> None:
    found = records(streams(num_steps, seeds))
    assert all(is_quiet(one) and outcome(one) != "diverged" for one in found)


# Episodes.


def test_spikes_are_recorded_with_onset_peak_and_recovery_and_lose_nobody() -> None:
    found = alone("two spikes")[-1]
    assert found.lost_step is None
    assert spans(found) == [(150, 160), (220, 225)]
    assert [episode.num_steps for episode in found.episodes] == [10, 5]
    for episode in found.episodes:
        inside = CURVES["two spikes"][episode.onset_step : episode.recovery_step]
        assert (episode.peak_loss, episode.peak_step) == (inside.max(), episode.onset_step + inside.argmax())


def test_an_episode_without_an_end_is_in_the_record_while_it_lasts() -> None:
    assert [spans(alone("one spike")[steps]) for steps in (150, 151, 160)] == [[], [(150, None)], [(150, None)]]
    assert spans(alone("one spike")[160 + CONFIG.recovery_steps]) == [(150, 160)]


def test_a_spike_that_follows_a_slow_rise_lasts_until_it_is_back_however_wide_the_rise_made_the_noise() -> None:
    """The trend before such a spike is wide enough to take twice the level for a return."""
    steps = np.arange(600)
    share_risen = np.clip((steps - 300) / 50, 0, 1) * (steps < 450)
    back = np.exp(-np.clip(steps - 350, 0, None) / 30)
    curve = 2.6 + 8 * np.exp(-steps / 15) + 1.6 * share_risen * back + np.where(steps >= 350, 40 * back, 0.0)
    curves = [curve + (0.15 + 0.5 * share_risen) * noise(600, seed, 0.0, 1.0) for seed in range(8)]
    for one, losses in zip(records(curves), curves, strict=True):
        end = spans(one)[-1][1]
        assert outcome(one) == "spiked"
        assert end is not None
        assert np.median(losses[end : end + 5]) < 1.5 * 2.6
    for one in records([losses[:440] for losses in curves]):  # 1.8 times the level at its end
        assert spans(one)[-1][1] is None
        assert outcome(one) == "diverged"


@settings(max_examples=8)
@given(st.lists(st.floats(1.0, 1e12), min_size=1, max_size=20))
def test_how_high_a_spike_goes_changes_nothing_but_its_peak(rises: list[float]) -> None:
    for found in records([learning(300, changes=[(150, 160, rise)]) for rise in rises]):
        peak = found.episodes[0].peak_loss
        (expected,) = alone("one spike")[-1].episodes
        differs = {key: getattr(found.episodes[0], key) for key in ("peak_step", "strength")}
        assert found.episodes == (replace(expected, peak_loss=peak, **differs),)
        assert found.lost is None


def test_losses_of_a_spike_never_enter_the_baseline() -> None:
    # A second spike right after a long first one is as visible as the first.
    assert spans(record(learning(400, changes=[(200, 260, 1.5), (270, 280, 1.5)]))) == [(200, 260), (270, 280)]


def test_a_spike_is_told_on_a_steep_descent() -> None:
    step, starts = np.arange(200), range(25, 100, 5)
    descent = 2 + 8 * np.exp(-step / 60) + noise(200, 0, 0.0, 0.01)
    found = records([descent + 2.5 * ((step >= start) & (step < start + 5)) for start in starts])
    assert [spans(one) for one in found] == [[(start, start + 5)] for start in starts]


@pytest.mark.parametrize("num_steps", [3, 8, 30])
@pytest.mark.parametrize("height", [12.0, 25.0, 1000.0])
def test_a_start_up_is_an_episode_if_it_rises_above_twice_the_initial_loss(num_steps: int, height: float) -> None:
    """What blows up after something was learned is one anyway."""
    before, after = range(5, 19), 100
    blow_up, rest = np.full(num_steps, height), np.full(after, 1.0)
    ends = [np.concatenate([blow_up, rest])[: num_steps + after - steps] for steps in before]
    flat = records([np.r_[np.full(steps, 5.0), end] for steps, end in zip(before, ends, strict=True)])
    fallen = records([np.r_[5 * 0.9 ** np.arange(steps), end] for steps, end in zip(before, ends, strict=True)])
    for one, steps in zip(flat, before, strict=True):
        assert spans(one) == [(steps, steps + num_steps)]
        assert outcome(one) == "spiked"
    assert [spans(one) for one in fallen] == [[(steps, steps + num_steps)] for steps in before]


def test_an_ordinary_start_up_bump_is_no_episode() -> None:
    for steps in (2, 5, 10):
        bump = record(np.r_[np.full(steps, 5.0), 8.0, 9.9, 7.0, np.full(100, 1.0)])
        assert is_quiet(bump)
        assert outcome(bump) == "stable"


def test_a_blow_up_at_the_second_loss_counts_and_is_not_what_was_learned() -> None:
    """A learning rate without warmup: 0.8, then 17,000, then a slow way back to 0.5."""
    way_back = 0.5 + 17_000 * np.exp(-np.arange(200) / 4)
    found = record(np.r_[0.82, way_back, np.full(200, 0.5)], StoppingConfig().resolved(2.0, 1))
    assert (outcome(found), spans(found)[0][0], found.num_episodes) == ("spiked", 1, 1)


def test_a_log_may_begin_with_a_blow_up() -> None:
    calm, spiked = learning(300), learning(300, changes=[(150, 160, 3.0)])
    first = [13107.0, 4.9, 3.3]
    calm, spiked = records([np.r_[first, calm], np.r_[first, spiked]])
    assert (outcome(calm), spans(calm)) == ("stable", [])
    assert (outcome(spiked), spans(spiked)) == ("spiked", [(153, 163)])
    assert calm.initial_loss == 13107


# Verdicts.


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_loss_that_is_not_finite_ends_the_member_at_that_step(value: float) -> None:
    detector = SpikeDetector(2, CONFIG)
    for step, loss in enumerate(learning(50)):
        lost_K = detector.update(np.array([value if step == 30 else loss, loss]))
        assert lost_K.tolist() == [step >= 30, False]
        assert detector.is_finite.tolist() == [step < 30, True]
    found = detector.record(0)
    assert (found.lost, found.lost_step, found.lost_onset_step, found.is_finite) == ("not_finite", 30, 30, False)
    assert "loss" in found.lost_reason
    assert found.num_steps == 50
    # What comes after it does not matter.
    assert replace(found, num_steps=31) == record([*learning(50)[:30], value])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    ("config", "patience"),
    [
        (StoppingConfig(), 20),
        (CONFIG, 1),
        (StoppingConfig(gradient_patience=3), 3),
        (StoppingConfig(gradient_patience=3).resolved(0.1, 1), 3),
    ],
)
def test_gradients_that_are_not_finite_lose_a_run_after_so_many_in_a_row(
    value: float, config: StoppingConfig, patience: int
) -> None:
    detector = SpikeDetector(2, config)
    for step, loss in enumerate(learning(100)):
        # The second member's gradient is finite again one step too early, time and again.
        norm_K = [value if step >= 30 else 1.0, value if step % patience else 1.0]
        lost_K = detector.update(np.array([loss, loss]), np.array(norm_K))
        assert lost_K.tolist() == [step >= 30 + patience - 1, False]
    found = detector.record(0)
    assert (found.lost, found.lost_step, found.lost_onset_step) == ("not_finite", 30 + patience - 1, 30)
    assert "gradient norm" in found.lost_reason
    assert outcome(found) == "diverged"


def test_a_blow_up_that_ends_in_nan_began_where_the_loss_left_its_trend() -> None:
    curve = learning(300, changes=[(200, 206, 10.0)])
    curve[206] = np.nan
    assert (record(curve).lost_onset_step, record(curve).lost_step) == (200, 206)


@pytest.mark.parametrize("height", [2.0, 4.0, 1000.0])
@pytest.mark.parametrize(
    ("step", "given_patience", "patience"),
    [
        (100, None, 50),
        (300, None, 75),
        (620, None, 155),
        (200, 20, 20),
        (200, 60, 60),
        (200, 61, 61),
        (600, None, 150),
    ],
)
def test_a_run_that_jumps_to_a_high_plateau_is_lost_after_its_patience(
    step: int, given_patience: int | None, patience: int, height: float
) -> None:
    config = CONFIG.model_copy(update={"patience": given_patience})
    found = record(learning(step + 300, changes=[(step, step + 300, height)]), config)
    assert (found.lost, found.lost_onset_step) == ("far", step)
    # A level is known after some losses.
    assert 0 <= found.lost_step - (step + patience) < 10
    assert patience <= int(re.search(r"(\d+) losses in a row", found.lost_reason)[1]) < patience + 10


@pytest.mark.parametrize("patience", [None, 20, 60])
def test_a_run_that_has_given_up_less_is_waited_for_twice_as_long(patience: int | None) -> None:
    config = CONFIG.model_copy(update={"patience": patience})
    less, more = records([learning(600, changes=[(300, 600, height)]) for height in (1.35, 3.0)], config)
    assert (less.lost, less.lost_onset_step, more.lost_onset_step) == ("far", 300, 300)
    assert less.lost_step - 300 == pytest.approx(2 * (more.lost_step - 300), abs=10)


def test_a_verdict_that_does_not_end_the_run_is_kept_and_its_outcome_is_how_it_ends() -> None:
    config = CONFIG.model_copy(update={"patience": 20})
    stays, returns = learning(400, changes=[(200, 400, 4.0)]), learning(400, changes=[(200, 300, 4.0)])
    at_verdict = record(stays[:300], config)
    assert at_verdict.lost == "far"
    for curve, expected in ((stays, "diverged"), (returns, "spiked")):
        found = record(curve, config)
        for name in ("lost", "lost_step", "lost_onset_step", "lost_reason"):
            assert getattr(found, name) == getattr(at_verdict, name)
        assert (outcome(found), judge(found, CONFIG).onset_step) == (expected, 200)
    assert outcome(at_verdict) == "diverged"


def test_a_blow_up_before_anything_was_learned_that_stays_is_lost() -> None:
    found = alone("blow-up that stays")[-1]
    assert (found.lost, found.lost_onset_step, spans(found)) == ("far", 5, [(5, None)])
    assert found.lost_step < 5 + 60


def test_slow_divergence_is_lost_while_it_rises_or_soon_after() -> None:
    step = np.arange(1600)
    cases = [(rise, num_steps) for rise in (2, 4, 8) for num_steps in (200, 400, 1000)]
    found = records([learning(1600, k) + np.clip((step - 300) / n, 0, 1) * r for k, (r, n) in enumerate(cases)])
    for one, (_, num_steps) in zip(found, cases, strict=True):
        assert (one.lost, outcome(one)) == ("far", "diverged")
        assert 300 < one.lost_onset_step < one.lost_step < 300 + num_steps + 200


def test_a_slow_drift_is_neither_lost_nor_an_episode() -> None:
    # More than half of what was learned, but little of the loss, as on harder data.
    step = np.arange(2000)
    drift = 0.3 * np.clip((step - 600) / 600, 0, 1)
    found = records([2 + 0.5 * np.exp(-step / 50) + drift + noise(2000, k, 0.0, 0.01) for k in range(8)])
    assert all(is_quiet(one) and outcome(one) == "diverged" for one in found), "for a third of its steps"
    found = records([2 + 0.5 * np.exp(-step / 50) + 0.3 * np.clip((step - 1400) / 600, 0, 1) + noise(2000, k, 0.0, 0.01)
                     for k in range(8)])  # fmt: skip
    assert all(is_quiet(one) and outcome(one) == "stable" for one in found)


def test_a_slow_rise_of_more_than_a_quarter_is_said_once_it_has_lasted_and_never_stops_a_run() -> None:
    step = np.arange(2000)
    curve = 2 + 0.8 * np.exp(-step / 50) + 0.3 * np.clip((step - 600) / 600, 0, 1) + noise(2000, 0, 0.0, 0.01)
    assert (record(curve).lost, outcome(record(curve))) == (None, "diverged")
    curve = np.r_[curve[:300].repeat(3), curve[300:1200]]  # for less than a third of its steps
    found = record(curve)
    assert (found.lost, outcome(found), spans(found)) == (None, "stable", [])
    assert found.risen_share == pytest.approx(0.3 / 0.8, abs=0.05)
    assert 1400 < found.risen_since_step < 1750
    assert "it has given up 3" in judge(found, CONFIG).reason
    assert record(curve[:1500]).risen_share is None
    back = np.r_[curve, np.full(100, 2.0)]
    assert record(back).risen_share is None


def decay(num_steps: int, step: int, height: float, scale: float) -> np.ndarray:
    """A rise by ``height`` at ``step`` that falls by a factor e in ``scale`` steps."""
    after = np.arange(num_steps) - step
    return np.where(after < 0, 0.0, height * np.exp(-np.maximum(after, 0) / scale))


def test_a_run_that_comes_back_slowly_is_not_lost_however_long_it_takes() -> None:
    cases = [(height, scale) for height in (100.0, 1e4, 1e6) for scale in (25, 50, 80)]
    curves = [learning(1600, k) + decay(1600, 200, height, scale) for k, (height, scale) in enumerate(cases)]
    for one in records(curves):
        assert (one.lost, outcome(one)) == (None, "spiked")
        ((onset, recovery),) = spans(one)
        assert onset == 200
        assert recovery > 200 + 2 * 50
    # One that stops on its way back is lost.
    for one in records([np.maximum(curve, np.where(np.arange(1600) < 210, 0, 4.0)) for curve in curves]):
        assert (one.lost, one.lost_onset_step, outcome(one)) == ("far", 200, "diverged")


def test_a_run_that_is_never_below_its_first_loss_makes_no_progress() -> None:
    config = CONFIG.model_copy(update={"stall_steps": 100})
    above = np.r_[5.0, np.abs(noise(149, level=5.8, spread=0.1))]
    one_below = []
    for step in range(1, 100):
        curve = above.copy()
        curve[step] = 4.9
        one_below.append(curve)
    found = record(above, config)
    assert (found.lost, found.lost_step, found.episodes) == ("no_progress", 99, ())
    assert outcome(found) == "stalled"
    assert {one.lost for one in records(one_below, config)} == {None}
    # At the wrong side of the limit.
    late = above.copy()
    late[100] = 4.9
    assert record(late, config).lost == "no_progress"


def test_a_thousand_losses_may_pass_before_a_run_makes_no_progress() -> None:
    above = np.r_[5.0, np.full(1100, 5.1)]
    assert record(above).lost_step == 999


def test_a_run_that_blew_up_at_its_start_and_stays_flat_is_lost_after_a_third_of_its_steps() -> None:
    frozen = np.r_[7.3, 18.9, np.abs(noise(238, level=6.9, spread=0.05))]
    learns_late = np.r_[frozen[:60], np.linspace(6.9, 3.0, 180)]
    learns_at_once = np.r_[7.3, 18.9, np.linspace(6.9, 3.0, 238)]
    no_blow_up = np.r_[7.3, frozen[2:], 6.9]
    judged = [SpikeDetector(1, CONFIG, all_steps=240) for _ in range(4)]
    for detector, curve in zip(judged, (frozen, learns_late, learns_at_once, no_blow_up), strict=True):
        for loss in curve:
            detector.update(loss)
    lost, *others = (detector.record() for detector in judged)
    assert (lost.lost, lost.lost_step, outcome(lost)) == ("no_progress", 80, "diverged")
    assert [one.lost for one in others] == [None] * 3
    assert record(frozen).lost is None, "nobody said how long it will be"


# How a run ends.


@pytest.mark.parametrize("rise", [1.0, 1.3])
def test_a_run_that_ends_off_its_trend_is_diverged_unless_it_has_just_left_it(rise: float) -> None:
    detector = SpikeDetector(1, CONFIG)
    judged = {}
    for step, loss in enumerate(learning(400, changes=[(300, 400, rise)])):
        detector.update(loss)
        judged[step - 300 + 1] = judge(detector.record(), CONFIG)
    just, back = CONFIG.spike_steps, CONFIG.recovery_steps
    assert detector.record().lost is None
    assert [judged[off].outcome for off in (-100, 0, 1)] == ["stable"] * 3
    assert {judged[off].outcome for off in range(just, back)} == {"spiked"}
    assert {judged[off].outcome for off in range(back, 101)} == {"diverged"}
    assert {judged[off].onset_step for off in range(just, 101)} == {300}
    assert all("just left" in judged[off].reason for off in range(just, back))


def test_a_run_that_ends_far_above_its_past_is_diverged_before_its_patience_is_over() -> None:
    found = record(learning(300, changes=[(285, 300, 4.0)]))
    assert (found.lost, outcome(found), judge(found, CONFIG).onset_step) == (None, "diverged", 285)
    assert outcome(record(learning(300, changes=[(297, 300, 4.0)]))) == "spiked"


# Settings and names.


def test_what_a_sweep_leaves_open_is_filled_in_once() -> None:
    filled = StoppingConfig().resolved(0.1, 1)
    assert (filled.spike_rise, filled.gradient_patience) == (0.1, 1)
    own = StoppingConfig(spike_rise=0.3, gradient_patience=4, patience=7)
    assert own.resolved(0.1, 1) == own
    assert filled.resolved(2.0, 1) == filled


def test_a_log_of_unknown_origin_is_judged_as_a_cross_entropy() -> None:
    assert records(list(CURVES.values()), StoppingConfig()) == [alone(name)[-1] for name in CURVES]
    assert records(list(CURVES.values()), StoppingConfig().resolved(2.0, 1)) != [alone(name)[-1] for name in CURVES]


def test_a_spike_counts_from_its_settings_on() -> None:
    curve = learning(300, changes=[(150, 154, 1.0)])
    assert spans(record(curve)) == [(150, 154)]
    for change in ({"spike_steps": 5}, {"spike_rise": 1.0}, {"spike_sigma": 100.0}, {"spike_mass": 20.0}):
        assert is_quiet(record(curve, CONFIG.model_copy(update=change))), change


@pytest.mark.parametrize("first", [0.0, 1e-300, 1.0, -1.0, 1e306])
@pytest.mark.parametrize("then", [0.0, 1e-300, 1e10, 1e306])
def test_no_finite_loss_raises_a_warning(first: float, then: float) -> None:
    assert record([first] * 50 + [then] * 3 + [first] * 20).lost is None


NUMBERS = st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=60)


@settings(max_examples=examples(60))
@given(NUMBERS, st.integers(1, 20))
def test_a_window_holds_the_last_numbers_in_order_and_sorted(numbers: list[float], size: int) -> None:
    window = Window(size)
    for count, number in enumerate(numbers, 1):
        window.add(number)
        last = numbers[max(0, count - size) : count]
        assert window.values == last
        assert window.ordered == sorted(last)
    again = Window(size)
    again.reset(numbers)
    assert again == window


@settings(max_examples=examples(60))
@given(NUMBERS)
def test_the_middle_is_the_median_and_never_overflows(numbers: list[float]) -> None:
    ordered = sorted(numbers)
    assert middle(ordered) == pytest.approx(median([number / 2 for number in numbers]) * 2, rel=1e-15, abs=1e-300)
    assert ordered[0] <= middle(ordered) <= ordered[-1]
    assert quantile(ordered, 0.0) == ordered[0]
    assert quantile(ordered, 1.0) == ordered[-1]


def test_both_measures_of_noise_are_the_deviation_of_normal_noise() -> None:
    values = (3 + 0.5 * np.random.default_rng(0).standard_normal(20_000)).tolist()
    assert deviation(sorted(values)) == pytest.approx(0.5, rel=0.03)
    spread, _ = trend.noise(np.diff(values).tolist(), 0.9)
    assert spread == pytest.approx(0.5, rel=0.03)
    # A slow rise is no noise.
    spread, _ = trend.noise((np.diff(values) + 0.01).tolist(), 0.9)
    assert spread == pytest.approx(0.5, rel=0.03)
    assert trend.noise([], 0.9) == (0.0, 0.0)

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sweep_cases import learning, noise

from orchestrator.detection import MemberRecord, SpikeDetector, StoppingConfig
from orchestrator.outcomes import judge

CONFIG = StoppingConfig().resolved(0.1)


def watch(curves: np.ndarray, config: StoppingConfig = CONFIG) -> SpikeDetector:
    """A detector that has seen ``curves``, (T,) or (T, K)."""
    curves = np.atleast_2d(np.asarray(curves, dtype=float).T).T
    detector = SpikeDetector(curves.shape[1], config, len(curves))
    for loss_K in curves:
        detector.update(loss_K)
    return detector


def record(curve: Sequence[float] | np.ndarray) -> MemberRecord:
    return watch(np.asarray(curve)).record(0)


def outcome(curve: Sequence[float] | np.ndarray) -> str:
    return judge(record(curve), CONFIG).outcome


CURVES = {
    "learning": learning(300),
    "one spike": learning(300, changes=[(150, 160, 3.0)]),
    "two spikes": learning(300, changes=[(150, 160, 3.0), (220, 225, 50.0)]),
    "lost": learning(300, changes=[(150, 300, 4.0)]),
    "not finite": np.where(np.arange(300) == 120, np.nan, learning(300)),
    "blow-up at the start": np.where(np.arange(300) < 12, 5.0 + 4.0 ** np.arange(300).clip(max=8), learning(300)),
    "stalled": noise(300, level=5.0),
}


@pytest.mark.parametrize(
    ("curve", "expected"),
    [
        ("learning", "stable"),
        ("one spike", "spiked"),
        ("two spikes", "spiked"),
        ("lost", "diverged"),
        ("not finite", "diverged"),
        ("blow-up at the start", "spiked"),
        ("stalled", "stalled"),
    ],
)
def test_outcomes_of_curves_that_anyone_can_judge(curve: str, expected: str) -> None:
    assert outcome(CURVES[curve]) == expected


def test_spikes_are_recorded_with_onset_peak_and_recovery_and_lose_nobody() -> None:
    found = record(CURVES["two spikes"])
    assert found.lost_step is None
    assert [(e.onset_step, e.recovery_step) for e in found.episodes] == [(150, 160), (220, 225)]
    assert all(e.onset_step <= e.peak_step < e.recovery_step for e in found.episodes)
    assert found.episodes[1].peak_loss > 40


def test_a_run_is_lost_only_after_its_patience_and_the_onset_is_where_it_rose() -> None:
    found = record(CURVES["lost"])
    assert found.lost_onset_step == 150
    assert found.lost_step == 150 + CONFIG.patience_steps(300) - 1


def test_one_odd_batch_is_not_a_spike() -> None:
    assert outcome(learning(300, changes=[(200, 201, 3.0)])) == "stable"


def test_a_run_that_ends_high_is_diverged_even_before_patience_runs_out() -> None:
    assert outcome(learning(300, changes=[(270, 300, 4.0)])) == "diverged"


def test_slow_divergence_is_diverged() -> None:
    slow = learning(600)
    slow[200:] += np.linspace(0, 4, 400)
    assert outcome(slow) == "diverged"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["loss", "gradient norm"])
def test_what_is_not_finite_ends_the_member_at_that_step(value: float, where: str) -> None:
    detector = SpikeDetector(2, CONFIG, 100)
    for step, loss in enumerate(learning(50)):
        bad = step == 30
        loss_K = np.array([value if bad and where == "loss" else loss, loss])
        norm_K = np.array([value if bad and where != "loss" else 1.0, 1.0])
        lost_K = detector.update(loss_K, norm_K)
        assert lost_K.tolist() == [step >= 30, False]
    found = detector.record(0)
    assert (found.lost_step, found.lost_onset_step, found.is_finite) == (30, 30, False)
    assert where in found.lost_reason
    assert found.num_steps == 31


def test_a_blow_up_that_ends_in_nan_began_where_the_loss_left_its_trend() -> None:
    curve = learning(300, changes=[(200, 206, 10.0)])
    curve[206] = np.nan
    assert (record(curve).lost_onset_step, record(curve).lost_step) == (200, 206)


@pytest.mark.parametrize("level", [0.0, 1e-12, 3.0, -3.0])
def test_a_constant_series_never_alarms(level: float) -> None:
    found = record(np.full(500, level))
    assert (found.lost_step, found.episodes) == (None, ())


def test_noise_that_jumps_between_two_levels_never_alarms() -> None:
    levels = np.random.default_rng(0).choice([1.0, 1.6], 3000) + noise(3000, level=0.0, spread=0.02)
    assert (record(levels).lost_step, record(levels).episodes) == (None, ())


def test_twenty_thousand_calm_steps_raise_no_alarm() -> None:
    found = record(noise(20_000, seed=5))
    assert (found.lost_step, found.episodes) == (None, ())


@settings(max_examples=30, deadline=None)
@given(st.permutations(list(CURVES)), st.integers(1, len(CURVES)))
def test_members_are_judged_as_if_alone(names: list[str], count: int) -> None:
    chosen = names[:count]
    together = watch(np.stack([CURVES[name] for name in chosen], axis=1))
    assert [together.record(k) for k in range(count)] == [record(CURVES[name]) for name in chosen]


def test_members_that_stay_are_judged_as_before() -> None:
    names = ["one spike", "lost", "learning", "two spikes"]
    curves = np.stack([CURVES[name] for name in names], axis=1)
    detector = SpikeDetector(4, CONFIG, 300)
    for step in range(300):
        if step == 155:
            detector.arrange([0, 3])
        detector.update(curves[step] if step < 155 else curves[step, [0, 3]])
    assert [detector.record(k) for k in range(2)] == [record(CURVES[name]) for name in ("one spike", "two spikes")]


@settings(max_examples=12, deadline=None)
@given(st.data(), st.lists(st.sampled_from(list(CURVES)), min_size=2, max_size=8), st.integers(1, 4))
def test_members_of_different_ages_get_the_record_that_they_would_get_alone(data, names: list[str], width: int) -> None:
    """Members take free places in any order, and some leave before their end."""
    curves = [CURVES[name][: data.draw(st.integers(1, 300))] for name in names]
    waiting, training, age = list(range(len(names))), [], dict.fromkeys(range(len(names)), 0)
    detector = SpikeDetector(0, CONFIG, 300)
    while waiting or training:
        ended = [m for m in training if age[m] == len(curves[m])]
        for member in ended:
            # The patience of a run follows from the length that it was to have, not from where it ended.
            alone = SpikeDetector(1, CONFIG, 300)
            for loss in curves[member]:
                alone.update(np.array([loss]))
            assert detector.record(training.index(member)) == alone.record(0)
        staying = data.draw(st.permutations([m for m in training if m not in ended]))
        new = [waiting.pop(0) for _ in range(min(len(waiting), width - len(staying)))]
        detector.arrange([training.index(m) for m in staying] + [None] * len(new))
        training = staying + new
        for _ in range(min((len(curves[m]) - age[m] for m in training), default=0)):
            detector.update(np.array([curves[m][age[m]] for m in training]))
            age.update({m: age[m] + 1 for m in training})


def test_a_fresh_member_inherits_nothing_from_whoever_had_its_place() -> None:
    detector = watch(np.stack([CURVES["lost"], CURVES["not finite"], CURVES["two spikes"]], axis=1))
    detector.arrange([None, 2, None])
    assert detector.record(0) == detector.record(2) == SpikeDetector(1, CONFIG, 300).record(0)
    assert detector.record(1) == record(CURVES["two spikes"])
    for loss in CURVES["one spike"]:
        lost_K = detector.update(np.array([loss, 2.0, loss]))
        assert not lost_K.any()
    assert detector.record(0) == detector.record(2) == record(CURVES["one spike"])


@pytest.mark.parametrize("cut", [1, 19, 152, 158, 222])
def test_a_resumed_detector_goes_on_as_if_uninterrupted(cut: int) -> None:
    curves = np.stack(list(CURVES.values()), axis=1)
    first = SpikeDetector(curves.shape[1], CONFIG, 300)
    for step in range(cut):
        first.update(curves[step])
    state = first.state_dict()
    for step in range(cut, cut + 5):  # must not leak into the snapshot
        first.update(curves[step] + 100)
    second = SpikeDetector(curves.shape[1], CONFIG, 300)
    second.load_state_dict(state)
    for step in range(cut, 300):
        second.update(curves[step])
    assert [second.record(k) for k in range(len(CURVES))] == [record(curve) for curve in CURVES.values()]


def test_flagged_losses_never_enter_the_baseline() -> None:
    # A second spike right after a long first one is as visible as the first.
    curve = learning(400, changes=[(200, 260, 1.5), (270, 280, 1.5)])
    assert [e.onset_step for e in record(curve).episodes] == [200, 270]


def test_the_share_that_makes_a_spike_must_be_known() -> None:
    with pytest.raises(ValueError, match="spike_rise"):
        SpikeDetector(1, StoppingConfig(), 10)


def test_patience_follows_the_length_of_a_run() -> None:
    assert [StoppingConfig().patience_steps(steps) for steps in (10, 200, 4000)] == [50, 50, 1000]
    assert StoppingConfig(patience=7).patience_steps(4000) == 7

import json
import math
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sweep_cases import learning

from orchestrator.detection.config import StoppingConfig
from orchestrator.detection.detector import MemberRecord, SpikeDetector
from orchestrator.detection.run_monitor import NormRises, RunMonitor, is_audited

CONFIG = StoppingConfig(patience=20, gradient_patience=1)
NUM_STEPS = 300
LOST = learning(NUM_STEPS, changes=[(100, NUM_STEPS, 3.5)])  # from step 100 on, far above its past


def flags(*steps: int) -> np.ndarray:
    """1 at these steps and 0 at the others."""
    return np.isin(np.arange(NUM_STEPS), steps).astype(float)


def at(values_N: np.ndarray, step: int, value: float) -> np.ndarray:
    """``values_N`` with another one at ``step``."""
    return np.where(np.arange(len(values_N)) == step, value, values_N)


def judged(columns: Mapping[str, np.ndarray], config: StoppingConfig = CONFIG, *, looks: int = NUM_STEPS) -> RunMonitor:
    """One member, looked at every ``looks`` steps until it ends."""
    monitor = RunMonitor(config)
    for first in range(0, NUM_STEPS, looks):
        part = {name: values[first : first + looks, None] for name, values in columns.items()}
        if monitor.update(part).has_ended_K[0]:
            break
    return monitor


CALM, NORM = learning(NUM_STEPS), np.ones(NUM_STEPS)


def test_a_gradient_of_a_step_that_was_skipped_or_taken_back_loses_nobody() -> None:
    broken = at(NORM, 50, math.inf)
    assert judged({"loss": CALM, "grad_norm": broken}).record().lost == "not_finite"
    for name in ("is_skipped", "rolled_back"):
        found = judged({"loss": CALM, "grad_norm": broken, name: flags(50)}).record()
        assert found == judged({"loss": CALM}).record(), name


def test_a_loss_that_is_not_finite_is_only_let_pass_where_it_was_taken_back() -> None:
    broken = at(CALM, 50, math.nan)
    assert judged({"loss": broken, "is_skipped": flags(50)}).record().lost_step == 50
    found = judged({"loss": broken, "rolled_back": flags(50)}).record()
    assert (found.lost, found.num_steps, found.is_finite) == (None, NUM_STEPS, True)


@pytest.mark.parametrize("looks", [1, 7, 50])
def test_what_came_before_a_step_that_was_taken_back_may_be_in_an_earlier_look(looks: int) -> None:
    for step in (0, 7, 50, 249):
        columns = {"loss": at(CALM, step, math.inf), "grad_norm": NORM, "rolled_back": flags(step)}
        assert judged(columns, looks=looks).record() == judged(columns).record()


def test_a_finite_loss_that_was_taken_back_is_part_of_the_run() -> None:
    high = np.where(flags(100, 101, 102) == 1, 50.0, CALM)
    (episode,) = judged({"loss": high, "rolled_back": flags(102)}).record().episodes
    assert (episode.onset_step, episode.peak_loss) == (100, 50.0)


def test_a_flag_that_nobody_knows_hides_nothing() -> None:
    columns = {"loss": at(CALM, 50, math.nan), "rolled_back": np.full(NUM_STEPS, math.nan)}
    assert judged(columns).record().lost_step == 50


def test_a_member_ends_at_its_verdict_an_audited_one_where_it_is_not_finite_and_nobody_without_early_stop() -> None:
    broken = at(LOST, 200, math.nan)
    columns = {"loss": np.stack([LOST, LOST, broken, CALM], axis=1)}
    audited = [False, True, True, False]
    update = (stopping := RunMonitor(CONFIG, audited)).update(columns)
    verdict_step = alone(LOST).lost_step
    assert 100 < verdict_step < 200
    assert update.num_steps_K.tolist() == [verdict_step + 1, NUM_STEPS, 201, NUM_STEPS]
    assert update.has_ended_K.tolist() == [True, False, True, False]
    assert [stopping.record(k).num_steps for k in range(4)] == update.num_steps_K.tolist()
    never = RunMonitor(CONFIG.model_copy(update={"early_stop": False}), audited).update(columns)
    assert not never.has_ended_K.any()
    assert never.num_steps_K.tolist() == [NUM_STEPS] * 4


def alone(loss_N: np.ndarray) -> MemberRecord:
    """What the detector says of a curve by itself."""
    detector = SpikeDetector(1, CONFIG)
    for loss in loss_N:
        detector.update(loss)
    return detector.record()


def test_what_is_known_of_a_member_is_what_was_known_at_its_last_step() -> None:
    columns = {"loss": np.stack([CALM, LOST], axis=1)}
    monitor = RunMonitor(CONFIG, [False, False])
    update = monitor.update(columns, length_K=np.array([120, NUM_STEPS]))
    assert update.num_steps_K[0] == 120
    assert not update.has_ended_K[0], "its steps ended, and no verdict did"
    for k, curve in enumerate((CALM, LOST)):
        assert monitor.record(k) == alone(curve[: update.num_steps_K[k]])


def test_members_come_and_go_and_one_point_at_a_time_is_as_good_as_a_look() -> None:
    monitor = RunMonitor(CONFIG, [False, True])
    monitor.update({"loss": np.stack([CALM, LOST], axis=1)[:50]})
    monitor.arrange([None, 1], [False, False])
    monitor.update({"loss": np.stack([LOST[:200], LOST[50:250]], axis=1)})
    single = RunMonitor(CONFIG)
    ends = [single.update_single(step, {"loss": loss, "grad_norm": None}) for step, loss in enumerate(LOST[:200])]
    last = ends.index(True)
    assert single.record(0).lost_step == last
    assert monitor.record(0).lost_step == monitor.record(1).lost_step == last


# --- which trials are audited --------------------------------------------------------------------

IDS = [f"{i:016x}" for i in range(10_000)]


@given(st.text(max_size=20))
def test_nobody_is_audited_at_0_and_everybody_at_1(trial_id: str) -> None:
    assert not is_audited(trial_id, 0.0)
    assert is_audited(trial_id, 1.0)


@pytest.mark.parametrize("fraction", [0.01, 0.05, 0.5, 0.9])
def test_about_the_fraction_is_audited_and_always_the_same_trials(fraction: float) -> None:
    chosen = [trial_id for trial_id in IDS if is_audited(trial_id, fraction)]
    spread = (10_000 * fraction * (1 - fraction)) ** 0.5
    assert abs(len(chosen) - 10_000 * fraction) < 4 * spread
    assert chosen == [trial_id for trial_id in IDS if is_audited(trial_id, fraction)]


def test_who_is_audited_follows_from_the_id_alone_also_on_another_machine() -> None:
    # A change here would audit other trials of sweeps that are half done.
    assert [i for i in range(20) if is_audited(IDS[i], 0.25)] == [6, 13, 16, 17, 18, 19]


@given(st.text(max_size=20), st.floats(0, 1), st.floats(0, 1))
def test_a_larger_fraction_audits_the_same_trials_and_more(trial_id: str, one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert is_audited(trial_id, low) <= is_audited(trial_id, high)


def norms(num_points: int, changes: dict[int, float], seed: int = 0) -> np.ndarray:
    """Noisy gradient norms of level 1, which from each step of ``changes`` on is another."""
    level = np.ones(num_points)
    for step, value in changes.items():
        level[step:] = value
    return level * np.exp(0.1 * np.random.default_rng(seed).standard_normal(num_points))


def rises(norm_N: np.ndarray, step_N: np.ndarray | None = None, is_wanted: bool | None = None) -> tuple[int, ...]:
    found = NormRises(is_wanted=is_wanted)
    found.follow(norm_N[:, None], None if step_N is None else step_N[:, None], np.array([len(norm_N)]))
    return found.of(0)


def test_a_rise_by_half_is_noted_once_and_soon() -> None:
    (step,) = rises(norms(2000, {1000: 2.0}))
    assert 1000 < step <= 1020


def test_noise_a_single_tall_norm_and_a_small_rise_are_no_rise() -> None:
    norm_N = norms(2000, {1000: 1.3})
    norm_N[500] = 1e6
    assert rises(norm_N) == ()


def test_a_norm_that_came_down_can_rise_again() -> None:
    assert len(rises(norms(3000, {500: 3.0, 1500: 1.0, 2500: 3.0}))) == 2


def test_there_is_no_note_before_there_is_a_past() -> None:
    assert rises(norms(120, {60: 5.0})) == ()


def test_norms_that_are_missing_or_not_finite_are_no_rise() -> None:
    norm_N = norms(2000, {})
    norm_N[::7] = np.nan
    norm_N[3::50] = np.inf
    assert rises(norm_N) == ()
    assert rises(np.full(500, np.nan)) == ()


@pytest.mark.parametrize(("every", "has_note"), [(1, True), (10, True), (11, False)])
def test_notes_are_off_for_logs_with_more_than_ten_steps_a_point(every: int, has_note: bool) -> None:
    norm_N, step_N = norms(2000, {1000: 2.0}), every * np.arange(2000)
    assert bool(rises(norm_N, step_N)) == has_note
    assert rises(norm_N, step_N, is_wanted=True), "unless they are asked for"
    assert not rises(norm_N, step_N, is_wanted=False)


@given(st.integers(1, 5), st.lists(st.integers(1, 90), min_size=1, max_size=12), st.integers(0, 2**32 - 1))
def test_members_of_a_pack_have_the_notes_of_a_run_alone_however_their_points_arrive(
    num_members: int, blocks: list[int], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    norm_TK = np.exp(np.cumsum(0.3 * rng.standard_normal((sum(blocks), num_members)), axis=0))
    norm_TK[rng.random(norm_TK.shape) < 0.02] = np.inf
    length_K = rng.integers(1, sum(blocks) + 1, num_members)
    order = list(range(num_members))
    pack = NormRises(num_members)
    found: dict[int, tuple[int, ...]] = {}
    first = 0
    for size in blocks:
        there_K = np.minimum(length_K[order] - first, size)
        pack.follow(norm_TK[first : first + size, order], None, there_K)
        first += size
        found |= {member: pack.of(k) for k, member in enumerate(order)}
        state = json.loads(json.dumps(pack.state_dict()))  # a checkpoint between any two blocks
        pack = NormRises()
        pack.load_state_dict(state)
        kept = [k for k, member in enumerate(order) if length_K[member] > first]
        kept = [kept[k] for k in rng.permutation(len(kept))]
        pack.arrange(kept)
        order = [order[k] for k in kept]
        if not order:
            break
    for member in range(num_members):
        assert found[member] == rises(norm_TK[: length_K[member], member])

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.detection.run_monitor import NormRises


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

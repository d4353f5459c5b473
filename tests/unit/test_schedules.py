from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from objectives.schedules import schedule_factor

KINDS = ["constant", "linear", "cosine"]


@given(kind=st.sampled_from(KINDS), steps=st.integers(1, 500), data=st.data())
def test_the_factor_stays_within_zero_and_one(kind: str, steps: int, data) -> None:
    warmup = torch.tensor(data.draw(st.lists(st.integers(0, steps), min_size=1, max_size=4)))
    step, final = data.draw(st.integers(0, steps - 1)), data.draw(st.floats(0, 1))
    factor_K = schedule_factor(kind, step, warmup, steps, final)
    assert factor_K.shape == warmup.shape
    assert ((factor_K >= 0) & (factor_K <= 1 + 1e-12)).all()


@pytest.mark.parametrize("kind", KINDS)
def test_the_last_step_of_warmup_reaches_the_peak(kind: str) -> None:
    warmup = torch.tensor([1, 10, 40])
    for k, last in enumerate(warmup - 1):
        assert schedule_factor(kind, int(last), warmup, 100, 0.0)[k] == 1.0


@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_decay_ends_at_the_final_fraction(kind: str) -> None:
    end = schedule_factor(kind, 100, torch.tensor([0, 50]), 100, 0.25)
    torch.testing.assert_close(end, torch.full((2,), 0.25, dtype=torch.float64))


def test_members_have_their_own_warmup() -> None:
    factor_K = schedule_factor("constant", 4, torch.tensor([0, 5, 10]), 100, 0.0)
    assert factor_K.tolist() == [1.0, 1.0, 0.5]


def test_an_unknown_kind_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match="constant, linear or cosine"):
        schedule_factor("step", 0, torch.tensor([0]), 10, 0.0)

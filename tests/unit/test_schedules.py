from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from objectives.schedules import schedule_factor

KINDS = ["constant", "linear", "cosine"]


@given(kind=st.sampled_from(KINDS), steps=st.integers(1, 500), data=st.data())
def test_every_step_of_a_run_has_a_factor_above_zero_and_at_most_one(kind: str, steps: int, data) -> None:
    warmup = torch.tensor(data.draw(st.lists(st.integers(0, steps), min_size=1, max_size=4)))
    step, final = data.draw(st.integers(0, steps - 1)), data.draw(st.floats(0, 1))
    factor_K = schedule_factor(kind, torch.tensor(step), warmup, steps, final)
    assert factor_K.shape == warmup.shape
    assert factor_K.dtype == torch.float64
    assert ((factor_K > 0) & (factor_K <= 1)).all()


@given(
    kind=st.sampled_from(KINDS), warmup=st.lists(st.integers(0, 60), min_size=2, max_size=4), step=st.integers(0, 70)
)
def test_a_member_has_the_factor_that_it_would_have_alone(kind: str, warmup: list[int], step: int) -> None:
    together = schedule_factor(kind, torch.tensor(step), torch.tensor(warmup), 60, 0.1)
    alone = [schedule_factor(kind, torch.tensor(step), torch.tensor([w]), 60, 0.1) for w in warmup]
    assert torch.equal(together, torch.cat(alone))


@given(kind=st.sampled_from(KINDS), steps=st.integers(1, 60), final=st.floats(0, 1), data=st.data())
def test_the_factor_rises_to_the_peak_and_never_again(kind: str, steps: int, final: float, data) -> None:
    warmup = data.draw(st.integers(0, steps))
    # Beyond the end as well: there it stays where it is.
    curve = [
        schedule_factor(kind, torch.tensor(step), torch.tensor([warmup]), steps, final).item()
        for step in range(steps + 5)
    ]
    rising, falling = curve[:warmup], curve[max(warmup - 1, 0) :]
    assert rising == pytest.approx([(i + 1) / warmup for i in range(warmup)])
    assert falling[0] == 1
    assert falling == sorted(falling, reverse=True)
    assert min(curve[warmup:]) >= min(final, 1.0) - 1e-12


@pytest.mark.parametrize("kind", KINDS)
def test_the_last_step_of_warmup_reaches_the_peak(kind: str) -> None:
    warmup = torch.tensor([1, 10, 40])
    for k, last in enumerate(warmup - 1):
        assert schedule_factor(kind, torch.tensor(int(last)), warmup, 100, 0.0)[k] == 1.0


@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_decay_ends_at_the_final_fraction(kind: str) -> None:
    for step in (100, 150):  # where a run ends, and beyond
        end = schedule_factor(kind, torch.tensor(step), torch.tensor([0, 50]), 100, 0.25)
        torch.testing.assert_close(end, torch.full((2,), 0.25, dtype=torch.float64))


@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_half_of_the_fall_is_done_half_way_between_warmup_and_end(kind: str) -> None:
    for warmup, step in ((0, 50), (50, 75)):
        factor = schedule_factor(kind, torch.tensor(step), torch.tensor([warmup]), 100, 0.25)
        assert factor.item() == pytest.approx(0.625)


def test_members_have_their_own_warmup() -> None:
    factor_K = schedule_factor("constant", torch.tensor(4), torch.tensor([0, 5, 10]), 100, 0.0)
    assert factor_K.tolist() == [1.0, 1.0, 0.5]


def test_an_unknown_kind_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match="constant, linear or cosine"):
        schedule_factor("step", torch.tensor(0), torch.tensor([0]), 10, 0.0)

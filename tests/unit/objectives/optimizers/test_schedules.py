import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, LRScheduler, PolynomialLR

from objectives.base import TrainingConfig
from objectives.optimizers.schedules import schedule_factor

KINDS = ["constant", "linear", "cosine", "polynomial", "wsd"]
FALLING = [kind for kind in KINDS if kind != "constant"]
SHAPES = st.builds(
    TrainingConfig,
    steps=st.integers(1, 500),
    schedule=st.sampled_from(KINDS),
    warmup_shape=st.sampled_from(["linear", "cosine"]),
    final_lr_fraction=st.floats(0, 1),
    schedule_power=st.floats(0.1, 5),
    decay_share=st.floats(0, 1),
)


def factor(shape: TrainingConfig, step: int, *warmup: int) -> torch.Tensor:
    return schedule_factor(shape, torch.tensor(step), torch.tensor(warmup))


def shape(kind: str, steps: int = 100, final: float = 0.25, **fields) -> TrainingConfig:
    return TrainingConfig(steps=steps, schedule=kind, final_lr_fraction=final, **fields)


@given(shape=SHAPES, data=st.data())
def test_every_step_of_a_run_has_a_factor_above_zero_and_at_most_one(shape: TrainingConfig, data) -> None:
    warmup = data.draw(st.lists(st.integers(0, shape.steps), min_size=1, max_size=4))
    factor_K = factor(shape, data.draw(st.integers(0, shape.steps - 1)), *warmup)
    assert factor_K.shape == (len(warmup),)
    assert factor_K.dtype == torch.float64
    assert ((factor_K > 0) & (factor_K <= 1)).all()


@given(shape=SHAPES, data=st.data())
def test_a_member_has_the_factor_that_it_would_have_alone(shape: TrainingConfig, data) -> None:
    warmup = data.draw(st.lists(st.integers(0, shape.steps), min_size=2, max_size=4))
    step = data.draw(st.integers(0, shape.steps + 10))
    assert torch.equal(factor(shape, step, *warmup), torch.cat([factor(shape, step, w) for w in warmup]))


@given(shape=SHAPES, data=st.data())
def test_the_factor_rises_to_the_peak_and_never_again(shape: TrainingConfig, data) -> None:
    warmup = data.draw(st.integers(0, min(shape.steps, 60)))
    # Beyond the end as well: there it stays where it is.
    steps = torch.arange(shape.steps + 5)
    curve = schedule_factor(shape, steps, torch.full_like(steps, warmup)).tolist()
    rising, falling = curve[:warmup], curve[warmup:]
    assert rising == sorted(rising)
    assert curve[max(warmup - 1, 0)] == 1 or warmup == 0
    assert falling == sorted(falling, reverse=True)
    assert min(falling) >= min(shape.final_lr_fraction, 1.0) - 1e-12


def by_torch(scheduler: type[LRScheduler], num_steps: int, lr: float = 1.0, **options) -> list[float]:
    """Learning rates of a scheduler of torch, before its first step and after each."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)
    schedule = scheduler(optimizer, **options)
    found = []
    for _ in range(num_steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return found


@pytest.mark.parametrize(
    ("kind", "scheduler", "options", "fields"),
    [
        ("linear", LinearLR, {"start_factor": 1.0, "end_factor": 0.25, "total_iters": 80}, {}),
        ("cosine", CosineAnnealingLR, {"T_max": 80, "eta_min": 0.25}, {}),
        ("polynomial", PolynomialLR, {"total_iters": 80, "power": 2.0}, {"final": 0.0}),
        ("polynomial", PolynomialLR, {"total_iters": 80, "power": 0.5}, {"final": 0.0, "schedule_power": 0.5}),
        ("polynomial", LinearLR, {"start_factor": 1.0, "end_factor": 0.25, "total_iters": 80}, {"schedule_power": 1.0}),
    ],
)
def test_the_fall_after_the_warmup_is_that_of_torch(kind: str, scheduler, options, fields) -> None:
    found = [factor(shape(kind, **fields), step, 20).item() for step in range(20, 100)]
    assert found == pytest.approx(by_torch(scheduler, 80, **options), rel=1e-9)


@pytest.mark.parametrize(("warmup", "share", "length"), [(10, 0.2, 20), (90, 0.5, 10), (0, 1.0, 100)])
def test_wsd_is_constant_and_then_the_linear_decay_of_torch(warmup: int, share: float, length: int) -> None:
    """Of a share of all steps; where the warmup leaves fewer, of those."""
    found = [factor(shape("wsd", decay_share=share), step, warmup).item() for step in range(warmup, 100)]
    decay = by_torch(LinearLR, length, start_factor=1.0, end_factor=0.25, total_iters=length)
    assert found == pytest.approx([1.0] * (100 - warmup - length) + decay, rel=1e-9)


def test_wsd_without_a_decay_is_constant() -> None:
    assert [factor(shape("wsd", decay_share=0.0), step, 5).item() for step in range(5, 100)] == [1.0] * 95


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("warmup_shape", ["linear", "cosine"])
def test_the_warmup_is_that_of_torch_and_its_last_step_reaches_the_peak(kind: str, warmup_shape: str) -> None:
    found = [factor(shape(kind, warmup_shape=warmup_shape), step, 40).item() for step in range(40)]
    if warmup_shape == "linear":
        expected = by_torch(LinearLR, 40, start_factor=1 / 40, total_iters=39)
    else:
        # Torch's half cosine rises where its end is above its start; its step 0 comes before our first.
        expected = by_torch(CosineAnnealingLR, 41, lr=0.0, T_max=40, eta_min=1.0)[1:]
    assert found == pytest.approx(expected, rel=1e-9)
    assert found[-1] == 1.0


def test_a_cosine_warmup_is_half_way_up_in_the_middle() -> None:
    assert factor(shape("constant", warmup_shape="cosine"), 19, 40).item() == pytest.approx(0.5)
    quarter = (1 - math.cos(math.pi / 4)) / 2
    assert factor(shape("constant", warmup_shape="cosine"), 9, 40).item() == pytest.approx(quarter)


@pytest.mark.parametrize("kind", FALLING)
def test_decay_ends_at_the_final_fraction(kind: str) -> None:
    for step in (100, 150):  # where a run ends, and beyond
        end = factor(shape(kind), step, 0, 50)
        torch.testing.assert_close(end, torch.full((2,), 0.25, dtype=torch.float64))


@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_half_of_the_fall_is_done_half_way_between_warmup_and_end(kind: str) -> None:
    for warmup, step in ((0, 50), (50, 75)):
        assert factor(shape(kind), step, warmup).item() == pytest.approx(0.625)


def test_members_have_their_own_warmup() -> None:
    assert factor(shape("constant"), 4, 0, 5, 10).tolist() == [1.0, 1.0, 0.5]

"""An optimizer of torch follows an action, whatever sets its rate."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from objectives.action import Action
from objectives.optimizers.steered import SteeredOptimizer, inner

SCHEDULES: dict[str, Callable[[Any], Any] | None] = {
    "none": None,
    "by the step": lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
    "by the last rate": lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9),
    "cosine": lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20),
}


def two_groups(**options: Any) -> torch.optim.Optimizer:
    weights = [torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(2))]
    groups = [{"params": weights[:1], "lr": 0.1}, {"params": weights[1:], "lr": 0.01}]
    return torch.optim.SGD(groups, **options)


def weights_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def update(optimizer: torch.optim.Optimizer, gradient: float = 1.0) -> list[float]:
    """Take a step on the same gradient everywhere; what it changed in each group."""
    before = [weight.detach().clone() for weight in weights_of(optimizer)]
    for weight in weights_of(optimizer):
        weight.grad = torch.full_like(weight, gradient)
    optimizer.step()
    pairs = zip(before, weights_of(optimizer), strict=True)
    return [round(float((old - new.detach())[0]), 6) for old, new in pairs]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_factor_is_on_whatever_rate_the_scheduler_sets(schedule: str) -> None:
    make, changes, rates = SCHEDULES[schedule], [], []
    for factor in (1.0, 0.25):
        optimizer = two_groups()
        scheduler = None if make is None else make(optimizer)
        steered = SteeredOptimizer(optimizer)
        steered.action = Action(0, factor=factor)
        changes.append([])
        for _ in range(8):
            changes[-1].append(update(optimizer))
            if scheduler is not None:
                scheduler.step()
        rates.append([group["lr"] for group in optimizer.param_groups])
    assert rates[0] == rates[1]
    for plain, slowed in zip(*changes, strict=True):
        assert slowed == pytest.approx([0.25 * change for change in plain], abs=2e-6)


def test_a_loop_that_writes_the_rate_before_each_update_is_slowed_too() -> None:
    optimizer = two_groups()
    steered = SteeredOptimizer(optimizer)
    steered.action = Action(0, factor=0.5)
    for rate in (0.2, 0.1, 0.1):
        for group in optimizer.param_groups:
            group["lr"] = rate
        assert update(optimizer) == pytest.approx([rate / 2] * 2)


def test_a_rate_that_is_a_tensor_is_scaled_and_set_back() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    rate = torch.tensor(0.5)
    optimizer = torch.optim.SGD([weight], lr=rate)
    steered = SteeredOptimizer(optimizer)
    steered.action = Action(0, factor=0.5)
    assert update(optimizer) == [0.25]
    assert optimizer.param_groups[0]["lr"] is rate


def test_gradients_are_clipped_over_all_groups_together() -> None:
    optimizer = two_groups()
    steered = SteeredOptimizer(optimizer)
    steered.action = Action(0, clip=5**0.5 / 2)
    assert update(optimizer) == pytest.approx([0.05, 0.005], abs=1e-6)


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "NAdam"])
@pytest.mark.parametrize("foreach", [False, True])
def test_a_skipped_update_changes_neither_weights_nor_moments(name: str, foreach: bool) -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    options = {"momentum": 0.9} if name == "SGD" else {}
    optimizer = getattr(torch.optim, name)([weight], lr=0.1, weight_decay=0.1, foreach=foreach, **options)
    steered = SteeredOptimizer(optimizer)
    update(optimizer)
    before = [value.clone() for value in optimizer.state[weight].values() if value is not None]
    steered.action = Action(1, "skip", skip=True)
    assert update(optimizer, float("nan")) == [0.0]
    after = [value for value in optimizer.state[weight].values() if value is not None]
    assert all(map(torch.equal, before, after))
    steered.action = None
    assert update(optimizer)[0] > 0


@pytest.mark.parametrize("by_name", [False, True])
def test_an_action_that_is_set_within_a_closure_counts(by_name: bool) -> None:
    optimizer = two_groups()
    steered = SteeredOptimizer(optimizer)
    for action, wanted in ((Action(0, factor=0.5), [0.05, 0.005]), (Action(1, "skip", skip=True), [0.0, 0.0])):

        def closure(action: Action = action) -> float:
            for weight in weights_of(optimizer):
                weight.grad = torch.ones_like(weight)
            steered.action = action
            return 3.0

        before = [weight.detach().clone() for weight in weights_of(optimizer)]
        assert (optimizer.step(closure=closure) if by_name else optimizer.step(closure)) == 3.0
        moved = [float((old - new.detach())[0]) for old, new in zip(before, weights_of(optimizer), strict=True)]
        assert moved == pytest.approx(wanted, abs=1e-6)


def test_under_a_loss_scaler_it_sees_unscaled_gradients() -> None:
    optimizer = two_groups()
    steered = SteeredOptimizer(optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for action, wanted in ((Action(0, clip=5**0.5 / 2), 0.05), (Action(1, "skip", skip=True), 0.0)):
        optimizer.zero_grad()
        first = weights_of(optimizer)[0].detach().clone()
        scaler.scale(sum(weight.sum() for weight in weights_of(optimizer))).backward()
        steered.action = action
        scaler.step(optimizer)
        scaler.update()
        assert float((first - weights_of(optimizer)[0].detach())[0]) == pytest.approx(wanted, abs=1e-6)


def test_a_closed_one_leaves_the_optimizer_alone() -> None:
    optimizer = two_groups()
    steered = SteeredOptimizer(optimizer)
    steered.action = Action(0, factor=0.5)
    steered.close()
    assert update(optimizer) == pytest.approx([0.1, 0.01])


def test_what_is_no_optimizer_of_torch_is_refused() -> None:
    with pytest.raises(TypeError, match="list is not an optimizer of torch"):
        inner([])

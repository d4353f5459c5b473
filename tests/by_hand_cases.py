"""A run with an optimizer of torch that is changed by hand, and a packed one with interventions."""

from collections.abc import Callable

import torch

from objectives.base import TrainingConfig
from objectives.optimizers.packed_optimizer import PackedOptimizer
from objectives.stacking import Layout
from objectives.training.members import Changes

SIZE = 32
LAYOUT = Layout({"x": (SIZE,)})
Hand = Callable[[int, torch.optim.Optimizer, torch.Tensor], None]


def by_hand(own: TrainingConfig, grads: torch.Tensor, change: Hand) -> torch.Tensor:
    """Parameters after each step of torch.optim.AdamW, where ``change`` is called before each step, (T, n)."""
    weight = torch.nn.Parameter(torch.linspace(-1, 1, SIZE, dtype=torch.float64))
    optimizer = torch.optim.AdamW(
        [weight], lr=own.lr, betas=(own.beta1, own.beta2), eps=own.eps, weight_decay=own.weight_decay
    )
    history = []
    for step, grad in enumerate(grads):
        weight.grad = grad.clone()
        change(step, optimizer, weight)
        optimizer.step()
        history.append(weight.detach().clone())
    return torch.stack(history)


def with_interventions(own: TrainingConfig, grads: torch.Tensor) -> torch.Tensor:
    """Parameters after each step of a pack of two, of which one has the interventions, (T, n)."""
    start = torch.linspace(-1, 1, SIZE, dtype=torch.float64).repeat(2, 1)
    members = [own.model_copy(update={"interventions": ()}), own]
    packed = PackedOptimizer(start, members, LAYOUT, compiled=False, seeds=[0, 0])
    changes, history = Changes(members, [0, 0]), []
    for step, grad in enumerate(grads):
        changes.before_step(step, packed, [0, 0])
        packed.step(torch.ones(2, dtype=torch.float64), grad.repeat(2, 1))
        history.append(packed.params_Kn[1].clone())
    return torch.stack(history)

from __future__ import annotations

import pytest
import torch

from objectives.base import TrainingConfig
from objectives.optim import PackedOptimizer

STEPS, SIZE = 25, 7
MEMBERS = [
    {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8},
    {"lr": 1e-1, "beta1": 0.0, "beta2": 0.5, "eps": 1e-12, "clip": 0.5},
    {"lr": 3e-2, "beta1": 0.95, "beta2": 0.9999, "eps": 1e-2, "weight_decay": 0.3},
    {"lr": 1e-2, "beta1": 0.5, "beta2": 0.95, "eps": 1e-6, "clip": 1e-3, "weight_decay": 0.01},
    {"lr": 1e-2, "beta1": 0.3, "beta2": 0.0, "warmup": 10, "clip": 100.0},
]


def gradients(dtype: torch.dtype) -> torch.Tensor:
    """Gradients of every step and member, of very different sizes, (T, K, n)."""
    generator = torch.Generator().manual_seed(0)
    sizes = 10.0 ** torch.randint(-3, 3, (STEPS, len(MEMBERS), 1), generator=generator)
    return (torch.randn(STEPS, len(MEMBERS), SIZE, generator=generator) * sizes).to(dtype)


def configs(**common) -> list[TrainingConfig]:
    return [TrainingConfig(**{"steps": STEPS, **common, **member}) for member in MEMBERS]


def torch_factor(schedule: str, step: int, config: TrainingConfig) -> float:
    """The schedule, written with torch's own schedulers."""
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    if step < config.warmup:
        return (step + 1) / config.warmup
    length = max(config.steps - config.warmup, 1)
    if schedule == "linear":
        decay = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, config.final_lr_fraction, length)
    elif schedule == "cosine":
        decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, length, config.final_lr_fraction)
    else:
        return 1.0
    for _ in range(step - config.warmup):
        optimizer.step()
        decay.step()
    return optimizer.param_groups[0]["lr"]


def reference(config: TrainingConfig, start: torch.Tensor, grads: torch.Tensor) -> list[torch.Tensor]:
    """The same member through torch's own optimizer and clipping: parameters after each step."""
    parameter = torch.nn.Parameter(start.clone())
    if config.optimizer == "adamw":
        optimizer: torch.optim.Optimizer = torch.optim.AdamW(
            [parameter], config.lr, (config.beta1, config.beta2), config.eps, config.weight_decay
        )
    else:
        optimizer = torch.optim.SGD([parameter], config.lr, momentum=config.beta1, dampening=config.beta1)
    history = []
    for step, grad in enumerate(grads):
        parameter.grad = grad.clone()
        if config.clip is not None:
            torch.nn.utils.clip_grad_norm_([parameter], config.clip)
        optimizer.param_groups[0]["lr"] = config.lr * torch_factor(config.schedule, step, config)
        optimizer.step()
        history.append(parameter.detach().clone())
    return history


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-5)])
def test_packed_adamw_is_that_of_torch_for_every_member(schedule, dtype, tolerance) -> None:
    check_against_torch(configs(schedule=schedule, final_lr_fraction=0.1), dtype, tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-5)])
def test_packed_sgd_is_that_of_torch_with_averaged_momentum(dtype, tolerance) -> None:
    members = [config.model_copy(update={"weight_decay": 0.0}) for config in configs(optimizer="sgd")]
    check_against_torch(members, dtype, tolerance)


def check_against_torch(members: list[TrainingConfig], dtype: torch.dtype, tolerance: float) -> None:
    start = torch.randn(len(members), SIZE, generator=torch.Generator().manual_seed(1)).to(dtype)
    grads = gradients(dtype)
    expected = [reference(config, start[k], grads[:, k]) for k, config in enumerate(members)]
    packed = PackedOptimizer(start.clone(), members)
    for step in range(STEPS):
        before = packed.params_Kn.clone()
        metrics = packed.step(torch.ones(len(members), dtype=dtype), grads[step])
        found, wanted = packed.params_Kn, torch.stack([history[step] for history in expected])
        torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(metrics["grad_norm"], grads[step].norm(dim=1))
        if all(config.weight_decay == 0 for config in members):
            moved = (packed.params_Kn - before).norm(dim=1)
            torch.testing.assert_close(metrics["update_norm"], moved, rtol=1e-2, atol=1e-6)


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("where", ["loss", "gradient"])
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_what_is_not_finite_is_masked_at_that_step_and_touches_nobody(poison, where, optimizer) -> None:
    grads, start = gradients(torch.float32), torch.ones(len(MEMBERS), SIZE)
    clean, poisoned = (PackedOptimizer(start.clone(), configs(optimizer=optimizer)) for _ in range(2))
    loss = torch.ones(len(MEMBERS))
    others = [k for k in range(len(MEMBERS)) if k != 2]
    for step in range(10):
        grad, bad_loss = grads[step].clone(), loss.clone()
        if step == 4:
            kept = poisoned.params_Kn[2].clone()
            (bad_loss if where == "loss" else grad[:, 3])[2] = poison
        clean.step(loss, grads[step])
        metrics = poisoned.step(bad_loss, grad)
        assert torch.equal(poisoned.params_Kn[others], clean.params_Kn[others])
        if step == 4:
            assert not (torch.isfinite(metrics["loss"][2]) and torch.isfinite(metrics["grad_norm"][2]))
        if step >= 4:
            assert torch.equal(poisoned.params_Kn[2], kept)
        if step > 4:
            assert all(torch.isnan(value[2]) for value in metrics.values())


def test_members_that_are_kept_go_on_as_before() -> None:
    grads, start = gradients(torch.float64), torch.ones(len(MEMBERS), SIZE, dtype=torch.float64)
    loss = torch.ones(len(MEMBERS))
    whole, shrunk = (PackedOptimizer(start.clone(), configs()) for _ in range(2))
    index = torch.tensor([0, 3])
    for step in range(12):
        whole.step(loss, grads[step])
        if step == 6:
            shrunk.keep(index, shrunk.params_Kn[index].clone())
        kept = torch.arange(len(MEMBERS)) if step < 6 else index
        shrunk.step(loss[kept], grads[step][kept])
    assert torch.equal(shrunk.params_Kn, whole.params_Kn[index])

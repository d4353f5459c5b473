from __future__ import annotations

import pytest
import torch

from objectives.base import TrainingConfig
from objectives.layout import Layout
from objectives.optim import PackedOptimizer

STEPS, SIZE = 25, 32
LAYOUT = Layout({"x": (SIZE,)})
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
        lr = optimizer.param_groups[0]["lr"] = config.lr * torch_factor(config.schedule, step, config)
        if config.optimizer == "sgd":
            # torch's own weight decay for SGD joins the gradient; ours is decoupled, as in AdamW.
            with torch.no_grad():
                parameter.mul_(1 - lr * config.weight_decay)
        optimizer.step()
        history.append(parameter.detach().clone())
    return history


# AdamW is torch.optim.AdamW; SGD is torch.optim.SGD with momentum = dampening = beta1.
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-5)], ids=["f64", "f32"])
def test_every_member_is_trained_as_by_the_optimizer_of_torch(optimizer, schedule, dtype, tolerance) -> None:
    members = configs(optimizer=optimizer, schedule=schedule, final_lr_fraction=0.1)
    start = torch.randn(len(members), SIZE, generator=torch.Generator().manual_seed(1)).to(dtype)
    grads = gradients(dtype)
    expected = [reference(config, start[k], grads[:, k]) for k, config in enumerate(members)]
    packed = PackedOptimizer(start.clone(), members, LAYOUT, compiled=False)
    for step in range(STEPS):
        before = packed.params_Kn.clone()
        metrics = packed.step(torch.ones(len(members), dtype=dtype), grads[step].clone())
        found, wanted = packed.params_Kn, torch.stack([history[step] for history in expected])
        torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(metrics["grad_norm"], grads[step].norm(dim=1))
        lrs = [config.lr * torch_factor(schedule, step, config) for config in members]
        torch.testing.assert_close(metrics["lr"], torch.tensor(lrs, dtype=dtype))
        # The update is what the gradient moved, without the weight decay. In single precision the
        # difference of two numbers near 1 leaves few digits of it.
        decay = torch.tensor([lr * config.weight_decay for lr, config in zip(lrs, members, strict=True)], dtype=dtype)
        moved = (before * (1 - decay[:, None]) - found).norm(dim=1)
        few, many = {"rtol": 1e-2, "atol": 1e-6}, {"rtol": 1e-7, "atol": 1e-12}
        torch.testing.assert_close(metrics["update_norm"], moved, **(many if dtype == torch.float64 else few))


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("where", ["loss", "gradient"])
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("victim", [0, 2, 3])  # plain, with weight decay, with clipping as well
@pytest.mark.parametrize("when", [0, 4])
def test_what_is_not_finite_is_masked_at_that_step_and_touches_nobody(poison, where, optimizer, victim, when) -> None:
    grads, start = gradients(torch.float32), torch.ones(len(MEMBERS), SIZE)
    clean, poisoned = (PackedOptimizer(start.clone(), configs(optimizer=optimizer), LAYOUT, compiled=False) for _ in range(2))
    loss = torch.ones(len(MEMBERS))
    others = [k for k in range(len(MEMBERS)) if k != victim]
    for step in range(8):
        grad, bad_loss = grads[step].clone(), loss.clone()
        if step == when:
            kept = poisoned.params_Kn[victim].clone()
            (bad_loss if where == "loss" else grad[:, 3])[victim] = poison
        expected = clean.step(loss, grads[step].clone())
        metrics = poisoned.step(bad_loss, grad.clone())
        assert torch.equal(poisoned.params_Kn[others], clean.params_Kn[others])
        assert all(torch.equal(metrics[name][others], expected[name][others]) for name in metrics)
        if step == when:
            # Reported this once, so that whoever reads it sees what happened.
            bad = metrics["loss" if where == "loss" else "grad_norm"][victim]
            assert not torch.isfinite(bad)
            assert metrics["update_norm"][victim] == 0
        if step >= when:
            assert torch.equal(poisoned.params_Kn[victim], kept)
        if step > when:
            assert all(torch.isnan(value[victim]) for value in metrics.values())


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_members_that_are_kept_go_on_as_before(optimizer) -> None:
    grads, start = gradients(torch.float64), torch.ones(len(MEMBERS), SIZE, dtype=torch.float64)
    loss = torch.ones(len(MEMBERS))
    loss[3] = torch.nan
    whole, shrunk = (PackedOptimizer(start.clone(), configs(optimizer=optimizer), LAYOUT, compiled=False) for _ in range(2))
    index = torch.tensor([1, 3, 4])
    for step in range(12):
        # Member 3 is lost at once. That its loss is finite afterwards does not bring it back.
        loss = torch.ones(len(MEMBERS)) if step else loss
        expected = whole.step(loss, grads[step].clone())
        if step == 6:
            shrunk.arrange(index, shrunk.params_Kn[index], [configs(optimizer=optimizer)[k] for k in index])
        kept = torch.arange(len(MEMBERS)) if step < 6 else index
        metrics = shrunk.step(loss[kept], grads[step][kept].clone())
    assert torch.equal(shrunk.params_Kn, whole.params_Kn[index])
    for name, value in metrics.items():
        torch.testing.assert_close(value, expected[name][index], rtol=0, atol=0, equal_nan=True)
    assert torch.equal(shrunk.params_Kn[1], start[3])


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_members_of_different_ages_are_each_at_their_own_step(optimizer, schedule) -> None:
    """One goes on, one forks, one is lost and gives its place to a fresh one; all by the optimizer of torch."""
    common = {"optimizer": optimizer, "schedule": schedule, "final_lr_fraction": 0.1}
    members, grads = configs(**common), gradients(torch.float64)
    start = torch.randn(len(members), SIZE, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    packed = PackedOptimizer(start[:3].clone(), members[:3], LAYOUT, compiled=False)
    for step in range(6):
        loss = torch.tensor([float("nan") if step == 2 else 1.0, 1.0, 1.0])
        packed.step(loss, grads[step, :3].clone())
    # The fresh one starts in the place of the lost; 1 and 2 go on, 2 also with the numbers of 4.
    rows, numbers = torch.tensor([-1, 2, 1, 2]), [members[3], members[2], members[1], members[4]]
    params = packed.params_Kn[rows.clamp(min=0)]
    params[0] = start[3]
    packed.arrange(rows, params, numbers)
    own = [3, 2, 1, 2]  # whose gradients each one sees
    for step in range(10):
        age = [step, 6 + step, 6 + step, 6 + step]
        grad = torch.stack([grads[a, k] for a, k in zip(age, own, strict=True)])
        metrics = packed.step(torch.ones(4), grad)
        lrs = [c.lr * torch_factor(schedule, a, c) for c, a in zip(numbers, age, strict=True)]
        torch.testing.assert_close(metrics["lr"], torch.tensor(lrs, dtype=torch.float64))
    assert packed.alive_K.all()
    assert packed.age_K.tolist() == [10, 16, 16, 16]
    for row, k, num_steps in ((0, 3, 10), (1, 2, 16), (2, 1, 16)):
        expected = reference(members[k], start[k], grads[:num_steps, k])[-1]
        torch.testing.assert_close(packed.params_Kn[row], expected, rtol=1e-12, atol=1e-12)
    assert not torch.allclose(packed.params_Kn[1], packed.params_Kn[3]), "the fork has numbers of its own"


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_a_threshold_that_is_not_reached_changes_not_a_bit(optimizer) -> None:
    # What sharing a row between members that differ in clip rests on.
    grads, start = gradients(torch.float32)[:, 0], torch.ones(4, SIZE)
    highest = float(grads.norm(dim=1).max())
    clips = (None, 1e30, highest * (1 + 1e-5) + 1e-5, highest * (1 - 1e-5))
    members = [TrainingConfig(steps=STEPS, lr=1e-2, optimizer=optimizer, clip=clip) for clip in clips]
    packed = PackedOptimizer(start.clone(), members, LAYOUT, compiled=False)
    for grad in grads:
        packed.step(torch.ones(4), grad.expand(4, -1).clone())
    assert torch.equal(packed.params_Kn[1], packed.params_Kn[0])
    assert torch.equal(packed.params_Kn[2], packed.params_Kn[0])
    assert not torch.equal(packed.params_Kn[3], packed.params_Kn[0])

import functools
from collections.abc import Sequence

import pytest
import torch
from tiers import one_of
from torch.optim.lr_scheduler import ConstantLR, CosineAnnealingLR, LinearLR, PolynomialLR, SequentialLR

from objectives.base import TrainingConfig
from objectives.fields import per_member
from objectives.optimizers.facts import OPTIMIZERS
from objectives.optimizers.packed_optimizer import PackedOptimizer
from objectives.stacking import Layout

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


def packed_of(members: Sequence[TrainingConfig], start: torch.Tensor, layout: Layout = LAYOUT) -> PackedOptimizer:
    return PackedOptimizer(start.clone(), members, layout, compiled=False, seeds=list(range(len(members))))


@functools.cache
def torch_factors(config: TrainingConfig) -> list[float]:
    """The schedule of a whole run, written with torch's own schedulers."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    length, final = max(config.steps - config.warmup, 1), config.final_lr_fraction
    if config.schedule == "linear":
        decay = LinearLR(optimizer, 1.0, final, length)
    elif config.schedule == "cosine":
        decay = CosineAnnealingLR(optimizer, length, final)
    elif config.schedule == "polynomial":
        assert final == 0.0
        decay = PolynomialLR(optimizer, length, config.schedule_power)
    elif config.schedule == "wsd":
        num_decaying = round(config.decay_share * config.steps)
        stages = [ConstantLR(optimizer, 1.0), LinearLR(optimizer, 1.0, final, num_decaying)]
        decay = SequentialLR(optimizer, stages, [length - num_decaying])
    else:
        decay = ConstantLR(optimizer, 1.0)
    factors = [(step + 1) / config.warmup for step in range(config.warmup)]
    for _ in range(config.warmup, config.steps):
        factors.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        decay.step()
    return factors


def torch_factor(step: int, config: TrainingConfig) -> float:
    return torch_factors(config)[step]


def reference(
    config: TrainingConfig, start: torch.Tensor, grads: torch.Tensor, layout: Layout = LAYOUT
) -> list[torch.Tensor]:
    """The same member through torch's own optimizer, parameter groups and clipping: parameters after each step."""
    weights = [torch.nn.Parameter(start[piece.start : piece.end].clone()) for piece in layout.pieces]
    factors = [getattr(config, f"{piece.group}_lr", 1.0) for piece in layout.pieces]
    shrunk = [getattr(config, f"{piece.group}_grad", 1.0) for piece in layout.pieces]
    groups = [{"params": [weight]} for weight in weights]
    adam = {"lr": config.lr, "betas": (config.beta1, config.beta2), "eps": config.eps}
    decay = config.weight_decay if config.weight_decay_kind == "coupled" else 0.0
    if config.optimizer == "sgd":
        optimizer: torch.optim.Optimizer = torch.optim.SGD(
            groups, config.lr, momentum=config.beta1, dampening=config.beta1, weight_decay=decay
        )
    elif config.weight_decay_kind == "decoupled":
        optimizer = torch.optim.AdamW(groups, **adam, weight_decay=config.weight_decay)
    else:
        optimizer = torch.optim.Adam(groups, **adam, weight_decay=decay)
    history = []
    for step, grad in enumerate(grads):
        factor = torch_factor(step, config)
        for piece, weight, shrink in zip(layout.pieces, weights, shrunk, strict=True):
            weight.grad = grad[piece.start : piece.end].clone() * shrink
        if config.clip is not None:
            torch.nn.utils.clip_grad_norm_(weights, config.clip)
        for group, own in zip(optimizer.param_groups, factors, strict=True):
            group["lr"] = config.lr * factor * own
            # What torch has none of: decoupled decay for SGD, and a decay that is independent of the peak.
            share = factor if config.weight_decay_kind == "independent" else group["lr"]
            if config.weight_decay_kind == "independent" or (config.optimizer == "sgd" and decay == 0):
                with torch.no_grad():
                    group["params"][0].mul_(1 - share * config.weight_decay)
        optimizer.step()
        joined = torch.cat([weight.detach() for weight in weights])
        history.append(torch.nn.functional.pad(joined, (0, layout.size - len(joined))))
    return history


# AdamW is torch.optim.AdamW; SGD is torch.optim.SGD with momentum = dampening = beta1.
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine", "polynomial", "wsd"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-5)], ids=["f64", "f32"])
def test_every_member_is_trained_as_by_the_optimizer_of_torch(optimizer, schedule, dtype, tolerance) -> None:
    members = configs(
        optimizer=optimizer, schedule=schedule, final_lr_fraction=0.0 if schedule == "polynomial" else 0.1
    )
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
        lrs = [config.lr * torch_factor(step, config) for config in members]
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
    clean, poisoned = (packed_of(configs(optimizer=optimizer), start) for _ in range(2))
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
    whole, shrunk = (packed_of(configs(optimizer=optimizer), start) for _ in range(2))
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


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_a_threshold_that_is_not_reached_changes_not_a_bit(optimizer) -> None:
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


# Weight decay of other kinds, and layer groups.


class GroupedConfig(TrainingConfig):
    """With the fields that act on layer groups of these names."""

    embedding_lr: float = per_member(1.0, "of lr", "learning rate of the embeddings", ge=0)
    norm_lr: float = per_member(1.0, "of lr", "learning rate of the norms", ge=0)
    embedding_grad: float = per_member(1.0, "1", "factor on the embeddings' gradient", ge=0)


GROUPED_LAYOUT = Layout(
    {"embedding": (9,), "gain": (3,), "matrix": (2, 5), "other gain": (4,), "rest": (6,)},
    {"embedding": "embedding", "gain": "norm", "matrix": "mlp", "other gain": "norm", "rest": "mlp"},
)
GROUPED = [
    {"embedding_lr": 0.1, "norm_lr": 2.0},
    {"embedding_grad": 0.1, "embedding_lr": 3.0},
    {},
    {"norm_lr": 0.0},
    {"embedding_grad": 0.0, "norm_lr": 0.5},
]


def grouped(dtype: torch.dtype = torch.float64, **common) -> tuple[list[TrainingConfig], torch.Tensor, torch.Tensor]:
    """Members, their start and their gradients."""
    members = [
        GroupedConfig(**{"steps": STEPS, **common, **member, **group})
        for member, group in zip(MEMBERS, GROUPED, strict=True)
    ]
    start, grads = torch.randn(5, SIZE, generator=torch.Generator().manual_seed(1)), gradients(dtype)
    filling = slice(GROUPED_LAYOUT.pieces[-1].end, None)
    start[:, filling], grads[..., filling] = 0.0, 0.0
    return members, start.to(dtype), grads


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("kind", ["decoupled", "coupled", "independent"])
def test_every_kind_of_weight_decay_is_that_of_torch(optimizer: str, kind: str) -> None:
    members = configs(optimizer=optimizer, weight_decay_kind=kind, schedule="cosine", final_lr_fraction=0.1)
    start = torch.randn(len(members), SIZE, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    grads, packed = gradients(torch.float64), packed_of(members, start)
    expected = [reference(config, start[k], grads[:, k]) for k, config in enumerate(members)]
    for step in range(STEPS):
        packed.step(torch.ones(len(members)), grads[step].clone())
        wanted = torch.stack([history[step] for history in expected])
        torch.testing.assert_close(packed.params_Kn, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("kind", ["decoupled", "coupled", "independent"])
def test_layer_groups_with_factors_are_parameter_groups_of_torch(optimizer: str, kind: str) -> None:
    members, start, grads = grouped(optimizer=optimizer, weight_decay_kind=kind)
    expected = [reference(config, start[k], grads[:, k], GROUPED_LAYOUT) for k, config in enumerate(members)]
    packed = packed_of(members, start, GROUPED_LAYOUT)
    for step in range(STEPS):
        before = packed.params_Kn.clone()
        metrics = packed.step(torch.ones(len(members)), grads[step].clone())
        wanted = torch.stack([history[step] for history in expected])
        torch.testing.assert_close(packed.params_Kn, wanted, rtol=1e-12, atol=1e-12)
        shrunk = grads[step].clone()
        shrunk[:, :9] *= torch.tensor([[config.embedding_grad] for config in members], dtype=torch.float64)
        torch.testing.assert_close(metrics["grad_norm"], shrunk.norm(dim=1), msg="the norm that clipping sees")
        if kind == "coupled":
            moved = (before - packed.params_Kn).norm(dim=1)
            torch.testing.assert_close(metrics["update_norm"], moved, rtol=1e-7, atol=1e-12)
        torch.testing.assert_close(
            metrics["lr"], torch.tensor([c.lr * torch_factor(step, c) for c in members]).double()
        )
    assert (packed.params_Kn[3, 9:12] == start[3, 9:12]).all() == (kind != "independent"), "a learning rate of zero"


@pytest.mark.parametrize("kind", ["decoupled", "coupled", "independent"])
def test_factors_and_decay_that_are_off_for_a_member_change_not_a_bit_of_it(kind: str) -> None:
    members, start, grads = grouped(torch.float32, weight_decay_kind=kind)
    members[0] = members[0].model_copy(update={"weight_decay": 0.5})
    off = [
        GroupedConfig(steps=STEPS, lr=1e-2, weight_decay_kind=kind, weight_decay=decay, clip=1.0)
        for decay in (0.0, 0.1)
    ]
    together = packed_of([*off, *members[:3]], start, GROUPED_LAYOUT)
    apart = [packed_of([config], start[[k]], GROUPED_LAYOUT) for k, config in enumerate(off)]
    for grad in grads:
        together.step(torch.ones(5), grad.clone())
        for k, alone in enumerate(apart):
            alone.step(torch.ones(1), grad[[k]].clone())
    assert torch.equal(together.params_Kn[:2], torch.cat([alone.params_Kn for alone in apart]))


def test_the_divisor_of_a_layer_group_has_its_learning_rate() -> None:
    """So that lr * first moment / divisor is the update, as the measured curvature needs it."""
    members, start, grads = grouped()
    packed, everyone = packed_of(members, start, GROUPED_LAYOUT), torch.arange(5)
    for grad in grads[:6]:
        _, observed = packed.observed_step(torch.ones(5), grad.clone(), everyone)
    states, numbers, age_K = packed.of_rows(everyone)
    expected = packed.lr_K[:, None] * packed.rule.first_moment(states, numbers, age_K) / packed.divisor(everyone)
    torch.testing.assert_close(observed.update_Rn, expected, rtol=1e-9, atol=1e-15)
    assert (packed.divisor(everyone)[3, 9:12] == float("inf")).all(), "nothing moves"


def test_what_is_observed_of_a_gradient_is_what_clipping_is_given() -> None:
    members, start, grads = grouped()
    packed = packed_of(members, start, GROUPED_LAYOUT)
    _, observed = packed.observed_step(torch.ones(5), grads[0].clone(), torch.tensor([1, 3]))
    expected = grads[0, [1, 3]].clone()
    expected[0, :9] *= 0.1
    torch.testing.assert_close(observed.grad_Rn, expected, rtol=1e-15, atol=0)
    clips = torch.tensor([members[1].clip, members[3].clip], dtype=torch.float64)
    left = (clips / (expected.norm(dim=1) + 1e-6)).clamp(max=1.0)
    torch.testing.assert_close(observed.clip_factor_R, left, rtol=1e-12, atol=0)


# Members that are held at a step.


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_the_schedule_of_a_member_that_is_held_goes_on(optimizer: str) -> None:
    members = configs(optimizer=optimizer, schedule="cosine")
    free, held = (packed_of(members, torch.ones(len(members), SIZE)) for _ in range(2))
    is_held_K = torch.tensor([True, False, True, False, False])
    for step, grad in enumerate(gradients(torch.float32)):
        expected = free.step(torch.ones(len(members)), grad.clone())
        found = held.step(torch.ones(len(members)), grad.clone(), held_K=is_held_K if step % 2 else None)
        assert torch.equal(found["lr"], expected["lr"])
    assert torch.equal(held.params_Kn[~is_held_K], free.params_Kn[~is_held_K])
    # And it is where it was for those who go on in another pack.
    resumed = packed_of(members, held.params_Kn)
    resumed.load_state_dict(held.state_dict())
    kept = torch.tensor([2, 0, -1])
    resumed.arrange(kept, resumed.params_Kn[kept.clamp(min=0)], [members[2], members[0], members[4]])
    assert resumed.step_K.tolist() == [STEPS, STEPS, 0]
    assert resumed.age_K.tolist() == [(STEPS + 1) // 2, (STEPS + 1) // 2, 0]


def test_a_loss_that_is_not_finite_masks_a_member_that_is_held_too() -> None:
    packed = packed_of(configs(), torch.ones(len(MEMBERS), SIZE))
    loss, grad = torch.ones(len(MEMBERS)), gradients(torch.float32)[0]
    loss[1], grad[2] = torch.nan, torch.nan
    held_K = torch.tensor([True, True, True, False, False])
    packed.step(loss, grad, held_K=held_K)
    assert packed.alive_K.tolist() == [True, False, True, True, True]
    assert torch.isfinite(packed.params_Kn).all()


def test_holding_nobody_changes_nothing() -> None:
    members, nobody_K = configs(), torch.zeros(len(MEMBERS), dtype=torch.bool)
    plain, held = (packed_of(members, torch.ones(len(members), SIZE)) for _ in range(2))
    for grad in gradients(torch.float32):
        plain.step(torch.ones(len(members)), grad.clone())
        held.step(torch.ones(len(members)), grad.clone(), held_K=nobody_K)
    assert torch.equal(held.params_Kn, plain.params_Kn)
    assert torch.equal(held.age_K, plain.age_K)


# All of it at once.


@pytest.mark.parametrize(("kind", "start"), one_of(2, [("decoupled", "data"), ("coupled", "first_gradient")]))
def test_a_step_that_is_captured_for_compilation_is_the_eager_one(monkeypatch, kind: str, start: str) -> None:
    """All of torch.compile but the code generator."""
    torch_compile = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda f, **options: torch_compile(f, fullgraph=True, backend="aot_eager", **options)
    )
    members, params, grads = grouped(weight_decay_kind=kind, second_moment_start=start)
    clipping = [{"zclip": 0.5, "zclip_warmup": 3}, {}, {"adagc": 0.9, "adagc_warmup": 3}, {}, {"zclip": 2.0}]
    members = [member.model_copy(update=change) for member, change in zip(members, clipping, strict=True)]
    eager, compiled = (PackedOptimizer(params.clone(), members, GROUPED_LAYOUT, compiled=c) for c in (False, True))
    for step, grad in enumerate(grads[:10]):
        held_K = torch.tensor([step % 3 == 1, False, False, step > 4, False])
        loss = torch.tensor([1.0, 1.0, 1.0, 1.0, float("nan") if step == 7 else 1.0])
        expected = eager.step(loss, grad.clone(), held_K=held_K)
        found = compiled.step(loss, grad.clone(), held_K=held_K)
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=1e-12, atol=1e-15, equal_nan=True)
    torch.testing.assert_close(compiled.params_Kn, eager.params_Kn, rtol=1e-12, atol=1e-15)
    for name, state in eager.states.items():
        torch.testing.assert_close(compiled.states[name], state, rtol=1e-12, atol=1e-15)
    assert compiled._advance._compiled is not None


@pytest.mark.parametrize("number", range(len(OPTIMIZERS)), ids=list(OPTIMIZERS).__getitem__)
def test_a_step_never_waits_for_a_device_to_tell_it_a_number(number: int) -> None:
    """On a device without numbers every question for one raises."""
    optimizer = list(OPTIMIZERS)[number]
    start = ("zero", "random", "data", "first_gradient")[number % 4]
    shared = {
        "optimizer": optimizer,
        "weight_decay_kind": ("decoupled", "coupled", "independent")[number % 3],
        "second_moment_start": start if OPTIMIZERS[optimizer].can_start_second_moment else "zero",
    }
    members, params, grads = grouped(torch.float32, **shared)
    clipping = [{"zclip": 0.5}, {}, {"adagc": 0.9}, {}, {"zclip": 2.0, "adagc": 1.0}]
    members = [member.model_copy(update=change) for member, change in zip(members, clipping, strict=True)]
    packed = packed_of(members, params.to("meta"), GROUPED_LAYOUT)
    held_K = torch.ones(len(members), dtype=torch.bool, device="meta")
    rows = torch.ones(2, dtype=torch.long, device="meta")
    for grad in grads[:2].to("meta"):
        metrics = packed.step(torch.ones(len(members), device="meta"), grad.clone(), held_K=held_K)
        assert all(value.is_meta for value in metrics.values())
        packed.observed_step(torch.ones(len(members), device="meta"), grad.clone(), rows)
        packed.divisor(rows)
    with pytest.raises((NotImplementedError, RuntimeError)):
        bool(packed.alive_K.all())

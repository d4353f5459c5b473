"""Second moments that do not start at zero, against torch's optimizers with their state filled beforehand."""

from collections.abc import Sequence

import pytest
import torch
from pydantic import ValidationError

from objectives.base import FunctionFitConfig, GptConfig, QuadraticConfig, TrainingConfig
from objectives.optimizers.facts import OPTIMIZERS
from objectives.optimizers.packed_optimizer import PackedOptimizer
from objectives.optimizers.second_moment import random_start
from objectives.stacking import Layout

STEPS = 20
LAYOUT = Layout({"matrix": (6, 9), "vector": (13,), "stack": (2, 3, 5), "number": ()})
MEMBERS = [
    {"lr": 1e-3, "beta2": 0.999, "second_moment_scale": 1.0},
    {"lr": 1e-2, "beta2": 0.5, "second_moment_scale": 100.0},
    {"lr": 1e-1, "beta2": 0.95, "second_moment_scale": 0.0, "clip": 1.0},
    {"lr": 3e-2, "beta2": 0.9, "second_moment_scale": 0.3, "clip": 2.0},
]
SEEDS = [3, 0, 3, 7]
STARTS = ["random", "data", "first_gradient"]


def gradients(dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Of every step and member, (T, K, n), with zeros in the filling."""
    grads = torch.randn(STEPS, len(MEMBERS), LAYOUT.size, generator=torch.Generator().manual_seed(0)).to(dtype)
    grads[..., LAYOUT.pieces[-1].end :] = 0.0
    return grads


def optimizer_of(
    start: str, members: Sequence[dict] = MEMBERS, seeds: Sequence[int] = SEEDS, dtype=torch.float64, **common
) -> PackedOptimizer:
    configs = [TrainingConfig(steps=STEPS, second_moment_start=start, **common, **member) for member in members]
    params = torch.ones(len(configs), LAYOUT.size, dtype=dtype)
    return PackedOptimizer(params, configs, LAYOUT, seeds=seeds, compiled=False)


def curve_of(optimizer: PackedOptimizer, grads: torch.Tensor) -> torch.Tensor:
    """Parameters after each step, (T, K, n)."""
    found = []
    for grad_Kn in grads:
        optimizer.step(torch.ones(grads.shape[1]), grad_Kn.clone())
        found.append(optimizer.params_Kn.clone())
    return torch.stack(found)


def filled_adam(member: dict, start_n: torch.Tensor, grads_Tn: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Parameters and second moments after each step of torch's Adam whose second moment was ``start_n``."""
    weight = torch.nn.Parameter(torch.ones(LAYOUT.size, dtype=torch.float64))
    adam = torch.optim.Adam([weight], lr=member["lr"], betas=(0.9, member["beta2"]))
    adam.state[weight] = {
        "step": torch.tensor(0.0), "exp_avg": torch.zeros_like(weight), "exp_avg_sq": start_n.clone()
    }  # fmt: skip
    params, moments = [], []
    for grad_n in grads_Tn:
        weight.grad = grad_n.clone()
        if "clip" in member:
            torch.nn.utils.clip_grad_norm_([weight], member["clip"])
        adam.step()
        params.append(weight.detach().clone())
        moments.append(adam.state[weight]["exp_avg_sq"].clone())
    return torch.stack(params), torch.stack(moments)


def clipped(member: dict, grads_Tn: torch.Tensor) -> torch.Tensor:
    norm_T1 = grads_Tn.norm(dim=1, keepdim=True)
    return grads_Tn * (member.get("clip", float("inf")) / (norm_T1 + 1e-6)).clamp(max=1.0)


@pytest.mark.parametrize("start", ["zero", "random", "first_gradient"])
def test_each_member_trains_as_torchs_adam_with_its_second_moment_filled_beforehand(start: str) -> None:
    grads = gradients()
    found = curve_of(optimizer_of(start), grads)
    for k, (member, seed) in enumerate(zip(MEMBERS, SEEDS, strict=True)):
        start_n = {
            "zero": torch.zeros(LAYOUT.size, dtype=torch.float64),
            "random": member["second_moment_scale"] * random_start(LAYOUT, seed),
            "first_gradient": member["second_moment_scale"] * clipped(member, grads[:1, k])[0] ** 2,
        }[start]
        expected, _ = filled_adam(member, start_n, grads[:, k])
        torch.testing.assert_close(found[:, k], expected, rtol=1e-10, atol=1e-12)


def test_the_start_from_data_is_that_of_the_mean_square_of_the_first_gradients_that_are_known() -> None:
    grads, packed = gradients(), optimizer_of("data")
    for step in range(STEPS):
        packed.step(torch.ones(len(MEMBERS)), grads[step].clone())
        for k, member in enumerate(MEMBERS):
            known = clipped(member, grads[: min(step + 1, 8), k])
            start_n = member["second_moment_scale"] * known.square().mean(0)
            _, moments = filled_adam(member, start_n, grads[: step + 1, k])
            torch.testing.assert_close(packed.states["second_moment"][k], moments[-1], rtol=1e-10, atol=1e-15)


def test_a_random_start_is_a_chi_square_over_both_fans_and_zero_for_vectors() -> None:
    layout = Layout({"matrix": (300, 100), "vector": (5,), "stack": (80, 30, 20)})
    matrix_n, vector_n, stack_n = (random_start(layout, 0)[p.start : p.end] for p in layout.pieces)
    shares = torch.tensor([0.1, 0.5, 0.9, 0.99], dtype=torch.float64)
    # The square of a normal number is one; torch.nn.init counts fans in the same way, and has 2 / (their sum).
    for found_n, shape in ((matrix_n, (300, 100)), (stack_n, (80, 30, 20))):
        xavier = torch.nn.init.xavier_normal_(torch.empty(shape), generator=torch.Generator().manual_seed(1)).double()
        quantiles = (found_n.quantile(shares), (xavier.flatten() ** 2 / 2).quantile(shares))
        torch.testing.assert_close(*quantiles, rtol=0.15, atol=0)
    assert matrix_n.mean().item() == pytest.approx(1 / 400, rel=0.03)
    assert not vector_n.any()


def test_a_random_start_is_a_function_of_the_seed_alone() -> None:
    packed = optimizer_of("random")
    moments = packed.states["second_moment"]
    first, other = moments[0], moments[3] / 0.3
    assert not torch.allclose(first[:54], other[:54])
    alone = optimizer_of("random", [MEMBERS[1] | {"second_moment_scale": 1.0}], [3])
    assert torch.equal(alone.states["second_moment"][0], first), "another member of that seed, alone"
    assert torch.equal(moments[2], torch.zeros_like(first)), "a scale of zero is the usual start"


def test_a_random_start_without_seeds_is_refused() -> None:
    with pytest.raises(ValueError, match="needs the seeds"):
        optimizer_of("random", seeds=None)
    assert optimizer_of("first_gradient", seeds=None).states


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("optimizer", [one.name for one in OPTIMIZERS.values() if one.can_start_second_moment])
def test_what_a_start_adds_to_a_second_moment_decays_by_beta2(optimizer: str, start: str) -> None:
    grads = gradients()
    started, plain = (optimizer_of(kind, optimizer=optimizer, beta1=0.0) for kind in (start, "zero"))
    curve_of(started, grads), curve_of(plain, grads)
    for k, (member, seed) in enumerate(zip(MEMBERS, SEEDS, strict=True)):
        own = clipped(member, grads[:, k])
        start_n = {
            "random": random_start(LAYOUT, seed),
            "data": own[:8].square().mean(0),
            "first_gradient": own[0].square(),
        }[start]
        expected = member["second_moment_scale"] * start_n * member["beta2"] ** STEPS
        added = started.states["second_moment"][k] - plain.states["second_moment"][k]
        torch.testing.assert_close(added, expected, rtol=1e-6, atol=1e-12)


def test_gi_adam_has_a_warmup_of_its_own() -> None:
    """For a constant gradient the step is lr sqrt(1 - beta2^t), where Adam's is lr from the first on."""
    grads = torch.full((STEPS, 1, LAYOUT.size), 0.7, dtype=torch.float64)
    params = curve_of(optimizer_of("first_gradient", [{"lr": 0.01, "beta2": 0.9}], eps=1e-30), grads)[:, 0, 0]
    steps = -torch.diff(params, prepend=torch.ones(1, dtype=torch.float64))
    ages = torch.arange(1, STEPS + 1, dtype=torch.float64)
    torch.testing.assert_close(steps, 0.01 * (1 - 0.9**ages).sqrt(), rtol=1e-8, atol=0)


def test_a_first_gradient_whose_square_is_too_large_to_write_down_spoils_only_its_own_member() -> None:
    grads = gradients(torch.float32)
    grads[0, 1] *= 1e30  # of float32, whose squares end at 1e38
    clean, wild = optimizer_of("data", dtype=torch.float32), optimizer_of("data", dtype=torch.float32)
    expected, found = curve_of(clean, gradients(torch.float32)), curve_of(wild, grads)
    others = [0, 2, 3]
    assert torch.equal(found[:, others], expected[:, others])


# The half-life of the second moment.


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_half_life_is_the_beta2_that_forgets_half_in_so_many_tokens(optimizer: str) -> None:
    grads = gradients()[:, :2]
    # Eight examples a step: after 20 steps half of the first is left, after one step of the second an eighth.
    by_life = optimizer_of("zero", [{"beta2_half_life": 160.0}, {"beta2_half_life": 8 / 3}], optimizer=optimizer)
    by_beta = optimizer_of("zero", [{"beta2": 0.5 ** (8 / 160)}, {"beta2": 0.125}], optimizer=optimizer)
    torch.testing.assert_close(curve_of(by_life, grads), curve_of(by_beta, grads), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(
    ("config", "tokens"),
    [
        (QuadraticConfig(steps=1, batch_size=16, beta2_half_life=64.0), 16),
        (FunctionFitConfig(steps=1, num_points=50, beta2_half_life=64.0), 50),
        (FunctionFitConfig(steps=1, num_points=50, batch_size=5, beta2_half_life=64.0), 5),
        (GptConfig(steps=1, batch_size=4, context=32, beta2_half_life=64.0), 128),
    ],
    ids=["quadratic", "all points", "some points", "text"],
)
def test_tokens_are_what_the_objective_trains_on_in_a_step(config: TrainingConfig, tokens: int) -> None:
    assert config.second_moment_decay == pytest.approx(0.5 ** (tokens / 64))


def test_the_published_numbers_of_a_half_life_come_out() -> None:
    """10M tokens at 512 tokens a sequence, Marek et al.: .99996 at batch size 1, .991 at 256, .865 at 4096."""
    decays = [
        GptConfig(steps=1, batch_size=size, context=512, beta2_half_life=1e7).second_moment_decay
        for size in (1, 256, 4096)
    ]
    assert decays == pytest.approx([0.99996, 0.991, 0.865], abs=5e-4)


def test_a_half_life_that_forgets_nothing_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match=r"beta2_half_life = 1e\+20 is too long for the 8 tokens of a step"):
        TrainingConfig(steps=1, beta2_half_life=1e20)
    assert TrainingConfig(steps=1, beta2_half_life=1e-20).second_moment_decay == 0


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_an_optimizer_starts_a_second_moment_of_each_parameter_or_refuses_to(optimizer: str) -> None:
    plain = TrainingConfig(steps=STEPS, optimizer=optimizer)
    states = PackedOptimizer(torch.ones(1, LAYOUT.size), [plain], LAYOUT, compiled=False).states
    if OPTIMIZERS[optimizer].can_start_second_moment:
        assert "second_moment" in states
        TrainingConfig(steps=STEPS, optimizer=optimizer, second_moment_start="data")
        return
    with pytest.raises(ValidationError, match=rf"second_moment_start = data needs one of the .* not {optimizer}"):
        TrainingConfig(steps=STEPS, optimizer=optimizer, second_moment_start="data")

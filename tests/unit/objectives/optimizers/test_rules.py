from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import bitsandbytes
import bitsandbytes.backends.cpu.ops as cpu_kernels
import pytest
import pytorch_optimizer
import pytorch_optimizer.optimizer.spam as spam_module
import torch
from rule_cases import LAYOUT, STEPS, layout_of, members, random, start_of, take_due_hessians, train

from objectives.base import TrainingConfig
from objectives.optimizers.facts import OPTIMIZERS
from objectives.optimizers.packed_optimizer import PackedOptimizer
from objectives.optimizers.rules import rule_of
from objectives.optimizers.rules.adam8bit import code_values, make_tables, nearest_codes
from objectives.optimizers.rules.rule import UpdateRule
from objectives.stacking import Layout, Piece

NEW_RULES = [name for name in OPTIMIZERS if name not in ("adamw", "sgd")]
# Adafactor has no first moment, Lion no divisor, and of 8 bits the quotient is that of what is kept.
EXACT_QUOTIENTS = ["adamw", "sgd", "radam", "adabelief", "stableadamw", "spam", "sophia"]


class Reference:
    """One member by the optimizer of a library, with torch's own clipping and with decoupled weight decay."""

    def __init__(self, config: TrainingConfig, start: torch.Tensor, layout: Layout) -> None:
        self.config, self.pieces, self.age = config, layout.pieces, 0
        self.params = [torch.nn.Parameter(self.of(start, piece)) for piece in layout.pieces]
        self.optimizer, self.decays_itself = LIBRARIES[config.optimizer](config, self.params)

    @staticmethod
    def of(row: torch.Tensor, piece: Piece) -> torch.Tensor:
        return row[piece.start : piece.end].clone().view(piece.shape)

    def step(self, grad: torch.Tensor, hessian: torch.Tensor) -> None:
        config = self.config
        for parameter, piece in zip(self.params, self.pieces, strict=True):
            parameter.grad = self.of(grad, piece)
        if config.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.params, config.clip)
        lr = config.lr * min(1.0, (self.age + 1) / max(1, config.warmup))
        self.optimizer.param_groups[0]["lr"] = lr
        if not self.decays_itself:
            with torch.no_grad():
                for parameter in self.params:
                    parameter.mul_(1 - lr * config.weight_decay)
        if config.optimizer == "sophia" and self.age % config.sophia_interval == 0:
            self.optimizer.step(hessian=[self.of(hessian, piece) for piece in self.pieces])
        else:
            self.optimizer.step()
        self.age += 1

    @property
    def row(self) -> torch.Tensor:
        return torch.cat([parameter.detach().flatten() for parameter in self.params])


def betas(config: TrainingConfig) -> tuple[float, float]:
    return config.beta1, config.beta2


def spam(config: TrainingConfig, params: list) -> tuple[torch.optim.Optimizer, bool]:
    optimizer = pytorch_optimizer.SPAM(
        params,
        config.lr,
        betas(config),
        eps=config.eps,
        threshold=config.spam_threshold or 0,
        update_proj_gap=config.spam_interval or 10**6,
        warmup_epoch=config.spam_warmup,
        grad_accu_steps=config.spam_grace,
    )
    return optimizer, False


Library = Callable[[TrainingConfig, list], tuple[torch.optim.Optimizer, bool]]
# The optimizer of each rule, and whether it does the weight decay: Adafactor's step depends on the weights before it.
LIBRARIES: Mapping[str, Library] = {
    "radam": lambda c, params: (torch.optim.RAdam(params, c.lr, betas(c), c.eps), False),
    "adabelief": lambda c, params: (
        pytorch_optimizer.AdaBelief(params, c.lr, betas(c), eps=c.adabelief_eps),
        False,
    ),
    "adafactor": lambda c, params: (
        torch.optim.Adafactor(
            params,
            c.lr,
            -c.adafactor_decay,
            (c.adafactor_eps, c.adafactor_smallest),
            c.adafactor_clip or math.inf,
            c.weight_decay,
        ),
        True,
    ),
    "lion": lambda c, params: (pytorch_optimizer.Lion(params, c.lr, betas(c)), False),
    "stableadamw": lambda c, params: (
        pytorch_optimizer.StableAdamW(params, c.lr, betas(c), weight_decay=0.0, eps=c.eps),
        False,
    ),
    "spam": spam,
    "sophia": lambda c, params: (
        pytorch_optimizer.SophiaH(
            params, c.lr, betas(c), p=c.sophia_clip, eps=c.sophia_eps, update_period=c.sophia_interval
        ),
        False,
    ),
    "adam8bit": lambda c, params: (
        bitsandbytes.optim.AdamW8bit(
            params, c.lr, betas(c), c.eps, weight_decay=0.0, min_8bit_size=c.adam8bit_smallest
        ),
        False,
    ),
}


class AuthorsWarmup(spam_module.CosineDecay):
    """That of SPAM's authors: the share of a step is its own, not that of the next one."""

    def step(self, current_step: int) -> None:
        self.sgd.param_groups[0]["lr"] = 0.99 * (1 + math.cos(math.pi * current_step / (self.t_max + 1))) / 2


def nearest_in_blocks(
    values: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, found: torch.Tensor, block: int
) -> None:
    """By the kernel that bitsandbytes documents and uses elsewhere than on a CPU."""
    anywhere = torch._C.DispatchKeySet(torch._C.DispatchKey.CompositeExplicitAutograd)
    kernel = torch.ops.bitsandbytes.quantize_blockwise.default
    for result, out in zip(kernel.redispatch(anywhere, values, codes, block), (found, scales), strict=True):
        out.copy_(result)


@pytest.fixture(autouse=True)
def _libraries_as_documented(monkeypatch) -> None:
    monkeypatch.setattr(spam_module, "CosineDecay", AuthorsWarmup)
    # The CPU kernel of bitsandbytes 0.50 looks codes up in a table that is too coarse for small numbers.
    monkeypatch.setattr(cpu_kernels, "_quant_blockwise_fp32_direct", nearest_in_blocks)


def test_there_is_a_rule_for_every_packed_optimizer() -> None:
    assert all(issubclass(rule_of(name), UpdateRule) for name in OPTIMIZERS)
    assert set(LIBRARIES) == set(NEW_RULES), "and a reference"


# Of the largest weight: Adafactor's steps are shares of the weights, so that rounding grows with them.
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-11), (torch.float32, 2e-4)], ids=["f64", "f32"])
@pytest.mark.parametrize("optimizer", NEW_RULES)
def test_every_member_is_trained_as_by_the_optimizer_of_a_library(optimizer, dtype, tolerance) -> None:
    if optimizer == "adam8bit" and dtype == torch.float64:
        pytest.skip("bitsandbytes computes in single precision")
    layout, configs = layout_of(optimizer), members(optimizer)
    start, grads, hessians = start_of(layout, dtype), random(layout, dtype, 0), random(layout, dtype, 2)
    packed = PackedOptimizer(start.clone(), configs, layout, compiled=False)
    references = [Reference(config, start[k], layout) for k, config in enumerate(configs)]
    for grad_Kn, hessian_Kn in zip(grads, hessians, strict=True):
        take_due_hessians(packed, hessian_Kn)
        packed.step(torch.ones(len(configs), dtype=dtype), grad_Kn.clone())
        for k, reference in enumerate(references):
            reference.step(grad_Kn[k], hessian_Kn[k])
            found, wanted = packed.params_Kn[k, : len(reference.row)], reference.row
            largest = float(wanted.abs().max())
            torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance * largest)
        filling = layout.pieces[-1].end
        assert torch.equal(packed.params_Kn[:, filling:], start[:, filling:])
    assert ((packed.params_Kn - start).norm(dim=1) > 1e-3 * start.norm(dim=1)).all(), "everybody moved"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_member_alone_has_the_bits_that_it_has_in_a_pack(optimizer, dtype) -> None:
    layout, configs = layout_of(optimizer), members(optimizer)
    start, grads, hessians = start_of(layout, dtype), random(layout, dtype, 0), random(layout, dtype, 2)
    together = train(optimizer, configs, start, grads, hessians)
    for rows in ([0], [1], [2], [3], [4], [1, 4], [4, 0, 2]):
        apart = train(optimizer, [configs[k] for k in rows], start[rows], grads[:, rows], hessians[:, rows])
        assert torch.equal(apart.params_Kn, together.params_Kn[rows])
        for name, state in apart.states.items():
            assert torch.equal(state, together.states[name][rows]), name


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_members_of_different_ages_are_each_at_their_own_step(optimizer) -> None:
    """What comes now and then, such as a reset or a Hessian, comes by a member's own age."""
    layout, configs, dtype = layout_of(optimizer), members(optimizer), torch.float64
    start, grads, hessians = start_of(layout, dtype), random(layout, dtype, 0), random(layout, dtype, 2)
    before, after = [0, 1, 2], [2, 3, 1, 4]
    packed = train(optimizer, configs[:3], start[:3], grads[:6, :3], hessians[:6, :3])
    rows = torch.tensor([before.index(k) if k in before else -1 for k in after])
    params = torch.where((rows < 0)[:, None], start[after], packed.params_Kn[rows])
    packed.arrange(rows, params, [configs[k] for k in after])
    for step in range(15):
        ages = [step + 6 if k in before else step for k in after]
        assert packed.age_K.tolist() == ages
        take_due_hessians(packed, torch.stack([hessians[age, k] for age, k in zip(ages, after, strict=True)]))
        packed.step(torch.ones(4), torch.stack([grads[age, k] for age, k in zip(ages, after, strict=True)]))
    for row, k in enumerate(after):
        num_steps = 21 if k in before else 15
        alone = train(optimizer, [configs[k]], start[[k]], grads[:num_steps, [k]], hessians[:num_steps, [k]])
        assert torch.equal(packed.params_Kn[[row]], alone.params_Kn)


@pytest.mark.parametrize("where", ["loss", "gradient"])
@pytest.mark.parametrize("optimizer", NEW_RULES)
def test_a_member_that_is_not_finite_is_masked_and_touches_nobody(optimizer, where) -> None:
    layout, configs, dtype = layout_of(optimizer), members(optimizer), torch.float32
    start, grads, hessians = start_of(layout, dtype), random(layout, dtype, 0), random(layout, dtype, 2)
    expected = train(optimizer, configs, start, grads[:12], hessians[:12])
    packed, victim = PackedOptimizer(start.clone(), configs, layout, compiled=False), 2
    others = [k for k in range(len(configs)) if k != victim]
    for step in range(12):
        loss, grad, hessian = torch.ones(len(configs)), grads[step].clone(), hessians[step].clone()
        if step >= 3:
            kept = packed.params_Kn[victim].clone()
            (loss if where == "loss" else grad[:, 5])[victim] = torch.nan
            hessian[victim] = torch.nan
        take_due_hessians(packed, hessian)
        metrics = packed.step(loss, grad)
    assert torch.equal(packed.params_Kn[others], expected.params_Kn[others])
    assert torch.equal(packed.params_Kn[victim], kept)
    assert all(torch.isnan(value[victim]) for value in metrics.values())


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_an_optimizer_that_was_saved_goes_on_bit_for_bit(optimizer, tmp_path) -> None:
    layout, configs, dtype = layout_of(optimizer), members(optimizer), torch.float32
    start, grads, hessians = start_of(layout, dtype), random(layout, dtype, 0), random(layout, dtype, 2)
    expected = train(optimizer, configs, start, grads, hessians)
    stopped = train(optimizer, configs, start, grads[:11], hessians[:11])
    torch.save(stopped.state_dict(), tmp_path / "state.pt")
    resumed = PackedOptimizer(stopped.params_Kn.clone(), configs, layout, compiled=False)
    resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for grad_Kn, hessian_Kn in zip(grads[11:], hessians[11:], strict=True):
        take_due_hessians(resumed, hessian_Kn)
        resumed.step(torch.ones(len(configs)), grad_Kn.clone())
    assert torch.equal(resumed.params_Kn, expected.params_Kn)


@pytest.mark.parametrize("optimizer", EXACT_QUOTIENTS)
def test_an_update_is_lr_times_the_first_moment_over_the_divisor(optimizer) -> None:
    layout, configs, dtype = layout_of(optimizer), members(optimizer, weight_decay=0.0), torch.float64
    start, grads, hessians = start_of(layout, dtype), random(layout, dtype, 0), random(layout, dtype, 2)
    packed = PackedOptimizer(start.clone(), configs, layout, compiled=False)
    every = torch.arange(len(configs))
    for grad_Kn, hessian_Kn in zip(grads, hessians, strict=True):
        take_due_hessians(packed, hessian_Kn)
        _, observed = packed.observed_step(torch.ones(len(configs)), grad_Kn.clone(), every)
        asked = packed.of_rows(every)
        quotient = packed.rule.first_moment(*asked) / packed.rule.divisor(*asked)
        torch.testing.assert_close(observed.update_Rn, packed.lr_K[:, None] * quotient, rtol=1e-9, atol=1e-15)


def test_the_step_of_adafactor_is_lr_times_the_gradient_over_its_divisor() -> None:
    configs, dtype = members("adafactor", weight_decay=0.0, clip=None), torch.float64
    packed = PackedOptimizer(start_of(LAYOUT, dtype), configs, LAYOUT, compiled=False)
    every = torch.arange(len(configs))
    for grad_Kn in random(LAYOUT, dtype, 0):
        _, observed = packed.observed_step(torch.ones(len(configs)), grad_Kn.clone(), every)
        clipped_Kn = grad_Kn * observed.clip_factor_R[:, None]
        expected = packed.lr_K[:, None] * clipped_Kn / packed.rule.divisor(*packed.of_rows(every))
        torch.testing.assert_close(observed.update_Rn, expected, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("optimizer", ["adamw", "adabelief", "stableadamw", "spam", "radam", "adam8bit", "adafactor"])
def test_the_second_moment_of_a_gradient_that_stays_is_its_square(optimizer) -> None:
    layout = layout_of(optimizer)
    shared = {"spam_interval": None, "adam8bit_smallest": 100}
    config = TrainingConfig(steps=STEPS, optimizer=optimizer, beta1=0.0, beta2=0.9, **shared)
    # Of one size in each block, which eight bits can hold exactly, and in each row and column.
    grad_Kn = torch.full((1, layout.size), 0.5, dtype=torch.float64)
    grad_Kn[:, layout.pieces[-1].end :] = 0.0
    packed = PackedOptimizer(torch.zeros_like(grad_Kn), [config], layout, compiled=False)
    for _ in range(STEPS):
        packed.step(torch.ones(1), grad_Kn.clone())
    found = packed.rule.second_moment(*packed.of_rows(torch.tensor([0])))[0, : layout.pieces[-1].end]
    # AdaBelief's is that of g - m, which is nothing here.
    torch.testing.assert_close(
        found, torch.full_like(found, 0.0 if optimizer == "adabelief" else 0.25), atol=1e-14, rtol=1e-9
    )


# What single rules promise beyond that.


def test_the_threshold_of_radam_may_be_that_of_the_paper() -> None:
    """rho_t of beta2 = 0.999 is 4.5 or so at the fifth step: above the paper's threshold, below torch's."""
    grads, start = random(LAYOUT, torch.float64, 0), start_of(LAYOUT, torch.float64)[:1]
    of_torch, of_paper = (
        train("radam", [TrainingConfig(steps=9, optimizer="radam", radam_threshold=t)], start, grads[:5, :1], grads[:5])
        for t in (5.0, 4.0)
    )
    age, longest = 5.0, 2 / 0.001 - 1
    length = longest - 2 * age * 0.999**age / (1 - 0.999**age)
    assert 4 < length < 5
    at_fourth = train("radam", [TrainingConfig(steps=9, optimizer="radam")], start, grads[:4, :1], grads[:4])
    rectification = ((length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)) ** 0.5
    first, second = of_paper.states["first_moment"] / (1 - 0.9**age), of_paper.states["second_moment"]
    step = rectification * first * (1 - 0.999**age) ** 0.5 / (second.sqrt() + 1e-8)
    torch.testing.assert_close(of_paper.params_Kn, at_fourth.params_Kn - 1e-3 * step, rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(of_torch.params_Kn, at_fourth.params_Kn - 1e-3 * first, rtol=1e-12, atol=1e-15)


def test_stableadamw_without_a_threshold_is_adamw_bit_for_bit() -> None:
    grads, start = random(LAYOUT, torch.float32, 0), start_of(LAYOUT, torch.float32)
    stable, plain = (
        train(name, members(name, stableadamw_clip=None), start, grads, grads) for name in ("stableadamw", "adamw")
    )
    assert torch.equal(stable.params_Kn, plain.params_Kn)


def test_stableadamw_remembers_how_far_each_weight_was_over_the_threshold() -> None:
    config = TrainingConfig(steps=STEPS, optimizer="stableadamw", beta2=0.99)
    calm = torch.zeros(1, LAYOUT.size, dtype=torch.float64)
    calm[:, : LAYOUT.pieces[-1].end] = 1e-3
    packed = PackedOptimizer(torch.zeros_like(calm), [config], LAYOUT, compiled=False)
    for _ in range(20):
        packed.step(torch.ones(1), calm.clone())
    torch.testing.assert_close(packed.states["rms"], torch.ones(1, 4, dtype=torch.float64))
    vector = LAYOUT.pieces[1]
    calm[:, vector.start : vector.end] *= 100
    packed.step(torch.ones(1), calm)
    rms = packed.states["rms"][0]
    assert rms[1] > 3
    torch.testing.assert_close(rms[[0, 2, 3]], torch.ones(3, dtype=torch.float64))


def test_spam_clips_an_entry_that_spikes_and_no_other() -> None:
    config = TrainingConfig(steps=100, optimizer="spam", beta2=0.9, spam_threshold=4.0, spam_grace=3)
    calm = torch.ones(1, LAYOUT.size, dtype=torch.float64)
    spike = calm.clone()
    spike[0, 7] = -1e6
    packed, other = (PackedOptimizer(torch.zeros_like(calm), [config], LAYOUT, compiled=False) for _ in range(2))
    for _ in range(30):
        packed.step(torch.ones(1), calm.clone())
        other.step(torch.ones(1), calm.clone())
    second = packed.states["second_moment"].clone()
    packed.step(torch.ones(1), spike)
    calm[0, 7] = -2 * second[0, 7].sqrt()
    other.step(torch.ones(1), calm)
    torch.testing.assert_close(packed.states, other.states, rtol=1e-12, atol=0)
    torch.testing.assert_close(packed.params_Kn, other.params_Kn, rtol=1e-12, atol=0)


def test_sophia_leaves_out_an_estimate_that_is_not_finite() -> None:
    config = TrainingConfig(steps=STEPS, optimizer="sophia", sophia_interval=1, beta2=0.5)
    packed = PackedOptimizer(torch.zeros(3, 32), [config] * 3, Layout({"x": (32,)}), compiled=False)
    hessian = torch.ones(3, 32)
    hessian[1, 4] = torch.inf
    packed.take_hessian(torch.tensor([0, 1]), hessian[:2])
    assert packed.states["hessian"][:, 0].tolist() == [0.5, 0.0, 0.0]


def test_a_half_life_of_sophia_counts_all_steps_between_two_estimates() -> None:
    common = {"steps": STEPS, "optimizer": "sophia", "sophia_interval": 4, "batch_size": 8}
    configs = [TrainingConfig(**common, beta2=0.9), TrainingConfig(**common, beta2_half_life=32.0)]
    packed = PackedOptimizer(torch.zeros(2, 32), configs, Layout({"x": (32,)}), compiled=False)
    packed.take_hessian(torch.tensor([0, 1]), torch.ones(2, 32))
    torch.testing.assert_close(packed.states["hessian"][:, 0], torch.tensor([0.1, 0.5]))


@pytest.mark.parametrize("signed", [True, False])
def test_codes_of_eight_bits_are_those_of_bitsandbytes(signed) -> None:
    codes = bitsandbytes.functional.create_dynamic_map(signed=signed)
    assert torch.equal(code_values(signed=signed), codes)
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(256 * 200, generator=generator) * 10 ** (3 * torch.rand(256 * 200, generator=generator))
    values = values if signed else values.square()
    values[:300] = 0.0
    found, scales = torch.empty(len(values), dtype=torch.uint8), torch.empty(200)
    nearest_in_blocks(values, codes, scales, found, 256)
    shares = values.view(-1, 256) / scales.clamp(min=1e-30)[:, None]
    tables = make_tables(signed=signed, device=torch.device("cpu"))
    assert torch.equal(nearest_codes(shares, tables).flatten(), found)


@pytest.mark.parametrize("signed", [True, False])
def test_a_code_is_the_nearest_one_also_at_the_borders(signed) -> None:
    codes = code_values(signed=signed)
    borders = (codes[1:] + codes[:-1]) / 2
    beside = [torch.nextafter(borders, torch.tensor(sign * torch.inf)) for sign in (-1, 1)]
    values = torch.cat([codes, borders, *beside, torch.tensor([0.0, -0.0])])
    values = values if signed else values[values >= 0]
    tables = make_tables(signed=signed, device=torch.device("cpu"))
    assert torch.equal(nearest_codes(values[None], tables)[0].long(), torch.bucketize(values, borders))


def test_moments_of_eight_bits_take_a_quarter_of_the_memory() -> None:
    layout = Layout({"x": (256, 256)})
    params = torch.zeros(2, layout.size)
    sizes = {}
    for name in ("adamw", "adam8bit"):
        packed = PackedOptimizer(params, [TrainingConfig(steps=1, optimizer=name)] * 2, layout, compiled=False)
        sizes[name] = sum(state.nbytes for state in packed.states.values())
    assert sizes["adam8bit"] < 0.26 * sizes["adamw"]

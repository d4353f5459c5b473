import math
from collections.abc import Callable, Mapping

import bitsandbytes
import bitsandbytes.backends.cpu.ops as cpu_kernels
import pytest
import pytorch_optimizer
import pytorch_optimizer.optimizer.spam as spam_module
import torch
from rule_cases import EVERYONE, LAYOUT, LAYOUTS, STEPS, Members, Reference, take_due_hessians
from tiers import one_of

from objectives.base import TrainingConfig
from objectives.optimizers.facts import OPTIMIZERS
from objectives.optimizers.packed_optimizer import PackedOptimizer
from objectives.optimizers.rules import rule_of
from objectives.optimizers.rules.adam8bit import code_values, make_tables, nearest_codes
from objectives.optimizers.rules.muon import orthogonalised
from objectives.optimizers.rules.rule import UpdateRule
from objectives.stacking import Layout

NEW_RULES = [name for name in OPTIMIZERS if name not in ("adamw", "sgd")]
# Adafactor has no first moment, Lion no divisor, and of 8 bits the quotient is that of what is kept.
EXACT_QUOTIENTS = ["adamw", "sgd", "radam", "adabelief", "stableadamw", "spam", "sophia", "lcm_adam"]


def betas(config: TrainingConfig) -> tuple[float, float]:
    return config.beta1, config.second_moment_decay


def spam(params: list, config: TrainingConfig) -> torch.optim.Optimizer:
    return pytorch_optimizer.SPAM(
        params, config.lr, betas(config), eps=config.eps, threshold=config.spam_threshold or 0,
        update_proj_gap=config.spam_interval or 10**6, warmup_epoch=config.spam_warmup,
        grad_accu_steps=config.spam_grace,
    )  # fmt: skip


def adafactor(params: list, config: TrainingConfig) -> torch.optim.Optimizer:
    eps, clip = (config.adafactor_eps, config.adafactor_smallest), config.adafactor_clip or math.inf
    return torch.optim.Adafactor(params, config.lr, -config.adafactor_decay, eps, clip, config.weight_decay)


class MuonAndAdamW:
    """torch's Muon for matrices, which it stores output by input, and torch's AdamW for the rest."""

    def __init__(self, params: list, config: TrainingConfig) -> None:
        self.config, self.matrices = config, [p for p in params if p.dim() >= 2]
        self.stored = [[torch.nn.Parameter(m.T.clone()) for m in p.detach()] for p in self._stacks()]
        scale = {
            "lr": config.lr,
            "weight_decay": 0.0,
            "momentum": config.muon_momentum,
            "ns_steps": config.muon_steps,
            "nesterov": config.muon_nesterov,
            "adjust_lr_fn": {"rms": "match_rms_adamw"}.get(config.muon_scale, config.muon_scale),
        }
        self.muon = torch.optim.Muon([m for stack in self.stored for m in stack], **scale)
        others = [p for p in params if p.dim() < 2]
        self.adamw = torch.optim.AdamW(others, config.lr, betas(config), config.eps, weight_decay=0.0)
        self.param_groups = [{"lr": config.lr}]

    def _stacks(self) -> list[torch.Tensor]:
        return [p if p.dim() == 3 else p[None] for p in self.matrices]

    @torch.no_grad()
    def step(self) -> None:
        for optimizer in (self.muon, self.adamw):
            optimizer.param_groups[0]["lr"] = self.param_groups[0]["lr"]
        for own, stored in zip(self.matrices, self.stored, strict=True):
            grads, values = (z if z.dim() == 3 else z[None] for z in (own.grad, own))
            for parameter, grad, value in zip(stored, grads, values, strict=True):
                parameter.copy_(value.T)
                parameter.grad = grad.T.clone()
        self.muon.step()
        self.adamw.step()
        for own, stored in zip(self.matrices, self.stored, strict=True):
            own.copy_(torch.stack([parameter.T for parameter in stored]).view_as(own))


class LcmAdam(torch.optim.Optimizer):
    """The reading of LCMAdam, weight by weight; the rate is what it was, moved towards the line by one step."""

    def __init__(self, params: list, config: TrainingConfig) -> None:
        super().__init__(params, {"lr": config.lr})
        self.config, self.factor = config, 1.0

    @torch.no_grad()
    def step(self) -> None:
        config, (group,) = self.config, self.param_groups
        beta1, beta2 = betas(config)
        for p in group["params"]:
            state = self.state[p]
            if not state:
                state.update(t=0, m=torch.zeros_like(p), v=torch.zeros_like(p))
            m, v, g, t = state["m"], state["v"], p.grad, state["t"]
            weighed = g * torch.minimum((v - m * m).abs(), torch.ones_like(v))
            size = (weighed * weighed).sum().sqrt()
            g = g if size == 0 else weighed * ((g * g).sum().sqrt() / size)
            state["m"] = m = beta1 * m + (1 - beta1) * g
            state["v"] = v = beta2 * v + (1 - beta2) * g * g
            state["t"] = t + 1
            position = t / config.lcm_adam_period
            line = 1 + (config.lcm_adam_least - 1) * (position - math.floor(position))
            factor = line if t == 0 else self.moved(line)
            mhat, vhat = m / (1 - beta1 ** (t + 1)), v / (1 - beta2 ** (t + 1))
            p -= group["lr"] * factor * mhat / (vhat.sqrt() + config.eps)
        self.factor = factor

    def moved(self, line: float) -> float:
        most = self.config.lcm_adam_change
        return max(self.factor - most, min(self.factor + most, line))


# The optimizer of each new rule, and what the libraries are told whose optimizers train here themselves.
LIBRARIES: Mapping[str, Callable[[list, TrainingConfig], torch.optim.Optimizer]] = {
    "radam": lambda params, c: torch.optim.RAdam(params, c.lr, betas(c), c.eps),
    "adabelief": lambda params, c: pytorch_optimizer.AdaBelief(params, c.lr, betas(c), eps=c.adabelief_eps),
    "adafactor": adafactor,
    "lion": lambda params, c: pytorch_optimizer.Lion(params, c.lr, betas(c)),
    "stableadamw": lambda params, c: pytorch_optimizer.StableAdamW(params, c.lr, betas(c), weight_decay=0.0, eps=c.eps),
    "spam": spam,
    "sophia": lambda params, c: pytorch_optimizer.SophiaH(
        params, c.lr, betas(c), p=c.sophia_clip, eps=c.sophia_eps, update_period=c.sophia_interval
    ),
    "adam8bit": lambda params, c: bitsandbytes.optim.AdamW8bit(
        params, c.lr, betas(c), c.eps, weight_decay=0.0, min_8bit_size=c.adam8bit_smallest
    ),
    "muon": MuonAndAdamW,
    "lcm_adam": LcmAdam,
    "torch.optim.NAdam": lambda params, c: torch.optim.NAdam(params, c.lr, betas(c), c.eps),
    "torch.optim.RMSprop": lambda params, c: torch.optim.RMSprop(params, c.lr, eps=c.eps, momentum=c.beta1),
    "torch.optim.Adagrad": lambda params, c: torch.optim.Adagrad(params, c.lr, eps=c.eps),
    "torch.optim.SGD": lambda params, c: torch.optim.SGD(params, c.lr, momentum=c.beta1),
    "torch.optim.AdamW": lambda params, c: torch.optim.AdamW(params, c.lr, betas(c), c.eps, weight_decay=0.0),
    "pytorch_optimizer.ADOPT": lambda params, c: pytorch_optimizer.ADOPT(params, c.lr, betas(c), eps=c.eps),
    "pytorch_optimizer.Lamb": lambda params, c: pytorch_optimizer.Lamb(params, c.lr, betas(c), eps=c.eps),
    # Three betas are left as they are.
    "pytorch_optimizer.AdEMAMix": lambda params, c: pytorch_optimizer.AdEMAMix(params, c.lr, eps=c.eps),
    "pytorch_optimizer.SOAP": lambda params, c: pytorch_optimizer.SOAP(
        params, c.lr, betas(c), weight_decay=0.0, eps=c.eps
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
    # torch's Muon rounds its products to 16 bits.
    monkeypatch.setattr(torch.Tensor, "bfloat16", lambda value: value.clone())


def test_there_is_a_rule_for_every_packed_optimizer() -> None:
    assert all(issubclass(rule_of(name), UpdateRule) for name in OPTIMIZERS)
    assert set(NEW_RULES) <= set(LIBRARIES), "and a reference"


# bitsandbytes computes in single precision, and optimizers of a library round as they do.
COMPARED = [(name, torch.float64, 1e-11) for name in LIBRARIES if name != "adam8bit"]
COMPARED += [(name, torch.float32, 2e-4) for name in NEW_RULES]


# Of the largest weight: Adafactor's steps are shares of the weights, so that rounding grows with them.
@pytest.mark.parametrize(("optimizer", "dtype", "tolerance"), one_of(2, COMPARED))
def test_every_member_is_trained_as_by_the_optimizer_of_a_library(optimizer, dtype, tolerance) -> None:
    own = Members(optimizer, dtype)
    packed, start, filling = own.packed(), own.start_Kn, own.layout.pieces[-1].end
    # Adafactor's step depends on the weights before the decay.
    references = [Reference(own, k, LIBRARIES[optimizer], optimizer == "adafactor") for k in EVERYONE]
    for age in range(STEPS):
        own.step(packed, [age] * len(EVERYONE), [*EVERYONE])
        for k, reference in enumerate(references):
            reference.step(own.grads[age, k], own.hessians[age, k])
            largest = float(reference.row.abs().max())
            found = packed.params_Kn[k, :filling]
            torch.testing.assert_close(found, reference.row, rtol=tolerance, atol=tolerance * largest)
        assert torch.equal(packed.params_Kn[:, filling:], start[:, filling:])
    assert ((packed.params_Kn - start).norm(dim=1) > 1e-3 * start.norm(dim=1)).all(), "everybody moved"


@pytest.mark.parametrize("optimizer", EXACT_QUOTIENTS)
def test_an_update_is_lr_times_the_first_moment_over_the_divisor(optimizer) -> None:
    own, every = Members(optimizer, weight_decay=0.0), torch.tensor(EVERYONE)
    packed = own.packed()
    for grad_Kn, hessian_Kn in zip(own.grads, own.hessians, strict=True):
        take_due_hessians(packed, hessian_Kn)
        _, observed = packed.observed_step(torch.ones(len(every)), grad_Kn.clone(), every)
        asked = packed.of_rows(every)
        quotient = packed.rule.first_moment(*asked) / packed.rule.divisor(*asked)
        torch.testing.assert_close(observed.update_Rn, packed.lr_K[:, None] * quotient, rtol=1e-9, atol=1e-15)


def test_the_step_of_adafactor_is_lr_times_the_gradient_over_its_divisor() -> None:
    own, every = Members("adafactor", weight_decay=0.0, clip=None), torch.tensor(EVERYONE)
    packed = own.packed()
    for grad_Kn in own.grads:
        _, observed = packed.observed_step(torch.ones(len(every)), grad_Kn.clone(), every)
        clipped_Kn = grad_Kn * observed.clip_factor_R[:, None]
        expected = packed.lr_K[:, None] * clipped_Kn / packed.rule.divisor(*packed.of_rows(every))
        torch.testing.assert_close(observed.update_Rn, expected, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("optimizer", ["adamw", "adabelief", "stableadamw", "spam", "radam", "adam8bit", "adafactor"])
def test_the_second_moment_of_a_gradient_that_stays_is_its_square(optimizer) -> None:
    layout = LAYOUTS.get(optimizer, LAYOUT)
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
    of_torch, of_paper = (Members("radam", radam_threshold=t).trained([0], 5) for t in (5.0, 4.0))
    age, longest = 5.0, 2 / 0.001 - 1
    length = longest - 2 * age * 0.999**age / (1 - 0.999**age)
    assert 4 < length < 5
    at_fourth = Members("radam").trained([0], 4)
    rectification = ((length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)) ** 0.5
    first, second = of_paper.states["first_moment"] / (1 - 0.9**age), of_paper.states["second_moment"]
    step = rectification * first * (1 - 0.999**age) ** 0.5 / (second.sqrt() + 1e-8)
    torch.testing.assert_close(of_paper.params_Kn, at_fourth.params_Kn - 1e-3 * step, rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(of_torch.params_Kn, at_fourth.params_Kn - 1e-3 * first, rtol=1e-12, atol=1e-15)


def test_stableadamw_without_a_threshold_is_adamw_bit_for_bit() -> None:
    stable, plain = (Members(name, torch.float32, stableadamw_clip=None).trained() for name in ("stableadamw", "adamw"))
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


@pytest.mark.parametrize("num_steps", [1, 5, 8])
@pytest.mark.parametrize("shape", [(6, 6), (6, 24), (24, 6)], ids=str)
@pytest.mark.parametrize("rank", [1, 6])
def test_matrices_of_every_shape_take_the_steps_of_newton_and_schulz(shape, num_steps: int, rank: int) -> None:
    generator = torch.Generator().manual_seed(num_steps)
    left, right = (torch.randn(3, *of, generator=generator) for of in ((shape[0], rank), (rank, shape[1])))
    matrices = left @ right
    expected = matrices.double() / torch.linalg.matrix_norm(matrices.double(), keepdim=True)
    for _ in range(num_steps):
        gram = expected @ expected.mT
        expected = 3.4445 * expected + (-4.7750 * gram + 2.0315 * gram @ gram) @ expected
    torch.testing.assert_close(orthogonalised(matrices.double(), num_steps), expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(orthogonalised(matrices, num_steps).double(), expected, rtol=0, atol=2e-3)

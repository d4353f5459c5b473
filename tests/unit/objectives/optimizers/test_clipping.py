"""Clipping against plain single runs of the published rules, and against the libraries that have them."""

import math
import statistics
from collections.abc import Sequence

import pytest
import pytorch_optimizer
import torch

from objectives.base import TrainingConfig
from objectives.optimizers.packed_optimizer import PackedOptimizer
from objectives.stacking import Layout

STEPS = 40
LAYOUT = Layout({"matrix": (6, 9), "vector": (13,), "number": ()})
ZCLIP = [
    {},
    {"zclip": 2.5, "zclip_warmup": 25},
    {"zclip": 0.5, "zclip_warmup": 2, "clip": 1.0},
    {"zclip": 1.0, "zclip_warmup": 6},
    {"clip": 3.0},
]
ADAGC = [
    {},
    {"adagc": 1.05, "adagc_warmup": 10},
    {"adagc": 0.5, "adagc_warmup": 1, "clip": 1.0},
    {"adagc": 2.0, "adagc_warmup": 100, "clip": 2.0},
    {"clip": 3.0},
]
BOTH = [{**a, **z} for a, z in zip(reversed(ADAGC), ZCLIP, strict=True)]


def gradients(dtype: torch.dtype = torch.float64, num_members: int = len(ZCLIP)) -> torch.Tensor:
    """Of every step and member, (T, K, n): of two sizes, spikes among them, and zeros in the filling."""
    generator = torch.Generator().manual_seed(0)
    sizes = torch.tensor([0.2, 0.2, 0.2, 20.0])[torch.randint(0, 4, (STEPS, num_members, 1), generator=generator)]
    sizes[33] = 500.0
    grads = torch.randn(STEPS, num_members, LAYOUT.size, generator=generator, dtype=torch.float64) * sizes
    grads[..., LAYOUT.pieces[-1].end :] = 0.0
    return grads.to(dtype)


def optimizer_of(changes: Sequence[dict], dtype: torch.dtype = torch.float64, **common) -> PackedOptimizer:
    """SGD without momentum at a learning rate of 1: its updates are the clipped gradients."""
    plain = {"steps": STEPS, "optimizer": "sgd", "lr": 1.0, "beta1": 0.0}
    configs = [TrainingConfig(**{**plain, **common, **change}) for change in changes]
    return PackedOptimizer(torch.zeros(len(configs), LAYOUT.size, dtype=dtype), configs, LAYOUT, compiled=False)


def steps_of(optimizer: PackedOptimizer, grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Updates and clip factors of every step, (T, K, n) and (T, K)."""
    everyone = torch.arange(grads.shape[1])
    seen = [optimizer.observed_step(torch.ones(len(everyone)), grad_Kn.clone(), everyone)[1] for grad_Kn in grads]
    return torch.stack([step.update_Rn for step in seen]), torch.stack([step.clip_factor_R for step in seen])


class PlainZClip:
    """ZClip's rule for one run in plain numbers, with the threshold of a norm as its value."""

    def __init__(self, most: float, warmup: int) -> None:
        self.most, self.warmup, self.first = most, warmup, []

    def threshold(self, norm: float) -> float:
        if len(self.first) < self.warmup:
            self.first.append(norm)
            self.mean, self.variance = statistics.fmean(self.first), statistics.pvariance(self.first)
            return math.inf
        deviation = math.sqrt(self.variance)
        score, threshold = (norm - self.mean) / (deviation + 1e-6), math.inf
        if score > self.most:
            threshold = self.mean + self.most * deviation / (score / self.most)
        kept = min(norm, threshold)
        self.mean = 0.97 * self.mean + 0.03 * kept
        self.variance = 0.97 * self.variance + 0.03 * (kept - self.mean) ** 2
        return threshold


class PlainAdaGC:
    """AdaGC's rule for one weight of one run."""

    def __init__(self, most: float, warmup: int) -> None:
        self.most, self.warmup, self.step, self.average = most, warmup, 0, math.inf

    def clipped(self, grad: torch.Tensor) -> torch.Tensor:
        """A gradient of zeros, which no threshold can bound, has no part in the smallest norm of the warmup."""
        self.step += 1
        if self.step <= self.warmup:
            self.average = min(self.average, float(grad.norm()) or math.inf)
            return grad
        if math.isinf(self.average):
            self.average = float(grad.norm()) or math.inf
            return grad
        if not grad.any():
            self.average = 0.98 * self.average
            return grad
        grad = grad * min(self.most * self.average / float(grad.norm()), 1.0)
        self.average = 0.98 * self.average + 0.02 * float(grad.norm())
        return grad


def plainly_clipped(config: TrainingConfig, grads_Tn: torch.Tensor) -> torch.Tensor:
    """The gradients of one run after all the clipping that its configuration asks for, (T, n)."""
    zclip = PlainZClip(config.zclip or math.inf, config.zclip_warmup)
    adagc = [PlainAdaGC(config.adagc or math.inf, config.adagc_warmup) for _ in LAYOUT.pieces]
    clipped = []
    for grad_n in grads_Tn:
        norm = float(grad_n.norm())
        threshold = zclip.threshold(norm) if config.zclip else math.inf
        whole_n = grad_n * min(min(threshold, config.clip or math.inf) / (norm + 1e-6), 1.0)
        left_n = whole_n.clone()
        for piece, rule in zip(LAYOUT.pieces, adagc, strict=True):
            if config.adagc:
                left_n[piece.start : piece.end] = rule.clipped(whole_n[piece.start : piece.end])
        clipped.append(left_n)
    return torch.stack(clipped)


@pytest.mark.parametrize("changes", [ZCLIP, ADAGC, BOTH], ids=["zclip", "adagc", "both"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-4)], ids=["f64", "f32"])
def test_each_member_is_clipped_as_a_plain_run_of_the_published_rules(changes, dtype, tolerance) -> None:
    grads = gradients(dtype)
    updates, factors = steps_of(optimizer_of(changes, dtype), grads)
    for k, change in enumerate(changes):
        expected = plainly_clipped(TrainingConfig(steps=STEPS, **change), grads[:, k].double())
        torch.testing.assert_close(updates[:, k].double(), expected, rtol=tolerance, atol=tolerance)
        share = expected.norm(dim=1) / grads[:, k].double().norm(dim=1)
        torch.testing.assert_close(factors[:, k].double(), share, rtol=10 * tolerance, atol=1e-6)
        assert (share < 0.99).any() == bool(change), "else nothing was tested"


def test_adagc_before_adam_is_the_adagc_of_pytorch_optimizer() -> None:
    grads = gradients(num_members=2)
    members = [{"adagc": 1.05, "adagc_warmup": 9}, {"adagc": 0.7, "adagc_warmup": 3, "beta2": 0.95}]
    numbers = {"lr": 1e-2, "eps": 1e-12, "beta1": 0.9}
    packed = optimizer_of(members, optimizer="adamw", **numbers)
    steps_of(packed, grads)
    for k, member in enumerate(members):
        weights = [torch.nn.Parameter(torch.zeros(piece.shape, dtype=torch.float64)) for piece in LAYOUT.pieces]
        # Its warmup ends one step before the number; without the threshold that clips there.
        reference = pytorch_optimizer.AdaGC(
            weights, lr=1e-2, betas=(0.9, member.get("beta2", 0.999)), eps=1e-12, weight_decay=0.0, foreach=False,
            lambda_abs=1e30, lambda_rel=member["adagc"], warmup_steps=member["adagc_warmup"] + 1,
        )  # fmt: skip
        for grad_n in grads[:, k]:
            for weight, piece in zip(weights, LAYOUT.pieces, strict=True):
                weight.grad = grad_n[piece.start : piece.end].view(piece.shape).clone()
            reference.step()
        expected = torch.cat([weight.detach().flatten() for weight in weights])
        torch.testing.assert_close(packed.params_Kn[k, : len(expected)], expected, rtol=1e-9, atol=1e-12)


def test_clip_in_the_warmup_of_adagc_is_the_absolute_threshold_of_the_paper() -> None:
    grads = gradients(num_members=1)[:10]
    packed = optimizer_of([{"adagc": 1.05, "adagc_warmup": 10, "clip": 1.0}], optimizer="adamw", lr=1e-2, beta1=0.9)
    steps_of(packed, grads)
    weight = torch.nn.Parameter(torch.zeros(LAYOUT.size, dtype=torch.float64))
    reference = pytorch_optimizer.AdaGC([weight], lr=1e-2, weight_decay=0.0, lambda_abs=1.0, warmup_steps=11)
    for grad_n in grads[:, 0]:
        weight.grad = grad_n.clone()
        reference.step()
    torch.testing.assert_close(packed.params_Kn[0], weight.detach(), rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_clipping_that_is_off_for_a_member_changes_not_a_bit_of_it(optimizer: str) -> None:
    off = [{}, {"clip": 1.0}, {"clip": 1e-3}]
    grads = gradients(torch.float32)[:, [0, 1, 2]]
    common = {"optimizer": optimizer, "lr": 1e-2}
    apart = optimizer_of(off, torch.float32, **common)
    shared = optimizer_of([*off, {"zclip": 0.5, "zclip_warmup": 2}, {"adagc": 0.7}], torch.float32, **common)
    updates, factors = steps_of(shared, torch.cat([grads, grads[:, :2]], dim=1))
    expected, expected_factors = steps_of(apart, grads)
    assert torch.equal(updates[:, :3], expected)
    assert torch.equal(factors[:, :3], expected_factors)


def test_what_is_off_for_everybody_remembers_nothing() -> None:
    assert list(optimizer_of([{}, {"clip": 1.0}]).states) == ["first_moment"]
    states = optimizer_of([{}, {"zclip": 1.0}, {"adagc": 1.0}]).states
    assert {name: tuple(states[name].shape) for name in ("zclip", "adagc")} == {"zclip": (3, 3), "adagc": (3, 4)}
    assert not any(state.any() for state in states.values()), "all begin at zero"


def test_the_memory_of_a_member_that_is_off_stays_empty() -> None:
    """So that it is the same whether or not a neighbour needs one."""
    packed = optimizer_of([{}, {"zclip": 1.0, "adagc": 1.0}])
    steps_of(packed, gradients()[:, :2])
    assert [bool(packed.states[name][0].any()) for name in ("zclip", "adagc")] == [False, False]
    assert [bool(packed.states[name][1].all()) for name in ("zclip", "adagc")] == [True, True]


def test_a_fresh_member_and_one_that_turns_clipping_on_learn_from_their_own_first_norms() -> None:
    change = {"zclip": 0.5, "zclip_warmup": 4, "adagc": 0.8, "adagc_warmup": 4}
    grads = gradients(num_members=3)
    packed = optimizer_of([{}, change])
    steps_of(packed, grads[:10, :2])
    config = TrainingConfig(steps=STEPS, optimizer="sgd", lr=1.0, beta1=0.0, **change)
    params = torch.zeros(3, LAYOUT.size, dtype=torch.float64)
    packed.arrange(torch.tensor([0, -1, 1]), params, [config] * 3)  # one turns it on, one begins, one goes on
    found, _ = steps_of(packed, grads[10:])
    for k in (0, 1):
        torch.testing.assert_close(found[:, k], plainly_clipped(config, grads[10:, k]), rtol=1e-10, atol=1e-12)
    assert not torch.allclose(found[:, 2], plainly_clipped(config, grads[10:, 2]))


def test_a_state_from_before_anybody_clipped_is_taken_as_empty() -> None:
    grads = gradients(num_members=1)
    plain, resumed = optimizer_of([{}]), optimizer_of([{"zclip": 1.0, "adagc": 1.0}])
    steps_of(plain, grads[:10])
    steps_of(resumed, grads[:10])
    resumed.load_state_dict(plain.state_dict())
    assert not resumed.states["zclip"].any()
    assert not resumed.states["adagc"].any()


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), 1e300])
def test_nothing_is_learned_from_a_gradient_that_is_not_used(poison: float) -> None:
    """Not finite, or of a member that is held: for it all is as if the step had not been tried."""
    change = {"zclip": 0.5, "zclip_warmup": 4, "adagc": 0.8, "adagc_warmup": 4}
    grads = gradients(num_members=1)
    straight, held = optimizer_of([change]), optimizer_of([change])
    for step, grad_Kn in enumerate(grads):
        if step in (0, 2, 20):
            bad_Kn = grad_Kn.clone()
            bad_Kn[0, 3] = poison
            held.step(torch.ones(1), bad_Kn, held_K=torch.tensor([True]))
        straight.step(torch.ones(1), grad_Kn.clone())
        held.step(torch.ones(1), grad_Kn.clone())
        assert torch.equal(held.params_Kn, straight.params_Kn)
        assert all(torch.equal(held.states[name], straight.states[name]) for name in ("zclip", "adagc"))


@pytest.mark.parametrize("without", [[3], [0, 5, 6], [2, 9], [9], [12, 13], [4, 9, 11, 20], list(range(10))], ids=str)
def test_a_gradient_of_zeros_in_the_warmup_of_adagc_leaves_the_smallest_norm_as_it_is(without: list[int]) -> None:
    """Whenever it comes: the threshold is that of the published rule, from the norms of the other steps."""
    change = {"adagc": 1.05, "adagc_warmup": 10}
    grads = gradients(num_members=1)
    matrix = LAYOUT.pieces[0]
    grads[without, :, matrix.start : matrix.end] = 0.0
    updates, _ = steps_of(optimizer_of([change]), grads)
    expected = plainly_clipped(TrainingConfig(steps=STEPS, **change), grads[:, 0])
    torch.testing.assert_close(updates[:, 0], expected, rtol=1e-10, atol=1e-12)


def test_a_weight_that_has_had_no_gradient_is_not_clipped() -> None:
    change = {"adagc": 0.5, "adagc_warmup": 2, "zclip": 0.5, "zclip_warmup": 2}
    grads = gradients(num_members=1)
    matrix = LAYOUT.pieces[0]
    grads[:6, :, matrix.start : matrix.end] = 0.0
    updates, factors = steps_of(optimizer_of([change | {"zclip": None}]), grads)
    assert torch.equal(updates[6, :, matrix.start : matrix.end], grads[6, :, matrix.start : matrix.end])
    assert torch.isfinite(factors).all()
    # Nothing at all, for steps on end: no mean, no deviation, no average.
    updates, factors = steps_of(optimizer_of([change]), torch.zeros_like(grads))
    assert not updates.any()
    assert (factors == 1).all()


def test_a_spike_is_cut_to_what_is_usual() -> None:
    """ZClip of a spike to next to the mean, AdaGC of one weight's spike without touching the other weights."""
    grads = torch.zeros(STEPS, 2, LAYOUT.size, dtype=torch.float64)
    matrix, vector, _ = LAYOUT.pieces
    grads[..., matrix.start], grads[..., vector.start] = 3.0, 4.0
    grads[::2] *= 1.02
    grads[30, :, matrix.start] = 3000.0
    changes = [{"zclip": 2.5, "zclip_warmup": 20}, {"adagc": 1.05, "adagc_warmup": 20}]
    updates, factors = steps_of(optimizer_of(changes), grads)
    assert updates[30, 0].norm() == pytest.approx(5.05, rel=0.01)
    assert updates[30, 1, matrix.start] == pytest.approx(1.05 * 3.0, rel=0.02)
    assert updates[30, 1, vector.start] == pytest.approx(4.0, rel=0.03)
    assert (factors[30] < 0.01).all()
    assert (factors[:20] == 1).all()

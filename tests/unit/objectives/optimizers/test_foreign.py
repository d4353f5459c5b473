from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest
import pytorch_optimizer
import torch
from sweep_cases import sweep_of

from objectives.base import OBJECTIVES, TrainingConfig
from objectives.optimizers.facts.library import problem_with
from objectives.optimizers.foreign import ForeignOptimizer, make_optimizer
from objectives.optimizers.packed_optimizer import PackedOptimizer
from objectives.stacking import Layout
from orchestrator.answers.plan import PlanQuery
from orchestrator.base.errors import InputError
from orchestrator.driver.packing import expected_width, make_packs
from orchestrator.driver.planning import check_optimizers
from orchestrator.worker.machine import Machine, Measurement, measure_widths

STEPS = 25
# Square matrices: of others SOAP's first basis is in part any one, which rounding decides and training depends on.
LAYOUT = Layout({"matrix": (6, 6), "vector": (13,), "stack": (2, 3, 5), "number": ()})
MEMBERS = [
    {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8},
    {"lr": 3e-2, "beta1": 0.95, "beta2_half_life": 40.0, "eps": 1e-2, "weight_decay": 0.3, "clip": 0.5},
    {"lr": 1e-2, "beta1": 0.5, "beta2": 0.95, "eps": 1e-6, "warmup": 10, "weight_decay": 0.01},
]
Library = Callable[[list, TrainingConfig], torch.optim.Optimizer]
# What the library is told, written out.
LIBRARIES: Mapping[str, Library] = {
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


def betas(config: TrainingConfig) -> tuple[float, float]:
    return config.beta1, config.second_moment_decay


def members(optimizer: str, **common) -> list[TrainingConfig]:
    return [TrainingConfig(**{"steps": 2 * STEPS, "optimizer": optimizer, **member, **common}) for member in MEMBERS]


def gradients(dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Of very different sizes, (T, K, n), with zeros in the filling."""
    generator = torch.Generator().manual_seed(0)
    sizes = 10.0 ** torch.randint(-3, 3, (STEPS, len(MEMBERS), 1), generator=generator)
    grads = torch.randn(STEPS, len(MEMBERS), LAYOUT.size, generator=generator, dtype=torch.float64) * sizes
    grads[..., LAYOUT.pieces[-1].end :] = 0.0
    return grads.to(dtype)


def start_of(dtype: torch.dtype = torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    start_Kn = torch.randn(len(MEMBERS), LAYOUT.size, generator=generator, dtype=torch.float64)
    start_Kn[:, LAYOUT.pieces[-1].end :] = 0.0
    return start_Kn.to(dtype)


def optimizer_of(configs: Sequence[TrainingConfig], start: torch.Tensor, seeds: Sequence[int] | None = None):
    return make_optimizer(start.clone(), configs, LAYOUT, compiled=False, seeds=seeds)


def train(optimizer: PackedOptimizer, grads: torch.Tensor) -> PackedOptimizer:
    for grad in grads:
        optimizer.step(torch.ones(grads.shape[1]), grad.clone())
    return optimizer


def alone(library: Library, config: TrainingConfig, start: torch.Tensor, grads: torch.Tensor) -> torch.Tensor:
    """A loop as anybody would write it, with torch's clipping and decoupled weight decay."""
    pieces = LAYOUT.pieces
    params = [torch.nn.Parameter(start[p.start : p.end].clone().view(p.shape)) for p in pieces]
    optimizer = library(params, config)
    for step, grad in enumerate(grads):
        for parameter, p in zip(params, pieces, strict=True):
            parameter.grad = grad[p.start : p.end].clone().view(p.shape)
        if config.clip is not None:
            torch.nn.utils.clip_grad_norm_(params, config.clip)
        lr = optimizer.param_groups[0]["lr"] = config.lr * min(1.0, (step + 1) / max(1, config.warmup))
        before = [parameter.detach().clone() for parameter in params]
        optimizer.step()
        with torch.no_grad():
            for parameter, weight in zip(params, before, strict=True):
                parameter.sub_(lr * config.weight_decay * weight)
    return torch.cat([parameter.detach().flatten() for parameter in params])


@pytest.mark.parametrize("name", LIBRARIES)
def test_every_member_is_trained_as_by_the_library_alone(name) -> None:
    configs, start, grads = members(name), start_of(), gradients()
    found = train(optimizer_of(configs, start), grads)
    assert isinstance(found, ForeignOptimizer)
    for k, config in enumerate(configs):
        expected = alone(LIBRARIES[name], config, start[k], grads[:, k])
        torch.testing.assert_close(found.params_Kn[k, : len(expected)], expected, rtol=1e-11, atol=1e-11)
    assert not found.params_Kn[:, len(expected) :].any(), "nor is what fills the last block"


@pytest.mark.parametrize("kind", ["decoupled", "coupled", "independent"])
def test_an_optimizer_that_is_packed_too_gives_the_same(kind) -> None:
    """So that clipping, schedule and every kind of weight decay act alike."""
    common = {"weight_decay_kind": kind, "schedule": "cosine", "final_lr_fraction": 0.1}
    start, grads, rows = start_of(), gradients(), torch.arange(len(MEMBERS))
    ours, library = (optimizer_of(members(name, **common), start) for name in ("adamw", "torch.optim.AdamW"))
    for grad in grads:
        expected, found = ours.step(torch.ones(3), grad.clone()), library.step(torch.ones(3), grad.clone())
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(library.params_Kn, ours.params_Kn, rtol=1e-11, atol=1e-11)
    _, expected = ours.observed_step(torch.ones(3), grads[0].clone(), rows)
    _, found = library.observed_step(torch.ones(3), grads[0].clone(), rows)
    torch.testing.assert_close(found.update_Rn, expected.update_Rn, rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("name", ["torch.optim.NAdam", "pytorch_optimizer.ADOPT", "pytorch_optimizer.SOAP"])
def test_a_member_alone_has_the_bits_that_it_has_beside_others(name) -> None:
    configs, start, grads = members(name), start_of(torch.float32), gradients(torch.float32)
    together = train(optimizer_of(configs, start), grads)
    for k in range(len(configs)):
        apart = train(optimizer_of(configs[k : k + 1], start[k : k + 1]), grads[:, k : k + 1])
        assert torch.equal(apart.params_Kn[0], together.params_Kn[k])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
@pytest.mark.parametrize("name", ["torch.optim.NAdam", "torch.optim.SGD", "pytorch_optimizer.SOAP"])
def test_an_optimizer_that_was_saved_goes_on_bit_for_bit(name, dtype, tmp_path) -> None:
    configs, start, grads = members(name), start_of(dtype), gradients(dtype)
    expected = train(optimizer_of(configs, start), grads)
    stopped = train(optimizer_of(configs, start), grads[:11])
    state = stopped.state_dict()
    torch.save(state, tmp_path / "state.pt")
    kept = stopped.params_Kn.clone()
    train(stopped, grads[:3])  # what is done after the snapshot must not leak into it
    for saved in (state, torch.load(tmp_path / "state.pt", weights_only=True)):
        resumed = optimizer_of(configs, kept)
        resumed.load_state_dict(saved)
        assert torch.equal(train(resumed, grads[11:]).params_Kn, expected.params_Kn)


@pytest.mark.parametrize("name", ["torch.optim.NAdam", "pytorch_optimizer.ADOPT"])
def test_members_that_come_go_and_part_are_each_at_their_own_step(name) -> None:
    configs, start, grads = members(name), start_of(), gradients()
    packed = train(optimizer_of(configs[:2], start[:2]), grads[:6, :2])
    # 1 goes on, and also with other numbers; 2 is fresh on the place that 0 leaves.
    rows, other = torch.tensor([-1, 1, 1]), configs[1].model_copy(update={"lr": 0.5, "beta1": 0.0, "eps": 1.0})
    params = packed.params_Kn[rows.clamp(min=0)]
    params[0] = start[2]
    packed.arrange(rows, params, [configs[2], configs[1], other])
    for step in range(10):
        packed.step(torch.ones(3), torch.stack([grads[step, 2], grads[step + 6, 1], grads[step + 6, 1]]))
    assert packed.age_K.tolist() == [10, 16, 16]
    fresh = train(optimizer_of(configs[2:], start[2:]), grads[:10, 2:])
    straight = train(optimizer_of(configs[1:2], start[1:2]), grads[:16, 1:2])
    assert torch.equal(packed.params_Kn[0], fresh.params_Kn[0])
    assert torch.equal(packed.params_Kn[1], straight.params_Kn[0])
    group = packed.rule.members[2]._optimizer.param_groups[0]
    assert group["betas"] == (0.0, other.second_moment_decay)
    assert group["eps"] == 1.0
    assert not torch.allclose(packed.params_Kn[2], packed.params_Kn[1])


@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_a_member_that_is_not_finite_is_masked_and_touches_nobody(where) -> None:
    configs, start, grads = members("torch.optim.NAdam"), start_of(), gradients()
    expected = train(optimizer_of(configs, start), grads[:8])
    packed = optimizer_of(configs, start)
    for step in range(8):
        loss, grad = torch.ones(3), grads[step].clone()
        if step >= 3:
            kept = packed.params_Kn[1].clone()
            (loss if where == "loss" else grad[:, 5])[1] = torch.nan
        metrics = packed.step(loss, grad)
    assert torch.equal(packed.params_Kn[[0, 2]], expected.params_Kn[[0, 2]])
    assert torch.equal(packed.params_Kn[1], kept)
    assert torch.isnan(metrics["update_norm"][1])


@pytest.mark.parametrize("name", ["torch.optim.NAdam", "pytorch_optimizer.SOAP"])
def test_a_member_that_blows_up_is_lost_whatever_its_library_raises(name) -> None:
    configs, start, grads = members(name), start_of(torch.float32), gradients(torch.float32)
    expected = train(optimizer_of(configs, start), grads[:5])
    configs[1] = configs[1].model_copy(update={"lr": 1e300, "clip": None})
    optimizer_of([configs[1], *configs], start[[1, 0, 1, 2]])  # nor does it matter where in a pack it is
    packed = optimizer_of(configs, start)
    for step in range(5):
        # As of a loss that has no value where its weights have none.
        loss = torch.where(packed.params_Kn.isfinite().all(1), 1.0, torch.nan)
        packed.step(loss, grads[step].clone())
    assert packed.alive_K.tolist() == [True, False, True]
    assert torch.equal(packed.params_Kn[[0, 2]], expected.params_Kn[[0, 2]])


def test_a_member_that_is_held_is_as_if_the_step_had_not_been() -> None:
    configs, start, grads = members("torch.optim.NAdam", warmup=0), start_of(), gradients()
    expected = train(optimizer_of(configs, start), grads[:8])
    packed = train(optimizer_of(configs, start), grads[:4])
    held, kept = torch.tensor([False, True, False]), packed.params_Kn[1].clone()
    packed.step(torch.ones(3), torch.full_like(grads[0], torch.nan).where(held[:, None], grads[4]), held_K=held)
    assert torch.equal(packed.params_Kn[1], kept)
    for step in range(5, 8):
        grad = grads[step].clone()
        grad[1] = grads[step - 1, 1]
        packed.step(torch.ones(3), grad)
    grad = grads[7].clone()
    packed.step(torch.ones(3), grad)
    assert torch.equal(packed.params_Kn[1], expected.params_Kn[1])


def test_questions_about_moments_are_answered_with_none() -> None:
    packed = train(optimizer_of(members("torch.optim.NAdam"), start_of()), gradients()[:2])
    asked = packed.of_rows(torch.tensor([0, 2]))
    assert packed.rule.divisor(*asked) is None
    assert packed.rule.first_moment(*asked) is None
    assert packed.rule.second_moment(*asked) is None
    assert packed.divisor(torch.tensor([0, 2])) is None


class Noisy(torch.optim.Optimizer):
    """Draws from the generator that a process shares."""

    def __init__(self, params, lr=0.1) -> None:
        super().__init__(params, {"lr": lr})

    def step(self) -> None:
        for parameter in self.param_groups[0]["params"]:
            parameter.data.add_(torch.randn_like(parameter))


def test_what_a_library_draws_is_a_function_of_seed_and_age(monkeypatch) -> None:
    monkeypatch.setattr(pytorch_optimizer, "Noisy", Noisy, raising=False)
    monkeypatch.setattr("objectives.optimizers.foreign.problem_with", lambda name: None)
    configs, start, grads = members("pytorch_optimizer.Noisy", weight_decay=0.0), start_of(), gradients()[:3]
    found = []
    for shared_seed in (0, 1):
        torch.manual_seed(shared_seed)
        packed = train(optimizer_of(configs, start, seeds=[5, 7, 5]), grads)
        found.append(packed.params_Kn - start)
        assert torch.initial_seed() == shared_seed, "the shared generator is left alone"
    assert torch.equal(found[0], found[1])
    torch.testing.assert_close(found[0][0], found[0][2], msg="equal seeds draw alike")
    assert not torch.allclose(found[0][0], found[0][1])


# What cannot be used, and how that is told.


@pytest.mark.parametrize(("name", "message"), [
    ("torch.optim.Nadam", "torch has no optimizer torch.optim.Nadam; there are: NAdam, "),
    ("torch.optim.Optimizer", "torch has no optimizer torch.optim.Optimizer; "),
    ("pytorch_optimizer.BCELoss", "pytorch_optimizer has no optimizer pytorch_optimizer.BCELoss; "),
    ("torch.optim.LBFGS", "torch.optim.LBFGS needs a closure that computes the loss again; choose another"),
    ("pytorch_optimizer.SAM", "SAM cannot be made from parameters alone: it needs base_optimizer; choose another"),
    ("pytorch_optimizer.AliG", "AliG cannot be used here: AliG requires closure"),
    ("pytorch_optimizer.SophiaH", "SophiaH cannot be used here: element 0 of tensors does not require grad"),
    ("torch.optim.SparseAdam", "SparseAdam cannot be used here: SparseAdam does not support dense gradients"),
    ("torch.optim.Muon", "Muon cannot be used here: Muon only supports 2D parameters"),
    ("pytorch_optimizer.AdaShift", "AdaShift cannot be used here: it keeps a deque, which a checkpoint cannot hold"),
])  # fmt: skip
def test_what_cannot_be_used_is_told_in_one_line_with_a_remedy(name, message) -> None:
    with pytest.raises(ValueError, match=r"; (choose another one|there are)") as caught:
        optimizer_of(members(name), start_of())
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_optimizer_that_does_not_resume_exactly_is_refused(monkeypatch) -> None:
    class Forgetful(Noisy):
        """Its steps depend on what it does not save."""

        def step(self) -> None:
            self.steps = getattr(self, "steps", 0) + 1
            for parameter in self.param_groups[0]["params"]:
                parameter.data.sub_(self.steps * parameter.grad)

    monkeypatch.setattr(pytorch_optimizer, "Forgetful", Forgetful, raising=False)
    monkeypatch.setattr("objectives.optimizers.foreign.problem_with", lambda name: None)
    with pytest.raises(ValueError, match="does not resume exactly from its saved state"):
        optimizer_of(members("pytorch_optimizer.Forgetful"), start_of())


def test_a_library_that_is_not_installed_is_told_with_what_to_install(monkeypatch) -> None:
    problem_with.cache_clear()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert problem_with("pytorch_optimizer.ADOPT") == (
        "pytorch_optimizer is not installed",
        "pip install 'pytorch-optimizer'",
    )
    problem_with.cache_clear()


@pytest.mark.parametrize("name", ["adam", "torch.NAdam", "torch.optim.", "os.system", "pytorch_optimizer.a.b"])
def test_what_names_no_library_is_refused_by_the_configuration(name) -> None:
    with pytest.raises(ValueError, match="is unknown: choose from"):
        TrainingConfig(steps=1, optimizer=name)


# What a sweep makes of it.

NADAM = "fixed: {optimizer: torch.optim.NAdam}\naxes: {lr: {linear: [0.1, 1], num: 12}}\n"


@pytest.mark.parametrize("pack", ["auto", 4])
def test_members_of_a_library_train_one_at_a_time(pack, tmp_path) -> None:
    sweep = sweep_of(f"{NADAM}resources: {{pack: {pack}}}\n")
    assert expected_width(sweep, sweep.trials[0]) == 1
    packs = make_packs(sweep, sweep.trials, 1)
    assert {p.width for p in packs} == {None}, "as it is measured, and only one is"
    assert max(len(p.members) for p in packs) > 1, "one start for many, one after the other"
    lines = PlanQuery().ask((sweep, tmp_path)).lines()
    assert "          torch.optim.NAdam comes from a library, and trains one member at a time" in lines


def test_only_one_member_at_a_time_is_timed() -> None:
    timed = []

    def measure(objective, config, device, width):
        timed.append(width)
        return Measurement(width, 1.0, 1)

    objective = OBJECTIVES["quadratic"]
    for optimizer, widths in (("torch.optim.NAdam", [1]), ("adamw", [1, 4])):
        timed.clear()
        config = objective.config_class(steps=10, optimizer=optimizer)
        measure_widths(objective, config, "cpu", 4, machine=Machine(measure))
        assert timed == widths


def test_a_sweep_that_names_what_there_is_not_is_refused_when_it_is_planned(tmp_path) -> None:
    sweep = sweep_of(NADAM.replace("NAdam", "Nadam"))
    for refuses in (lambda: PlanQuery().ask((sweep, tmp_path)), lambda: check_optimizers(sweep)):
        with pytest.raises(InputError, match=r"torch has no optimizer torch.optim.Nadam\n.*there are: NAdam"):
            refuses()


def test_only_members_of_the_packed_optimizers_can_be_stacked() -> None:
    assert TrainingConfig(steps=1, optimizer="radam").can_be_stacked
    assert not TrainingConfig(steps=1, optimizer="torch.optim.RAdam").can_be_stacked
    packed = optimizer_of(members("adamw"), start_of())
    assert type(packed) is PackedOptimizer

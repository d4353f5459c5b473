from pathlib import Path

import pytest
import pytorch_optimizer
import torch
from rule_cases import EVERYONE, Members
from sweep_cases import sweep_of

from objectives.base import OBJECTIVES, TrainingConfig
from objectives.optimizers.facts.library import problem_with
from objectives.optimizers.foreign import ForeignOptimizer, rehearsal_problem
from objectives.optimizers.packed_optimizer import PackedOptimizer
from objectives.stacking import Layout
from orchestrator.answers.plan import PlanQuery
from orchestrator.base.errors import InputError
from orchestrator.driver.packing import expected_width, make_packs
from orchestrator.driver.planning import check_optimizers
from orchestrator.worker.machine import Machine, Measurement, measure_widths


@pytest.mark.parametrize("kind", ["decoupled", "coupled", "independent"])
def test_an_optimizer_that_is_packed_too_gives_the_same(kind) -> None:
    """So that clipping, schedule and every kind of weight decay act alike."""
    common = {"weight_decay_kind": kind, "schedule": "cosine", "final_lr_fraction": 0.1}
    own, other = Members("adamw", **common), Members("torch.optim.AdamW", **common)
    ours, library, loss, rows = own.packed(), other.packed(), torch.ones(len(EVERYONE)), torch.tensor(EVERYONE)
    for grad in own.grads:
        expected, found = ours.step(loss, grad.clone()), library.step(loss, grad.clone())
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(library.params_Kn, ours.params_Kn, rtol=1e-11, atol=1e-11)
    _, expected = ours.observed_step(loss, own.grads[0].clone(), rows)
    _, found = library.observed_step(loss, own.grads[0].clone(), rows)
    torch.testing.assert_close(found.update_Rn, expected.update_Rn, rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("name", ["torch.optim.NAdam", "pytorch_optimizer.ADOPT"])
def test_a_fork_trains_on_with_the_numbers_of_its_own(name) -> None:
    own = Members(name)
    packed, other = own.trained([1], 6), own.configs[1].model_copy(update={"lr": 0.5, "beta1": 0.0, "eps": 1.0})
    rows = torch.tensor([0, 0])
    packed.arrange(rows, packed.params_Kn[rows], [own.configs[1], other])
    own.train(packed, range(6, 16), [1, 1])
    assert torch.equal(packed.params_Kn[[0]], own.trained([1], 16).params_Kn)
    group = packed.rule.members[1]._optimizer.param_groups[0]
    assert group["betas"] == (0.0, other.second_moment_decay)
    assert group["eps"] == 1.0
    assert not torch.allclose(packed.params_Kn[1], packed.params_Kn[0])


@pytest.mark.parametrize("name", ["torch.optim.NAdam", "pytorch_optimizer.SOAP"])
def test_a_member_that_blows_up_is_lost_whatever_its_library_raises(name) -> None:
    own = Members(name, torch.float32)
    expected, others = own.trained(num_steps=5), [0, 2, 3, 4]
    own.configs[1] = own.configs[1].model_copy(update={"lr": 1e300, "clip": None})
    own.packed([1, *EVERYONE])  # nor does it matter where in a pack it is
    packed = own.packed()
    for grad in own.grads[:5]:
        # As of a loss that has no value where its weights have none.
        packed.step(torch.where(packed.params_Kn.isfinite().all(1), 1.0, torch.nan), grad.clone())
    assert packed.alive_K.tolist() == [True, False, True, True, True]
    assert torch.equal(packed.params_Kn[others], expected.params_Kn[others])


def test_questions_about_moments_are_answered_with_none() -> None:
    packed, rows = Members("torch.optim.NAdam").trained(num_steps=2), torch.tensor([0, 2])
    asked = packed.of_rows(rows)
    assert packed.rule.divisor(*asked) is None
    assert packed.rule.first_moment(*asked) is None
    assert packed.rule.second_moment(*asked) is None
    assert packed.divisor(rows) is None


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
    own = Members("pytorch_optimizer.Noisy", weight_decay=0.0)
    found = []
    for shared_seed in (0, 1):
        torch.manual_seed(shared_seed)
        packed = own.trained([2, 4, 2], 3)
        found.append(packed.params_Kn - own.start_Kn[[2, 4, 2]])
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
    ("torch.optim.Muon", "Muon takes matrices alone"),
    ("pytorch_optimizer.AdaShift", "AdaShift cannot be used here: it keeps a deque, which a checkpoint cannot hold"),
])  # fmt: skip
def test_what_cannot_be_used_is_told_in_one_line_with_a_remedy(name, message) -> None:
    with pytest.raises(ValueError, match=r"; (choose another one|there are)") as caught:
        Members(name).packed()
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
        Members("pytorch_optimizer.Forgetful").packed()


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

    def measure(objective, config, device, width, kernels):
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
    assert type(Members("adamw").packed()) is PackedOptimizer
    assert type(Members("torch.optim.RAdam").packed()) is ForeignOptimizer


def every_name() -> list[str]:
    """Every optimizer of both libraries, as a sweep file names it."""
    of_torch = [name for name, kind in vars(torch.optim).items() if isinstance(kind, type) and name != "Optimizer"]
    theirs = [pytorch_optimizer.load_optimizer(name) for name in pytorch_optimizer.get_supported_optimizers()]
    of_library = {kind.__name__ for kind in theirs if kind.__module__.startswith("pytorch_optimizer")}
    return [f"torch.optim.{name}" for name in of_torch] + [f"pytorch_optimizer.{name}" for name in sorted(of_library)]


@pytest.mark.slow
def test_every_optimizer_of_a_library_trains_or_is_refused_before_training_as_the_page_says() -> None:
    names = every_name()
    refused = [name for name in names if problem_with(name) or rehearsal_problem(name)]
    page = " ".join((Path(__file__).parents[4] / "docs" / "knobs.md").read_text().split())
    assert f"{len(names) - len(refused)} of their {len(names)} optimizers train here" in page
    sentence = page.split("refuses the others before anything is trained: ")[1].split(". ")[0]
    listed = sentence.replace("`", "").split(", ")
    assert sorted(name.rpartition(".")[2] for name in listed) == sorted(name.rpartition(".")[2] for name in refused)
    assert {name for name in listed if "." in name} <= set(refused)


def test_relatives_of_muon_get_the_matrices_and_the_rest_in_groups_of_their_own() -> None:
    layout = Layout({"table": (16, 8), "matrix": (8, 24), "vector": (8,)}, {"table": "embedding"})
    config = TrainingConfig(steps=9, optimizer="pytorch_optimizer.Muon")
    packed = ForeignOptimizer(torch.zeros(1, layout.size), [config], layout, seeds=[0])
    groups = packed.rule.members[0]._optimizer.param_groups
    shapes = {group["use_muon"]: [tuple(weight.shape) for weight in group["params"]] for group in groups}
    assert shapes == {True: [(8, 24)], False: [(16, 8), (8,)]}


@pytest.mark.parametrize("name", ["torch.optim.Muon", "pytorch_optimizer.SpectralSphere", "torch.optim.SparseAdam"])
def test_an_optimizer_that_fails_with_a_small_model_is_refused_when_it_is_planned(name: str) -> None:
    sweep = sweep_of(f"axes: {{optimizer: {{values: [adamw, {name}]}}}}\n")
    with pytest.raises(InputError) as refused:
        check_optimizers(sweep)
    assert [(problem.key, name in problem.message) for problem in refused.value.problems] == [("optimizer", True)]

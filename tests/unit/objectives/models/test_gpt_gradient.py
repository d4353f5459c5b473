import copy
import gc
import itertools
from collections.abc import Mapping

import pytest
import torch
from gpt_cases import COMPILED_SHAPE as SHAPE
from gpt_cases import DENSE, INITS, KNOBS, LLAMA, assert_compiled_is_eager
from gpt_cases import SEEDS as SEEDS_OF_KNOBS
from pack_cases import trainer_of
from tiers import one_of, thinned

from objectives.base import ExecutionPlan, GptConfig
from objectives.models.gpt import GptTrainer
from objectives.models.gpt_gradient import losses_and_gradient
from objectives.models.gpt_knobs import Knobs
from objectives.models.gpt_model import cross_entropy
from objectives.stacking import rows_of_blocks
from objectives.training.packed import PackedTrainer

SEEDS = [0, 1, 0]


def trained(text, plan: ExecutionPlan | None = None, **fields) -> GptTrainer:
    """Three members, away from their tiny initial weights."""
    configs = [GptConfig(text=text, lr=lr, **(SHAPE | fields)) for lr in (1e-2, 3e-2, 1e-1)]
    trainer = trainer_of("gpt", configs, SEEDS, plan)
    for _ in range(3):
        trainer.step()
    return trainer


def by_name(grad_Kn: torch.Tensor, weights: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
    """The flat gradient in pieces, (K, size) each."""
    sizes = [weight[0].numel() for weight in weights.values()]
    return dict(zip(weights, grad_Kn[:, : sum(sizes)].split(sizes, dim=1), strict=True))


def assert_close(found, expected, weights: Mapping[str, torch.Tensor], tolerance: float) -> None:
    """Losses and every weight's gradient agree, each member's by itself."""
    torch.testing.assert_close(found[0], expected[0], rtol=tolerance, atol=0)
    assert found[1].shape == expected[1].shape
    wanted = by_name(expected[1], weights)
    for name, piece in by_name(found[1], weights).items():
        error_K = (piece - wanted[name]).norm(dim=1) / wanted[name].norm(dim=1)
        assert (error_K < tolerance).all(), f"gradient of {name}: off by {error_K.tolist()} of its norm"


# Double precision is not how it trains, but there the two must agree to the last digits. In single precision the
# rounding of sums that cancel depends on the machine: 1e-5 of the norm on some.
@pytest.mark.parametrize(
    ("dtype", "kernels", "tolerance"),
    [(torch.float32, "default", 1e-4), (torch.float32, "onednn", 1e-4), (torch.float64, "default", 1e-11)],
    ids=["f32", "f32-onednn", "f64"],
)
@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("qk_norm", [False, True])
def test_both_passes_by_hand_are_those_of_autograd(text, qk_norm: bool, depth: int, dtype, kernels, tolerance) -> None:
    trainer = trained(text, ExecutionPlan(3, kernels=kernels), qk_norm=qk_norm, depth=depth)
    trainer.weights = {name: w.detach().to(dtype).requires_grad_() for name, w in trainer.weights.items()}
    found, expected = trainer.losses_and_gradient(), PackedTrainer.losses_and_gradient(trainer)
    assert found[1].dtype == dtype
    assert_close(found, expected, trainer.weights, tolerance)


NORMS = [
    {"norm": norm, "norm_place": place, "recompute": recompute, "qk_norm": recompute}
    for norm, place, recompute in itertools.product(["layer", "rms"], ["pre", "post", "output"], [False, True])
]
NORMS += [
    {"norm": None, "init": init, "qk_norm": qk_norm, "recompute": recompute}
    for init, qk_norm, recompute in itertools.product(INITS, [False, True], [False, True])
]
NORMS += DENSE


@pytest.mark.parametrize("model", one_of(2, NORMS), ids=lambda model: " ".join(map(str, model.values())))
def test_every_knob_by_hand_is_that_of_autograd_with_norms_and_without(text, model: dict) -> None:
    configs = [GptConfig(text=text, lr=1e-2, **(SHAPE | model | knobs)) for knobs in KNOBS]
    trainer = trainer_of("gpt", configs, list(SEEDS_OF_KNOBS))
    for _ in range(3):
        trainer.step()
    for dtype, tolerance in ((torch.float32, 1e-4), (torch.float64, 1e-11)):
        trainer.weights = {name: w.detach().to(dtype).requires_grad_() for name, w in trainer.weights.items()}
        found, expected = trainer.losses_and_gradient(), PackedTrainer.losses_and_gradient(trainer)
        assert_close(found, expected, trainer.weights, tolerance)


@pytest.mark.parametrize("knobs", [Knobs(), Knobs(context_K=torch.tensor([4, 10, 3]))], ids=["plain", "blocks"])
@pytest.mark.parametrize("num_bytes", [2, 7, 11])
def test_a_text_shorter_than_the_context_leaves_the_last_positions_without_gradient(text, num_bytes, knobs) -> None:
    trainer = trained(text)
    weights = {name: w.detach().double().requires_grad_() for name, w in trainer.weights.items()}
    tokens_KBS = trainer.batches.batch(trainer.cohorts())[trainer.cohort_of_member_K][..., :num_bytes]
    loss_K = cross_entropy(trainer.structure, weights, tokens_KBS, knobs)
    grads = torch.autograd.grad(loss_K.sum(), list(weights.values()))
    expected = loss_K.detach(), rows_of_blocks(grads)
    detached = {name: w.detach() for name, w in weights.items()}
    found = losses_and_gradient(detached, tokens_KBS, trainer.structure, "default", knobs)
    torch.testing.assert_close(found[0], expected[0], rtol=1e-11, atol=0)
    torch.testing.assert_close(found[1], expected[1], rtol=1e-9, atol=1e-13)
    assert not by_name(found[1], detached)["position"].view(3, 10, 12)[:, num_bytes - 1 :].any()


@pytest.mark.parametrize("kernels", ["default", "onednn"])
@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
@pytest.mark.parametrize("where", ["embedding", "0.qkv", "head"])
def test_a_member_that_is_not_finite_leaves_the_gradients_of_the_others_alone(text, where, poison, kernels) -> None:
    trainer = trained(text, ExecutionPlan(3, kernels=kernels), qk_norm=True)
    clean = trainer.losses_and_gradient()
    with torch.no_grad():
        trainer.weights[where][1] = poison
    dirty = trainer.losses_and_gradient()
    assert not torch.isfinite(dirty[0][1])
    for found, expected in zip(dirty, clean, strict=True):
        assert torch.equal(found[[0, 2]], expected[[0, 2]])


def test_neither_pass_changes_the_weights_or_asks_autograd_for_anything(text) -> None:
    trainer = trained(text)
    before = copy.deepcopy(trainer.state_dict())
    loss_K, grad_Kn = trainer.losses_and_gradient()
    assert not loss_K.requires_grad
    assert not grad_Kn.requires_grad
    assert torch.equal(trainer.state_dict()["params"], before["params"])


def test_a_z_loss_of_zero_stays_out_of_a_loss_whose_log_z_has_no_square(text) -> None:
    trainer = trained(text)
    weights = {name: w.detach() for name, w in trainer.weights.items()}
    weights["head"] = weights["head"] * 1e25
    tokens_KBS = trainer.batches.batch(trainer.cohorts())[trainer.cohort_of_member_K]
    zero = Knobs(z_loss_K=torch.tensor([0.0, 0.1, 0.0], dtype=torch.float64))
    plain, among = (losses_and_gradient(weights, tokens_KBS, trainer.structure, "default", k) for k in (Knobs(), zero))
    assert torch.isinf(among[0][1])
    for found, expected in zip(among, plain, strict=True):
        assert torch.equal(found[[0, 2]], expected[[0, 2]])
    by_autograd = cross_entropy(trainer.structure, weights, tokens_KBS, zero)
    assert torch.isfinite(by_autograd[[0, 2]]).all()


@pytest.mark.slow
def test_nothing_of_a_gradient_waits_for_the_garbage_collector(text) -> None:
    trainer = trained(text)
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        trainer.losses_and_gradient()
        gc.collect()
        # Modules that are imported by then leave cycles too, but no tensors.
        kept = [item for item in gc.garbage if type(item) is torch.Tensor]
        assert kept == [], "activations in a cycle of references stay in memory"
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


@pytest.mark.slow
@pytest.mark.parametrize(
    "model", thinned([{}, {"norm": None, "init": "fan_in"}, LLAMA], lambda model: model is LLAMA), ids=str
)
def test_a_pack_that_is_captured_for_compilation_trains_as_an_eager_one(text, model: dict, monkeypatch) -> None:
    # All of torch.compile but the code generator, which takes half a minute for the whole transformer.
    torch_compile = torch.compile
    captured = []

    def compile_without_generator(function, **options):
        captured.append(function.__name__)
        return torch_compile(function, fullgraph=True, backend="aot_eager", **options)

    monkeypatch.setattr(torch, "compile", compile_without_generator)
    assert_compiled_is_eager(text, KNOBS[-3:], depth=1, **{"qk_norm": True} | model)
    assert sorted(captured) == ["advance", "losses_and_gradient"]

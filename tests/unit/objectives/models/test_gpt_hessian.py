"""The C++ kernel's products with the Hessian, and the curvature by them, are torch's, for each member by itself."""

import pytest
import torch
from gpt_cases import KNOBS, SEEDS
from native_cases import EVEN, LONG, ODD, STRUCTURES, pack_of
from pack_cases import trainer_of
from tiers import thinned

from objectives.base import ExecutionPlan, GptConfig
from objectives.instruments.curvature import Curvature, GradientGraph, Hessian
from objectives.models.gpt import GptTrainer
from objectives.models.gpt_hessian import NativeHessian
from objectives.native.cache import kernel_folder

DOUBLE = torch.float64
EVERYONE = torch.arange(len(KNOBS))


def native(trainer: GptTrainer, params_Rn: torch.Tensor, rows: torch.Tensor = EVERYONE) -> NativeHessian:
    tokens_KBS, knobs = trainer._batch()
    return NativeHessian(
        trainer.structure, trainer.layout, kernel_folder(), params_Rn, tokens_KBS[rows], knobs.of_rows(rows)
    )


def by_torch(trainer: GptTrainer, params_Rn: torch.Tensor) -> GradientGraph:
    return GradientGraph(lambda weights: trainer.losses_of(weights, EVERYONE), params_Rn, trainer.weight_shapes)


def vectors(trainer: GptTrainer, seed: int = 0) -> torch.Tensor:
    """A vector for each member, zero in the padding."""
    vector_Kn = torch.randn(trainer._params_Kn.shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)
    vector_Kn[:, sum(piece.size for piece in trainer.layout.pieces) :] = 0
    return vector_Kn


def error(found_Kn: torch.Tensor, expected_Kn: torch.Tensor) -> float:
    """The largest distance, relative to what is expected, of a member."""
    return ((found_Kn - expected_Kn).norm(dim=1) / expected_Kn.norm(dim=1)).max().item()


def measured(trainer: GptTrainer, hessian: Hessian, dtype: torch.dtype, rows: torch.Tensor = EVERYONE) -> Curvature:
    """With a preconditioner whose numbers differ by a factor of a hundred, and a warm start."""
    divisor_Kn, warm_Kn = (vectors(trainer, 1).abs() + 0.02).to(dtype), vectors(trainer, 2).to(dtype)
    return hessian.curvature(divisor_Kn[rows], torch.ones(len(rows), dtype=DOUBLE), warm_Kn[rows], 4)


@pytest.mark.parametrize("shape", thinned([ODD, EVEN, LONG], lambda shape: shape is ODD), ids=["odd", "even", "long"])
@pytest.mark.parametrize("structure", STRUCTURES, ids=str)
def test_in_double_precision_products_and_curvature_are_torchs_to_the_last_digits(text, structure, shape) -> None:
    """Products within 1e-12, lambda_max and lambda_grad within 1e-10, of every structure that the kernels have."""
    trainer = pack_of(text, shape, **structure)
    params_Kn, vector_Kn = trainer._params_Kn.double(), vectors(trainer)
    found, expected = native(trainer, params_Kn), by_torch(trainer, params_Kn)
    torch.testing.assert_close(found.loss_R, expected.loss_R, rtol=1e-12, atol=0)
    assert error(found.gradient_Rn, expected.gradient_Rn) < 1e-12
    assert error(found.hessian_product(vector_Kn), expected.hessian_product(vector_Kn)) < 1e-12
    curvature, by_graph = measured(trainer, found, DOUBLE), measured(trainer, expected, DOUBLE)
    torch.testing.assert_close(curvature.lambda_max_R, by_graph.lambda_max_R, rtol=1e-10, atol=0)
    torch.testing.assert_close(curvature.lambda_grad_R, by_graph.lambda_grad_R, rtol=1e-10, atol=0)
    assert error(curvature.warm_Rn, by_graph.warm_Rn) < 1e-8


@pytest.mark.parametrize("structure", thinned(STRUCTURES, lambda structure: structure in STRUCTURES[::6]), ids=str)
def test_in_single_precision_products_are_as_exact_as_torchs(text, structure) -> None:
    trainer = pack_of(text, ODD, **structure)
    vector_Kn = vectors(trainer)
    wanted_Kn = by_torch(trainer, trainer._params_Kn.double()).hessian_product(vector_Kn)
    hessians = native(trainer, trainer._params_Kn), by_torch(trainer, trainer._params_Kn)
    errors = [error(hessian.hessian_product(vector_Kn.float()), wanted_Kn) for hessian in hessians]
    assert errors[0] < 2 * errors[1] < 1e-4


@pytest.mark.parametrize("steps", [1, 30])
def test_the_curvature_of_training_is_torchs_to_the_digits_of_single_precision(text, steps: int) -> None:
    """Within 1e-5 of torch in double precision, at the first step and later."""
    trainer = trainer_of("gpt", [GptConfig(text=text, **(EVEN | {"steps": 100}))] * len(KNOBS), SEEDS)
    for _ in range(steps):
        trainer.step()
    wanted = measured(trainer, by_torch(trainer, trainer._params_Kn.double()), DOUBLE)
    found = measured(trainer, native(trainer, trainer._params_Kn), torch.float32)
    torch.testing.assert_close(found.lambda_max_R.double(), wanted.lambda_max_R, rtol=1e-5, atol=0)
    torch.testing.assert_close(found.lambda_grad_R.double(), wanted.lambda_grad_R, rtol=1e-5, atol=0)


def test_members_whose_loss_has_blown_up_have_torchs_curvature_too(text) -> None:
    """Losses of 5 to 1e9, whose softmaxes are saturated: what cancels there cancels to the last digit."""
    configs = [GptConfig(text=text, norm=None, lr=lr, clip=None, **(EVEN | {"steps": 100})) for lr in (0.1, 0.3, 1.0)]
    trainer = trainer_of("gpt", configs, [0, 1, 2], ExecutionPlan(3, kernels="native"))
    for _ in range(40):
        trainer.step()
    params_Kn, rows = trainer._params_Kn.double(), torch.arange(3)
    graph = GradientGraph(lambda weights: trainer.losses_of(weights, rows), params_Kn, trainer.weight_shapes)
    vector_Kn = vectors(trainer)
    expected_Kn = graph.hessian_product(vector_Kn)
    assert graph.loss_R.max() > 1000
    assert error(native(trainer, params_Kn, rows).hessian_product(vector_Kn), expected_Kn) < 1e-9
    assert error(native(trainer, trainer._params_Kn, rows).hessian_product(vector_Kn.float()), expected_Kn) < 1e-2


def test_a_product_has_the_same_bits_again_in_every_pack_and_on_every_number_of_threads(text) -> None:
    trainer = pack_of(text, ODD)
    vector_Kn, threads = vectors(trainer).float(), torch.get_num_threads()
    hessian = native(trainer, trainer._params_Kn)
    whole_Kn = hessian.hessian_product(vector_Kn)
    hessian.hessian_product(2 * vector_Kn)
    assert torch.equal(hessian.hessian_product(vector_Kn), whole_Kn)
    try:
        torch.set_num_threads(3)
        assert torch.equal(native(trainer, trainer._params_Kn).hessian_product(vector_Kn), whole_Kn)
    finally:
        torch.set_num_threads(threads)
    for k in range(len(KNOBS)):
        row = torch.tensor([k])
        alone = native(trainer, trainer._params_Kn[row], row)
        assert torch.equal(alone.hessian_product(vector_Kn[row])[0], whole_Kn[k])


def test_a_curvature_has_the_same_bits_again_in_every_pack_and_on_every_number_of_threads(text) -> None:
    trainer, threads = pack_of(text, ODD), torch.get_num_threads()
    hessian = native(trainer, trainer._params_Kn)
    whole = measured(trainer, hessian, torch.float32)

    def assert_has_bits(found: Curvature, rows: torch.Tensor = EVERYONE) -> None:
        for name in ("lambda_max_R", "lambda_grad_R", "warm_Rn"):
            assert torch.equal(getattr(found, name), getattr(whole, name)[rows])

    hessian.hessian_product(vectors(trainer).float())
    assert_has_bits(measured(trainer, hessian, torch.float32))
    try:
        torch.set_num_threads(3)
        assert_has_bits(measured(trainer, native(trainer, trainer._params_Kn), torch.float32))
    finally:
        torch.set_num_threads(threads)
    for k in range(len(KNOBS)):
        row = torch.tensor([k])
        alone = native(trainer, trainer._params_Kn[row], row)
        assert_has_bits(measured(trainer, alone, torch.float32, row), row)


def test_a_lost_member_leaves_the_curvature_of_the_others(text) -> None:
    trainer = pack_of(text, ODD)
    clean = measured(trainer, native(trainer, trainer._params_Kn), torch.float32)
    trainer._params_Kn[1] = float("nan")
    found = measured(trainer, native(trainer, trainer._params_Kn), torch.float32)
    others = [0, 2, 3, 4]
    assert torch.equal(found.lambda_max_R[others], clean.lambda_max_R[others])
    assert torch.equal(found.warm_Rn[others], clean.warm_Rn[others])
    assert found.lambda_max_R[1].isnan()


def test_telemetry_of_native_steps_has_the_curvature_that_torch_measures(text) -> None:
    # With Adam's epsilon, tiny gradients, of which few digits are the same, would rule the first preconditioner.
    packs = [pack_of(text, ODD, ExecutionPlan(5, kernels=kernels), eps=1e-3) for kernels in ("native", "default")]
    rows = list(range(len(KNOBS)))
    found, expected = (pack.observed_step(rows, [0, 2, 3], 4)[1] for pack in packs)
    for name in ("lambda_max", "lambda_grad"):
        torch.testing.assert_close(found[name], expected[name], rtol=1e-4, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("kernels", "accumulate", "is_native"), [("native", 1, True), ("default", 1, False), ("native", 2, False)]
)
def test_which_way_is_taken_follows_from_kernels_and_micro_batches(text, kernels, accumulate, is_native) -> None:
    pack = pack_of(text, EVEN, ExecutionPlan(5, kernels=kernels), accumulate=accumulate)
    assert isinstance(pack.hessian_of(pack._params_Kn, EVERYONE), NativeHessian) is is_native

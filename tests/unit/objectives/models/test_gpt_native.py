"""The C++ kernel of the transformer computes what the passes by hand compute, for each member by itself."""

from dataclasses import replace

import pytest
import torch
from gpt_cases import KNOBS
from native_cases import EVEN, LONG, ODD, STRUCTURES, pack_of
from pack_cases import trainer_of
from tiers import thinned

from objectives.base import ExecutionPlan, GptConfig, RowSpec
from objectives.models.gpt import GptTrainer
from objectives.models.gpt_gradient import losses_and_gradient
from objectives.models.gpt_model import cross_entropy, forward_readings
from objectives.models.gpt_native import NativeGpt
from objectives.native.cache import kernel_folder


def in_double(trainer: GptTrainer) -> tuple[torch.Tensor, torch.Tensor]:
    """The passes by hand in double precision, from the float32 weights."""
    weights = {name: weight.detach().double() for name, weight in trainer.weights.items()}
    return losses_and_gradient(weights, *trainer._batch()[:1], trainer.structure, "default", trainer._batch()[1])


def kernel_of(trainer: GptTrainer, dtype: torch.dtype = torch.float32) -> NativeGpt:
    return NativeGpt(trainer.structure, trainer.layout, kernel_folder(), dtype)


@pytest.mark.parametrize(
    "shape", thinned([ODD, EVEN, LONG], lambda shape: shape is not EVEN), ids=["odd", "even", "long"]
)
@pytest.mark.parametrize("structure", STRUCTURES, ids=str)
def test_in_double_precision_it_agrees_with_the_passes_by_hand_to_the_last_digits(text, structure, shape) -> None:
    trainer = pack_of(text, shape, **structure)
    expected = in_double(trainer)
    found = kernel_of(trainer, torch.float64).losses_and_gradient(trainer._params_Kn.double(), *trainer._batch())
    torch.testing.assert_close(found[0], expected[0], rtol=1e-12, atol=0)
    torch.testing.assert_close(found[1], expected[1], rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("shape", [ODD, EVEN], ids=["odd", "even"])
def test_in_single_precision_it_is_as_exact_as_torch(text, shape) -> None:
    trainer = pack_of(text, shape)
    wanted = in_double(trainer)[1]
    weights = {name: weight.detach() for name, weight in trainer.weights.items()}
    tokens, knobs = trainer._batch()
    by_torch = losses_and_gradient(weights, tokens, trainer.structure, "default", knobs)[1]
    by_kernel = kernel_of(trainer).losses_and_gradient(trainer._params_Kn, tokens, knobs)[1]
    errors = [((found - wanted).norm(dim=1) / wanted.norm(dim=1)).max().item() for found in (by_kernel, by_torch)]
    assert errors[0] < 2 * errors[1] < 1e-5


def test_a_members_bits_are_the_same_in_every_pack_and_on_every_number_of_threads(text) -> None:
    trainer = pack_of(text, ODD)
    tokens, knobs = trainer._batch()
    kernel, threads = kernel_of(trainer), torch.get_num_threads()
    whole = kernel.losses_and_gradient(trainer._params_Kn, tokens, knobs)
    try:
        for number in (2, 3):
            torch.set_num_threads(number)
            again = kernel.losses_and_gradient(trainer._params_Kn, tokens, knobs)
            assert all(map(torch.equal, again, whole))
    finally:
        torch.set_num_threads(threads)
    for k in range(len(KNOBS)):
        row = torch.tensor([k])
        alone = kernel_of(trainer).losses_and_gradient(trainer._params_Kn[row], tokens[row], knobs.of_rows(row))
        assert torch.equal(alone[0][0], whole[0][k])
        assert torch.equal(alone[1][0], whole[1][k])


def test_numbers_too_small_for_all_their_digits_are_zero_in_the_kernel_and_nowhere_else(text) -> None:
    trainer = pack_of(text, EVEN)
    trainer._params_Kn *= 5  # so that most bytes have almost no probability
    tokens, knobs = trainer._batch()
    expected = losses_and_gradient(trainer.weights, tokens, trainer.structure, "default", knobs)[1]
    found, tiny = kernel_of(trainer).losses_and_gradient(trainer._params_Kn, tokens, knobs)[1], 2.0**-126
    assert ((expected != 0) & (expected.abs() < tiny)).any()
    assert not ((found != 0) & (found.abs() < tiny)).any()
    assert (torch.tensor([tiny]) / 2 > 0).all()


@pytest.mark.parametrize("shape", thinned([ODD, EVEN, LONG], lambda shape: shape is ODD), ids=["odd", "even", "long"])
@pytest.mark.parametrize("structure", STRUCTURES[::3], ids=str)
def test_readings_of_a_pass_forward_are_those_by_torch(text, structure, shape) -> None:
    trainer = pack_of(text, shape, **structure)
    tokens, knobs = trainer._batch()
    weights = {name: weight.detach().double() for name, weight in trainer.weights.items()}
    expected = forward_readings(trainer.structure, weights, tokens, knobs)
    kernel, params = kernel_of(trainer, torch.float64), trainer._params_Kn.double()
    loss, attention_logit, log_z = kernel.readings(params, tokens, knobs)
    torch.testing.assert_close(attention_logit, expected["attention_logit"], rtol=1e-12, atol=0)
    torch.testing.assert_close(log_z, expected["log_z"], rtol=1e-12, atol=0)
    without_z_loss = cross_entropy(trainer.structure, weights, tokens, replace(knobs, z_loss_K=None))
    torch.testing.assert_close(loss, without_z_loss, rtol=1e-12, atol=0)


def test_validation_by_the_kernel_is_that_by_torch_and_of_no_other_member(text) -> None:
    eager, native = (pack_of(text, ODD, ExecutionPlan(5, kernels=kernels)) for kernels in ("default", "native"))
    rows = list(range(len(KNOBS)))
    found = native.validate(rows)
    torch.testing.assert_close(found, eager.validate(rows), rtol=1e-5, atol=0)
    assert torch.equal(native.validate([3])[0], found[3])


def test_a_score_that_is_not_a_number_is_read_as_none(text) -> None:
    trainer = pack_of(text, EVEN)
    trainer._params_Kn[1] = float("nan")
    _, logit, log_z = kernel_of(trainer).readings(trainer._params_Kn, *trainer._batch())
    assert logit.isnan().tolist() == log_z.isnan().tolist() == [False, True, False, False, False]


def test_a_part_of_a_batch_has_its_own_keys_of_dropout(text) -> None:
    trainer = pack_of(text, ODD | {"batch_size": 6})
    tokens, knobs = trainer._batch()
    knobs = knobs.of_sequences(2, 4)
    found = kernel_of(trainer, torch.float64).losses_and_gradient(trainer._params_Kn.double(), tokens[:, 2:4], knobs)
    weights = {name: weight.detach().double() for name, weight in trainer.weights.items()}
    expected = losses_and_gradient(weights, tokens[:, 2:4], trainer.structure, "default", knobs)
    torch.testing.assert_close(found[1], expected[1], rtol=1e-9, atol=1e-13)


def test_training_by_the_kernel_follows_eager_training_and_resumes_to_the_bit(text) -> None:
    eager, native = (pack_of(text, EVEN, ExecutionPlan(5, kernels=kernels)) for kernels in ("default", "native"))
    for _ in range(3):
        expected, found = eager.step(), native.step()
        for name in ("loss", "grad_norm", "update_norm"):
            torch.testing.assert_close(found[name], expected[name], rtol=1e-4, atol=0)
    resumed = pack_of(text, EVEN, ExecutionPlan(5, kernels="native"))
    resumed.load_state_dict(native.state_dict())
    assert torch.equal(resumed.step()["loss"], native.step()["loss"])
    native.arrange([RowSpec(native.configs[k], native.seeds[k], k) for k in (3, 1)])
    assert torch.equal(native.step()["loss"], resumed.step()["loss"][[3, 1]])


def test_a_precision_without_a_kernel_is_refused(text) -> None:
    config = GptConfig(text=text, precision="bfloat16", **EVEN)
    assert not config.has_native_kernels
    with pytest.raises(ValueError, match="bfloat16"):
        trainer_of("gpt", [config], [0], ExecutionPlan(1, kernels="native"))

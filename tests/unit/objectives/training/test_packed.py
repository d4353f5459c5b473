import pytest
import torch
from pack_cases import trainer_of

from objectives.base import QuadraticConfig
from objectives.training.packed import PackedTrainer


def pack(seeds: list[int]) -> PackedTrainer:
    return trainer_of("quadratic", [QuadraticConfig(steps=5)] * len(seeds), seeds)


def numbers(generator: torch.Generator) -> torch.Tensor:
    return torch.rand(3, generator=generator)


def test_a_draw_is_a_function_of_seed_step_and_purpose() -> None:
    trainer = pack([3, 0, 3])
    first_K3 = trainer.draw(numbers)
    assert first_K3.shape == (3, 3)
    assert torch.equal(first_K3[0], first_K3[2])
    assert not torch.equal(first_K3[0], first_K3[1])
    assert torch.equal(trainer.draw(numbers), first_K3), "the step is still the same"
    assert not (trainer.draw(numbers, purpose=2) == first_K3).any()
    assert torch.equal(pack([0]).draw(numbers)[0], first_K3[1])
    trainer.step()
    assert not (trainer.draw(numbers) == first_K3).any()


@pytest.mark.parametrize("seeds", [[1], [1, 0, 2]], ids=["alone", "three"])
def test_a_function_of_one_member_is_applied_to_each(seeds: list[int]) -> None:
    trainer = pack(seeds)
    values_KN = torch.arange(4.0 * len(seeds), dtype=torch.float64).view(len(seeds), 4)
    found_K = trainer.of_each_member(lambda weights, values_N: (weights["x"] ** 2 * values_N).sum(), values_KN)
    (grad_KN,) = torch.autograd.grad(found_K.sum(), [trainer.weights["x"]])
    torch.testing.assert_close(found_K, (trainer.weights["x"] ** 2 * values_KN).sum(1))
    torch.testing.assert_close(grad_KN, 2 * trainer.weights["x"] * values_KN)

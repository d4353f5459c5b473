import numpy as np
import pytest
import torch
from pack_cases import everyone, trainer_of

from objectives.base import FunctionFitConfig
from objectives.models.function_fit import FunctionFitTrainer


def plain_network(trainer: FunctionFitTrainer, member: int) -> torch.nn.Module:
    """One member as an ordinary, unstacked network."""
    width = trainer.structure.width
    network = torch.nn.Sequential(torch.nn.Linear(1, width), torch.nn.Tanh(), torch.nn.Linear(width, 1)).double()
    weights = {name: weight[member] for name, weight in trainer.weights.items()}
    with torch.no_grad():
        network[0].weight.copy_(weights["in_weight"][:, None])
        network[0].bias.copy_(weights["in_bias"])
        network[2].weight.copy_(weights["out_weight"].T)
        network[2].bias.copy_(weights["out_bias"])
    return network


def squared_error(network: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    target = torch.sin(x) + torch.sin(4 * x)
    return torch.nn.functional.mse_loss(network(x[:, None]), target[:, None])


def test_a_member_is_an_ordinary_tanh_network_in_double_precision() -> None:
    trainer = trainer_of("function_fit", [FunctionFitConfig(steps=5)] * 2, [0, 1])
    trainer.step()
    x = torch.linspace(-torch.pi, torch.pi, 200, dtype=torch.float64)
    losses = trainer.losses()
    grads = dict(zip(trainer.weights, torch.autograd.grad(losses.sum(), list(trainer.weights.values())), strict=True))
    for k in range(2):
        network = plain_network(trainer, k)
        expected = squared_error(network, x)
        expected.backward()
        torch.testing.assert_close(losses[k], expected, rtol=1e-12, atol=0)
        torch.testing.assert_close(grads["in_weight"][k], network[0].weight.grad[:, 0], rtol=1e-10, atol=1e-14)
        torch.testing.assert_close(grads["in_bias"][k], network[0].bias.grad, rtol=1e-10, atol=1e-14)
        torch.testing.assert_close(grads["out_weight"][k], network[2].weight.grad.T, rtol=1e-10, atol=1e-14)
        torch.testing.assert_close(grads["out_bias"][k], network[2].bias.grad, rtol=1e-10, atol=1e-14)


def test_validation_is_the_error_half_way_between_the_training_points() -> None:
    trainer = trainer_of("function_fit", [FunctionFitConfig(steps=5, num_points=11, width=8)] * 2, [0, 1])
    spacing = 2 * torch.pi / 10
    x = -torch.pi + spacing * (torch.arange(10, dtype=torch.float64) + 0.5)
    for k, found in enumerate(trainer.validate(everyone(trainer))):
        torch.testing.assert_close(found, squared_error(plain_network(trainer, k), x).detach(), rtol=1e-12, atol=0)


def test_weights_start_uniform_within_the_root_of_the_fan_in() -> None:
    width = 4096
    trainer = trainer_of("function_fit", [FunctionFitConfig(steps=5, width=width)], [0])
    for name, fan_in in (("in_weight", 1), ("in_bias", 1), ("out_weight", width)):
        scaled = trainer.weights[name].detach().flatten() * fan_in**0.5
        assert -1 <= scaled.min() < -0.99
        assert 0.99 < scaled.max() <= 1
        assert scaled.std().item() == pytest.approx(3**-0.5, rel=0.05)


def test_full_batch_is_the_mean_over_many_small_batches() -> None:
    full = trainer_of("function_fit", [FunctionFitConfig(steps=5)], [0])
    small = trainer_of("function_fit", [FunctionFitConfig(steps=5, batch_size=50)], [0])
    losses = []
    for _ in range(400):
        losses.append(small.losses().item())
        small.num_steps += 1
    assert np.std(losses) > 0
    assert abs(np.mean(losses) - full.losses().item()) < 4 * np.std(losses) / np.sqrt(len(losses))

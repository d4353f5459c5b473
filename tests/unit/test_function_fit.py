from __future__ import annotations

import numpy as np
import torch

from objectives.base import FunctionFitConfig
from objectives.function_fit import start


def test_a_member_is_an_ordinary_tanh_network_in_double_precision() -> None:
    trainer = start([FunctionFitConfig(steps=5)] * 2, [0, 1], "cpu")
    trainer.step()
    x = torch.linspace(-torch.pi, torch.pi, 200, dtype=torch.float64)[:, None]
    target = torch.sin(x) + torch.sin(4 * x)
    for k in range(2):
        first, second = torch.nn.Linear(1, 64).double(), torch.nn.Linear(64, 1).double()
        with torch.no_grad():
            weights = {name: weight[k] for name, weight in trainer.weights.items()}
            first.weight.copy_(weights["in_weight"][:, None])
            first.bias.copy_(weights["in_bias"])
            second.weight.copy_(weights["out_weight"].T)
            second.bias.copy_(weights["out_bias"])
        expected = torch.nn.functional.mse_loss(second(torch.tanh(first(x))), target)
        torch.testing.assert_close(trainer.losses()[k], expected, rtol=1e-12, atol=0)


def test_full_batch_is_the_mean_over_many_small_batches() -> None:
    full = start([FunctionFitConfig(steps=5)], [0], "cpu")
    small = start([FunctionFitConfig(steps=5, batch_size=50)], [0], "cpu")
    losses = []
    for _ in range(400):
        losses.append(small.losses().item())
        small.num_steps += 1
    assert np.std(losses) > 0
    assert abs(np.mean(losses) - full.losses().item()) < 4 * np.std(losses) / np.sqrt(len(losses))


def test_validation_lies_between_the_training_points() -> None:
    trainer = start([FunctionFitConfig(steps=5, lr=1e-2)], [0], "cpu")
    assert abs(trainer.validate().item() - trainer.losses().item()) < 0.05

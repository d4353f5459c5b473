"""Merges of weights: closed forms."""

import math
from typing import Any

import pytest
import torch
from pack_cases import SMALL

from objectives.base import OBJECTIVES, ExecutionPlan
from objectives.models.gpt_model import initial_weights
from objectives.models.merging import HeldOut, Weights, between, combined, greedy, mean, slerp, task_arithmetic

ANGLE = 1.1
NORTH = {"a": torch.tensor([[2.0, 0.0]], dtype=torch.float64), "b": torch.tensor([0.0, 3.0], dtype=torch.float64)}
EAST = {
    "a": torch.tensor([[2 * math.cos(ANGLE), 2 * math.sin(ANGLE)]], dtype=torch.float64),
    "b": torch.tensor([0.0, 3.0], dtype=torch.float64),
}


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_a_slerp_per_tensor_turns_each_by_its_part_of_the_angle(share: float) -> None:
    found = slerp(NORTH, EAST, share, per_tensor=True)
    turned = torch.tensor([[2 * math.cos(share * ANGLE), 2 * math.sin(share * ANGLE)]], dtype=torch.float64)
    torch.testing.assert_close(found["a"], turned, rtol=0, atol=1e-12)
    torch.testing.assert_close(found["b"], NORTH["b"], rtol=0, atol=1e-12)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_a_flat_slerp_turns_all_weights_as_one_vector(share: float) -> None:
    def flat(weights: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.cat([weight.flatten() for weight in weights.values()])

    a, b = flat(NORTH), flat(EAST)
    angle = math.acos(float(a @ b / (a.norm() * b.norm())))
    across = b - (a @ b / (a @ a)) * a  # in the plane of both, at a right angle to the first
    expected = math.cos(share * angle) * a + math.sin(share * angle) * a.norm() * across / across.norm()
    found = slerp(NORTH, EAST, share, per_tensor=False)
    torch.testing.assert_close(flat(found), expected, rtol=0, atol=1e-12)
    assert found["a"].shape == NORTH["a"].shape
    assert float(flat(found).norm()) == pytest.approx(float(a.norm()), abs=1e-12)


def test_a_slerp_of_parallel_or_missing_weights_is_a_straight_line() -> None:
    twice = combined([(2.0, NORTH)])
    nothing = combined([(0.0, NORTH)])
    for other in (twice, nothing):
        for per_tensor in (False, True):
            found, line = slerp(NORTH, other, 0.25, per_tensor=per_tensor), between(NORTH, other, 0.25)
            for name in NORTH:
                torch.testing.assert_close(found[name], line[name], rtol=0, atol=1e-12)


def test_task_arithmetic_adds_changes_since_the_base() -> None:
    models = [
        {name: torch.randn(weight.shape, dtype=torch.float64) for name, weight in NORTH.items()} for _ in range(3)
    ]
    found = task_arithmetic(NORTH, models, 0.4)
    for name, base in NORTH.items():
        expected = base + 0.4 * sum(weights[name] - base for weights in models)
        torch.testing.assert_close(found[name], expected, rtol=0, atol=1e-12)
        torch.testing.assert_close(task_arithmetic(NORTH, models, 1 / 3)[name], mean(models)[name], rtol=0, atol=1e-12)


def test_a_greedy_soup_takes_what_lowers_the_loss_of_the_mean() -> None:
    models = [{"x": torch.tensor([value], dtype=torch.float64)} for value in (3.0, -1.0, 0.5, -0.5)]

    def loss(weights: Weights) -> float:
        return float(weights["x"].abs()[0])

    assert greedy(models, [*map(loss, models)], loss) == [2, 3]


@pytest.mark.parametrize("texts", [{}, {"domains": {"tables": 1.0, "python_docs": 3.0}}], ids=["one", "domains"])
def test_the_losses_of_the_halves_average_to_the_validation_loss(texts: dict[str, Any]) -> None:
    kind = OBJECTIVES["gpt"]
    config = kind.config_of({**SMALL["gpt"], "steps": 4, "init_deviation": 0.3, "residual_scale": 0.7, **texts})
    trainer = kind.start([config], [3], "cpu", ExecutionPlan(1))
    weights = {name: weight[0].detach() for name, weight in trainer.weights.items()}
    first, second = HeldOut(config).losses(config, weights)
    assert first != second
    assert (first + second) / 2 == pytest.approx(float(trainer.validate([0])[0]), rel=1e-6)
    assert weights.keys() == initial_weights(config, 3).keys()

import itertools

import numpy as np
import pytest
import torch
from pack_cases import trainer_of
from tiers import thinned

from objectives.base import QuadraticConfig


def curves(members: list[dict], num_steps: int, metric: str = "loss", **common) -> np.ndarray:
    """A metric of every step and member, (T, K)."""
    configs = [QuadraticConfig(steps=num_steps, **common, **member) for member in members]
    trainer = trainer_of("quadratic", configs, [0] * len(members))
    return torch.stack([trainer.step()[metric] for _ in range(num_steps)]).numpy()


@pytest.mark.parametrize(
    ("optimizer", "beta1"),
    thinned(
        itertools.product(["adamw", "sgd"], [0.0, 0.5, 0.9, 0.95]),
        lambda case: case == ("sgd", 0.5),
    ),
)
def test_the_edge_of_stability_is_where_theory_puts_it(optimizer: str, beta1: float) -> None:
    # Cohen et al. 2022: stable while lr * curvature < 2 (1 + b1) / (1 - b1): 2, 6, 38 and 78.
    edge = 2 * (1 + beta1) / (1 - beta1)
    # eps far above the gradients, also in the transient that bias correction causes, holds Adam's
    # preconditioner still at 1 / eps. With eps = 1e6 the transient of beta1 = 0.95 outgrows eps.
    eps = 1e120 if optimizer == "adamw" else 1.0
    members = [
        {"curvature": curvature, "lr": fraction * edge / curvature * eps}
        for curvature in (1.0, 10.0)
        for fraction in (0.98, 1.02)
    ]
    losses = curves(members, 2000, beta1=beta1, optimizer=optimizer, eps=eps)
    early, late = losses[200:220].max(0), losses[-20:].max(0)
    below, above = [0, 2], [1, 3]
    assert (late[below] < 0.1 * early[below]).all()
    # What is beyond the largest number counts as grown; NumPy's maximum passes NaN on.
    assert (~np.isfinite(late[above]) | (late[above] > 10 * early[above])).all()


def test_gradient_descent_follows_its_closed_form() -> None:
    members = [{"lr": lr, "curvature": curvature} for lr in (0.1, 0.7) for curvature in (0.5, 2.0)]
    found = curves(members, 20, beta1=0.0, optimizer="sgd")
    for k, member in enumerate(members):
        # x shrinks by 1 - lr * curvature each step, from |x| = 1.
        x_T = (1 - member["lr"] * member["curvature"]) ** np.arange(20)
        np.testing.assert_allclose(found[:, k], member["curvature"] * x_T**2 / 2, rtol=1e-12)


def test_noise_falls_with_the_root_of_the_batch_size() -> None:
    def spread(batch_size: int) -> float:
        n = 20_000
        shape = {"noise": 1.0, "batch_size": batch_size, "dimension": n}
        grad_norm = curves([{}], 1, "grad_norm", **shape).item()
        # The exact gradient has norm 1; the rest are n independent numbers.
        return ((grad_norm**2 - 1) / n) ** 0.5

    assert spread(1) == pytest.approx(1.0, rel=0.05)
    assert spread(16) == pytest.approx(0.25, rel=0.05)


@pytest.mark.parametrize("batch_size", [4, 64])
def test_a_batch_is_one_sample_with_less_noise(batch_size: int) -> None:
    batch = curves([{"noise": 0.8}], 30, batch_size=batch_size)
    single = curves([{"noise": 0.8 / batch_size**0.5}], 30)
    np.testing.assert_allclose(batch, single, rtol=1e-12)


def test_noise_is_new_at_every_step() -> None:
    # Without a learning rate to speak of nothing moves, so only the noise can change the gradient.
    found = curves([{"noise": 1.0, "lr": 1e-300}], 5, "grad_norm")
    assert len(set(found[:, 0])) == 5


@pytest.mark.parametrize("power", [2.2, 3.0, 5.0])
def test_gradient_descent_on_a_power_follows_its_gradient(power: float) -> None:
    members = [{"lr": 0.1, "curvature": curvature} for curvature in (0.5, 2.0)]
    common = {"beta1": 0.0, "optimizer": "sgd", "power": power}
    loss_TK, norm_TK = (curves(members, 20, metric, **common) for metric in ("loss", "grad_norm"))
    for k, member in enumerate(members):
        distance = 1.0
        for t in range(20):
            slope = member["curvature"] * distance ** (power - 1)
            assert loss_TK[t, k] == pytest.approx(member["curvature"] * distance**power / power, rel=1e-12)
            assert norm_TK[t, k] == pytest.approx(slope, rel=1e-12)
            # With these rates x keeps its direction and its sign.
            distance -= member["lr"] * slope


@pytest.mark.parametrize("power", [2.0, 2.2, 3.0, 5.0])
@pytest.mark.parametrize("dimension", [1, 3])
def test_the_curvature_of_a_power_is_its_second_derivative(power: float, dimension: int) -> None:
    # Along x it is (power - 1) curvature |x|^(power - 2), the largest; across x it is that without (power - 1).
    config = QuadraticConfig(
        steps=10, power=power, dimension=dimension, curvature=3.0, optimizer="sgd", beta1=0.0, lr=0.02
    )
    trainer = trainer_of("quadratic", [config], [0])
    for _ in range(10):
        metrics, readings = trainer.observed_step([0], [0], 2)
        distance = (float(metrics["loss"][0]) * power / 3.0) ** (1 / power)
        expected = (power - 1) * 3.0 * distance ** (power - 2)
        assert float(readings["lambda_max"][0]) == pytest.approx(expected, rel=1e-9)
        assert float(readings["lambda_grad"][0]) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("power", [2.2, 3.0, 5.0])
def test_at_the_minimum_a_power_has_neither_gradient_nor_curvature(power: float) -> None:
    trainer = trainer_of("quadratic", [QuadraticConfig(steps=2, power=power)], [0])
    with torch.no_grad():
        trainer.weights["x"].zero_()
    x_Kn = trainer.weights["x"]
    [gradient_Kn] = torch.autograd.grad(trainer.losses().sum(), [x_Kn], create_graph=True)
    [curved_Kn] = torch.autograd.grad(gradient_Kn.sum(), [x_Kn])
    assert not gradient_Kn.any()
    assert not curved_Kn.any()


def test_a_power_of_two_is_the_quadratic_and_leaves_its_trials_as_they_were() -> None:
    assert "power" not in QuadraticConfig(steps=5).acting()
    assert QuadraticConfig(steps=5, power=3.0).acting()["power"] == 3.0
    nearly = curves([{}], 20, power=2.0 + 1e-12)
    np.testing.assert_allclose(nearly, curves([{}], 20), rtol=1e-9)

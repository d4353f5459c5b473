from __future__ import annotations

import numpy as np
import pytest
import torch

from objectives.base import QuadraticConfig
from objectives.quadratic import start


def losses(steps: int, **fields) -> np.ndarray:
    trainer = start([QuadraticConfig(steps=steps, **fields)], [0], "cpu")
    return torch.stack([trainer.step()["loss"] for _ in range(steps)]).numpy()[:, 0]


@pytest.mark.parametrize("beta1", [0.0, 0.5, 0.9, 0.95])
@pytest.mark.parametrize("curvature", [1.0, 10.0])
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_the_edge_of_stability_is_where_theory_puts_it(beta1: float, curvature: float, optimizer: str) -> None:
    # Cohen et al. 2022: stable while lr * curvature < 2 (1 + b1) / (1 - b1): 2, 6, 38 and 78.
    edge = 2 * (1 + beta1) / (1 - beta1) / curvature
    # eps far above the gradients, also in the transient that bias correction causes, holds Adam's
    # preconditioner still at 1 / eps.
    eps = 1e120 if optimizer == "adamw" else 1.0
    common = {"beta1": beta1, "curvature": curvature, "optimizer": optimizer, "eps": eps}
    steps, late = 2000, slice(-20, None)
    early = slice(200, 220)
    below = losses(steps, lr=0.98 * edge * eps, **common)
    above = losses(steps, lr=1.02 * edge * eps, **common)
    assert below[late].max() < 0.1 * below[early].max()
    assert not np.isfinite(above).all() or above[late].max() > 10 * above[early].max()


def test_noise_falls_with_the_root_of_the_batch_size() -> None:
    def spread(batch_size: int) -> float:
        config = QuadraticConfig(steps=1, noise=1.0, batch_size=batch_size, dimension=20_000)
        trainer = start([config], [0], "cpu")
        return float(trainer.gradient_noise(torch.zeros(1, 20_000, dtype=torch.float64)).std())

    assert spread(1) == pytest.approx(1.0, rel=0.05)
    assert spread(16) == pytest.approx(0.25, rel=0.05)

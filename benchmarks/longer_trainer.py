"""A training of one's own for `benchmarks/longer.py`: a plain network learns another, by Adam, in NumPy."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

INPUTS, LAYERS, BATCH = 16, 4, 32
BETA1, BETA2, EPS, WARMUP = 0.9, 0.95, 1e-8, 10


def weights(width: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Return the layers of a network with one output."""
    sizes = [INPUTS, *[width] * (LAYERS - 1), 1]
    return [rng.normal(0, (2 / rows) ** 0.5, (rows, columns)) for rows, columns in itertools.pairwise(sizes)]


def activations(layers: list[np.ndarray], inputs: np.ndarray) -> list[np.ndarray]:
    """Return the inputs, what each hidden layer makes of them, and the output."""
    found = [inputs]
    for layer in layers[:-1]:
        found.append(np.maximum(found[-1] @ layer, 0))
    return [*found, found[-1] @ layers[-1]]


def gradients(layers: list[np.ndarray], inputs: np.ndarray, targets: np.ndarray) -> tuple[float, list[np.ndarray]]:
    """Return half the mean squared error, and its gradient for each layer."""
    found = activations(layers, inputs)
    error = found[-1] - targets
    loss, back = 0.5 * float(np.mean(error**2)), error / len(inputs)
    slopes = []
    for layer, below in zip(layers[::-1], found[-2::-1], strict=True):
        slopes.append(below.T @ back)
        back = (back @ layer.T) * (below > 0)
    return loss, slopes[::-1]


def train(config: Mapping[str, Any], report: Callable[..., None]) -> None:
    """Train at the constant rate `lr`, after a warmup, on fresh samples of the teacher."""
    rng = np.random.default_rng(config["seed"])
    teacher = weights(8, np.random.default_rng(0))
    layers = weights(config["width"], rng)
    first, second = ([np.zeros_like(layer) for layer in layers] for _ in range(2))
    for step in range(config["steps"]):
        inputs = rng.normal(size=(BATCH, INPUTS))
        with np.errstate(over="ignore", invalid="ignore"):
            loss, slopes = gradients(layers, inputs, activations(teacher, inputs)[-1])
            report(step=step, loss=loss)
            rate = config["lr"] * min(1.0, (step + 1) / WARMUP)
            for layer, slope, mean, square in zip(layers, slopes, first, second, strict=True):
                mean += (1 - BETA1) * (slope - mean)
                square += (1 - BETA2) * (slope**2 - square)
                unbiased = mean / (1 - BETA1 ** (step + 1)), square / (1 - BETA2 ** (step + 1))
                layer -= rate * unbiased[0] / (unbiased[1] ** 0.5 + EPS)

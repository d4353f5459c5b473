"""Truths that searches for an edge are run against: planted edges of some shapes, with a width of transition.

A truth is a grid of cells. Its last axis is the one along which training turns from stable to not stable.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from orchestrator.base.space import Axis

SIZE, SIZE_3D = 32, 16
WIDTHS = (0.0, 0.15, 0.6, 1.0, 2.0, 3.0)  # of the transition, in cells; 0 is a sharp edge
_LENGTHS = (0.1, 0.2, 0.4, 0.8)  # over which random edges vary, in axes
UNSTABLE = "diverged"


@dataclass(frozen=True)
class Truth:
    """A grid with the place of the edge in each row, in cells along the last axis; -0.5 and n - 0.5 are its ends.

    ``outcome`` gives that of a trial: indices of the cell, its seed, and a random number in [0, 1) which decides where
    the truth is a probability.
    """

    name: str
    axes: tuple[Axis, ...]
    edge_R: np.ndarray
    outcome: Callable[[tuple[int, ...], int, float], str]
    num_seeds: int

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of values of each axis."""
        return tuple(len(axis.values) for axis in self.axes)


def _linear(x: np.ndarray) -> np.ndarray:
    return 5.3 + 20.7 * x


def _saturating(x: np.ndarray) -> np.ndarray:
    return 3.4 + 24.2 * (1 - np.exp(-x / 0.22))


def _step(x: np.ndarray) -> np.ndarray:
    return np.where(x < 0.43, 8.3, 22.8)


def _bump(x: np.ndarray) -> np.ndarray:
    return 9.2 + 15.5 * np.exp(-(((x - 0.6) / 0.13) ** 2))


def _wedge(x: np.ndarray) -> np.ndarray:
    return 26.3 - 38 * np.abs(x - 0.37)


SHAPES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "linear": _linear,
    "saturating": _saturating,
    "step": _step,
    "bump": _bump,
    "wedge": _wedge,
}


def synthetic(shape: str, width: float) -> Truth:
    """A grid of 32 x 32 cells whose edge has a shape by name."""
    return _of_edge(f"{shape} {width:g}", SHAPES[shape](np.linspace(0, 1, SIZE)), (SIZE, SIZE), width)


def random_edge(number: int, width: float) -> Truth:
    """A grid of 32 x 32 cells whose edge is drawn from a Gaussian process, which no constant was chosen for."""
    x = np.linspace(0, 1, SIZE)
    length = _LENGTHS[number % len(_LENGTHS)]
    kernel = np.exp(-0.5 * ((x[:, None] - x) / length) ** 2) + 1e-8 * np.eye(SIZE)
    drawn = 15.5 + 7 * np.linalg.cholesky(kernel) @ np.random.default_rng(1000 + number).standard_normal(SIZE)
    return _of_edge(f"random{number} {width:g}", np.clip(drawn, -0.5, SIZE - 0.5), (SIZE, SIZE), width)


def in_three_dimensions(width: float) -> Truth:
    """A grid of 16 x 16 x 16 cells: the edge rises over one axis, and has a bump over both."""
    x, y = np.meshgrid(np.linspace(0, 1, SIZE_3D), np.linspace(0, 1, SIZE_3D), indexing="ij")
    edge = 2.7 + 6.1 * x + 5.2 * np.exp(-((x - 0.4) ** 2 + (y - 0.65) ** 2) / 0.08)
    return _of_edge(f"bump 3-D {width:g}", edge.ravel(), (SIZE_3D,) * 3, width)


def _of_edge(name: str, edge_R: np.ndarray, sizes: tuple[int, ...], width: float) -> Truth:
    distance = edge_R[:, None] - np.arange(sizes[-1])
    chance = ((distance > 0).astype(float) if width == 0 else expit(distance / width)).reshape(sizes)

    def outcome(cell: tuple[int, ...], seed: int, draw: float) -> str:
        return "stable" if draw < chance[cell] else UNSTABLE

    axes = tuple(
        Axis(f"x{i}", "linear", tuple(float(value) for value in range(size)), (0.0, size - 1.0))
        for i, size in enumerate(sizes)
    )
    return Truth(name, axes, edge_R, outcome, num_seeds=5)

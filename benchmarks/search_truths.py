"""Truths that searches for an edge are run against: shapes of edges with a width of transition, and tables of outcomes.

A truth is a grid of cells. Its last axis is the one along which training turns from stable to not stable.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import expit

from orchestrator.errors import InputError, Problem
from orchestrator.space import Axis

SIZE, SIZE_3D = 32, 16
WIDTHS = (0.0, 0.15, 0.6)  # of the transition, in cells; 0 is a sharp edge
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


def read_table(path: Path, along: str, log_axes: Sequence[str] = ()) -> Truth:
    """The truth of a trained sweep: a CSV file with a column for each axis, ``seed`` and ``outcome``, a row per trial.

    One whose name ends in .gz is unpacked.

    All cells of the grid must have the same seeds. The edge of a row is where the shares of stable seeds, added up
    along it, say that it is. Raises InputError for a table that is not such a grid.
    """
    if not path.is_file():
        raise InputError(Problem(str(path), "", "no such file", "a CSV file of axis values, seed and outcome"))
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    columns = list(rows[0]) if rows else []
    for needed in (along, "seed", "outcome"):
        if needed not in columns:
            raise InputError(Problem(f"{path}:1", needed, "the column is missing", f"the columns are {columns}"))
    names = [name for name in columns if name not in ("seed", "outcome", along)] + [along]
    axes = tuple(_axis(name, rows, path, name in log_axes) for name in names)
    seeds = sorted({row["seed"] for row in rows})
    table = {(*(float(row[name]) for name in names), row["seed"]): row["outcome"] for row in rows}
    sizes = tuple(len(axis.values) for axis in axes)
    if len(table) != len(rows) or len(rows) != int(np.prod(sizes)) * len(seeds):
        message = f"{len(rows)} rows, {len(table)} different, of {sizes} cells with {len(seeds)} seeds"
        raise InputError(Problem(str(path), "", message, "each cell of the grid needs each seed once"))

    def outcome(cell: tuple[int, ...], seed: int, draw: float) -> str:
        values = (axis.values[i] for axis, i in zip(axes, cell, strict=True))
        return table[(*values, seeds[seed])]

    stable = np.array([[outcome(cell, s, 0.0) == "stable" for s in range(len(seeds))] for cell in np.ndindex(*sizes)])
    edge_R = stable.mean(axis=1).reshape(-1, sizes[-1]).sum(axis=1) - 0.5
    return Truth(path.name.partition(".")[0], axes, edge_R, outcome, len(seeds))


def _axis(name: str, rows: Sequence[Mapping[str, Any]], path: Path, is_log: bool) -> Axis:
    try:
        values = tuple(sorted({float(row[name]) for row in rows}))
    except (TypeError, ValueError):
        remedy = "axes of a table have numbers"
        raise InputError(Problem(str(path), name, "a value is not a number", remedy)) from None
    return Axis(name, "log" if is_log else "linear", values, (values[0], values[-1]))

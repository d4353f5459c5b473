"""Truths of trained sweeps: a table has the outcome of each trial of a grid, which a search then asks for.

What a grid and a search train must not be what they are judged by, or the grid would be right by definition. So a part
of each table is held out:

- of several seeds, the later half: the others are trained, and the edge of reference is that of those held out;
- of one seed, every second value along the searched axis: the others are trained, and the edge of reference is that of
  all values, so it lies a quarter of a cell from the middle of the bracket in which the grid has it.

Letters of shapes: C cells, S seeds, R rows, L places along a row.
"""

from __future__ import annotations

import csv
import gzip
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.search_truths import Truth
from orchestrator.base.errors import InputError, Problem
from orchestrator.base.space import Axis, Scale

# Columns that are no axes.
READINGS = ("onset_step", "peak_factor", "off_share", "spike_score", "largest_rise", "curvature", "edge_crossings")
_FOLDER = Path(__file__).parent / "truths"


@dataclass(frozen=True)
class Table:
    """A CSV file with a column for each axis, ``seed`` and ``outcome``, a row per trial; .gz is unpacked.

    ``along`` is the axis along which training turns unstable. Other scales than linear are given by axis.
    """

    path: Path
    along: str
    log_axes: tuple[str, ...] = ()
    log1m_axes: tuple[str, ...] = ()

    def scale(self, name: str) -> Scale:
        """The scale of an axis."""
        return "log" if name in self.log_axes else "log1m" if name in self.log1m_axes else "linear"


# adam_phase is from results/reference/adam_phase: a trial counts as stable unless `edge_crossings` says that it spikes
# (sweeps/adam_phase.yaml), which asks for the beta2 from which on trials spike, for each beta1. The others are of
# function_fit: beta2_eps has 200 steps at lr = 0.3, lr_warmup 300 steps.
TABLES = (
    Table(_FOLDER / "adam_phase.csv.gz", "beta2", log1m_axes=("beta1", "beta2")),
    Table(_FOLDER / "beta2_eps.csv.gz", "beta2", log_axes=("eps",), log1m_axes=("beta2",)),
    Table(_FOLDER / "lr_warmup.csv.gz", "lr", log_axes=("lr",)),
)


@dataclass(frozen=True)
class Trained:
    """A trained grid: its axes, the seeds of each cell in order, and outcomes by values and seed."""

    axes: tuple[Axis, ...]
    seeds: tuple[str, ...]
    outcomes: Mapping[tuple[Any, ...], str]


def read_trained(table: Table) -> Trained:
    """The whole of a table. Its other columns are axes, but for ``READINGS``.

    All cells of the grid must have the same seeds. Raises InputError for a table that is not such a grid.
    """
    path, along = table.path, table.along
    rows = _rows(path, along)
    names = [name for name in rows[0] if name not in ("seed", "outcome", along, *READINGS)] + [along]
    axes = tuple(_axis(name, rows, table) for name in names)
    seeds = tuple(sorted({row["seed"] for row in rows}, key=lambda seed: (len(seed), seed)))
    outcomes = {(*(float(row[name]) for name in names), row["seed"]): row["outcome"] for row in rows}
    sizes = tuple(len(axis.values) for axis in axes)
    if len(outcomes) != len(rows) or len(rows) != int(np.prod(sizes)) * len(seeds):
        message = f"{len(rows)} rows, {len(outcomes)} different, of {sizes} cells with {len(seeds)} seeds"
        raise InputError(Problem(str(path), "", message, "each cell of the grid needs each seed once"))
    return Trained(axes, seeds, outcomes)


def read_table(table: Table) -> Truth:
    """The truth of a trained sweep, less what is held out. The edge of a row is the sum of its shares of stable seeds.

    Raises InputError for a table that is not a grid with the same seeds in each cell, or that has nothing to hold out.
    """
    path, along, trained = table.path, table.along, read_trained(table)
    axes, seeds, outcomes = trained.axes, trained.seeds, trained.outcomes
    sizes = tuple(len(axis.values) for axis in axes)
    if len(seeds) == 1 and sizes[-1] < 4:
        message = f"one seed, and {sizes[-1]} values"
        raise InputError(Problem(str(path), along, message, "seeds or values are held out: two seeds or four values"))

    cells = itertools.product(*(axis.values for axis in axes))
    stable_CS = np.array([[outcomes[(*cell, seed)] == "stable" for seed in seeds] for cell in cells])
    stable_RLS = stable_CS.reshape(-1, sizes[-1], len(seeds))
    num_trained = (len(seeds) + 1) // 2
    if len(seeds) > 1:
        used, edge_R = axes, stable_RLS[:, :, num_trained:].mean(axis=2).sum(axis=1) - 0.5
    else:
        stable_RL = stable_RLS[:, :, 0]
        used, edge_R = (*axes[:-1], _every_second(axes[-1], stable_RL)), _among_every_second(stable_RL)

    def outcome(cell: tuple[int, ...], seed: int, draw: float) -> str:
        values = (axis.values[i] for axis, i in zip(used, cell, strict=True))
        return outcomes[(*values, seeds[seed])]

    return Truth(path.name.partition(".")[0], used, edge_R, outcome, num_trained)


def _every_second(axis: Axis, stable_RL: np.ndarray) -> Axis:
    """Every second value, from the end at which more rows are stable: there the length that is stable begins."""
    is_stable_at_end = stable_RL[:, -1].sum() > stable_RL[:, 0].sum()
    values = axis.values[(len(axis.values) - 1) % 2 if is_stable_at_end else 0 :: 2]
    return replace(axis, values=values, ends=(values[0], values[-1]))


def _among_every_second(stable_RL: np.ndarray) -> np.ndarray:
    """The edge of each row, (R,), in cells of every second value. A row without an edge has it at its end."""
    size, length_R = stable_RL.shape[1], stable_RL.sum(axis=1)
    edge_R = (length_R - 0.5) / 2
    edge_R[length_R == 0] = -0.5
    edge_R[length_R == size] = (size + 1) // 2 - 0.5
    return edge_R


def _rows(path: Path, along: str) -> list[dict[str, str]]:
    if not path.is_file():
        raise InputError(Problem(str(path), "", "no such file", "a CSV file of axis values, seed and outcome"))
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    columns = list(rows[0]) if rows else []
    for needed in (along, "seed", "outcome"):
        if needed not in columns:
            raise InputError(Problem(f"{path}:1", needed, "the column is missing", f"the columns are {columns}"))
    return rows


def _axis(name: str, rows: Sequence[Mapping[str, Any]], table: Table) -> Axis:
    try:
        values = tuple(sorted({float(row[name]) for row in rows}))
    except (TypeError, ValueError):
        remedy = "axes of a table have numbers"
        raise InputError(Problem(str(table.path), name, "a value is not a number", remedy)) from None
    return Axis(name, table.scale(name), values, (values[0], values[-1]))

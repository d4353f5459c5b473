"""A search for the edge that is told readings of trials beside their outcomes (benchmarks/search_readings.py).

A reading is taken as a normal observation of the latent value of P(stable), whose slope and noise are fitted to what
the outcomes so far say. Letters of shapes: C cells, S seeds, K readings, M points, T trials.
"""

from __future__ import annotations

import csv
import gzip
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
from scipy.linalg import cholesky, solve_triangular
from scipy.stats import norm, rankdata

from benchmarks.search_arms import BATCH, Cell
from benchmarks.search_tables import READINGS, Table, read_trained
from orchestrator.base.space import Axis
from orchestrator.search.edge import EdgeOptions, EdgeSearch, Tally
from orchestrator.search.protocol import CellResult, InBatches, SeedResult
from orchestrator.surface.surface import Latent, Surface

SEEN = 2  # seeds that a search sees
FEWEST = 8  # trials with a reading before it is used
OF_STABLE = ("spike_score", "largest_rise", "curvature", "edge_crossings")  # the others are of trials over the edge
_LEAST = 1e-9  # of a variance


@dataclass(frozen=True)
class Grid:
    """A trained grid with readings: outcomes and values by cell and seed, NaN where a trial has none."""

    axes: tuple[Axis, ...]
    is_stable_CS: np.ndarray
    readings: Mapping[str, np.ndarray]

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of values of each axis."""
        return self.is_stable_CS.shape[:-1]

    @property
    def num_seeds(self) -> int:
        """The number of seeds of each cell."""
        return self.is_stable_CS.shape[-1]

    def edge_of(self, seeds: Sequence[int]) -> np.ndarray:
        """The edge of each row by some of the seeds, in cells, (R,)."""
        shares = self.is_stable_CS[..., list(seeds)].mean(axis=-1)
        return shares.reshape(-1, shares.shape[-1]).sum(axis=1) - 0.5

    def has(self, name: str) -> np.ndarray:
        """Which trials have the reading: those of its side of the edge."""
        return np.isfinite(self.readings[name]) & (self.is_stable_CS == (name in OF_STABLE))


def read_grid(path: Path, along: str, log_axes: Sequence[str]) -> Grid:
    """The grid of a table (``read_trained``) with the readings that it has."""
    trained = read_trained(Table(path, along, tuple(log_axes)))
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    places = [{value: i for i, value in enumerate(axis.values)} for axis in trained.axes]
    seeds = {seed: i for i, seed in enumerate(trained.seeds)}
    names = [name for name in READINGS if name in rows[0]]
    shape = (*map(len, places), len(seeds))
    is_stable_CS, readings = np.zeros(shape, dtype=bool), {name: np.full(shape, np.nan) for name in names}
    for row in rows:
        cell = tuple(place[float(row[axis.name])] for place, axis in zip(places, trained.axes, strict=True))
        at = (*cell, seeds[row["seed"]])
        is_stable_CS[at] = row["outcome"] == "stable"
        for name in names:
            readings[name][at] = float(row[name] or "nan")
    return Grid(trained.axes, is_stable_CS, readings)


@dataclass(frozen=True, slots=True)
class Told(Surface):
    """A surface that was told readings: where they were taken, their slopes, and their surprise in units of noise."""

    seen: Latent
    slope_K: np.ndarray
    factor_KK: np.ndarray
    surprise_K: np.ndarray

    def latent(self, points_MD: np.ndarray, has_covariance: bool = True) -> Latent:
        """The posterior at points, by the rule for normal observations of normal values."""
        (plain,) = Surface.latent(self, points_MD, has_covariance=True).parts
        cross_KM = self.slope_K[:, None] * self.covariance(self.seen, Latent(self.weight_P, (plain,)))
        told_KM = solve_triangular(self.factor_KK, cross_KM, lower=True)
        sd_M = np.sqrt(np.maximum(plain.sd_M**2 - (told_KM**2).sum(axis=0), _LEAST))
        explained_KM = np.vstack([plain.explained_KM, told_KM])
        mean_M = plain.mean_M + told_KM.T @ self.surprise_K
        return Latent(self.weight_P, (replace(plain, mean_M=mean_M, sd_M=sd_M, explained_KM=explained_KM),))


class ToldSearch(EdgeSearch):
    """The search that the package has, which reads the trials' ``names`` too."""

    def __init__(self, grid: Grid, names: Sequence[str], num_trials: int, seed: int) -> None:
        axes = grid.axes
        super().__init__(axes, EdgeOptions(axes[-1].name, num_trials, SEEN, seed), lambda outcome: outcome != "stable")
        self._grid, self._names = grid, names

    def _surface(self, tallies: Mapping[Cell, Tally], others: Sequence[tuple[list[float], Tally]]) -> Surface:
        counts = {cell: tally.stable + tally.over for cell, tally in tallies.items()}
        return told(super()._surface(tallies, others), self._grid, self._names, counts)

    def trials(self) -> list[Cell]:
        """The cells that it trains, in order, in batches."""
        search, order, counts = InBatches(self, BATCH), [], Counter()
        while proposals := search.propose([result_of(self._grid, *item) for item in counts.items()], BATCH):
            for proposal in proposals:
                cell = self.lattice.indices(proposal.cell)
                order += [cell] * (proposal.num_seeds - counts[cell])
                counts[cell] = proposal.num_seeds
        return order


def result_of(grid: Grid, cell: Cell, num: int) -> CellResult:
    """The first ``num`` trials of a cell, as a search sees them."""
    values = {axis.name: axis.values[i] for axis, i in zip(grid.axes, cell, strict=True)}
    outcomes = ["stable" if is_stable else "diverged" for is_stable in grid.is_stable_CS[cell][:num]]
    return CellResult(values, tuple(SeedResult(i, outcome, True) for i, outcome in enumerate(outcomes)))


def told(surface: Surface, grid: Grid, names: Sequence[str], counts: Mapping[Cell, int]) -> Surface:
    """The likeliest fit of the surface given the readings of the first ``counts`` seeds of each cell, too."""
    best = surface.best
    trials = [(*cell, seed) for cell, num in counts.items() for seed in range(num)]
    places_T = np.array(trials)[:, :-1] / (np.array(grid.sizes) - 1)
    found = []
    for name in names:
        having = [i for i, trial in enumerate(trials) if grid.has(name)[trial]]
        values_K = np.array([grid.readings[name][trials[i]] for i in having])
        if len(having) < FEWEST or np.ptp(values_K) == 0:
            continue
        score_K = norm.ppf((rankdata(values_K) - 0.5) / len(having))
        mean_K = best.latent(places_T[having]).mean_M
        slope, level = np.polyfit(mean_K, score_K, 1)
        off_K = score_K - level - slope * mean_K
        noise = (off_K**2).sum() / (len(having) - 2)
        found.append((having, np.full(len(having), slope), np.full(len(having), noise), off_K))
    if not found:
        return surface
    having_K, slope_K, noise_K, off_K = (np.concatenate(parts) for parts in zip(*found, strict=True))
    seen = best.latent(places_T[having_K], has_covariance=True)
    system_KK = slope_K[:, None] * best.covariance(seen, seen) * slope_K + np.diag(noise_K)
    factor_KK = cholesky(system_KK, lower=True)
    surprise_K = solve_triangular(factor_KK, off_K, lower=True)
    return Told(*(getattr(best, one.name) for one in fields(Surface)), seen, slope_K, factor_KK, surprise_K)

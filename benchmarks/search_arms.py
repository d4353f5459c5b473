"""Ways to look for an edge with a number of trials: ours and others. Each returns the edges found at each budget."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import optuna
from scipy.stats import qmc

from benchmarks.search_truths import Truth
from orchestrator.base.errors import InputError, Problem
from orchestrator.search.edge import EdgeOptions, EdgeSearch
from orchestrator.search.protocol import CellResult, InBatches, SeedResult
from orchestrator.surface.fitting import fit_surface
from orchestrator.surface.gaussian import Layout
from orchestrator.surface.surface import Surface

BATCH = 4  # trials between two looks at the results
Cell = tuple[int, ...]
Found = dict[int, np.ndarray]


class Trials:
    """Trials of a truth: outcomes by cell, and what a surface needs of them. Same seed, same outcomes in each arm.

    The seed also says which seed of a table comes first.
    """

    def __init__(self, truth: Truth, seed: int) -> None:
        self.truth = truth
        self._random = np.random.default_rng(seed)
        self._first_seed = seed
        self.outcomes: dict[Cell, list[str]] = {}
        self.num = 0

    def train(self, cell: Cell) -> bool:
        """Train the next seed of a cell; whether it is stable. Seeds start again where a table has no more."""
        of_cell = self.outcomes.setdefault(cell, [])
        seed = (self._first_seed + len(of_cell)) % self.truth.num_seeds
        of_cell.append(self.truth.outcome(cell, seed, float(self._random.random())))
        self.num += 1
        return of_cell[-1] == "stable"

    def share(self, cell: Cell) -> float:
        """The share of stable trials of a cell."""
        return self.outcomes[cell].count("stable") / len(self.outcomes[cell])

    def surface(self) -> Surface:
        """The surface fitted to all trials, the same for each arm."""
        sizes = np.array(self.truth.sizes)
        points = np.array(list(self.outcomes)) / (sizes - 1)
        stable = np.array([float(seeds.count("stable")) for seeds in self.outcomes.values()])
        trials = np.array([float(len(seeds)) for seeds in self.outcomes.values()])
        layout = Layout((False,) * len(sizes), len(sizes) - 1)
        return fit_surface(points, stable, trials, layout, 1 / (self.truth.sizes[-1] - 1), has_one_edge=True)

    def edges(self) -> np.ndarray:
        """The edge of each row by the surface, in cells."""
        return edges_of(self.surface(), self.truth.sizes)


def edges_of(surface: Surface, sizes: Sequence[int]) -> np.ndarray:
    """Where the mean of a surface crosses P = 1/2 in each row, (R,), from the length that is stable."""
    cells = np.array(list(np.ndindex(*sizes)))
    return edges_of_means(surface.latent(cells / (np.array(sizes) - 1)).mean_M.reshape(-1, sizes[-1]))


def edges_of_means(mean_RL: np.ndarray) -> np.ndarray:
    """Where the means of each row cross zero, (R,), from the length that is stable."""
    return np.array([_stable_length(mean_L) - 0.5 for mean_L in mean_RL])


def _stable_length(mean_L: np.ndarray) -> float:
    """The length, in cells, over which a line through the means is above zero; each end adds half a cell."""
    high, low = np.maximum(mean_L[1:], mean_L[:-1]), np.minimum(mean_L[1:], mean_L[:-1])
    parts = np.where(low > 0, 1.0, np.where(high <= 0, 0.0, high / np.where(high == low, 1.0, high - low)))
    return float(parts.sum() + 0.5 * (mean_L[0] > 0) + 0.5 * (mean_L[-1] > 0))


def ours(truth: Truth, budgets: Sequence[int], seed: int) -> Found:
    """The search that the package has."""
    options = EdgeOptions(truth.axes[-1].name, max(budgets), truth.num_seeds, seed)
    search = InBatches(EdgeSearch(truth.axes, options, lambda outcome: outcome != "stable"), BATCH)
    trials, found = Trials(truth, seed), {}
    names = [axis.name for axis in truth.axes]
    places = [{value: i for i, value in enumerate(axis.values)} for axis in truth.axes]
    while True:
        known = [_result(truth, cell, outcomes) for cell, outcomes in trials.outcomes.items()]
        proposals = search.propose(known, BATCH)
        for proposal in proposals or []:
            cell = tuple(place[proposal.cell[name]] for name, place in zip(names, places, strict=True))
            while len(trials.outcomes.get(cell, [])) < proposal.num_seeds:
                trials.train(cell)
        if trials.num in budgets and trials.num not in found:
            found[trials.num] = trials.edges()
        if not proposals:
            return found | {budget: trials.edges() for budget in budgets if budget not in found}


def _result(truth: Truth, cell: Cell, outcomes: Sequence[str]) -> CellResult:
    values = {axis.name: axis.values[i] for axis, i in zip(truth.axes, cell, strict=True)}
    return CellResult(values, tuple(SeedResult(i, outcome, True) for i, outcome in enumerate(outcomes)))


def _of_list(truth: Truth, cells: Sequence[Cell], budgets: Sequence[int], seed: int) -> Found:
    trials, found = Trials(truth, seed), {}
    for cell in cells:
        trials.train(cell)
        if trials.num in budgets:
            found[trials.num] = trials.edges()
    return found


def random_cells(truth: Truth, budgets: Sequence[int], seed: int) -> Found:
    """Different cells at random; the same surface."""
    order = np.random.default_rng((seed, 1)).permutation(int(np.prod(truth.sizes)))
    chosen = np.resize(order, max(budgets))
    return _of_list(truth, [_cell(truth, int(i)) for i in chosen], budgets, seed)


def sobol_cells(truth: Truth, budgets: Sequence[int], seed: int) -> Found:
    """A scrambled Sobol sequence; the same surface."""
    units = qmc.Sobol(len(truth.sizes), rng=seed).random_base2(int(np.ceil(np.log2(max(budgets)))))
    cells = [tuple(map(int, row)) for row in units[: max(budgets)] * np.array(truth.sizes)]
    return _of_list(truth, cells, budgets, seed)


def _cell(truth: Truth, index: int) -> Cell:
    return tuple(int(i) for i in np.unravel_index(index, truth.sizes))


def bisection(truth: Truth, budgets: Sequence[int], seed: int) -> Found:
    """Row by row, coarse to fine: from the edge of the neighbours in steps that double, then halving the bracket.

    Rows between are interpolated. Once all rows are done, both sides of each bracket are tried with further seeds, and
    a row whose majority turned over moves.
    """
    trials, found = Trials(truth, seed), {}
    brackets: dict[Cell, tuple[int, int]] = {}

    def is_stable(cell: Cell) -> bool:
        is_it = trials.train(cell)
        if trials.num in budgets:
            found[trials.num] = _interpolated(truth, brackets)
        return is_it

    rows = _coarse_to_fine(truth.sizes[:-1])
    while trials.num < max(budgets):
        for row in rows:
            if row not in brackets:
                start = _interpolated(truth, brackets)[int(np.ravel_multi_index(row, truth.sizes[:-1]))]
                brackets[row] = _bracket(row, start, truth.sizes[-1], is_stable)
            else:
                brackets[row] = _checked(row, brackets[row], truth.sizes[-1], is_stable, trials)
            if trials.num >= max(budgets):
                break
    return found


def _bracket(row: Cell, start: float, size: int, is_stable: Callable[[Cell], bool]) -> tuple[int, int]:
    """The last stable value of a row and the first that is not; -1 and ``size`` where there is none."""
    low, high, step = -1, size, 1
    place = int(np.clip(round(start), 0, size - 1))
    while high - low > 1:
        if is_stable((*row, place)):
            low = place
        else:
            high = place
        if low >= 0 and high < size:
            place = (low + high) // 2
        else:
            place = min(low + step, size - 1) if low >= 0 else max(high - step, 0)
            step *= 2
    return low, high


def _checked(
    row: Cell, bracket: tuple[int, int], size: int, is_stable: Callable[[Cell], bool], trials: Trials
) -> tuple[int, int]:
    low, high = bracket
    if low >= 0:
        is_stable((*row, low))
        if trials.share((*row, low)) < 0.5:
            return low - 1, low
    if high < size:
        is_stable((*row, high))
        if trials.share((*row, high)) > 0.5:
            return high, high + 1
    return low, high


def _coarse_to_fine(sizes: Sequence[int]) -> list[Cell]:
    """All rows: the ends, then what lies in the middle between those before."""
    orders = []
    for size in sizes:
        order, step = [0, size - 1], (size - 1) / 2
        while len(order) < size:
            order += [i for i in (round(k * step) for k in range(int((size - 1) / step) + 1)) if i not in order]
            step /= 2
        orders.append({value: int(np.log2(max(1, rank))) for rank, value in enumerate(dict.fromkeys(order))})
    return sorted(np.ndindex(*sizes), key=lambda row: max(order[i] for order, i in zip(orders, row, strict=True)))


def _interpolated(truth: Truth, brackets: dict[Cell, tuple[int, int]]) -> np.ndarray:
    """The middle of each bracket; of other rows, a line between neighbours, or the nearest row on two axes."""
    if not brackets:
        return np.full(int(np.prod(truth.sizes[:-1])), (truth.sizes[-1] - 1) / 2)
    done = sorted(brackets)
    middles = [sum(brackets[row]) / 2 for row in done]
    if len(truth.sizes) == 2:
        return np.interp(np.arange(truth.sizes[0]), [row[0] for row in done], middles)
    rows = np.array(list(np.ndindex(*truth.sizes[:-1])), dtype=float)
    distance = ((rows[:, None, :] - np.array(done)) ** 2).sum(axis=-1)
    weights = 1 / np.maximum(distance, 1e-9) ** 2
    return weights @ np.array(middles) / weights.sum(axis=1)


def tpe(truth: Truth, budgets: Sequence[int], seed: int) -> Found:
    """Optuna's TPE on |P - 1/2|, where P is that of the same surface: one trial is a bit, which has no distance."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True, constant_liar=True, n_startup_trials=12)
    study = optuna.create_study(sampler=sampler)
    distributions: dict[str, Any] = {
        axis.name: optuna.distributions.IntDistribution(0, len(axis.values) - 1) for axis in truth.axes
    }
    trials, found = Trials(truth, seed), {}
    while trials.num < max(budgets):
        asked = []
        for _ in range(BATCH):
            trial = study.ask(fixed_distributions=distributions)
            cell = tuple(trial.params[axis.name] for axis in truth.axes)
            trials.train(cell)
            asked.append((trial, cell))
        surface = trials.surface()
        points = np.array([cell for _, cell in asked]) / (np.array(truth.sizes) - 1)
        for (trial, _), chance in zip(asked, surface.latent(points).probability(), strict=True):
            study.tell(trial, abs(float(chance) - 0.5))
        if trials.num in budgets:
            found[trials.num] = edges_of(surface, truth.sizes)
    return found


def botorch(truth: Truth, budgets: Sequence[int], seed: int) -> Found:
    """BoTorch's look-ahead for level sets, one trial at a time, and the edge by its own model.

    Raises InputError where botorch is not installed.
    """
    try:
        from benchmarks.search_botorch import Engine
    except ModuleNotFoundError as error:
        message = f"the module {error.name} is not installed"
        raise InputError(Problem("--arms", "botorch", message, "pip install botorch, or choose other arms")) from None
    engine, found = Engine(truth, seed), {}
    while engine.trials.num < max(budgets):
        engine.train_next()
        if engine.trials.num in budgets:
            found[engine.trials.num] = engine.edges()
    return found


ARMS: dict[str, Callable[[Truth, Sequence[int], int], Found]] = {
    "ours": ours,
    "random": random_cells,
    "sobol_gp": sobol_cells,
    "bisection": bisection,
    "tpe": tpe,
    "botorch": botorch,
}
DEFAULT_ARMS = tuple(arm for arm in ARMS if arm != "botorch")  # half a second for each trial, and needs botorch


def grid(trials: Trials, num_seeds: int) -> dict[str, np.ndarray]:
    """The edges of a full grid with seeds, and with one.

    ``grid3`` and ``grid1`` add up the shares of stable trials along each row, the best that a row can say by itself;
    ``grid3_brackets`` has the middle between the first cell of which not all seeds are stable and the one before it,
    as the boundary of a map.
    """
    size = trials.truth.sizes[-1]
    stable_CS = np.array([[trials.train(cell) for _ in range(num_seeds)] for cell in np.ndindex(*trials.truth.sizes)])
    shares_RL, first_RL = stable_CS.mean(axis=1).reshape(-1, size), stable_CS[:, 0].reshape(-1, size)
    is_unstable_RL = np.column_stack([shares_RL < 1, np.ones(len(shares_RL), dtype=bool)])
    return {
        "grid3": shares_RL.sum(axis=1) - 0.5,
        "grid1": first_RL.sum(axis=1) - 0.5,
        "grid3_brackets": np.argmax(is_unstable_RL, axis=1) - 0.5,
    }

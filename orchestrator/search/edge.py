"""`search: {method: edge}`: find where training turns from stable to unstable, in few trials.

Letters of shapes: N known cells, C candidates, R rows, D axes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from scipy.optimize import brentq

from orchestrator.base.space import Axis
from orchestrator.search.gain import choose
from orchestrator.search.protocol import CellResult, Proposal
from orchestrator.surface.fitting import fit_surface, refitted
from orchestrator.surface.lattice import Lattice, lattice_of
from orchestrator.surface.surface import Crossing, Surface

# Trials of the initial design, before the first surface, by the number of numeric axes.
_NUM_INITIAL = {0: 1, 1: 4, 2: 12, 3: 24, 4: 48}
# Of more cells, proposals take the field that is likeliest by the first ones: to compare fields takes seconds, and the
# driver waits.
_MOST_ANEW = 256
_GROWTH = 1.25  # of the number of first cells, from one comparison of fields to the next
_MAX_ROWS = 1024  # whose edges decide whether a search is precise
_TOLERANCE = 1e-9

Cell = tuple[int, ...]  # indices of a cell's values in the lattice


@dataclass(frozen=True, slots=True)
class EdgeOptions:
    """The edge to find, and the budget.

    ``along`` is the axis over which training turns unstable; if None, edges are looked for in every direction.
    ``level`` is P(stable) at the edge, ``trials`` the budget, which counts each seed, and ``num_seeds`` the most trials
    of a cell. The search ends early when the edge of every row is known within the factor ``precision``, if given.
    """

    along: str | None
    trials: int
    num_seeds: int
    seed: int
    level: float = 0.5
    precision: float | None = None


@dataclass(frozen=True, slots=True)
class Tally:
    """Numbers of trials of one cell: stable, over the edge, pending, and lost (given up or impossible to judge).

    A cell with a lost trial gets no more trials.
    """

    stable: int = 0
    over: int = 0
    pending: int = 0
    lost: int = 0

    @property
    def judged(self) -> int:
        """The number of trials that are stable or over the edge."""
        return self.stable + self.over

    @property
    def num(self) -> int:
        """The number of all trials."""
        return self.stable + self.over + self.pending + self.lost


class EdgeSearch:
    """Proposes cells at the edge of stability, where results are expected to be most informative.

    ``is_over_edge`` maps an outcome to whether it is over the edge, or None if unknown.
    """

    def __init__(self, axes: Sequence[Axis], options: EdgeOptions, is_over_edge: Callable[[str], bool | None]) -> None:
        self._options = options
        self._is_over_edge = is_over_edge
        self._axes = tuple(axes)
        self.lattice: Lattice = lattice_of(axes, options.along, options.precision)
        # A cache, which does not affect answers.
        self._one_edge: dict[tuple[tuple[Cell, Tally], ...], bool] = {}
        self._compared: tuple[Any, Surface] | None = None  # another one: the surface of some cells

    def propose(self, known: Sequence[CellResult], room: int) -> list[Proposal] | None:
        """Propose at most ``room`` further trials; an empty list means to wait, None that the search is finished."""
        tallies = self._tallies(known)
        has_pending = self._has_pending(tallies)
        left = self._options.trials - sum(len(result.seeds) for result in known)
        if left <= 0:
            return [] if has_pending else None
        chosen = self._batch(known, tallies, min(room, left))
        if not chosen and not has_pending and room > 0:
            return None
        return self._proposals(chosen, tallies)

    @property
    def num_initial(self) -> int:
        """The number of cells in the initial design, which is spread evenly, whatever the results."""
        return len(self._initial_design())

    def surface(self, known: Sequence[CellResult]) -> Surface:
        """Fit the surface of P(stable) to all results."""
        return self._surface(self._tallies(known), self._others(known))

    def crossings(self, known: Sequence[CellResult]) -> list[tuple[dict[str, Any], tuple[Crossing, ...]]]:
        """Return, for each row along the axis, the values of the other axes and its edges."""
        surface = self.surface(known)
        rows_RD = self._rows()
        crossings = self._crossings(surface, rows_RD)
        names = [axis.name for axis in self._axes if axis.name != self._options.along]
        cells = (self.lattice.cell(row) for row in rows_RD)
        return [({name: cell[name] for name in names}, row) for cell, row in zip(cells, crossings, strict=True)]

    # --- the next trials --------------------------------------------------------------------------------

    def _batch(self, known: Sequence[CellResult], tallies: dict[Cell, Tally], num: int) -> list[Cell]:
        """Choose the next trials: the rest of the initial design, or where outcomes are most informative."""
        others = self._others(known)
        num_known = sum(tally.num for tally in tallies.values()) + sum(tally.num for _, tally in others)
        design = self._initial_design()
        if num_known < len(design) and not others:
            return [cell for cell in design if cell not in tallies][:num]
        surface = self._proposing_surface(known, tallies, others)
        if not self._has_pending(tallies) and self._is_precise(surface):
            surface = self._surface(tallies, others)
            if self._is_precise(surface):
                return []
        random = np.random.default_rng((self._options.seed, num_known))
        cells_CD = self.lattice.candidates(random)
        cells = [tuple(map(int, row)) for row in cells_CD]
        pending = [cell for cell, tally in tallies.items() for _ in range(tally.pending)]
        index_of = {cell: i for i, cell in enumerate(cells)}
        missing = [cell for cell in dict.fromkeys(pending) if cell not in index_of]
        index_of |= {cell: len(cells) + i for i, cell in enumerate(missing)}
        cells += missing
        room_C = np.array([self._room(tallies.get(cell, Tally())) for cell in cells[: len(cells_CD)]])
        surface = surface.best  # a mixture has no one scale of logits for the values of trials
        latent = surface.latent(self.lattice.points(np.array(cells)), has_covariance=True)
        row_length = 1 if self.lattice.along is None else self.lattice.sizes[self.lattice.along]
        chosen = choose(
            surface, latent, row_length, room_C, [index_of[cell] for cell in pending], num, self._options.level
        )
        return [cells[i] for i in chosen]

    def _initial_design(self) -> list[Cell]:
        """Spread cells evenly, in different rows: multiples of powers of a generalised golden ratio.

        The seed shifts them. M. Roberts, The unreasonable effectiveness of quasirandom sequences, 2018.
        """
        sizes = np.array(self.lattice.sizes)
        categorical = [column for column in self.lattice.columns if column.is_categorical]
        num_categories = math.prod(len(column.values) for column in categorical)
        num = _NUM_INITIAL[len(sizes) - len(categorical)] * (1 + num_categories) // 2
        num = min(num, self.lattice.num_cells, self._options.trials)
        ratio = brentq(lambda x: x ** (len(sizes) + 1) - x - 1, 1, 2)
        steps_D = ratio ** -np.arange(1.0, len(sizes) + 1)
        shift_D = np.random.default_rng(self._options.seed).random(len(sizes))
        # With few values to choose from, some multiples are the same cell.
        units = (shift_D + np.arange(1, 8 * num + 1)[:, None] * steps_D) % 1
        cells = (tuple(map(int, row)) for row in (units * sizes).astype(int))
        return list(dict.fromkeys(cells))[:num]

    def _room(self, tally: Tally) -> int:
        return 0 if tally.lost else self._options.num_seeds - tally.num

    def _proposals(self, chosen: Sequence[Cell], tallies: Mapping[Cell, Tally]) -> list[Proposal]:
        """Return one proposal for each cell, ordered by when cells were first chosen."""
        return [
            Proposal(self.lattice.cell(cell), tallies.get(cell, Tally()).num + chosen.count(cell))
            for cell in dict.fromkeys(chosen)
        ]

    def _proposing_surface(
        self, known: Sequence[CellResult], tallies: Mapping[Cell, Tally], others: Sequence[tuple[list[float], Tally]]
    ) -> Surface:
        """Return a surface to propose by: of many cells, with the field that is likeliest by the first of them.

        Of these the first seed counts, whose outcome stays the same. So a resumed search proposes the same cells.
        """
        is_pending = (self._kind(result.seeds[0].outcome, result.seeds[0].is_over) == "pending" for result in known)
        num = _milestone(next((i for i, pending in enumerate(is_pending) if pending), len(known)))
        if not num:
            return self._surface(tallies, others)
        firsts = [replace(result, seeds=result.seeds[:1]) for result in known[:num]]
        early = self._judged(self._tallies(firsts), self._others(firsts))
        if self._compared is None or self._compared[0] != early:
            self._compared = early, self._fitted(*early, self._has_one_edge(early[0]))
        return refitted(self._compared[1], *self._counts(*self._judged(tallies, others)))

    # --- the surface ------------------------------------------------------------------------------------

    def _surface(self, tallies: Mapping[Cell, Tally], others: Sequence[tuple[list[float], Tally]]) -> Surface:
        seen, others = self._judged(tallies, others)
        return self._fitted(seen, others, self._has_one_edge(seen))

    @staticmethod
    def _judged(
        tallies: Mapping[Cell, Tally], others: Sequence[tuple[list[float], Tally]]
    ) -> tuple[list[tuple[Cell, Tally]], list[tuple[list[float], Tally]]]:
        seen = [(cell, tallies[cell]) for cell in sorted(tallies) if tallies[cell].judged]
        return seen, [other for other in others if other[1].judged]

    def _has_one_edge(self, seen: Sequence[tuple[Cell, Tally]]) -> bool:
        """Whether each row has one edge, judged from the initial design: later cells lie at supposed edges."""
        design = set(self._initial_design())
        initial = [(cell, tally) for cell, tally in seen if cell in design]
        if self.lattice.along is None or 2 * len(initial) < len(design):
            return True
        key = tuple(initial)
        if key not in self._one_edge:
            self._one_edge[key] = self._fitted(initial, [], None).has_one_edge
        return self._one_edge[key]

    def _fitted(
        self,
        seen: Sequence[tuple[Cell, Tally]],
        others: Sequence[tuple[list[float], Tally]],
        has_one_edge: bool | None,
    ) -> Surface:
        counts = self._counts(seen, others)
        return fit_surface(*counts, self.lattice.layout, self.lattice.resolution, has_one_edge)

    def _counts(
        self, seen: Sequence[tuple[Cell, Tally]], others: Sequence[tuple[list[float], Tally]]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the points of cells, (N, D), and their numbers of stable and of judged trials, (N,)."""
        points_ND = np.array([point for point, _ in others]).reshape(-1, len(self._axes))
        if seen:
            points_ND = np.concatenate([self.lattice.points(np.array([cell for cell, _ in seen])), points_ND])
        tallies = [tally for _, tally in (*seen, *others)]
        return (
            points_ND,
            np.array([float(tally.stable) for tally in tallies]),
            np.array([float(tally.judged) for tally in tallies]),
        )

    def _tallies(self, known: Sequence[CellResult]) -> dict[Cell, Tally]:
        """Return the tallies of the cells in the lattice."""
        indices = [(self.lattice.indices(result.cell), result) for result in known]
        return {cell: self._tally(result) for cell, result in indices if cell is not None}

    def _others(self, known: Sequence[CellResult]) -> list[tuple[list[float], Tally]]:
        """Return points and tallies of cells that are not in the lattice, e.g. of an axis that had more values."""
        others = (result for result in known if self.lattice.indices(result.cell) is None)
        return [(self.lattice.point(result.cell), self._tally(result)) for result in others]

    def _tally(self, result: CellResult) -> Tally:
        kinds = [self._kind(seed.outcome, seed.is_over) for seed in result.seeds]
        return Tally(*(kinds.count(field.name) for field in fields(Tally)))

    def _kind(self, outcome: str | None, is_over: bool) -> str:
        """Return the field of ``Tally`` that counts a trial."""
        if outcome is None:
            return "lost" if is_over else "pending"
        is_over_edge = self._is_over_edge(outcome)
        return "lost" if is_over_edge is None else "over" if is_over_edge else "stable"

    @staticmethod
    def _has_pending(tallies: Mapping[Cell, Tally]) -> bool:
        return any(tally.pending for tally in tallies.values())

    # --- the end ----------------------------------------------------------------------------------------

    def _rows(self) -> np.ndarray:
        return self.lattice.rows(np.random.default_rng(self._options.seed), _MAX_ROWS)

    def _crossings(self, surface: Surface, rows_RD: np.ndarray) -> list[tuple[Crossing, ...]]:
        assert self.lattice.along is not None
        units_L = np.array(self.lattice.columns[self.lattice.along].units)
        return surface.crossings(self.lattice.points(rows_RD), units_L, self._options.level)

    def _is_precise(self, surface: Surface) -> bool:
        """Whether the edge of every row is known within the precision, or within a step of the grid."""
        if self._options.precision is None or self.lattice.along is None:
            return False
        rows = self._crossings(surface, self._rows())
        return all(self._is_narrow(crossing) for row in rows for crossing in row)

    def _is_narrow(self, crossing: Crossing) -> bool:
        assert self.lattice.along is not None
        assert self._options.precision is not None
        column = self.lattice.columns[self.lattice.along]
        if not math.isfinite(crossing.low) or not math.isfinite(crossing.high):
            return False
        if column.is_given and crossing.high - crossing.low <= self.lattice.resolution + _TOLERANCE:
            return True
        if column.axis.ends is None:
            return False
        low, high = (column.axis.at(unit) for unit in (crossing.low, crossing.high))
        return column.axis.factor(low, high) <= self._options.precision


def _milestone(num: int) -> int:
    """Return how many of ``num`` cells compare fields: ``_MOST_ANEW``, a quarter more, and so on; 0 of fewer."""
    if num < _MOST_ANEW:
        return 0
    return int(_MOST_ANEW * _GROWTH ** math.floor(math.log(num / _MOST_ANEW, _GROWTH) + _TOLERANCE))

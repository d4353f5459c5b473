"""More seeds where they decide: in cells whose seeds disagree, and beside an edge."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.base.cell import Cell
from orchestrator.base.space import Axis, is_number
from orchestrator.search.protocol import CellResult, Proposal

Side = bool | None  # whether a cell or a seed is over the edge; None where that cannot be told


@dataclass(frozen=True)
class SeedsWhereCellsDisagree:
    """All ``cells`` of a grid over ``axes`` with ``start`` seeds, and up to ``up_to`` seeds where the edge is.

    A cell gets another seed while its seeds disagree, or while a neighbour is on the other side: a cell that differs in
    one axis, by one value. ``is_over_edge`` says it of an outcome.
    """

    cells: Sequence[Mapping[str, Any]]
    axes: tuple[Axis, ...]
    start: int
    up_to: int
    is_over_edge: Callable[[str], Side]

    def propose(self, known: Sequence[CellResult], room: int) -> list[Proposal] | None:
        """All cells at first, then one more seed wherever one is needed; waits for the results of all before."""
        there = {Cell(result.cell): result for result in known}
        first = [
            Proposal(cell, self.start)
            for cell in self.cells
            if Cell(cell) not in there or len(there[Cell(cell)].seeds) < self.start
        ]
        if first:
            return first
        if any(not seed.is_over for result in known for seed in result.seeds):
            return []
        sides = {key: self._side(result) for key, result in there.items()}
        more = [
            Proposal(cell, len(there[Cell(cell)].seeds) + 1)
            for cell in self.cells
            if len(there[Cell(cell)].seeds) < self.up_to and self._is_open(cell, there, sides)
        ]
        return more or None

    def _is_open(
        self,
        cell: Mapping[str, Any],
        there: Mapping[Cell, CellResult],
        sides: Mapping[Cell, Side],
    ) -> bool:
        key = Cell(cell)
        own = {self.is_over_edge(seed.outcome) for seed in there[key].seeds if seed.outcome is not None} - {None}
        if len(own) != 1:
            return len(own) > 1
        others = (sides.get(neighbour) for neighbour in self._neighbours(cell))
        return any(side is not None and side != sides[key] for side in others)

    def _side(self, result: CellResult) -> Side:
        """Where most of the seeds of a cell are; None in a tie."""
        known = [self.is_over_edge(seed.outcome) for seed in result.seeds if seed.outcome is not None]
        votes = [side for side in known if side is not None]
        return None if 2 * sum(votes) == len(votes) else 2 * sum(votes) > len(votes)

    def _neighbours(self, cell: Mapping[str, Any]) -> list[Cell]:
        """The cells one value away along an axis of numbers, whether or not the grid has them."""
        found = []
        for axis in self.axes:
            value = cell[axis.name]
            if not (is_number(value) or (value is None and not axis.when)):
                continue
            place = axis.values.index(value)
            together = [each for each in self.axes if each.name in (axis.zipped or (axis.name,))]
            for other in (place - 1, place + 1):
                if 0 <= other < len(axis.values):
                    found.append(Cell({**cell, **{each.name: each.values[other] for each in together}}))
        return found

"""More seeds where they decide: in cells whose seeds disagree, and next to an edge."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.base.space import Axis, Cell, is_number
from orchestrator.search.protocol import CellResult, Proposal, has_missing_results

Side = bool | None  # whether a cell or a seed is over the edge; None if unknown


@dataclass(frozen=True)
class SeedsWhereCellsDisagree:
    """All ``cells`` of a grid over ``axes`` with ``start`` seeds, and up to ``up_to`` seeds at the edge.

    A cell gets another seed while its seeds disagree, or while a neighbour (one axis differs, by one value) is on the
    other side. ``is_over_edge`` maps an outcome to a side.
    """

    cells: Sequence[Mapping[str, Any]]
    axes: tuple[Axis, ...]
    start: int
    up_to: int
    is_over_edge: Callable[[str], Side]

    def propose(self, known: Sequence[CellResult], room: int) -> list[Proposal] | None:
        """Propose all cells at first, then one more seed for each undecided cell once all results are known."""
        results = {Cell(result.cell): result for result in known}
        first = [
            Proposal(cell, self.start)
            for cell in self.cells
            if Cell(cell) not in results or len(results[Cell(cell)].seeds) < self.start
        ]
        if first:
            return first
        if has_missing_results(known):
            return []
        sides = {cell: self._side(result) for cell, result in results.items()}
        more = [
            Proposal(cell, len(result.seeds) + 1)
            for cell in self.cells
            if len((result := results[Cell(cell)]).seeds) < self.up_to and self._is_undecided(result, sides)
        ]
        return more or None

    def _is_undecided(self, result: CellResult, sides: Mapping[Cell, Side]) -> bool:
        seed_sides = set(self._seed_sides(result))
        if len(seed_sides) != 1:
            return len(seed_sides) > 1
        side = sides[Cell(result.cell)]
        return any(sides.get(cell) not in (None, side) for cell in self._neighbours(result.cell))

    def _seed_sides(self, result: CellResult) -> list[bool]:
        """Return the known sides of the seeds of a cell."""
        sides = (self.is_over_edge(seed.outcome) for seed in result.seeds if seed.outcome is not None)
        return [side for side in sides if side is not None]

    def _side(self, result: CellResult) -> Side:
        """Return the side of the majority of the seeds, or None for a tie."""
        votes = self._seed_sides(result)
        return None if 2 * sum(votes) == len(votes) else 2 * sum(votes) > len(votes)

    def _neighbours(self, cell: Mapping[str, Any]) -> Iterator[Cell]:
        """Yield the cells one value away along an axis of numbers, whether or not the grid has them."""
        for axis in self.axes:
            value = cell[axis.name]
            if not (is_number(value) or (value is None and not axis.when)):
                continue
            index = axis.values.index(value)
            group = [member for member in self.axes if member.name in (axis.zipped or (axis.name,))]
            for other in (index - 1, index + 1):
                if 0 <= other < len(axis.values):
                    yield Cell({**cell, **{member.name: member.values[other] for member in group}})

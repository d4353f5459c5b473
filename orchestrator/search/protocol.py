"""What a search sees and proposes, and the searches that need no library: listed cells, more seeds, batches.

A search is a pure function of what the ledger knows, so a restarted run needs nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from orchestrator.base.space import Axis, Cell, is_number

Side = bool | None  # whether a cell or a seed is over the edge; None if unknown
EDGE = "edge"  # the search for the edge, by its name in a sweep file


@dataclass(frozen=True, slots=True)
class SeedResult:
    """One trial of a cell. ``outcome`` is None while it waits or trains, and if it was given up.

    ``is_over`` means that no other result will come. ``metrics`` are finite results by name, e.g. ``validation_loss``.
    """

    seed: int
    outcome: str | None
    is_over: bool
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CellResult:
    """One proposed cell: a value for each axis, and its trials in the order of the sweep's seeds."""

    cell: Mapping[str, Any]
    seeds: tuple[SeedResult, ...]


@dataclass(frozen=True, slots=True)
class Proposal:
    """A cell to train with the first ``num_seeds`` of the sweep's seeds, including seeds that it already has."""

    cell: Mapping[str, Any]
    num_seeds: int


class Search(Protocol):
    """Chooses cells while results come in."""

    def propose(self, known: Sequence[CellResult], room: int) -> list[Proposal] | None:
        """Propose at most ``room`` further trials, given all cells proposed so far, in that order.

        An empty list means to wait for running trials; None means that the search is finished.
        """


def has_missing_results(known: Sequence[CellResult]) -> bool:
    """Whether a trial in ``known`` waits or trains."""
    return any(not seed.is_over for result in known for seed in result.seeds)


@dataclass(frozen=True)
class ListedCells:
    """Proposes all ``cells`` at once, each with ``num_seeds`` seeds: a grid or a sample."""

    cells: Sequence[Mapping[str, Any]]
    num_seeds: int

    def propose(self, known: Sequence[CellResult], room: int) -> list[Proposal] | None:
        """Propose everything that is not known yet, whatever the room, so that packs are made from the whole."""
        num_known = {Cell(result.cell): len(result.seeds) for result in known}
        missing = [
            Proposal(cell, self.num_seeds) for cell in self.cells if num_known.get(Cell(cell), 0) < self.num_seeds
        ]
        return missing or None


@dataclass(frozen=True)
class InBatches:
    """Asks ``search`` for ``size`` trials whenever all earlier ones have a result.

    So its proposals do not depend on which result comes first.
    """

    search: Search
    size: int

    def propose(self, known: Sequence[CellResult], room: int) -> list[Proposal] | None:
        """Propose the next batch, whatever the room, or nothing while a result is missing."""
        return [] if has_missing_results(known) else self.search.propose(known, self.size)


def within_budget(proposals: Sequence[Proposal], known: Sequence[CellResult], num_trials: int) -> list[Proposal]:
    """Keep proposals of new cells, in order, that with ``known`` make at most ``num_trials`` trials."""
    left = num_trials - sum(len(result.seeds) for result in known)
    kept = []
    for proposal in proposals:
        if proposal.num_seeds <= left:
            kept.append(proposal)
            left -= proposal.num_seeds
    return kept


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

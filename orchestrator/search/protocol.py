"""What a search sees and proposes, and the searches that need no library: a list of cells, and batches of another one.

A search is a pure function of what the ledger knows, so a restarted run needs nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from orchestrator.base.space import Cell

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

"""What a search sees and what it answers: cells with their results, and proposals of cells to train.

A search is a pure function of what the ledger knows, so a restarted run needs nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class SeedResult:
    """One trial of a cell. ``outcome`` is None while it waits or trains, and where it was given up.

    ``is_over`` says that no other result will come. ``metrics`` are finite results by name, e.g. ``validation_loss``.
    """

    seed: int
    outcome: str | None
    is_over: bool
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CellResult:
    """One cell that was proposed: a value for each axis, and its trials in the order of the sweep's seeds."""

    cell: Mapping[str, Any]
    seeds: tuple[SeedResult, ...]


@dataclass(frozen=True, slots=True)
class Proposal:
    """A cell to train with the first ``num_seeds`` of the sweep's seeds, counting those that it has already."""

    cell: Mapping[str, Any]
    num_seeds: int


class Search(Protocol):
    """Chooses cells while results come in."""

    def propose(self, known: Sequence[CellResult], room: int) -> list[Proposal] | None:
        """At most ``room`` further trials, given all cells proposed so far, in that order.

        An empty list means to wait for results that are under way; None that the search is finished.
        """

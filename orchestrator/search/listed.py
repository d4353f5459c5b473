"""The search that proposes everything at once: the cells of a grid, or of a sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.base.cell import Cell
from orchestrator.search.protocol import CellResult, Proposal


@dataclass(frozen=True)
class ListedCells:
    """Every one of ``cells`` with ``num_seeds`` seeds, in order."""

    cells: Sequence[Mapping[str, Any]]
    num_seeds: int

    def propose(self, known: Sequence[CellResult], room: int) -> list[Proposal] | None:
        """All that is not known yet, whatever the room: packs are made of the whole."""
        there = {Cell(result.cell): len(result.seeds) for result in known}
        missing = [Proposal(cell, self.num_seeds) for cell in self.cells if there.get(Cell(cell), 0) < self.num_seeds]
        return missing or None

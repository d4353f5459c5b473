"""`sweep boundary`: where the map turns from stable to not stable."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from orchestrator.commands.printing import Answer
from orchestrator.errors import EXIT_OK
from orchestrator.files import LEDGER
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.boundary import boundary_lines
from orchestrator.maps.stability import stability_map


def boundary(
    folder: Path, x: str | None, y: str | None, where: Mapping[str, str], reduce: str, degraded: bool
) -> Answer:
    """The boundary of the sweep in ``folder`` along ``x``, row by row. Raises InputError.

    With ``degraded`` degraded cells are over the edge.
    """
    with LedgerReader(folder / LEDGER) as ledger:
        stability = stability_map(ledger, x, y, where=where, reduce=reduce, counts_degraded=degraded)
    note = f" ({stability.note})" if stability.note else ""
    counted = " and none is degraded" if degraded else ""
    yield f"{stability.name}: the edge along {stability.x.name}{note}; a cell is stable when all its seeds are{counted}"
    yield from boundary_lines(stability)
    return EXIT_OK

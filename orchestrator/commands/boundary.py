"""`sweep boundary`: where the map turns from stable to not stable."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from orchestrator.commands.printing import Answer
from orchestrator.errors import EXIT_OK
from orchestrator.files import LEDGER
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.boundary import boundary_lines
from orchestrator.maps.fitted import fit, fitted_lines
from orchestrator.maps.stability import stability_map


def boundary(
    folder: Path, x: str | None, y: str | None, where: Mapping[str, str], reduce: str, degraded: bool
) -> Answer:
    """The boundary of the sweep in ``folder`` along ``x``, row by row. Raises InputError.

    With ``degraded`` degraded cells are over the edge. Scattered cells have no rows: a fitted surface has.
    """
    with LedgerReader(folder / LEDGER) as ledger:
        if ledger.facts().get("is_sampled") == "true":
            yield from _fitted(ledger, x, where, degraded)
            return EXIT_OK
        stability = stability_map(ledger, x, y, where=where, reduce=reduce, counts_degraded=degraded)
    note = f" ({stability.note})" if stability.note else ""
    counted = " and none is degraded" if degraded else ""
    yield f"{stability.name}: the edge along {stability.x.name}{note}; a cell is stable when all its seeds are{counted}"
    yield from boundary_lines(stability)
    return EXIT_OK


def _fitted(ledger: LedgerReader, x: str | None, where: Mapping[str, str], degraded: bool) -> Iterator[str]:
    fitted = fit(ledger, x, where, counts_degraded=degraded)
    name = ledger.facts().get("name", "")
    shown = "".join(f", {axis} = {value}" for axis, value in where.items())
    yield (
        f"{name}: the edge along {fitted.along.name}{shown}, where half of the trials are stable, with an interval of "
        f"95 %; a fit to {fitted.num_trials} trials in {fitted.num_cells} cells"
    )
    yield from fitted_lines(fitted)

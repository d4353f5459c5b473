"""`sweep importance`: which axis moves stability, and which the loss."""

from __future__ import annotations

from pathlib import Path

from orchestrator.base.errors import EXIT_OK
from orchestrator.base.files import LEDGER, check_output
from orchestrator.commands.printing import Answer, written_json
from orchestrator.ledger.reader import LedgerReader, origin_notes
from orchestrator.maps import importance as shares


def importance(folder: Path, json_file: Path | None) -> Answer:
    """The share of each axis of the sweep in ``folder`` in stability and in the loss. Raises InputError."""
    check_output(json_file, "--json")
    with LedgerReader(folder / LEDGER) as ledger:
        found = shares.importance(ledger)
    yield from shares.importance_lines(found)
    yield from origin_notes(folder)
    yield from written_json(json_file, shares.importance_json(found))
    return EXIT_OK

"""`sweep importance`: which axis moves stability, and which the loss."""

from __future__ import annotations

import json
from pathlib import Path

from orchestrator.commands.printing import Answer
from orchestrator.errors import EXIT_OK
from orchestrator.files import LEDGER, check_output, write_output
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps import importance as shares


def importance(folder: Path, json_file: Path | None) -> Answer:
    """The share of each axis of the sweep in ``folder`` in stability and in the loss. Raises InputError."""
    check_output(json_file, "--json")
    with LedgerReader(folder / LEDGER) as ledger:
        found = shares.importance(ledger)
    yield from shares.importance_lines(found)
    if json_file is not None:
        write_output(json_file, json.dumps(shares.importance_json(found), indent=2, allow_nan=False) + "\n")
        yield f"wrote {json_file}"
    return EXIT_OK

"""`sweep survival`: how long runs stay stable, and which cells would fail in longer ones."""

from __future__ import annotations

import json
from pathlib import Path

from orchestrator.commands.printing import Answer
from orchestrator.errors import EXIT_OK
from orchestrator.files import LEDGER, check_output, write_output
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps import survival as lifetimes
from orchestrator.maps.survival_text import survival_json, survival_lines


def survival(folder: Path, axis: str | None, until: int | None, json_file: Path | None) -> Answer:
    """How long the runs of the sweep in ``folder`` stay stable, and the prediction to step ``until``.

    Raises InputError.
    """
    check_output(json_file, "--json")
    with LedgerReader(folder / LEDGER) as ledger:
        found = lifetimes.survival(ledger, axis, until)
    yield from survival_lines(found)
    if json_file is not None:
        write_output(json_file, json.dumps(survival_json(found), indent=2, allow_nan=False) + "\n")
        yield f"wrote {json_file}"
    return EXIT_OK

"""`sweep survival`: how long runs stay stable, and which cells would fail in longer ones."""

from __future__ import annotations

from pathlib import Path

from orchestrator.base.errors import EXIT_OK
from orchestrator.base.files import LEDGER, check_output
from orchestrator.commands.printing import Answer, written_json
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
    yield from written_json(json_file, survival_json(found))
    return EXIT_OK

"""`sweep front`: the settings that no other beats in both loss and margin to the edge, or loss and steps."""

from __future__ import annotations

from pathlib import Path

from orchestrator.base.errors import EXIT_OK
from orchestrator.base.files import LEDGER, check_output
from orchestrator.commands.printing import Answer, written_json
from orchestrator.ledger.reader import LedgerReader, origin_notes
from orchestrator.maps import front as fronts
from orchestrator.maps.front_text import front_lines


def front(
    folder: Path,
    metric: str | None,
    against: str,
    along: str | None,
    target: float | None,
    degraded: bool,
    json_file: Path | None,
) -> Answer:
    """The front of ``metric`` against ``against`` of the sweep in ``folder``. Raises InputError as ``maps.front`` does.

    With ``degraded`` degraded cells are over the edge.
    """
    check_output(json_file, "--json")
    with LedgerReader(folder / LEDGER) as ledger:
        found = fronts.front(ledger, metric, against, along, target, degraded)
    yield from front_lines(found)
    yield from origin_notes(folder)
    yield from written_json(json_file, fronts.front_content(found))
    return EXIT_OK

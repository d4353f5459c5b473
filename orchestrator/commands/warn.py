"""`sweep warn`: when telemetry would have warned of each instability of a sweep, and where it would have been wrong."""

from __future__ import annotations

from pathlib import Path

from orchestrator.base.errors import EXIT_OK
from orchestrator.base.files import LEDGER, check_output
from orchestrator.commands.printing import Answer, written_json
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps import warning
from orchestrator.maps.warning_text import warned_json, warned_lines


def warn(folder: Path, json_file: Path | None) -> Answer:
    """The alarms that the package's risk raises on the sweep in ``folder``. Raises InputError."""
    check_output(json_file, "--json")
    with LedgerReader(folder / LEDGER) as ledger:
        found = warning.warn(ledger)
    yield from warned_lines(found)
    yield from written_json(json_file, warned_json(found))
    return EXIT_OK

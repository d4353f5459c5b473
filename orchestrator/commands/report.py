"""`sweep report`: write a sweep's exports again."""

from __future__ import annotations

from pathlib import Path

from orchestrator.base.errors import EXIT_OK
from orchestrator.commands.printing import Answer
from orchestrator.pages.exports import export_all


def report(folder: Path) -> Answer:
    """Write map, tables and HTML report of the sweep in ``folder``."""
    for path in export_all(folder):
        yield f"wrote {path}"
    return EXIT_OK

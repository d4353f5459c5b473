"""`sweep status`: the state of a sweep."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from orchestrator.commands.live import text_map
from orchestrator.commands.printing import Answer
from orchestrator.driver.words import counts_line
from orchestrator.errors import EXIT_OK, EXIT_SOME_FAILED
from orchestrator.files import LEDGER, is_locked
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.lr_curves import judged_trials
from orchestrator.maps.related_cells import led
from orchestrator.maps.stability import sweep_axes

_FAILED_SHOWN = 5
_LINES_OF_ERROR = 6


def status(folder: Path) -> Answer:
    """Outcomes, map and failures of the sweep in ``folder``; the exit code is 3 when trials errored or were lost."""
    with LedgerReader(folder / LEDGER) as ledger:
        rows, facts, axes = judged_trials(ledger), ledger.facts(), sweep_axes(ledger)
    yield f"{facts.get('name', folder.name)}: {len(rows)} trials of {facts.get('objective', '')}"
    yield counts_line(Counter(row.label for row in rows))
    if drawing := text_map(rows, led(axes)):
        yield drawing
    if not is_locked(folder) and (left := sum(row.status == "running" for row in rows)):
        yield f"{left} trials were in training when their driver died; `sweep run` resumes them"
    failed = [row for row in rows if row.status in ("errored", "lost")]
    for row in failed[:_FAILED_SHOWN]:
        at = " ".join(f"{key}={value}" for key, value in row.cell.items())
        yield f"{row.status} {row.trial_id} ({at} seed={row.seed}): {row.reason}"
        if row.error:
            yield "\n".join(f"    {line}" for line in row.error.splitlines()[-_LINES_OF_ERROR:]).rstrip()
    if len(failed) > _FAILED_SHOWN:
        yield f"... and {len(failed) - _FAILED_SHOWN} more"
    return EXIT_SOME_FAILED if failed else EXIT_OK

"""`sweep status`: the state of a sweep."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from orchestrator.base.errors import EXIT_OK, EXIT_SOME_FAILED
from orchestrator.base.files import LEDGER, check_output, is_locked
from orchestrator.base.trial_result import TrialResult
from orchestrator.commands.live import text_map
from orchestrator.commands.printing import Answer, written_json
from orchestrator.driver.words import counts_line
from orchestrator.ledger.facts import imported_of, long_note
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.lr_curves import judged_trials
from orchestrator.maps.related_cells import led
from orchestrator.maps.stability import sweep_axes

_FAILED_SHOWN = 5
_FRAME_S = 2.0
_LINES_OF_ERROR = 6


def status(folder: Path, json_file: Path | None = None, *, watch: bool = False) -> Answer:
    """Outcomes, map and failures of the sweep in ``folder``; the exit code is 3 when trials errored or were lost.

    With ``watch`` it is drawn again on a terminal for as long as a run has the sweep, and then answered.
    """
    check_output(json_file, "--json")
    if watch:
        _watch(folder)
    return (yield from _answer(folder, json_file))


def _watch(folder: Path) -> None:
    from rich.console import Group
    from rich.live import Live

    with Live(auto_refresh=False, transient=True) as live:
        while is_locked(folder):
            live.update(Group(*_answer(folder, None)), refresh=True)
            time.sleep(_FRAME_S)


def _answer(folder: Path, json_file: Path | None) -> Answer:
    with LedgerReader(folder / LEDGER) as ledger:
        rows, facts, axes = judged_trials(ledger), ledger.facts(), sweep_axes(ledger)
    yield f"{facts.get('name', folder.name)}: {len(rows)} trials of {facts.get('objective', '')}"
    if note := long_note(facts):
        yield note
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
    yield from written_json(json_file, _content(facts, rows, folder))
    return EXIT_SOME_FAILED if failed else EXIT_OK


def _content(facts: Mapping[str, str], rows: Sequence[TrialResult], folder: Path) -> dict[str, Any]:
    """The state of a sweep: how many trials have each status and outcome, and those that failed."""
    failed = [row for row in rows if row.status in ("errored", "lost")]
    imported = imported_of(facts)
    return {
        "sweep": facts.get("name", folder.name),
        "objective": facts.get("objective", ""),
        "imported": None if imported is None else asdict(imported),
        "is_running": is_locked(folder),
        "num_trials": len(rows),
        "statuses": Counter(row.status for row in rows),
        "outcomes": Counter(row.outcome for row in rows if row.outcome is not None),
        "failed": [
            {
                "trial_id": row.trial_id,
                "status": row.status,
                "cell": dict(row.cell),
                "seed": row.seed,
                "reason": row.reason,
                "error": row.error,
            }
            for row in failed
        ],
    }

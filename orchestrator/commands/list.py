"""`sweep list`: the sweeps of a results folder."""

from __future__ import annotations

import time
from pathlib import Path

from orchestrator.base.errors import EXIT_OK
from orchestrator.base.files import check_output
from orchestrator.commands.printing import Answer, written_json
from orchestrator.driver.words import age_text, outcomes_text
from orchestrator.maps.all_sweeps import ListedSweep, all_sweeps, listed_json


def list(results: Path, json_file: Path | None) -> Answer:
    """The sweeps in ``results``, the latest first: axes, trials by outcome, the stable share, and their age."""
    from rich.table import Table

    check_output(json_file, "--json")
    found = all_sweeps(results)
    if not found:
        yield f"no sweep in {results}/: `sweep run FILE` makes one"
    else:
        table = Table(box=None, pad_edge=False)
        for heading in ("sweep", "axes", "trials", "stable", "edge", "age"):
            table.add_column(heading, overflow="fold")
        for sweep in found:
            table.add_row(*_cells(sweep))
        yield table
    yield from written_json(json_file, {"sweeps": [listed_json(sweep) for sweep in found]})
    return EXIT_OK


def _cells(sweep: ListedSweep) -> tuple[str, ...]:
    """A row of the table."""
    age = "running" if sweep.is_running else age_text(time.time() - sweep.changed)
    if sweep.problem is not None:
        return sweep.sweep, sweep.problem, "", "", "", age
    share = "" if sweep.stable_share is None else f"{sweep.stable_share:.0%}"
    name = f"{sweep.sweep} (imported)" if sweep.is_imported else sweep.sweep
    trials = outcomes_text(sweep.outcomes, sweep.num_over, sweep.num_trials)
    return name, sweep.axes_text, trials, share, sweep.edge.text if sweep.edge else "", age

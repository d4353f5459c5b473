"""The page that lists all sweeps of a folder."""

from __future__ import annotations

import html
import time
from pathlib import Path
from urllib.parse import quote

from orchestrator.driver.words import age_text, outcomes_text
from orchestrator.maps.all_sweeps import ListedSweep, all_sweeps
from orchestrator.pages.report import content_policy, document

_HEADS = ("sweep", "question", "axes", "trials", "stable", "edge", "last change")


def index_html(results: Path) -> str:
    """Every sweep in ``results`` with its axes, outcomes, stable share and age, the newest first."""
    found = all_sweeps(results)
    head = "".join(f'<th scope="col">{word}</th>' for word in _HEADS)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(map(_row, found))}</tbody></table>"
    body = f'<h1>Sweeps</h1>\n<div class="wide">{table}</div>' if found else "<h1>Sweeps</h1>\n<p>None yet.</p>"
    return document("Sweeps", content_policy(), f"<main>\n{body}\n</main>\n")


def _row(sweep: ListedSweep) -> str:
    """One sweep; of a ledger that cannot be read, the reason."""
    link = f'<a href="/{quote(sweep.sweep, safe="")}/">{html.escape(sweep.sweep)}</a>'
    age = "running" if sweep.is_running else f"{age_text(time.time() - sweep.changed)} ago"
    trials = "" if sweep.problem else outcomes_text(sweep.outcomes, sweep.num_over, sweep.num_trials)
    share = "" if sweep.stable_share is None else f"{sweep.stable_share:.0%}"
    edge = sweep.edge.text if sweep.edge else ""
    texts = (sweep.question, sweep.problem or sweep.axes_text, trials, share, edge, age)
    cells = "".join(f"<td>{html.escape(text)}</td>" for text in texts)
    return f"<tr><td>{link}</td>{cells}</tr>"

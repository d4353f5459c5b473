"""The self-contained HTML report of a sweep: opens from disk and loads nothing."""

from __future__ import annotations

import base64
import hashlib
import html
import time
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

from orchestrator.base.words import age_text, outcomes_text
from orchestrator.maps.all_sweeps import ListedSweep, all_sweeps
from orchestrator.maps.cell_map import CellMap
from orchestrator.maps.table import SweepTable
from orchestrator.pages.answers import answers_html
from orchestrator.pages.cells import style_sheet
from orchestrator.pages.data import as_script, report_data
from orchestrator.pages.summary import counts_table, marked

# One script, in this order.
_SCRIPTS = (
    "elements.js", "cells.js", "grid.js", "map.js", "zoom.js", "marks.js", "chart.js", "readings.js", "diagnosis.js",
    "curves.js", "edge.js", "downloads.js", "address.js", "controls.js",
)  # fmt: skip
_LIVE_SCRIPTS = ("changes.js", "compare.js", "live.js")  # of a page that is served, after those


def report_html(table: SweepTable, stability: CellMap | None, sweep_text: str) -> str:
    """The report as one HTML page that loads nothing; all text from a configuration is escaped."""
    data = None if stability is None else report_data(table)
    rows = table.trials
    sections = {
        "summary": f"{marked(table.ledger)}<p>{len(rows)} trials.</p>\n{counts_table(rows)}",
        "answers": answers_html(table, stability, sweep_text),
    }
    return page_html(table.name, data, sections)


def page_html(
    name: str, data: Mapping[str, Any] | None, sections: Mapping[str, str], *, version: str | None = None
) -> str:
    """The page of a sweep: its map, if it has ``data``, between the HTML ``sections`` summary and answers.

    A page with a ``version`` of its data is live: it asks its server every second what is new since then, and for the
    curves and diagnoses of a chosen cell.
    """
    script = code = ""
    is_live = version is not None
    if data is not None:
        script = f'<script type="application/json" id="data">{as_script(data)}</script>\n'
        code = "".join(map(_page, _SCRIPTS))
    if is_live:
        code += "".join(map(_page, _LIVE_SCRIPTS if data is not None else _LIVE_SCRIPTS[-1:]))
    script += f"<script>{code}</script>\n" if code else ""
    policy = content_policy(code, is_live=is_live)
    summary, answers = (f'<div id="{part}">\n{sections[part]}\n</div>' for part in ("summary", "answers"))
    body = "\n".join([f"<h1>{html.escape(name)}</h1>", summary, *([_MAP] if data is not None else []), answers])
    if is_live and data is not None:
        body += _COMPARE
    kept = f' data-version="{html.escape(version)}"' if version is not None else ""
    return document(f"{name}: stability map", policy, f"<main{kept}>\n{body}\n</main>\n{script}")


def document(title: str, policy: str, body: str) -> str:
    """An HTML document in the style of the report; ``title`` is text, ``body`` HTML."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f'<meta name="viewport" content="width=device-width"><style>{style_sheet()}\n{_page("page.css")}</style></head>'
        f"<body>\n{body}</body></html>\n"
    )


def content_policy(code: str = "", *, is_live: bool = False) -> str:
    """What a browser lets the page do: run this one script, and load nothing but, if it is live, news of itself."""
    parts = ["default-src 'none'", "style-src 'unsafe-inline'"]
    if code:
        digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
        parts += [f"script-src 'sha256-{digest}'", "img-src data:"]  # pictures that are in the data
    if is_live:
        parts.append("connect-src 'self'")
    return "; ".join([*parts, "base-uri 'none'", "form-action 'none'"])


_MAP = """<h2>Stability map</h2>
<noscript><p>The map needs scripts; its numbers are in the table below.</p></noscript>
<div class="controls" id="controls"></div>
<div class="beside">
<div><h3 id="map-title"></h3>
<div class="wide" id="map"></div>
<ul class="key" id="key" aria-label="what the marks mean"></ul>
<p id="downloads"></p></div>
<div><section id="cell" aria-live="polite" aria-label="the chosen cell">
<p>Choose a cell to see its seeds' curves.</p>
</section>
<section id="diagnoses" aria-label="diagnoses of the chosen cell's trials"></section></div>
</div>"""
_COMPARE = '\n<section id="compare" aria-label="comparison with another sweep" aria-live="polite"></section>'


def _page(name: str) -> str:
    return files("orchestrator.pages").joinpath("page", name).read_text(encoding="utf-8")


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
    age = "running" if sweep.is_running else f"{age_text(time.time() - sweep.changed_at)} ago"
    trials = "" if sweep.problem else outcomes_text(sweep.outcomes, sweep.num_over, sweep.num_trials)
    share = "" if sweep.stable_share is None else f"{sweep.stable_share:.0%}"
    edge = sweep.edge.text if sweep.edge else ""
    texts = (sweep.question, sweep.problem or sweep.axes_text, trials, share, edge, age)
    cells = "".join(f"<td>{html.escape(text)}</td>" for text in texts)
    return f"<tr><td>{link}</td>{cells}</tr>"

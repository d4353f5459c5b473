"""The page of a sweep, the index of all sweeps, and the files that are made from a ledger: map, picture, report."""

from __future__ import annotations

import base64
import hashlib
import html
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from orchestrator.base.errors import InputError
from orchestrator.base.files import (
    EXPORTED,
    HEATMAP,
    LEDGER,
    atomic_write,
    check_no_links,
    frozen_text,
    storage_errors,
)
from orchestrator.base.trial_result import TrialResult
from orchestrator.base.words import age_text, format_seconds, outcomes_text
from orchestrator.ledger.facts import long_note
from orchestrator.ledger.reader import LedgerReader
from orchestrator.ledger.schema import PackRow
from orchestrator.maps.all_sweeps import ListedSweep, all_sweeps
from orchestrator.maps.cell_map import CellMap, cell_map, separate_maps
from orchestrator.maps.stability_map import surface_mesh
from orchestrator.maps.table import SweepTable, read_table
from orchestrator.maps.tables import as_csv, map_table, readings_and_printed, trial_table
from orchestrator.pages.answers import answers_html
from orchestrator.pages.data import as_script, report_data, style_sheet
from orchestrator.render.html import table_html
from orchestrator.render.labels import short_number

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
    link = f'<a href="{quote(sweep.sweep, safe="")}/">{html.escape(sweep.sweep)}</a>'
    age = "running" if sweep.is_running else f"{age_text(time.time() - sweep.changed_at)} ago"
    trials = "" if sweep.problem else outcomes_text(sweep.outcomes, sweep.num_over, sweep.num_trials)
    share = "" if sweep.stable_share is None else f"{sweep.stable_share:.0%}"
    edge = sweep.edge.text if sweep.edge else ""
    texts = (sweep.question, sweep.problem or sweep.axes_text, trials, share, edge, age)
    cells = "".join(f"<td>{html.escape(text)}</td>" for text in texts)
    return f"<tr><td>{link}</td>{cells}</tr>"


_RUNNING_SHOWN = 12
_TROUBLES_SHOWN = 5
_TROUBLES = ("lost", "errored")  # how an attempt ends that is tried again, or is not


def num_ended(rows: Sequence[TrialResult]) -> int:
    """How many trials have a result, or will have none."""
    return sum(row.outcome is not None or row.status == "errored" for row in rows)


def summary_html(ledger: LedgerReader, rows: Sequence[TrialResult], *, is_running: bool) -> str:
    """The summary of a sweep, whose trials are ``rows``."""
    running = [row for row in rows if row.status == "running"]
    packs = ledger.packs()
    words = f"{num_ended(rows)} of {len(rows)} trials have ended"
    if not is_running:
        return f"{marked(ledger)}<p>{words}. No run is under way.</p>\n{counts_table(rows)}{_troubles(rows, packs)}"
    at_work = {row.pack_id for row in running}
    working = [pack for pack in packs if pack.pack_id in at_work]
    newest = {row.trial_id: ledger.newest_piece(row.trial_id) for row in running}
    steps = {identity: int(piece["step"][-1]) + 1 for identity, piece in newest.items() if "step" in piece}
    rate = sum(pack.member_steps / pack.seconds for pack in working if pack.seconds)
    words += f", {len(running)} train"
    if rate:
        missing = [row for row in rows if row.status in ("planned", "running", "interrupted", "lost")]
        left = sum(row.steps - steps.get(row.trial_id, 0) for row in missing)
        words += f" at {rate:,.0f} member-steps/s; at most {format_seconds(left / rate)} left"
    shown = [_running_line(row, newest[row.trial_id], steps, working) for row in running[:_RUNNING_SHOWN]]
    table = table_html(("in training", "step", "loss", "steps/s"), shown) if shown else ""
    more = f"<p>and {len(running) - _RUNNING_SHOWN} more</p>" if len(running) > _RUNNING_SHOWN else ""
    return f"<p>{html.escape(words)}.</p>\n{counts_table(rows)}\n{table}{more}{_troubles(rows, packs)}"


def _running_line(
    row: TrialResult, piece: dict[str, np.ndarray], steps: dict[str, int], packs: Sequence[PackRow]
) -> list[str]:
    """Name, step, newest loss and steps per second of a trial in training."""
    pack = next((pack for pack in packs if pack.pack_id == row.pack_id), None)
    loss = float(piece["loss"][-1]) if "loss" in piece else float("nan")
    rate = pack.member_steps / pack.seconds / len(pack.trial_ids) if pack and pack.seconds else None
    again = f" (attempt {row.num_attempts})" if row.num_attempts > 1 else ""
    return [
        row.name + again,
        f"{steps.get(row.trial_id, 0)} of {row.steps}",
        short_number(loss) if np.isfinite(loss) else "",
        f"{rate:,.1f}" if rate is not None else "",
    ]


def _troubles(rows: Sequence[TrialResult], packs: Sequence[PackRow]) -> str:
    """Attempts that ended by a fault, the newest trials first, with their reasons; an empty text without any."""
    ended = sum(pack.ended in _TROUBLES for pack in packs)
    if not ended:
        return ""
    failed = [row for row in rows if row.status in _TROUBLES]
    failed.sort(key=lambda row: -(row.started_at or 0.0))
    shown = [(row.name, row.status, row.reason or "") for row in failed[:_TROUBLES_SHOWN]]
    table = table_html(("trial", "is", "why"), shown) if shown else ""
    return f"\n<p>{ended} attempts ended by a fault.</p>\n{table}"


def counts_table(rows: Sequence[TrialResult]) -> str:
    """How many trials there are of each outcome or status."""
    return table_html(("outcome or status", "trials"), Counter(row.label for row in rows).items())


def marked(ledger: LedgerReader) -> str:
    """The paragraph that marks imported results; empty for a sweep that was trained here."""
    note = long_note(ledger.facts())
    return "" if note is None else f"<p><strong>{html.escape(note[0].upper() + note[1:])}.</strong></p>\n"


MAP_TABLE, TRIAL_TABLE, REPORT = "map.csv", "trials.csv", "report.html"


def are_current(folder: Path) -> bool:
    """Whether the exports match the ledger and the sweep file; independent of any clock."""
    marker = folder / EXPORTED
    if not (folder / REPORT).is_file() or not marker.is_file():
        return False
    with LedgerReader(folder / LEDGER) as ledger, storage_errors(marker):
        return marker.read_text() == ledger.state()


def existing_exports(folder: Path) -> list[Path]:
    """The exports that exist."""
    return [path for name in (HEATMAP, MAP_TABLE, TRIAL_TABLE, REPORT) if (path := folder / name).is_file()]


def export_all(folder: Path) -> list[Path]:
    """Write heatmap, tables and report of the sweep in ``folder``; returns what was written."""
    from orchestrator.pages.report import report_html
    from orchestrator.render.maps import heatmap
    from orchestrator.render.small_maps import small_maps

    written: dict[str, bytes | str] = {}
    with LedgerReader(folder / LEDGER) as ledger:
        state = ledger.state()  # first, since it sorts all rows in memory
        table = read_table(ledger)
        found = readings_and_printed(table)
        try:
            stability = cell_map(table, measured=found)
        except InputError:
            stability = None  # a sweep over seeds only has no axes and no map
        if stability is not None:
            separate = separate_maps(table, stability, {}, measured=found)
            mesh = surface_mesh(table, stability)
            written[HEATMAP] = small_maps("png", separate) if separate else heatmap("png", stability, [mesh])
            written[MAP_TABLE] = as_csv(map_table(stability))
        written[TRIAL_TABLE] = as_csv(trial_table(table, found))
        text = frozen_text(folder)
        written[REPORT] = report_html(table, stability, text)
    check_no_links(folder)
    for name, content in written.items():
        atomic_write(folder / name, content)
    atomic_write(folder / EXPORTED, state)  # last, since it marks the others as complete
    return [folder / name for name in written]

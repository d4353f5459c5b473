"""The self-contained HTML report of a sweep: opens from disk and loads nothing."""

from __future__ import annotations

import base64
import datetime
import hashlib
import html
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Any

import pandas as pd

from orchestrator.errors import InputError
from orchestrator.ledger.imported import Imported, imported_of, long_note
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.boundary import boundary_lines
from orchestrator.maps.fitted import fit, fitted_lines
from orchestrator.maps.fitted_sensitivity import sensitivity_answer
from orchestrator.maps.recommendation import recommend, recommendation_lines
from orchestrator.maps.stability import StabilityMap
from orchestrator.maps.tables import map_table
from orchestrator.messages import TrialRow
from orchestrator.pictures.report.cells import style_sheet
from orchestrator.pictures.report.data import as_script, report_data
from orchestrator.replay.audit import audit, audit_lines
from orchestrator.space import format_value

_LEFT_OUT_SHOWN = 50
_SCRIPTS = ("elements.js", "cells.js", "map.js", "curves.js", "address.js", "controls.js")  # one script, in this order


def report_html(ledger: LedgerReader, stability: StabilityMap | None, sweep_text: str) -> str:
    """The report as one HTML page that loads nothing; all text from a configuration is escaped."""
    data = None if stability is None else report_data(ledger)
    rows = ledger.trials()
    sections = {
        "summary": f"{marked(ledger)}<p>{len(rows)} trials.</p>\n{counts_table(rows)}",
        "answers": answers_html(ledger, stability, sweep_text),
    }
    return page_html(ledger.facts().get("name", ""), data, sections)


def page_html(name: str, data: Mapping[str, Any] | None, sections: Mapping[str, str], *, is_live: bool = False) -> str:
    """The page of a sweep: its map, if it has ``data``, between the HTML ``sections`` summary and answers.

    A live page asks its own address every second what is new, and for the curves of a chosen cell.
    """
    script = code = ""
    if data is not None:
        script = f'<script type="application/json" id="data">{as_script(data)}</script>\n'
        code = "".join(map(_page, _SCRIPTS))
    if is_live:
        code += _page("live.js")
    script += f"<script>{code}</script>\n" if code else ""
    policy = content_policy(code, is_live=is_live)
    summary, answers = (f'<div id="{part}">\n{sections[part]}\n</div>' for part in ("summary", "answers"))
    body = "\n".join([f"<h1>{html.escape(name)}</h1>", summary, *([_MAP] if data is not None else []), answers])
    return document(f"{name}: stability map", policy, f"<main>\n{body}\n</main>\n{script}")


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
        parts.append(f"script-src 'sha256-{digest}'")
    if is_live:
        parts.append("connect-src 'self'")
    return "; ".join([*parts, "base-uri 'none'", "form-action 'none'"])


def counts_table(rows: Sequence[TrialRow]) -> str:
    """How many trials there are of each outcome or status."""
    return table_html(("outcome or status", "trials"), Counter(row.label for row in rows).items())


def answers_html(ledger: LedgerReader, stability: StabilityMap | None, sweep_text: str) -> str:
    """What follows from the map, the trials without a result, the sweep file and the environment."""
    rows, packs = ledger.trials(), ledger.packs()
    environment = packs[-1].environment if packs else {}
    sections = [_answers(ledger, stability)] if stability is not None else []
    stopping = audit_lines(audit(rows, ledger.member_steps_per_second()))
    sections += ["<h2>Early stopping</h2>", *(f"<p>{html.escape(line)}</p>" for line in stopping)]
    failed = [(row.cell, row.seed, row.reason) for row in rows if row.status in ("errored", "lost")]
    if failed:
        shown = ((cell_name(cell, seed), reason or "") for cell, seed, reason in failed[:50])
        sections += ["<h2>Trials without a result</h2>", table_html(("trial", "why"), shown)]
    if (imported := imported_of(ledger.facts())) is not None:
        sections += ["<h2>Imported</h2>", _imported(imported)]
    else:
        sections += ["<h2>Sweep file</h2>", f"<pre>{html.escape(sweep_text)}</pre>"]
    sections += [
        "<h2>Environment</h2>",
        table_html(("what", "value"), {**facts_to_show(ledger.facts()), **environment}.items()),
    ]
    return "\n".join(sections)


_MAP = """<h2>Stability map</h2>
<noscript><p>Without scripts there is no map here; its numbers are in the table below.</p></noscript>
<div class="controls" id="controls"></div>
<div class="beside">
<div><h3 id="map-title"></h3>
<div class="wide" id="map"></div>
<ul class="key" id="key" aria-label="what the marks mean"></ul></div>
<section id="cell" aria-live="polite" aria-label="the chosen cell">
<p>Choose a cell to see its seeds' curves.</p>
</section>
</div>"""


def _answers(ledger: LedgerReader, stability: StabilityMap) -> str:
    """Boundary, recommendation, sensitivity and the map's numbers, or why one of them is missing."""
    note = f" ({stability.note})" if stability.note else ""
    answers = [
        (f"Boundary along {stability.x.name}{note}", lambda: _boundary_lines(ledger, stability)),
        ("Recommended setting", lambda: recommendation_lines(recommend(ledger))),
        ("Learning-rate sensitivity", lambda: sensitivity_answer(ledger)),
    ]
    parts = []
    for title, lines_of in answers:
        try:
            text = "\n".join(lines_of())
        except InputError as error:
            text = f"none: {error}"
        parts += [f"<h2>{html.escape(title)}</h2>", f"<pre>{html.escape(text)}</pre>"]
    parts += ["<details><summary>The map as a table</summary>", '<div class="wide">']
    return "\n".join([*parts, _frame(map_table(stability)), "</div></details>"])


def _boundary_lines(ledger: LedgerReader, stability: StabilityMap) -> list[str]:
    return fitted_lines(fit(ledger, stability.x.name)) if stability.is_sampled else boundary_lines(stability)


def _page(name: str) -> str:
    return files("orchestrator.pictures.report").joinpath("page", name).read_text(encoding="utf-8")


def facts_to_show(facts: Mapping[str, str]) -> dict[str, str]:
    """The facts that are of interest to a reader."""
    wanted = ("objective", "sweep_version", "git_commit", "stopping")
    return {key: facts[key] for key in wanted if facts.get(key)}


def marked(ledger: LedgerReader) -> str:
    """The paragraph that marks imported results; empty for a sweep that was trained here."""
    note = long_note(ledger.facts())
    return "" if note is None else f"<p><strong>{html.escape(note[0].upper() + note[1:])}.</strong></p>\n"


def _imported(imported: Imported) -> str:
    """Sources, columns and what was left out."""
    when = datetime.datetime.fromtimestamp(imported.imported_at, datetime.UTC).isoformat(" ", timespec="seconds")
    what = [
        ("sources", ", ".join(imported.sources)),
        ("columns", ", ".join(f"{name} = {column}" for name, column in imported.columns.items())),
        ("outcomes by", imported.judged_by),
        ("imported at", when),
        ("runs", imported.num_runs),
        ("left out", imported.num_left_out),
    ]
    shown = "\n".join(imported.left_out[:_LEFT_OUT_SHOWN])
    return table_html(("what", "value"), what) + (f"<pre>{html.escape(shown)}</pre>" if shown else "")


def cell_name(cell: Mapping[str, Any], seed: int) -> str:
    """A trial in words: its values and its seed."""
    return " ".join([*(f"{key}={format_value(value)}" for key, value in cell.items()), f"seed={seed}"])


def table_html(head: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """A table in HTML of values that are escaped."""
    header = "".join(f"<th>{html.escape(word)}</th>" for word in head)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(str(value))}</td>" for value in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{header}</tr></thead><tbody>{body}</tbody></table>"


def _frame(table: pd.DataFrame) -> str:
    shown = table.map(lambda value: "" if value is None or value != value else format_value(value))
    return table_html(shown.columns, shown.itertuples(index=False))

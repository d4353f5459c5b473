"""The self-contained HTML report of a sweep: opens from disk and loads nothing."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from importlib.resources import files
from typing import Any

import pandas as pd

from orchestrator.errors import InputError
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.boundary import boundary_lines
from orchestrator.maps.fitted import fit, fitted_lines
from orchestrator.maps.fitted_sensitivity import sensitivity_answer
from orchestrator.maps.recommendation import recommend, recommendation_lines
from orchestrator.maps.stability import StabilityMap
from orchestrator.maps.tables import map_table
from orchestrator.pictures.report.cells import style_sheet
from orchestrator.pictures.report.data import as_script, report_data
from orchestrator.replay.audit import audit, audit_lines
from orchestrator.space import format_value

_SCRIPTS = ("elements.js", "cells.js", "map.js", "curves.js", "controls.js")  # one script, in this order
# The browser itself blocks anything that the page might try to load.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def report_html(ledger: LedgerReader, stability: StabilityMap | None, sweep_text: str) -> str:
    """The report as one HTML page; all text from a configuration is escaped."""
    facts, rows = ledger.facts(), ledger.trials()
    name = html.escape(facts.get("name", ""))
    counts: dict[str, int] = {}
    for row in rows:
        counts[row.label] = counts.get(row.label, 0) + 1
    packs = ledger.packs()
    environment = packs[-1].environment if packs else {}
    sections = [
        f"<h1>{name}</h1>",
        f"<p>{len(rows)} trials.</p>",
        _table(("outcome or status", "trials"), counts.items()),
    ]
    if stability is not None:
        sections += [_MAP, _answers(ledger, stability)]
    stopping = audit_lines(audit(rows, ledger.member_steps_per_second()))
    sections += ["<h2>Early stopping</h2>", *(f"<p>{html.escape(line)}</p>" for line in stopping)]
    failed = [(row.cell, row.seed, row.reason) for row in rows if row.status in ("errored", "lost")]
    if failed:
        shown = ((_cell_name(cell, seed), reason or "") for cell, seed, reason in failed[:50])
        sections += ["<h2>Trials without a result</h2>", _table(("trial", "why"), shown)]
    sections += [
        "<h2>Sweep file</h2>",
        f"<pre>{html.escape(sweep_text)}</pre>",
        "<h2>Environment</h2>",
        _table(("what", "value"), {**facts_to_show(facts), **environment}.items()),
    ]
    script = ""
    if stability is not None:
        data = as_script(report_data(ledger))
        code = "".join(map(_page, _SCRIPTS))
        script = f'<script type="application/json" id="data">{data}</script>\n<script>{code}</script>\n'
    body = "\n".join(sections)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{name}: stability map</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f'<meta name="viewport" content="width=device-width"><style>{style_sheet()}\n{_page("page.css")}</style></head>'
        f"<body>\n<main>\n{body}\n</main>\n{script}</body></html>\n"
    )


_MAP = """<h2>Stability map</h2>
<noscript><p>Without scripts there is no map here; its numbers are in the table below.</p></noscript>
<div class="controls" id="controls"></div>
<h3 id="map-title"></h3>
<div class="wide" id="map"></div>
<ul class="key" id="key" aria-label="what the marks mean"></ul>
<section id="cell" aria-live="polite" aria-label="the chosen cell">
<p>Choose a cell to see its seeds' curves.</p>
</section>"""


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


def _cell_name(cell: Mapping[str, Any], seed: int) -> str:
    return " ".join([*(f"{key}={format_value(value)}" for key, value in cell.items()), f"seed={seed}"])


def _table(head: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    header = "".join(f"<th>{html.escape(word)}</th>" for word in head)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(str(value))}</td>" for value in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{header}</tr></thead><tbody>{body}</tbody></table>"


def _frame(table: pd.DataFrame) -> str:
    shown = table.map(lambda value: "" if value is None or value != value else format_value(value))
    return _table(shown.columns, shown.itertuples(index=False))

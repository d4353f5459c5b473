"""What follows from a sweep's map: a section for each question that has one. What does not apply is left out."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any

from orchestrator.answers import query_classes
from orchestrator.base.errors import InputError
from orchestrator.base.query import Query
from orchestrator.ledger.facts import imported_of
from orchestrator.maps.cell_map import CellMap
from orchestrator.maps.table import SweepTable
from orchestrator.maps.tables import map_table
from orchestrator.pages.edge import edge_section
from orchestrator.pages.summary import cell_name, imported_html
from orchestrator.render.html import blocks_html, frame_html, table_html

_ORDER = ("explain", "boundary", "recommend", "sensitivity", "importance", "audit")  # of sections; others follow
_MOST_ROWS = 2000  # of the map as a table: a larger one is in map.csv
_FAILURES_SHOWN = 50


def answers_html(table: SweepTable, stability: CellMap | None, sweep_text: str) -> str:
    """What follows from the map, the trials without a result, the sweep file and the environment."""
    rows, packs = table.trials, table.ledger.packs()
    environment = packs[-1].environment if packs else {}
    sections = [_answers(table, stability)]
    failed = [row for row in rows if row.status in ("errored", "lost")]
    if failed:
        shown = ((cell_name(row.cell, row.seed), row.reason or "") for row in failed[:_FAILURES_SHOWN])
        sections += ["<h2>Trials without a result</h2>", table_html(("trial", "why"), shown)]
        sections += [
            f"<details><summary>Traceback of {html.escape(cell_name(row.cell, row.seed))}</summary>"
            f"<pre>{html.escape(row.error)}</pre></details>"
            for row in failed[:1]
            if row.error
        ]
    imported = imported_of(table.facts)
    if imported is None:
        sections += ["<h2>Sweep file</h2>", f"<pre>{html.escape(sweep_text)}</pre>"]
    else:
        sections += ["<h2>Imported</h2>", imported_html(imported)]
    sections += [
        "<h2>Environment</h2>",
        table_html(("what", "value"), {**facts_to_show(table.facts), **environment}.items()),
    ]
    return "\n".join(sections)


def _answers(table: SweepTable, stability: CellMap | None) -> str:
    """The sections of all questions that have one, and the map's numbers as a table."""
    sections = {query.query_name(): _section(query, table) for query in query_classes("sweep") if query.section}
    if stability is not None:
        sections["boundary"] += edge_section(table)
    order = [name for name in _ORDER if name in sections]
    parts = [sections[name] for name in (*order, *sorted(sections.keys() - {*order}))]
    if stability is not None and len(stability.cells) <= _MOST_ROWS:
        cells = frame_html(map_table(stability))
        parts.append(f"<details><summary>The map as a table</summary>{cells}</details>")
    return "\n".join(filter(None, parts))


def _section(kind: type[Query[Any]], table: SweepTable) -> str:
    """The answer to a question with its usual options; empty if the sweep lacks what it needs."""
    try:
        if not kind.is_on_page(table):
            return ""
        answer = kind().ask(table)
    except InputError:
        return ""
    if not answer.is_worth_showing:
        return ""
    blocks = blocks_html(answer.blocks(), with_figures=False)
    return f'<section class="answer"><h2>{html.escape(kind.section)}</h2>\n{blocks}</section>'


def facts_to_show(facts: Mapping[str, str]) -> dict[str, str]:
    """The facts that are of interest to a reader."""
    wanted = ("objective", "sweep_version", "git_commit", "stopping")
    return {key: facts[key] for key in wanted if facts.get(key)}

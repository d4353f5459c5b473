"""The self-contained HTML report of a sweep: opens from disk, loads nothing from anywhere."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from orchestrator.audit import audit, audit_lines
from orchestrator.ledger import Ledger
from orchestrator.space import format_value
from orchestrator.stability import StabilityMap, map_table

_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: 0.5rem 0 1.5rem; max-width: 100%; }
th, td { padding: 0.2rem 0.7rem; text-align: right; border-bottom: 1px solid #8884; overflow-wrap: anywhere; }
th:first-child, td:first-child { text-align: left; }
figure { margin: 0; background: white; border-radius: 6px; overflow-x: auto; }
figure svg { max-width: 100%; height: auto; display: block; margin: auto; }
pre { overflow-x: auto; background: #8881; padding: 0.7rem; border-radius: 6px; }
"""


def report_html(ledger: Ledger, stability: StabilityMap | None, heatmap_svg: str, sweep_text: str) -> str:
    """The report as one HTML page; all text that comes from a configuration is escaped."""
    facts, rows = ledger.facts(), ledger.trials()
    name = html.escape(facts.get("name", ""))
    counts: dict[str, int] = {}
    for row in rows:
        label = row["outcome"] or row["status"]
        counts[label] = counts.get(label, 0) + 1
    packs = ledger.packs()
    environment = packs[-1]["environment"] if packs else {}
    stopping = audit_lines(audit(rows, ledger.member_steps_per_second()))
    sections = [
        f"<h1>{name}</h1>",
        f"<p>{len(rows)} trials.</p>",
        _table(("outcome or status", "trials"), counts.items()),
    ]
    if stability is not None:
        drawn = heatmap_svg[heatmap_svg.index("<svg") :] if "<svg" in heatmap_svg else ""
        sections += [
            "<h2>Stability map</h2>",
            f'<figure role="img" aria-label="Stability map of {name}; its numbers are below">{drawn}</figure>',
            "<details><summary>The map as a table</summary>",
            _frame(map_table(stability)),
            "</details>",
        ]
    sections += ["<h2>Early stopping</h2>", *(f"<p>{html.escape(line)}</p>" for line in stopping)]
    failed = [(row["cell"], row["seed"], row["reason"]) for row in rows if row["status"] in ("errored", "lost")]
    if failed:
        shown = ((_cell_name(cell, seed), reason or "") for cell, seed, reason in failed[:50])
        sections += ["<h2>Trials without a result</h2>", _table(("trial", "why"), shown)]
    sections += [
        "<h2>Sweep file</h2>",
        f"<pre>{html.escape(sweep_text)}</pre>",
        "<h2>Environment</h2>",
        _table(("what", "value"), {**facts_to_show(facts), **environment}.items()),
    ]
    body = "\n".join(sections)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{name}: stability map</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>'
        f"<body>\n{body}\n</body></html>\n"
    )


def facts_to_show(facts: Mapping[str, str]) -> dict[str, str]:
    """The facts that a reader asks for."""
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

"""What follows from a sweep's map, as HTML in the words of the commands. What does not apply is left out."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Mapping

from orchestrator.base.environment import is_installed
from orchestrator.base.errors import InputError
from orchestrator.causes.explanation import UNEXPLAINED, explain
from orchestrator.causes.explanation_text import explanation_lines
from orchestrator.ledger.facts import imported_of
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.audit import audit, audit_lines
from orchestrator.maps.boundary import boundary_lines
from orchestrator.maps.fitted import fit, fitted_lines
from orchestrator.maps.fitted_sensitivity import sensitivity_answer
from orchestrator.maps.importance import importance, importance_lines
from orchestrator.maps.recommendation import recommend, recommendation_lines
from orchestrator.maps.stability import StabilityMap
from orchestrator.maps.tables import map_table
from orchestrator.pages.edge import edge_section
from orchestrator.pages.imported import imported_html
from orchestrator.pages.tables import cell_name, frame_html, table_html

_MOST_EXPLAINED = 200  # cells that are not stable, whose trials are all diagnosed
_MOST_ROWS = 2000  # of the map as a table: a larger one is in map.csv
_MOST_COMPARED = 2000  # trials, of the importance of axes
_FAILURES_SHOWN = 50
_LIBRARIES_OF_IMPORTANCE = ("optuna", "sklearn")


def answers_html(ledger: LedgerReader, stability: StabilityMap | None, sweep_text: str) -> str:
    """What follows from the map, the trials without a result, the sweep file and the environment."""
    rows, packs = ledger.trials(), ledger.packs()
    environment = packs[-1].environment if packs else {}
    sections = [_answers(ledger, stability)] if stability is not None else []
    stopping = audit_lines(audit(rows, ledger.member_steps_per_second()))
    sections += ["<h2>Early stopping</h2>", *(f"<p>{html.escape(line)}</p>" for line in stopping)]
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
    imported = imported_of(ledger.facts())
    if imported is None:
        sections += ["<h2>Sweep file</h2>", f"<pre>{html.escape(sweep_text)}</pre>"]
    else:
        sections += ["<h2>Imported</h2>", imported_html(imported)]
    sections += [
        "<h2>Environment</h2>",
        table_html(("what", "value"), {**facts_to_show(ledger.facts()), **environment}.items()),
    ]
    return "\n".join(sections)


def _answers(ledger: LedgerReader, stability: StabilityMap) -> str:
    """Explanation, boundary, edge, recommendation, sensitivity, importance and the map's numbers."""
    note = f" ({stability.note})" if stability.note else ""
    parts = [
        _section("Explanation", lambda: _explanation(ledger, stability)),
        _section(f"Boundary along {stability.x.name}{note}", lambda: _boundary(ledger, stability)),
        edge_section(ledger),
        _section("Recommended setting", lambda: recommendation_lines(recommend(ledger))),
        _section("Learning-rate sensitivity", lambda: sensitivity_answer(ledger)),
        _section("Which axis matters", lambda: _importance(ledger)),
    ]
    if len(stability.cells) <= _MOST_ROWS:
        table = frame_html(map_table(stability))
        parts.append(f'<details><summary>The map as a table</summary><div class="wide">{table}</div></details>')
    return "\n".join(filter(None, parts))


def _section(title: str, lines_of: Callable[[], Iterable[str]]) -> str:
    """The lines under their title; empty where there are none, and where the sweep has not what they need."""
    try:
        text = "\n".join(lines_of())
    except InputError:
        return ""
    return f"<h2>{html.escape(title)}</h2>\n<pre>{html.escape(text)}</pre>" if text else ""


def _explanation(ledger: LedgerReader, stability: StabilityMap) -> list[str]:
    """The words of `sweep explain`; none where nothing is explained, and where too many trials had to be diagnosed."""
    if not 0 < sum(map(stability.is_over_edge, stability.cells)) <= _MOST_EXPLAINED:
        return []
    found = explain(ledger)
    is_any = any(cause.mechanism != UNEXPLAINED for cause in found.causes.values())
    return list(explanation_lines(found)) if is_any else []


def _boundary(ledger: LedgerReader, stability: StabilityMap) -> list[str]:
    return fitted_lines(fit(ledger, stability.x.name)) if stability.is_sampled else boundary_lines(stability)


def _importance(ledger: LedgerReader) -> list[str]:
    """The words of `sweep importance`; none with one axis, of very many trials, and where there is doubt about them.

    None either where its libraries are not installed: a report of finished trials needs no others.
    """
    if len(ledger.statuses()) > _MOST_COMPARED or not all(map(is_installed, _LIBRARIES_OF_IMPORTANCE)):
        return []
    found = importance(ledger)
    return importance_lines(found) if len(found.axes) > 1 and not found.doubts else []


def facts_to_show(facts: Mapping[str, str]) -> dict[str, str]:
    """The facts that are of interest to a reader."""
    wanted = ("objective", "sweep_version", "git_commit", "stopping")
    return {key: facts[key] for key in wanted if facts.get(key)}

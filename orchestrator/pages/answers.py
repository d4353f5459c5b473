"""Answers on a page: a section for each question that has one, diagnoses of trials, and what a served page asks for."""

from __future__ import annotations

import base64
import contextlib
import datetime
import html
import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from orchestrator.answers import query_class, query_classes
from orchestrator.answers.diagnose import answer_of
from orchestrator.answers.importance import ImportanceAnswer
from orchestrator.answers.remedy import RemedyAnswer
from orchestrator.base.errors import InputError
from orchestrator.base.files import LEDGER
from orchestrator.base.query import Query
from orchestrator.base.trial_result import TrialResult
from orchestrator.causes.diagnosis import examine, trial_by_id, typical_trials
from orchestrator.causes.remedies.reading import has_remedies, read_remedies
from orchestrator.causes.remedies.results import Remedies
from orchestrator.ledger.facts import Imported, imported_of
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.cell_map import CellMap
from orchestrator.maps.table import SweepTable, read_table
from orchestrator.maps.tables import map_table
from orchestrator.pages.edge import edge_section
from orchestrator.pages.views import shares_html, surface_html
from orchestrator.render.html import blocks_html, cards_html, frame_html, table_html
from orchestrator.render.remedies import remedies_figure

_ORDER = ("explain", "boundary", "recommend", "sensitivity", "importance", "audit")  # of sections; others follow
_FACTS = ("objective", "sweep_version", "git_commit", "stopping")  # of interest to a reader
# The part of the page that has the section of a question; others are in "choose".
_PART_OF = {"boundary": "edge", "explain": "why", "audit": "trials"}
_REMEDIES_SHOWN = 2
_MOST_ROWS = 2000  # of the map as a table: a larger one is in map.csv
_FAILURES_SHOWN = _LEFT_OUT_SHOWN = 50
_CHOSEN = "chosen on the page"
# Of a page that is a file: what all its diagnoses may take. The steps are those of the curves that are read for them.
_MOST, _MOST_CHARACTERS, _MOST_STEPS = 100, 500_000, 2_000_000


def answers_html(table: SweepTable, stability: CellMap | None, sweep_text: str) -> str:
    """What follows from the map, the trials without a result, the sweep file and the environment."""
    rows, packs = table.trials, table.ledger.packs()
    environment = packs[-1].environment if packs else {}
    sections = [_answers(table, stability), _remedies(table)]
    failed = [row for row in rows if row.status in ("errored", "lost")]
    if failed:
        shown = ((row.name, row.reason or "") for row in failed[:_FAILURES_SHOWN])
        tracebacks = (
            f"<details><summary>Traceback of {html.escape(row.name)}</summary>"
            f"<pre>{html.escape(row.error)}</pre></details>"
            for row in failed[:1]
            if row.error
        )
        why = "\n".join([table_html(("trial", "why"), shown), *tracebacks])
        sections.append(_part("trials", "Trials without a result", why))
    imported = imported_of(table.facts)
    if imported is None:
        sections.append(_part("machine", "Sweep file", f"<pre>{html.escape(sweep_text)}</pre>"))
    else:
        sections.append(_part("machine", "Imported", imported_html(imported)))
    facts = {key: table.facts[key] for key in _FACTS if table.facts.get(key)}
    known = table_html(("what", "value"), {**facts, **environment}.items())
    sections.append(_part("machine", "Environment", known))
    return "\n".join(filter(None, sections))


def _part(part: str, title: str, content: str) -> str:
    """A section in a part of the page."""
    return f'<section class="answer" data-tab="{part}"><h2>{html.escape(title)}</h2>\n{content}</section>'


def _remedies(table: SweepTable) -> str:
    """What was tried on forks of trials, with its pictures; of the first trials that have some."""
    ledger, rows = table.ledger, table.trials
    sections = []
    for trial in [row for row in rows if has_remedies(ledger.path.parent, row.trial_id)][:_REMEDIES_SHOWN]:
        try:
            found = read_remedies(ledger, examine(ledger, trial, _CHOSEN, rows))
        except InputError:
            continue
        content = cards_html(RemedyAnswer.of(found).blocks())
        if found.tallies:
            content += f'<img src="{_picture(found)}" alt="remedies by fork step, in numbers above">'
        sections.append(_part("remedies", f"Remedies of {trial.name}", content))
    return "\n".join(sections)


def _answers(table: SweepTable, stability: CellMap | None) -> str:
    """The sections of all questions that have one, and the map's numbers as a table."""
    sections = {query.query_name(): _section(query, table) for query in query_classes("sweep") if query.section}
    if stability is not None:
        sections["boundary"] += edge_section(table) + surface_html(table)
    order = [name for name in _ORDER if name in sections]
    parts = [sections[name] for name in (*order, *sorted(sections.keys() - {*order}))]
    if stability is not None and len(stability.cells) <= _MOST_ROWS:
        cells = frame_html(map_table(stability))
        parts.append(_part("trials", "The map as a table", cells))
    return "\n".join(filter(None, parts))


def _section(kind: type[Query[Any]], table: SweepTable) -> str:
    """The answer to a question as a page asks it; empty if the sweep lacks what it needs."""
    try:
        if (query := kind.on_page(table)) is None:
            return ""
        answer = query.ask(table)
    except InputError:
        return ""
    if not answer.is_worth_showing:
        return ""
    drawn = shares_html(answer.result) if isinstance(answer, ImportanceAnswer) else ""
    return _part(_PART_OF.get(kind.query_name(), "choose"), kind.section, drawn + cards_html(answer.blocks()))


def imported_html(imported: Imported) -> str:
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


def diagnosis(folder: Path, trial_id: str) -> dict[str, str]:
    """What `sweep diagnose` says of a trial, or why it says nothing, and the picture of its remedies.

    Raises StorageError.
    """
    with LedgerReader(folder / LEDGER) as ledger:
        rows = read_table(ledger).trials
        try:
            trial = trial_by_id(rows, trial_id)
            picture = remedy_picture(ledger, trial, rows)
            return {"html": diagnosis_html(ledger, trial, rows), "remedy_picture": picture}
        except InputError as error:
            return {"html": f"<p>{html.escape(str(error))}</p>"}


def comparison(base: Path, other: Path) -> dict[str, str]:
    """Compare a sweep with its ``base``, or say why they cannot be compared.

    Raises StorageError.
    """
    with contextlib.ExitStack() as stack:
        ledgers = [stack.enter_context(LedgerReader(folder / LEDGER)) for folder in (base, other)]
        try:
            answer = query_class("compare")().ask(list(map(read_table, ledgers)))
            return {"html": blocks_html(answer.blocks())}
        except InputError as error:
            return {"html": f"<p>{html.escape(str(error))}</p>"}


def diagnosis_html(ledger: LedgerReader, trial: TrialResult, rows: Sequence[TrialResult]) -> str:
    """The diagnosis of ``trial``, a finished one of ``rows``, as HTML. Raises InputError as `sweep diagnose` does."""
    answer = answer_of(ledger, examine(ledger, trial, _CHOSEN, rows), in_full=True)
    return cards_html(answer.blocks())


def remedy_picture(ledger: LedgerReader, trial: TrialResult, rows: Sequence[TrialResult]) -> str:
    """The picture of the remedies of ``trial`` as an address that holds it, or an empty text without trained forks."""
    if not has_remedies(ledger.path.parent, trial.trial_id):
        return ""
    found = read_remedies(ledger, examine(ledger, trial, _CHOSEN, rows))
    if not found.tallies:
        return ""
    return _picture(found)


def _picture(found: Remedies) -> str:
    return f"data:image/png;base64,{base64.b64encode(remedies_figure('png', found)).decode()}"


def remedy_pictures(ledger: LedgerReader, rows: Sequence[TrialResult], trial_ids: Iterable[str]) -> dict[str, str]:
    """The pictures of the remedies of these trials that have some, by id."""
    wanted = set(trial_ids)
    found = {row.trial_id: remedy_picture(ledger, row, rows) for row in rows if row.trial_id in wanted}
    return {trial_id: picture for trial_id, picture in found.items() if picture}


def diagnoses(ledger: LedgerReader, rows: Sequence[TrialResult]) -> dict[str, str]:
    """The diagnoses of trials that are not stable, by id: of the most typical one of each cell, then of the others.

    As many as a page may hold. The numbers follow from the ledger alone, so that a report can be repeated.
    """
    of_cell: dict[tuple[object, ...], list[TrialResult]] = {}
    for row in rows:
        of_cell.setdefault(tuple(row.cell.values()), []).append(row)
    ranked = [typical_trials([row for row in group if row.is_judged]) for group in of_cell.values()]
    found: dict[str, str] = {}
    characters = steps = 0
    for trial in (trial for nth in itertools.zip_longest(*ranked) for trial in nth if trial is not None):
        steps += trial.steps_done or 0
        if len(found) >= _MOST or characters > _MOST_CHARACTERS or steps > _MOST_STEPS:
            break
        try:
            found[trial.trial_id] = diagnosis_html(ledger, trial, rows)
        except InputError:
            continue
        characters += len(found[trial.trial_id])
    return found

"""What a page that is served asks for once it is there: curves, the diagnosis of a trial, the comparison of sweeps."""

from __future__ import annotations

import base64
import contextlib
import html
import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from orchestrator.answers import query_class
from orchestrator.answers.diagnose import answer_of
from orchestrator.base.errors import InputError
from orchestrator.base.files import LEDGER
from orchestrator.base.trial_result import TrialResult
from orchestrator.causes.diagnosis import examine, trial_by_id, typical_trials
from orchestrator.causes.remedies.reading import has_remedies, read_remedies
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.table import read_table
from orchestrator.pages.curves import Between, curves_so_far
from orchestrator.render.html import blocks_html
from orchestrator.render.remedies import remedies_figure

POINTS = 600  # of one curve


def curves(
    folder: Path, trial_ids: Sequence[str], reading: str | None = None, between: Between | None = None
) -> list[dict[str, Any]]:
    """The curves so far of trials of the sweep in ``folder``; a trial that it does not have has none.

    Raises StorageError.
    """
    with LedgerReader(folder / LEDGER) as ledger:
        known = ledger.statuses()
        return [curves_so_far(ledger, each, POINTS, reading, between) if each in known else {} for each in trial_ids]


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
            return {"html": blocks_html(answer.blocks(), with_figures=False)}
        except InputError as error:
            return {"html": f"<p>{html.escape(str(error))}</p>"}


CHOSEN = "chosen on the page"
# Of a page that is a file: what all its diagnoses may take. The steps are those of the curves that are read for them.
_MOST, _MOST_CHARACTERS, _MOST_STEPS = 100, 500_000, 2_000_000


def diagnosis_html(ledger: LedgerReader, trial: TrialResult, rows: Sequence[TrialResult]) -> str:
    """The diagnosis of ``trial``, a finished one of ``rows``, as HTML. Raises InputError as `sweep diagnose` does."""
    answer = answer_of(ledger, examine(ledger, trial, CHOSEN, rows))
    return blocks_html(answer.blocks(), with_figures=False)


def remedy_picture(ledger: LedgerReader, trial: TrialResult, rows: Sequence[TrialResult]) -> str:
    """The picture of the remedies of ``trial`` as an address that holds it, or an empty text without trained forks."""
    if not has_remedies(ledger.path.parent, trial.trial_id):
        return ""
    found = read_remedies(ledger, examine(ledger, trial, CHOSEN, rows))
    if not found.tallies:
        return ""
    return f"data:image/png;base64,{base64.b64encode(remedies_figure(found, 'png')).decode()}"


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

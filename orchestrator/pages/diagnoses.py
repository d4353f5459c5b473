"""The diagnoses of trials as the page shows them: the text of `sweep diagnose`, and the picture of remedies."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Iterable, Sequence

from orchestrator.base.cell import Cell
from orchestrator.base.errors import InputError
from orchestrator.base.trial_result import TrialResult
from orchestrator.causes.diagnosis import examine, typical_trials
from orchestrator.causes.diagnosis_text import diagnosis_page
from orchestrator.causes.remedies.answer_text import remedy_lines
from orchestrator.causes.remedies.reading import has_remedies, read_remedies
from orchestrator.ledger.reader import LedgerReader
from orchestrator.render.remedies import remedies_figure

CHOSEN = "it was chosen on the page"
# Of a page that is a file: what all its diagnoses may take. The steps are those of the curves that are read for them.
_MOST, _MOST_CHARACTERS, _MOST_STEPS = 100, 500_000, 2_000_000


def diagnosis_text(ledger: LedgerReader, trial: TrialResult, rows: Sequence[TrialResult]) -> str:
    """What `sweep diagnose` says of ``trial``, a finished one of ``rows``. Raises InputError as that does."""
    found = examine(ledger, trial, CHOSEN, rows)
    return "\n".join([*diagnosis_page(found, ledger.path.parent), *remedy_lines(ledger, found)])


def remedy_picture(ledger: LedgerReader, trial: TrialResult, rows: Sequence[TrialResult]) -> str:
    """The picture of the remedies of ``trial`` as an address that holds it; empty where no forks were trained."""
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
    of_cell: dict[Cell, list[TrialResult]] = {}
    for row in rows:
        of_cell.setdefault(row.cell, []).append(row)
    ranked = [typical_trials([row for row in group if row.is_judged]) for group in of_cell.values()]
    found: dict[str, str] = {}
    characters = steps = 0
    for trial in (trial for nth in itertools.zip_longest(*ranked) for trial in nth if trial is not None):
        steps += trial.steps_done or 0
        if len(found) >= _MOST or characters > _MOST_CHARACTERS or steps > _MOST_STEPS:
            break
        try:
            found[trial.trial_id] = diagnosis_text(ledger, trial, rows)
        except InputError:
            continue
        characters += len(found[trial.trial_id])
    return found

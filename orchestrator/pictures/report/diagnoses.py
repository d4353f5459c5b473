"""The diagnoses of trials as the page shows them: the text of `sweep diagnose`, with remedies that were tried."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from orchestrator.diagnosis.advised import diagnosis_page
from orchestrator.diagnosis.diagnosis import examine, typical_trials
from orchestrator.errors import InputError
from orchestrator.ledger.reader import LedgerReader
from orchestrator.messages import TrialRow
from orchestrator.remedies.after_diagnosis import remedy_lines

CHOSEN = "it was chosen on the page"
# Of a page that is a file: what all its diagnoses may take. The steps are those of the curves that are read for them.
_MOST, _MOST_CHARACTERS, _MOST_STEPS = 100, 500_000, 2_000_000


def diagnosis_text(ledger: LedgerReader, trial: TrialRow, rows: Sequence[TrialRow]) -> str:
    """What `sweep diagnose` says of ``trial``, a finished one of ``rows``. Raises InputError as that does."""
    found = examine(ledger, trial, CHOSEN, rows)
    return "\n".join([*diagnosis_page(found, ledger.path.parent), *remedy_lines(ledger, found)])


def diagnoses(ledger: LedgerReader, rows: Sequence[TrialRow]) -> dict[str, str]:
    """The diagnoses of trials that are not stable, by id: of the most typical one of each cell, then of the others.

    As many as a page may hold. The numbers follow from the ledger alone, so that a report can be repeated.
    """
    of_cell: dict[tuple[object, ...], list[TrialRow]] = {}
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
            found[trial.trial_id] = diagnosis_text(ledger, trial, rows)
        except InputError:
            continue
        characters += len(found[trial.trial_id])
    return found

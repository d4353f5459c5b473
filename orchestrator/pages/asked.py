"""What a page that is served asks for once it is there: curves, the diagnosis of a trial, the comparison of sweeps."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orchestrator.base.errors import InputError
from orchestrator.base.files import LEDGER
from orchestrator.causes.diagnosis import trial_by_id
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.compared import compared_lines
from orchestrator.pages.curves import Between, curves_so_far
from orchestrator.pages.diagnoses import diagnosis_text, remedy_picture

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
        rows = ledger.trials()
        try:
            trial = trial_by_id(rows, trial_id)
            picture = remedy_picture(ledger, trial, rows)
            return {"text": diagnosis_text(ledger, trial, rows), "remedy_picture": picture}
        except InputError as error:
            return {"text": str(error)}


def comparison(base: Path, other: Path) -> dict[str, str]:
    """What `sweep compare` says of two sweeps, the first of which is the base, or why they cannot be compared.

    Raises StorageError.
    """
    with contextlib.ExitStack() as stack:
        ledgers = [stack.enter_context(LedgerReader(folder / LEDGER)) for folder in (base, other)]
        try:
            return {"text": "\n".join(compared_lines(ledgers))}
        except InputError as error:
            return {"text": str(error)}

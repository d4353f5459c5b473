"""The search that goes on with the trials of a finished sweep."""

from __future__ import annotations

from pathlib import Path

from orchestrator.base.errors import InputError, Problem
from orchestrator.base.files import FROZEN_SWEEP, LEDGER
from orchestrator.ledger.imported import refuse_imported
from orchestrator.ledger.reader import LedgerReader
from orchestrator.sweepfile.overrides import Overrides
from orchestrator.sweepfile.refining import refined
from orchestrator.sweepfile.spec import Sweep, build_sweep, read_document

_MOST = 10_000  # trials; a sweep file with so many is valid without more words


def refining_sweep(
    folder: Path, along: str | None, num_more: int, factor: float, overrides: Overrides, allow_import: bool
) -> Sweep:
    """The search that goes on with the trials in ``folder`` and adds at most ``num_more``. Raises InputError."""
    refuse_imported(folder)
    document = read_document(folder / FROZEN_SWEEP)
    # Which trials count is known once the axes are.
    search = build_sweep(refined(document, along, _MOST, factor), overrides, allow_import=allow_import)
    with LedgerReader(folder / LEDGER) as ledger:
        num_known = sum(search.trial_like(row) is not None for row in ledger.trials(removed=True))
    if not num_known:
        raise InputError(Problem(str(folder), "", "has no trial to begin with", "`sweep run` it first"))
    return build_sweep(refined(document, along, num_known + num_more, factor), overrides, allow_import=allow_import)

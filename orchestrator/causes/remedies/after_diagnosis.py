"""What a diagnosis says of remedies: those that were tried, or the command that tries them."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.base.files import FROZEN_SWEEP
from orchestrator.causes.diagnosis import Diagnosis
from orchestrator.causes.remedies.answer_text import remedies_lines
from orchestrator.causes.remedies.custom import is_custom, why_not
from orchestrator.causes.remedies.reading import has_remedies, remedies_of
from orchestrator.ledger.reader import LedgerReader


def remedy_lines(ledger: LedgerReader, found: Diagnosis) -> Iterator[str]:
    """The answer of the trial's forks; without forks the command that trains them, where they can be trained."""
    folder, trial = ledger.path.parent, found.trial
    if found.evidence.outcome == "stable" or (is_custom(trial) and why_not(folder, trial) is not None):
        return
    if has_remedies(folder, trial.trial_id):
        yield "remedies, tried on forks of this trial:"
        yield from (f"  {line}".rstrip() for line in remedies_lines(remedies_of(ledger, found)))
    elif (folder / FROZEN_SWEEP).is_file():
        yield "what would have saved it, by experiment:"
        yield f"  sweep remedy {folder.name} --trial {trial.trial_id}"

"""`sweep sensitivity`: what a wrong learning rate costs."""

from __future__ import annotations

from pathlib import Path

from orchestrator.commands.printing import Answer
from orchestrator.errors import EXIT_OK
from orchestrator.files import LEDGER
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.fitted_sensitivity import sensitivity_answer


def sensitivity(folder: Path, axis: str) -> Answer:
    """The learning-rate sensitivity of each setting of the sweep in ``folder``. Raises InputError."""
    with LedgerReader(folder / LEDGER) as ledger:
        yield from sensitivity_answer(ledger, axis)
    return EXIT_OK

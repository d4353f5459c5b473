"""`sweep sensitivity`: what a wrong learning rate costs."""

from __future__ import annotations

from pathlib import Path

from orchestrator.commands.printing import Answer
from orchestrator.errors import EXIT_OK
from orchestrator.files import LEDGER
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.fitted_sensitivity import fitted_lr_sensitivity, fitted_sensitivity_lines
from orchestrator.maps.sensitivity import lr_sensitivity, sensitivity_lines


def sensitivity(folder: Path, axis: str) -> Answer:
    """The learning-rate sensitivity of each setting of the sweep in ``folder``. Raises InputError."""
    with LedgerReader(folder / LEDGER) as ledger:
        if ledger.facts().get("is_sampled") == "true":
            yield from fitted_sensitivity_lines(fitted_lr_sensitivity(ledger, axis))
        else:
            yield from sensitivity_lines(lr_sensitivity(ledger, axis), axis)
    return EXIT_OK

"""`sweep audit`: what early stopping saved, and how often it was wrong."""

from __future__ import annotations

from pathlib import Path

from orchestrator.base.errors import EXIT_OK
from orchestrator.base.files import LEDGER
from orchestrator.commands.printing import Answer
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.audit import audit as audit_trials
from orchestrator.maps.audit import audit_lines

_WRONG_SHOWN = 20


def audit(folder: Path) -> Answer:
    """The audit of the sweep in ``folder``, with the trials that would have been stopped wrongly."""
    with LedgerReader(folder / LEDGER) as ledger:
        balance = audit_trials(ledger.trials(), ledger.member_steps_per_second())
    yield from audit_lines(balance)
    for row in balance.wrong[:_WRONG_SHOWN]:
        cell = row.cell.name
        yield f"  {cell} seed={row.seed}: lost at step {row.verdict_step}, ended {row.outcome}"
    for row in balance.slow.wrong[:_WRONG_SHOWN] if balance.slow is not None else ():
        cell = row.cell.name
        yield f"  {cell} seed={row.seed}: slow at step {row.slow_step}, ended with a loss of {row.final_loss:.4g}"
    return EXIT_OK

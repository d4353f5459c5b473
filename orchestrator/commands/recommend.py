"""`sweep recommend`: the setting of lowest loss that is far enough from the edge."""

from __future__ import annotations

from pathlib import Path

from orchestrator.commands.printing import Answer
from orchestrator.errors import EXIT_OK
from orchestrator.files import LEDGER
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps import recommendation


def recommend(folder: Path, margin: float, metric: str) -> Answer:
    """The recommended setting of the sweep in ``folder``, or none, with the evidence. Raises InputError."""
    with LedgerReader(folder / LEDGER) as ledger:
        yield from recommendation.recommendation_lines(recommendation.recommend(ledger, margin, metric))
    return EXIT_OK

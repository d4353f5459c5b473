"""`sweep recommend`: the setting of lowest loss that is far enough from the edge."""

from __future__ import annotations

from pathlib import Path

from orchestrator.commands.printing import Answer
from orchestrator.errors import EXIT_OK
from orchestrator.files import LEDGER
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps import recommendation


def recommend(folder: Path, margin: float, metric: str | None, degraded: bool) -> Answer:
    """The recommended setting of the sweep in ``folder``, or none, with the evidence. Raises InputError.

    With ``degraded`` degraded cells are over the edge.
    """
    with LedgerReader(folder / LEDGER) as ledger:
        found = recommendation.recommend(ledger, margin, metric, degraded)
    yield from recommendation.recommendation_lines(found)
    return EXIT_OK

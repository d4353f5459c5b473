"""`sweep recommend`: the setting of lowest loss that is far enough from the edge."""

from __future__ import annotations

from pathlib import Path

from orchestrator.base.errors import EXIT_OK
from orchestrator.base.files import LEDGER, check_output
from orchestrator.commands.printing import Answer, written_json
from orchestrator.ledger.reader import LedgerReader, origin_notes
from orchestrator.maps import recommendation


def recommend(folder: Path, margin: float, metric: str | None, degraded: bool, json_file: Path | None = None) -> Answer:
    """The recommended setting of the sweep in ``folder``, or none, with the evidence. Raises InputError.

    With ``degraded`` degraded cells are over the edge.
    """
    check_output(json_file, "--json")
    with LedgerReader(folder / LEDGER) as ledger:
        name = ledger.facts().get("name", folder.name)
        found = recommendation.recommend(ledger, margin, metric, degraded)
    yield from recommendation.recommendation_lines(found)
    yield from origin_notes(folder)
    yield from written_json(json_file, {"sweep": name, **recommendation.recommendation_json(found)})
    return EXIT_OK

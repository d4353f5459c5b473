"""What trackers show of answers: causes and remedies of trials, and the prediction of a larger model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.answers.predict import PredictQuery
from orchestrator.base.errors import InputError
from orchestrator.base.files import LEDGER
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.table import read_table
from orchestrator.mirrors.tracker import PREDICTED, SweepAnswer, TrialAnswer
from orchestrator.render.tags import trial_answers

if TYPE_CHECKING:
    from orchestrator.maps.prediction import Prediction


def tracked_answers(folder: Path) -> list[TrialAnswer | SweepAnswer]:
    """Return what trackers show about the sweep in ``folder`` besides its record."""
    return [*trial_answers(folder), *_predicted(folder)]


def _predicted(folder: Path) -> Iterator[SweepAnswer]:
    with LedgerReader(folder / LEDGER) as ledger:
        table = read_table(ledger)
        try:
            if (query := PredictQuery.on_page(table)) is not None:
                yield _answer(query.ask(table).result)
        except InputError:
            return


def _answer(found: Prediction) -> SweepAnswer:
    tags = {"predicted.at": found.target_name, "predicted.doubts": "; ".join(found.doubts) or "none"}
    if found.edge is None or found.take is None:
        word = "void" if found.is_void else "refused"
        return SweepAnswer({**tags, "predicted.edge": word}, {}, f"Nothing is predicted at {found.target_name}.")
    edge = f"{found.edge.at:.2g} ({found.edge.low:.2g} to {found.edge.high:.2g})"
    return SweepAnswer(
        {**tags, "predicted.edge": edge},
        {
            f"{PREDICTED}edge": found.edge.at,
            f"{PREDICTED}edge_low": found.edge.low,
            f"{PREDICTED}edge_high": found.edge.high,
            f"{PREDICTED}{found.along}": found.take,
        },
        f"Predicted edge at {found.target_name}: {found.along} {edge}; take {found.take:.2g}.",
    )

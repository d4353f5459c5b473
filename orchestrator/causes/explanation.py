"""Which mechanism dominates each cell of a map that is not stable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.base.trial_result import TrialResult
from orchestrator.causes.diagnosis import BatchTexts, Diagnosis, batch_texts_of_objectives, examine, typical_trials
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.cell_map import CellMap, cell_map
from orchestrator.maps.table import SweepTable

UNEXPLAINED = "not enough evidence"
_MAX_DIAGNOSED = 3  # trials of a cell

Key = tuple[Any, Any]


@dataclass(frozen=True, slots=True)
class CellCause:
    """The mechanism that dominates a cell, or UNEXPLAINED, and whether measuring the curvature might help.

    Holds no evidence: the curves of every cell would be too large to keep.
    """

    mechanism: str
    lacks_curvature: bool


@dataclass(frozen=True, slots=True)
class Explanation:
    """A map, and the cause of each cell that is not stable, from its most typical trial.

    Of the finished trials, ``num_controlled`` have rules of control, and rules acted in ``num_acted``.
    """

    stability: CellMap
    causes: Mapping[Key, CellCause]
    num_controlled: int = 0
    num_acted: int = 0

    def mechanism(self, key: Key) -> str | None:
        """The mechanism that dominates the cell ``key``, UNEXPLAINED without evidence, None if the cell is stable."""
        return self.causes[key].mechanism if key in self.causes else None


def explain(
    table: SweepTable,
    x: str | None = None,
    y: str | None = None,
    batch_texts: BatchTexts = batch_texts_of_objectives,
) -> Explanation:
    """Explain the map over axes ``x`` and ``y`` (by default the first two): find the causes of its unstable cells.

    With more axes the map shows their worst cell, and the trials of all these cells are candidates: the most typical
    one is diagnosed, and up to two more while there is not enough evidence. Raises InputError like ``cell_map``.
    """
    stability, rows = cell_map(table, x, y), table.trials
    by_cell: dict[Key, list[TrialResult]] = {}
    for row in rows:
        key = (row.cell[stability.x.name], row.cell[stability.y.name] if stability.y else None)
        by_cell.setdefault(key, []).append(row)
    causes = {}
    for key, trials in by_cell.items():
        typical = typical_trials(trials)[:_MAX_DIAGNOSED] if stability.is_over_edge(key) else []
        if typical:
            causes[key] = _cell_cause(table.ledger, typical, rows, batch_texts)
    controlled = [row for row in rows if row.outcome is not None and row.config.get("control")]
    return Explanation(stability, causes, len(controlled), sum(bool(row.fired) for row in controlled))


def _cell_cause(
    ledger: LedgerReader, typical: Sequence[TrialResult], rows: Sequence[TrialResult], batch_texts: BatchTexts
) -> CellCause:
    """The cause of the first of the ``typical`` trials with enough evidence, or else of the first trial."""
    causes = []
    for trial in typical:
        causes.append(_cause_of(examine(ledger, trial, "one of the most typical of its cell", rows, batch_texts)))
        if causes[-1].mechanism != UNEXPLAINED:
            return causes[-1]
    return causes[0]


def _cause_of(diagnosis: Diagnosis) -> CellCause:
    mechanism = diagnosis.cause.mechanism if diagnosis.cause is not None else UNEXPLAINED
    evidence = diagnosis.evidence
    return CellCause(mechanism, not len(evidence.threshold_ratio) and not evidence.is_custom_trainer)

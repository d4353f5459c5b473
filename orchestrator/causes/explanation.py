"""Which mechanism dominates each cell of a map that is not stable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.base.trial_result import TrialResult
from orchestrator.causes.diagnosis import BatchTexts, Diagnosis, batch_texts_of_objectives, examine, typical_trials
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.stability import StabilityMap, stability_map

UNEXPLAINED = "not enough evidence"
_MOST_DIAGNOSED = 3  # trials of a cell

Key = tuple[Any, Any]


@dataclass(frozen=True, slots=True)
class Ruling:
    """What rules a cell: a mechanism, or UNEXPLAINED; and whether measured curvature might tell more.

    It does not hold the evidence, whose curves would be too large to keep for every cell.
    """

    mechanism: str
    lacks_curvature: bool


@dataclass(frozen=True, slots=True)
class Explanation:
    """A map, and the mechanism of the most typical trial in each cell that is not stable.

    Of the trials with a result ``num_controlled`` have rules of control, and in ``num_acted`` of these some acted.
    """

    stability: StabilityMap
    rulings: Mapping[Key, Ruling]
    num_controlled: int = 0
    num_acted: int = 0

    def ruling(self, key: Key) -> str | None:
        """The mechanism that rules the cell ``key``, UNEXPLAINED if none is supported, None where it is stable."""
        return self.rulings[key].mechanism if key in self.rulings else None


def explain(
    ledger: LedgerReader,
    x: str | None = None,
    y: str | None = None,
    batch_texts: BatchTexts = batch_texts_of_objectives,
) -> Explanation:
    """The map over axes ``x`` and ``y`` (by default the first two), and the mechanisms of its unstable cells.

    With more axes, the map shows their worst cell, and trials of all of them are diagnosed: the most typical one, and
    up to two more as long as there is not enough evidence. Raises InputError as ``stability_map`` does.
    """
    stability = stability_map(ledger, x, y)
    rows = ledger.trials()
    grouped: dict[Key, list[TrialResult]] = {}
    for row in rows:
        key = (row.cell[stability.x.name], row.cell[stability.y.name] if stability.y else None)
        grouped.setdefault(key, []).append(row)
    rulings = {}
    for key, group in grouped.items():
        typical = typical_trials(group)[:_MOST_DIAGNOSED] if stability.is_over_edge(key) else []
        if typical:
            rulings[key] = _ruling_of(ledger, typical, rows, batch_texts)
    controlled = [row for row in rows if row.outcome is not None and row.config.get("control")]
    return Explanation(stability, rulings, len(controlled), sum(bool(row.fired) for row in controlled))


def _ruling_of(
    ledger: LedgerReader, typical: Sequence[TrialResult], rows: Sequence[TrialResult], batch_texts: BatchTexts
) -> Ruling:
    """The ruling of the first of the ``typical`` trials that has enough evidence, else that of the first."""
    rulings = []
    for trial in typical:
        rulings.append(_ruling(examine(ledger, trial, "one of the most typical of its cell", rows, batch_texts)))
        if rulings[-1].mechanism != UNEXPLAINED:
            return rulings[-1]
    return rulings[0]


def _ruling(found: Diagnosis) -> Ruling:
    mechanism = found.cause.mechanism if found.cause is not None else UNEXPLAINED
    return Ruling(mechanism, not len(found.evidence.edge) and not found.evidence.is_custom_trainer)

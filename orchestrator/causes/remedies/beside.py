"""The stable cells beside a trial's in the map, and the trial of one on which the cost of remedies is measured."""

from __future__ import annotations

import math
from collections.abc import Sequence

from orchestrator.base.space import Axis, on_natural_scale
from orchestrator.base.trial_result import TrialResult
from orchestrator.causes.remedies.answer import Beside
from orchestrator.causes.remedies.derived import AXIS
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.neighbours import above, below, neighbours, trials_of
from orchestrator.maps.stability import sweep_axes


def stable_beside(ledger: LedgerReader, rows: Sequence[TrialResult], trial: TrialResult) -> list[Beside]:
    """The nearest stable cell on either side of the trial along each axis, the nearest of all first."""
    found: list[tuple[float, Beside]] = []
    for axis in map(on_natural_scale, sweep_axes(ledger, rows)):
        own = trial.config.get(axis.name)
        cells = neighbours(rows, trial, axis.name) if axis.name != AXIS else []
        for side in (below(cells, own), above(cells, own)):
            cell = next((one for one in side if one.is_stable and one.value != own), None)
            if cell is not None:
                found.append((_distance(axis, own, cell.value), Beside(axis.name, cell.value, cell.loss)))
    return [one for _, one in sorted(found, key=lambda pair: pair[0])]


def stable_neighbour(rows: Sequence[TrialResult], trial: TrialResult, cells: Sequence[Beside]) -> TrialResult | None:
    """The trial of the nearest stable cell with the seed of ``trial``; None where there is none."""
    found = (row for cell in cells for row in trials_of(rows, trial, cell.setting, cell.value))
    return next((row for row in found if row.seed == trial.seed and row.outcome == "stable"), None)


def _distance(axis: Axis, own: object, value: object) -> float:
    factor = axis.factor(own, value)
    return math.inf if factor <= 0 else factor

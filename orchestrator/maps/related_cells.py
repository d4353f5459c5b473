"""Steps from cell to cell where axes advance together, or exist in some cells only; and what tied axes stand for."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from orchestrator.base.space import Axis, Cell
from orchestrator.base.trial_result import TrialResult
from orchestrator.base.vocabulary import DEGRADED, is_known, is_over_edge
from orchestrator.sweepfile.settings import settings_of


def state_beside(cell: Cell, axis: Axis, value: Any, axes: Sequence[Axis], states: Mapping[Cell, str]) -> str:
    """The state of ``cell`` with another ``value`` of ``axis``.

    Axes that advance with it follow. Where the step makes another axis begin or cease to exist, the other cell has
    that axis in any value, and the worst state counts.
    """
    moved = cell.moved(axis.name, value)
    if moved in states:
        return states[moved]
    zipped = set(axis.zipped) - {axis.name}
    for conditional in (set(), _dependent(axes, zipped | {axis.name})):
        free = zipped | conditional
        if not free:
            continue
        options = {each.name: each.values for each in axes if each.name in free and each.name != axis.name}
        cells = (
            Cell({**moved, **dict(zip(options, values, strict=True))})
            for values in itertools.product(*options.values())
        )
        if reached := [states[other] for other in cells if other in states]:
            return worst_state(reached)
    return "not_run"


def _dependent(axes: Sequence[Axis], names: set[str]) -> set[str]:
    """The axes whose existence depends on ``names``, also by way of others."""
    found: set[str] = set()
    while more := {axis.name for axis in axes if {name for name, _ in axis.when} & (names | found)} - found:
        found |= more
    return found


def worst_state(states: Sequence[str]) -> str:
    """The worst of ``states``: over the edge, then not known, then degraded."""
    return max(states, key=_badness)


def _badness(state: str) -> int:
    if is_over_edge(state):
        return 3
    return 2 if not is_known(state) else int(state == DEGRADED)


def with_fields_as_trained(
    rows_of: Sequence[Sequence[TrialResult]], ties_of: Sequence[Mapping[str, str]]
) -> list[list[TrialResult]]:
    """Rows of several sweeps in whose cells a name means the same.

    A tied axis keeps its own values where all sweeps tie it alike. Elsewhere a cell has those that were trained with.
    """
    found = []
    for rows, ties in zip(rows_of, ties_of, strict=True):
        other = {name: text for name, text in ties.items() if any(each.get(name) != text for each in ties_of)}
        found.append([_as_trained(row, other) for row in rows])
    return found


def _as_trained(row: TrialResult, ties: Mapping[str, str]) -> TrialResult:
    settings = settings_of(row.objective, row.config)
    return replace(
        row, cell=Cell((name, settings.get(name, value) if name in ties else value) for name, value in row.cell.items())
    )

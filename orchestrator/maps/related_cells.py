"""Steps from cell to cell where axes advance together, or exist in some cells only; and what tied axes stand for."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from orchestrator.base.cell import Cell
from orchestrator.base.space import Axis, to_hashable
from orchestrator.base.trial_result import TrialResult
from orchestrator.base.vocabulary import DEGRADED
from orchestrator.detection.outcomes import is_known, is_over_edge
from orchestrator.ledger.reader import LedgerReader
from orchestrator.sweepfile.settings import settings_of

Key = tuple[Any, ...]  # the values of all axes in a cell


def led(axes: Iterable[Axis]) -> set[str]:
    """The axes that advance with another one, which stands for them: the first of their list in `zip`."""
    return {name for axis in axes for name in axis.zipped[1:]}


def together(axes: Mapping[str, Axis], names: Iterable[str | None]) -> set[str]:
    """The axes ``names`` and all that advance with them."""
    return {each for name in names if name is not None and name in axes for each in (name, *axes[name].zipped)}


def existing(axis: Axis, values: Sequence[Any]) -> tuple[Any, ...]:
    """``values`` of ``axis`` without the null of cells in which it does not exist, which is no neighbour of a value."""
    return tuple(value for value in values if value is not None or not axis.when)


def state_beside(key: Key, place: int, value: Any, axes: Sequence[Axis], states: Mapping[Key, str]) -> str:
    """The state of the cell at ``key`` with another ``value`` of the axis at ``place``.

    Axes that advance with it follow. Where the step makes another axis begin or cease to exist, the other cell has
    that axis in any value, and the worst state counts.
    """
    moved = (*key[:place], value, *key[place + 1 :])
    if moved in states:
        return states[moved]
    zipped = set(axes[place].zipped) - {axes[place].name}
    changed = zipped | {axes[place].name}
    for conditional in (set(), _dependent(axes, changed)):
        free = zipped | conditional
        if not free:
            continue
        options = [
            axis.values if axis.name in free and axis.name != axes[place].name else (moved[i],)
            for i, axis in enumerate(axes)
        ]
        if found := [states[other] for other in itertools.product(*options) if other in states]:
            return worst_state(found)
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


def ties_of(ledger: LedgerReader) -> dict[str, str]:
    """The tied fields of the sweep, with their expressions."""
    return dict(json.loads(ledger.facts().get("ties", "{}")))


def tied_settings(row: TrialResult, ties: Mapping[str, str]) -> dict[str, Any]:
    """The values of tied fields that a trial trained with.

    Beside an axis, whose name stands for the value in the cell, such a value is called ``effective_NAME``.
    """
    settings = settings_of(row.objective, row.config)
    return {f"effective_{name}" if name in row.cell else name: settings[name] for name in ties if name in settings}


def effective_values(row: TrialResult) -> dict[str, Any]:
    """The values of tied axes that a trial trained with, where they differ from those of its cell."""
    trained = {name: to_hashable(row.config.get(name, value)) for name, value in row.cell.items()}
    return {f"effective_{name}": value for name, value in trained.items() if value != to_hashable(row.cell[name])}


def base_notes(axes: Iterable[str], ties: Mapping[str, str]) -> list[str]:
    """What the values of tied ``axes`` stand for, in words."""
    return [f"{name} is the base value of the tie {name} = {ties[name]}" for name in axes if name in ties]


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

"""One value of an axis as a sweep of its own, so that the values of an axis can be compared as sweeps are."""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.base.cell import Cell
from orchestrator.base.errors import InputError, Problem
from orchestrator.base.space import canonical_text, format_value, to_hashable
from orchestrator.base.trial_result import TrialResult
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.axis_values import value_meant
from orchestrator.maps.stability import sweep_axes

_MOST = 12  # values, each of which has a map of its own in the picture


class OneValue(LedgerReader):
    """The ledger at ``path`` as that of a sweep over its other axes: the trials with one ``value`` of ``axis``.

    Axes ``beside`` it, which advance with it, are no axes either. What trials tell of each other stays that of the
    whole sweep: how much of the best loss they learned, and whether their learning rate is right.
    """

    def __init__(self, path: Path, axis: str, value: Any, beside: Collection[str]) -> None:
        super().__init__(path)
        self.axis = axis
        self._value, self._left_out = value, {axis, *beside}

    def trials(self, *, removed: bool = False) -> list[TrialResult]:
        """The trials with the value, without the axis in their cells."""
        rows = super().trials(removed=removed)
        return [
            replace(row, cell=row.cell.without(self._left_out))
            for row in rows
            if row.cell.get(self.axis) == self._value
        ]

    def facts(self) -> dict[str, str]:
        """The facts of the sweep; its name is that of the axis with the value."""
        facts = super().facts()
        axes = [fact for fact in json.loads(facts.get("axes", "[]")) if fact["name"] not in self._left_out]
        for fact in axes:
            if "when" in fact:
                fact["when"] = Cell(fact["when"]).without(self._left_out)
        name = f"{self.axis}={format_value(self._value)}"
        spread = canonical_text(self._num_spread(json.loads(facts.get("num_spread", "null"))))
        return {**facts, "name": name, "axes": canonical_text(axes), "num_spread": spread}

    def _num_spread(self, num: int | None) -> int | None:
        """How many of the first ``num`` cells of a search for an edge have the value."""
        if num is None:
            return None
        cells = dict.fromkeys(row.cell for row in super().trials())
        return sum(cell.get(self.axis) == self._value for cell in itertools.islice(cells, num))


def values_along(path: Path, axis: str, base: Any, stack: ExitStack) -> list[OneValue]:
    """A ledger for each value of ``axis`` in the sweep whose ledger is at ``path``, that of ``base`` first.

    ``stack`` closes them. Without ``base`` they are in the order of the axis. Raises InputError for an unknown axis or
    value, one with a range where cells are scattered, and where there are too few or too many to compare.
    """
    with LedgerReader(path) as ledger:
        axes = {each.name: each for each in sweep_axes(ledger)}
        is_scattered = ledger.is_sampled
    if axis not in axes:
        raise InputError(Problem("--by", "", f"{axis!r} is not an axis", f"axes: {', '.join(axes) or 'none'}"))
    chosen = axes[axis]

    def refuse(message: str, remedy: str) -> InputError:
        return InputError(Problem(f"--by {axis}", "", message, remedy))

    if is_scattered and chosen.ends is not None:
        raise refuse("its cells are scattered over a range, and no two share a value", "choose an axis with values")
    if not axes.keys() - {axis, *chosen.zipped}:
        raise refuse("there is no other axis to draw a map over", "`sweep boundary` reads the one axis")
    if not 2 <= len(chosen.values) <= _MOST:
        raise refuse(f"it has {len(chosen.values)} values", f"choose an axis with 2 to {_MOST}")
    values = list(chosen.values)
    if base is not None:
        first = value_meant("--base", chosen, to_hashable(base))
        values = [first, *(value for value in values if value is not first)]
    return [stack.enter_context(OneValue(path, axis, value, chosen.zipped)) for value in values]


def axis_of(ledgers: Sequence[LedgerReader]) -> str | None:
    """The axis of which each of ``ledgers`` is one value; None where they are sweeps of their own."""
    axes = {ledger.axis if isinstance(ledger, OneValue) else None for ledger in ledgers}
    return axes.pop() if len(axes) == 1 else None

"""How much a fitted surface of P(stable) depends on each axis."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from orchestrator.base.errors import InputError
from orchestrator.base.space import is_ordered
from orchestrator.maps.fitted import Fit, fit
from orchestrator.maps.table import SweepTable

_POINTS = 1024
_MOST_TRIALS = 1500  # to which a surface is fitted within seconds


def permutation_shares(table: SweepTable) -> Mapping[str, float] | None:
    """The share of each axis in what moves P(stable): its mean squared change when the values of the axis are shuffled.

    The points are drawn evenly over the axes, whatever cells were trained. None if no surface can be fitted, or
    where none of the axes moves it. L. Breiman, Random forests, 2001, section 10.
    """
    axes = [axis for axis in table.axes if axis.ends is not None or is_ordered(axis.values)]
    if not axes or len(table.trials) > _MOST_TRIALS:
        return None
    try:
        fitted = fit(table, axes[0].name)
    except InputError:
        return None
    change = _changes(fitted)
    total = sum(change.values())
    return {name: found / total for name, found in change.items()} if total > 0 else None


def _changes(fitted: Fit) -> dict[str, float]:
    random = np.random.default_rng(0)
    cells = [
        {
            axis.name: axis.values[random.integers(len(axis.values))] if axis.values else axis.at(random.random())
            for axis in fitted.axes
        }
        for _ in range(_POINTS)
    ]
    stable_M = fitted.stable(cells)
    changes = {}
    for axis in fitted.axes:
        order = random.permutation(_POINTS)
        shuffled = [{**cell, axis.name: cells[i][axis.name]} for cell, i in zip(cells, order, strict=True)]
        changes[axis.name] = float(np.mean((fitted.stable(shuffled) - stable_M) ** 2))
    return changes

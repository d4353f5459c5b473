"""A sweep as labelled arrays: what each cell and each trial came to, over the axes by their names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from orchestrator.base.errors import InputError, Problem
from orchestrator.base.space import format_value
from orchestrator.base.trial_result import TrialResult
from orchestrator.maps.cells import cell_summary
from orchestrator.maps.table import SweepTable

if TYPE_CHECKING:
    import xarray

_OF_TRIALS = (
    "outcome", "onset_step", "num_spikes", "best_loss", "final_loss", "peak_loss", "validation_loss", "learned_share",
)  # fmt: skip


def labelled(table: SweepTable) -> xarray.Dataset:
    """An xarray.Dataset over the axes of a grid: `stable_fraction` and `state` of cells, and results by `seed`.

    A value that is not a number is a coordinate as it is written. What was not trained is missing: NaN, or None for a
    word. Raises InputError where cells are scattered, where there is no axis, and without xarray.
    """
    name = table.name
    try:
        import xarray  # noqa: F401
    except ImportError:
        raise InputError(Problem(name, "to_xarray", "needs the package xarray", "pip install xarray")) from None
    if not table.axes:
        raise InputError(Problem(name, "to_xarray", "the sweep has no axes", "use .trials"))
    if not table.is_grid:
        raise InputError(Problem(name, "to_xarray", "its cells are scattered, not a grid", "use .trials or .map()"))
    names = [axis.name for axis in table.axes]
    cells: dict[tuple[float | str, ...], list[TrialResult]] = {}
    for row in table.trials:
        cells.setdefault(tuple(_label(row.cell[axis]) for axis in names), []).append(row)
    found = [cell_summary(rows) for rows in cells.values()]
    of_cells = pd.DataFrame(
        {"stable_fraction": [cell.fraction_stable for cell in found], "state": [cell.state for cell in found]},
        index=_index(list(cells), names),
    )
    keys = [(*at, row.seed) for at, rows in cells.items() for row in rows]
    of_trials = pd.DataFrame(
        [{column: getattr(row, column) for column in _OF_TRIALS} for rows in cells.values() for row in rows],
        index=_index(keys, [*names, "seed"]),
    )
    dataset = of_cells.to_xarray().merge(of_trials.to_xarray())
    return dataset.assign_attrs(sweep=name, axes=names)


def _label(value: object) -> float | str:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value if is_number else format_value(value)  # type: ignore[return-value]


def _index(keys: list[tuple[float | str, ...]], names: list[str]) -> pd.Index:
    if len(names) == 1:
        return pd.Index([key[0] for key in keys], name=names[0])
    return pd.MultiIndex.from_tuples(keys, names=names)

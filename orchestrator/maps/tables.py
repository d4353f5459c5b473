"""Tidy pandas tables of trials and of maps, one row per trial or per cell, and labelled arrays over the axes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pandas as pd

from orchestrator.base.columns import READING_COLUMNS, TRIAL_COLUMNS, names
from orchestrator.base.errors import InputError, Problem
from orchestrator.base.space import entries_in_words, format_value
from orchestrator.base.trial_result import TrialResult
from orchestrator.base.vocabulary import MARKS, OUTCOMES, PRUNED
from orchestrator.maps.cell_map import CellMap
from orchestrator.maps.cells import cell_summary
from orchestrator.maps.curve_metrics import OF_TELEMETRY, Measured, measured
from orchestrator.maps.table import SweepTable, tied_settings
from orchestrator.sweepfile.settings import settings_of

if TYPE_CHECKING:
    import xarray

_OWN = ("trial_id", "seed", "saved_steps")  # placed explicitly below
_FORMULAS = ("=", "+", "-", "@")  # first characters that make a spreadsheet compute a text
_RESULTS = [name for name in names(TRIAL_COLUMNS) if name not in _OWN]


def readings_and_printed(table: SweepTable) -> Measured:
    """What ``trial_table`` has of telemetry: the headline readings, and what a custom trainer printed."""
    return measured(table, [*OF_TELEMETRY, *table.printed_metrics])


def trial_table(table: SweepTable, readings: Measured | None = None) -> pd.DataFrame:
    """One row per trial of the sweep: trial_id, seed, all its settings, results, headline readings of telemetry.

    ``readings`` is what ``readings_and_printed`` gives, if the caller has it already.

    A field of the configuration keeps its name, and so does a metric that a trainer printed, unless a column has
    it; onset_step and the like are missing where there is none. The column of a tied axis has the axis's value, as in
    maps, and ``effective_NAME`` the one that was trained with.
    """
    ties, columns = table.ties, dict[str, list[Any]]()  # which take a fifth of the memory of rows
    found = readings_and_printed(table) if readings is None else readings
    for i, trial in enumerate(table.trials):
        settings = settings_of(trial.objective, trial.config, trial.cell)
        settings |= {**trial.cell, **tied_settings(trial, ties)}
        row = {"trial_id": trial.trial_id, **settings, "seed": trial.seed}
        row |= {name: getattr(trial, name) for name in _RESULTS}
        row["norm_rises"] = " ".join(map(str, trial.norm_rises))
        row["fired"] = "; ".join(trial.firings)
        row["saved_steps"] = trial.saved_steps
        row |= {name: found.get(name, {}).get(trial.trial_id) for name in names(READING_COLUMNS)}
        row |= {name: of_trials.get(trial.trial_id) for name, of_trials in found.items() if name not in row}
        for name in row:
            if name not in columns:
                columns[name] = [math.nan] * i
        for name, values in columns.items():
            values.append(row.get(name, math.nan))
    return pd.DataFrame(columns)


def map_table(stability: CellMap) -> pd.DataFrame:
    """The map as a tidy table, one row per cell; ``attrs["note"]`` says what was fixed and reduced."""
    rows = []
    for cell in stability.cells.values():
        row: dict[str, Any] = {stability.x.name: cell.x}
        if stability.y is not None:
            row[stability.y.name] = cell.y
        low, high = cell.interval or (None, None)
        row |= {"num_seeds": cell.num_seeds, "num_finished": cell.num_finished, "state": cell.state}
        row["cell_lr_health"] = cell.lr_health
        row |= {"fraction_stable": cell.fraction_stable, "fraction_low": low, "fraction_high": high}
        row |= {"num_stable": cell.num_stable, **{f"num_{mark}": cell.outcomes.get(mark, 0) for mark in MARKS}}
        row |= {f"num_{outcome}": cell.outcomes.get(outcome, 0) for outcome in OUTCOMES if outcome != "stable"}
        row |= {
            f"num_{PRUNED}": cell.outcomes.get(PRUNED, 0),
            "num_risen": cell.num_risen,
            "num_errored": cell.outcomes.get("errored", 0),
            "total_spikes": cell.total_spikes,
        }
        row |= {f"median_{name}": math.nan if value is None else value for name, value in cell.medians.items()}
        rows.append(row)
    table = pd.DataFrame(rows)
    table.attrs["note"] = stability.note
    return table


def as_csv(table: pd.DataFrame) -> str:
    """A table as CSV, with interventions and rules in words (``lr x0.5 at 100``), and without formulas."""
    names = [name for name in table.columns if str(name).endswith(("interventions", "control"))]
    in_words = {name: table[name].map(lambda value: entries_in_words(value) if value else "none") for name in names}
    return table.assign(**in_words).map(_unlike_formula).rename(columns=_unlike_formula).to_csv(index=False)


def _unlike_formula(value: Any) -> Any:
    """Put an apostrophe before a text that a spreadsheet would compute, as it marks texts itself."""
    return f"'{value}" if isinstance(value, str) and value[1:] and value.startswith(_FORMULAS) else value


_OF_TRIALS = (
    "outcome", "onset_step", "num_spikes", "best_loss", "final_loss", "peak_loss", "validation_loss", "learned_share",
)  # fmt: skip


def labelled(table: SweepTable) -> xarray.Dataset:
    """An xarray.Dataset over the axes of a grid: `stable_fraction` and `state` of cells, and results by `seed`.

    A value that is not a number is a coordinate as it is written. What was not trained is missing: NaN, or None for a
    word. Raises InputError where cells are scattered, and without an axis or xarray.
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

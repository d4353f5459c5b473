"""A sweep as an Optuna study, for optuna-dashboard: plain trials read off the ledger."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from orchestrator.base.errors import InputError, Problem
from orchestrator.base.files import LEDGER, OPTUNA_STUDY, check_no_links, write_if_changed
from orchestrator.base.measure import Measure
from orchestrator.base.space import Axis, is_number, on_natural_scale
from orchestrator.base.trial_result import TrialResult
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.axes import value_label
from orchestrator.maps.table import SweepTable, read_table
from orchestrator.search.study import Parameter, StudyTrial, study_file

NOT_STABLE = "not_stable"
_CAP = 2.0  # a loss counts as at most so many times the initial one, so that one blow-up does not flatten a plot
_ATTRIBUTES = (
    "trial_id", "seed", "status", "outcome", "onset_step", "num_spikes", "learned_share", "final_loss",
    "validation_loss", "reason",
)  # fmt: skip
_MOST_POINTS, _MOST_OF_ALL = 40, 20_000  # of a curve, and of all together: Optuna stores a thousand in a second
_DIGITS = 12  # of 1 - value: as many as an axis keeps


def export_study(folder: Path) -> Path:
    """Write the sweep in ``folder`` as an Optuna study, and return the path of its SQLite file.

    It is rebuilt from the ledger as a whole. Raises InputError for a sweep without axes.
    """
    check_no_links(folder)
    path = folder / OPTUNA_STUDY
    with LedgerReader(folder / LEDGER) as ledger:
        table = read_table(ledger)
        axes = [on_natural_scale(axis) for axis in table.axes]
        if not axes:
            raise InputError(Problem(str(ledger.path), "", "the sweep has no axes, so a study has no parameters"))
        trials, measure = study_trials(table, axes), table.measure
    metrics, maximized = (measure.kind, NOT_STABLE), [measure.kind] if measure.maximize else []
    write_if_changed(path, study_file(table.name, metrics, [_parameter(axis) for axis in axes], trials, maximized))
    return path


def study_trials(table: SweepTable, axes: Sequence[Axis]) -> list[StudyTrial]:
    """Every trial of the sweep, in its order."""
    rows, measure = table.trials, table.measure
    num_points = min(_MOST_POINTS, _MOST_OF_ALL // max(1, len(rows))) if measure.is_loss else 0
    return [
        _study_trial(row, axes, measure, _curve(row, table.ledger, num_points) if num_points else {}) for row in rows
    ]


def _study_trial(row: TrialResult, axes: Sequence[Axis], measure: Measure, curve: Mapping[int, float]) -> StudyTrial:
    values = _values(row, measure)
    state = _state(row, values)
    attributes = {name: getattr(row, name) for name in _ATTRIBUTES}
    # What 1 - value stands for.
    attributes |= {axis.name: row.cell[axis.name] for axis in axes if axis.scale == "log1m"}
    started_s = row.started_at or 0.0
    return StudyTrial(
        state=state,
        parameters={_parameter(axis).name: _value(axis, row.cell[axis.name]) for axis in axes},
        values=values,
        attributes={name: value for name, value in attributes.items() if value is not None},
        intermediate=curve,
        started_s=None if state == "waiting" else started_s,
        finished_s=(row.finished_at or started_s) if state in ("complete", "fail") else None,
    )


def _state(row: TrialResult, values: tuple[float, ...] | None) -> str:
    """Optuna's word for the result of a trial; without losses that can be judged it has failed, for Optuna."""
    if values is not None:
        return "complete"
    if row.outcome or row.status == "errored":
        return "fail"
    return "running" if row.status == "running" else "waiting"


def _values(row: TrialResult, measure: Measure) -> tuple[float, ...] | None:
    """Loss or score and whether it was not stable; None without an outcome that can be judged, and without a value."""
    if row.outcome in (None, "unknown"):
        return None
    found = None if row.outcome == "diverged" else measure.final_cost(row)
    initial = measure.initial_cost(row)
    cost = _capped(found, initial) if measure.is_loss else initial if found is None else found
    return None if cost is None else (measure.cost(cost), float(row.label != "stable"))


def _capped(loss: float | None, initial: float | None) -> float | None:
    """The loss, at most twice the initial one, which also stands for one that is missing or of a diverged run."""
    known = [one for one in (loss, None if initial is None else _CAP * initial) if one is not None]
    return min(known, default=None)


def _curve(row: TrialResult, ledger: LedgerReader, num_points: int) -> dict[int, float]:
    """The highest loss of each of ``num_points`` equal parts of the curve, capped as the result is."""
    trace = ledger.trace(row.trial_id, ["loss"])
    if not trace:
        return {}
    height_N = np.where(np.isfinite(trace["loss"]), trace["loss"], np.inf)
    parts = np.array_split(np.arange(len(height_N)), min(num_points, len(height_N)))
    highest = [int(part[np.argmax(height_N[part])]) for part in parts]
    capped = {int(trace["step"][place]): _capped(float(height_N[place]), row.initial_loss) for place in highest}
    return {step: value for step, value in capped.items() if value is not None and math.isfinite(value)}


def _parameter(axis: Axis) -> Parameter:
    """The parameter of an axis: numbers on its scale, 1 - value where that is logarithmic, or choices."""
    numbers = [*axis.values, *(axis.ends or ())]
    if not all(map(is_number, numbers)):
        return Parameter(axis.name, choices=tuple(_value(axis, value) for value in axis.values))
    shown = [_value(axis, value) for value in numbers]
    name = f"1-{axis.name}" if axis.scale == "log1m" else axis.name
    return Parameter(name, min(shown), max(shown), is_log=axis.scale in ("log", "log1m"))


def _value(axis: Axis, value: Any) -> Any:
    if axis.scale == "log1m" and is_number(value):
        return float(f"{1 - value:.{_DIGITS}g}")
    if is_number(value) and all(map(is_number, axis.values)):
        return float(value)
    return value if value is None or isinstance(value, bool) or is_number(value) else value_label(axis, value)

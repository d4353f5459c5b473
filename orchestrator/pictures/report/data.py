"""The data of the report's page: axes, trials, thinned curves and their episodes, as JSON."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from orchestrator.columns import meaning
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.axis_values import value_labels
from orchestrator.maps.curve_metrics import CURVE_METRICS, OF_TRACES, also_of, headlines, last_reading
from orchestrator.maps.lr_curves import judged_trials
from orchestrator.maps.related_cells import led
from orchestrator.maps.stability import REDUCTIONS, sweep_axes
from orchestrator.messages import TrialRow
from orchestrator.pictures.labels import axis_place, short_number, tick_texts
from orchestrator.pictures.report.cells import cells_and_panels, page_look
from orchestrator.pictures.thinning import thinned
from orchestrator.space import Axis

CURVES = {"loss": "loss", "grad_norm": "gradient norm"}
VALIDATION = {"validation_loss": "validation loss"}  # shown where a trial was validated during training
# Columns shown for the seeds of a cell, by their headings.
_SEED_COLUMNS = {
    "seed": "seed", "outcome": "outcome", "onset_step": "onset step", "num_spikes": "spikes",
    "final_loss": "final loss", "learned_share": "share learned", "lr_health": "learning rate",
    "lr_regret": "left on the table", "reason": "why",
    "norm_rises": "norm rose at", "overfit_step": "overfits from", "trial_id": "trial",
}  # fmt: skip
# The page stays below 10 MB: the bytes for all curves, and for one curve.
_BYTES_FOR_CURVES = 6_000_000
_BYTES_PER_POINT = 8 * 4 / 3
_POINTS = (24, 400)
_NUM_TICKS = 6


def report_data(ledger: LedgerReader) -> dict[str, Any]:
    """The page's data; every number is finite or null. Curves are float32 and int32 in base64."""
    facts, rows, found_axes = ledger.facts(), judged_trials(ledger), sweep_axes(ledger)
    num_points = _points_per_curve(len(CURVES) * sum(row.outcome is not None for row in rows))
    # The curves of one trial at a time: all together may exceed the memory.
    curves = [curves_and_readings(ledger, row, num_points) for row in rows]
    data = table_data(facts, rows, found_axes, [readings for _, readings in curves])
    titles = CURVES | (VALIDATION if any("validation_loss" in curve for curve, _ in curves) else {})
    return data | {"curves": [curve for curve, _ in curves], "curve_titles": titles, "num_points": num_points}


def curves_and_readings(
    ledger: LedgerReader, row: TrialRow, num_points: int
) -> tuple[dict[str, Any], dict[str, float]]:
    """The thinned curves of a trial, and the metrics of maps that follow from its curves."""
    trace = ledger.trace(row.trial_id, (*CURVES, "lr")) if row.outcome else {}
    telemetry = ledger.telemetry(row.trial_id) if row.outcome else {}
    found = {name: metric(trace) for name, metric in OF_TRACES.items()} | headlines(telemetry, trace)
    found |= {name: last_reading(telemetry, name) for name in also_of([row])}
    readings = {name: value for name, value in found.items() if value is not None}
    return _curves(trace, num_points) | _validations(telemetry, num_points), readings


def curves_so_far(ledger: LedgerReader, trial_id: str, num_points: int) -> dict[str, Any]:
    """The thinned curves of a trial, of one in training up to its last report."""
    trace, telemetry = ledger.trace(trial_id, CURVES), ledger.telemetry(trial_id)
    return _curves(trace, num_points) | _validations(telemetry, num_points)


def table_data(
    facts: Mapping[str, str],
    rows: Sequence[TrialRow],
    found_axes: Sequence[Axis],
    readings: Sequence[Mapping[str, float]],
) -> dict[str, Any]:
    """The page's data but for the curves; ``readings`` are those of ``curves_and_readings`` for each of ``rows``."""
    # The page shows the first two at first: not one that advances with another.
    axes = sorted(found_axes, key=lambda axis: axis.name in led(found_axes))
    measured: dict[str, dict[str, float]] = {name: {} for name in (*CURVE_METRICS, *also_of(rows))}
    for row, found in zip(rows, readings, strict=True):
        for name, value in found.items():
            measured[name][row.trial_id] = value
    cells, panels = cells_and_panels(rows, axes, measured)
    return {
        "name": facts.get("name", ""),
        "is_sampled": facts.get("is_sampled") == "true",
        "look": page_look(),
        "reductions": REDUCTIONS,
        "axes": [_axis(axis) for axis in axes],
        "cells": cells,
        "panels": panels,
        "trials": {
            "trial_id": [row.trial_id for row in rows],
            "seed": [row.seed for row in rows],
            "outcome": [row.label for row in rows],
            "onset_step": [row.onset_step for row in rows],
            "num_spikes": [row.num_spikes for row in rows],
            "final_loss": [None if row.final_loss is None else short_number(row.final_loss) for row in rows],
            "learned_share": [None if row.learned_share is None else short_number(row.learned_share) for row in rows],
            "lr_health": [row.lr_health or "" for row in rows],
            "lr_regret": [None if row.lr_regret is None else short_number(row.lr_regret) for row in rows],
            "reason": [row.reason or "" for row in rows],
            "norm_rises": [", ".join(map(str, row.norm_rises)) for row in rows],
            "overfit_step": [row.overfit_step for row in rows],
            "verdict_step": [row.verdict_step for row in rows],
        },
        "columns": [{"name": name, "title": title, "meaning": meaning(name)} for name, title in _SEED_COLUMNS.items()],
        "episodes": [row.episodes for row in rows],
    }


def as_script(data: Mapping[str, Any] | Sequence[Any]) -> str:
    """The data as JSON that is safe in a <script> element, whatever texts it contains."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _axis(axis: Axis) -> dict[str, Any]:
    """Names and places of the values; ``heads`` are shorter than ``labels``."""
    values = axis.values
    ticks = [axis.at(unit) for unit in np.linspace(0, 1, _NUM_TICKS)] if axis.ends else list(values)
    return {
        "name": axis.name,
        "labels": value_labels(values),
        "heads": tick_texts(axis, values),
        "positions": [axis_place(axis, value, values) for value in values],
        "ticks": [
            [axis_place(axis, value, values), text] for value, text in zip(ticks, tick_texts(axis, ticks), strict=True)
        ],
    }


def _points_per_curve(num_curves: int) -> int:
    low, high = _POINTS
    return int(min(high, max(low, _BYTES_FOR_CURVES / (_BYTES_PER_POINT * max(1, num_curves)))))


def _curves(trace: Mapping[str, np.ndarray], num_points: int) -> dict[str, Any]:
    if not trace:
        return {}
    found: dict[str, Any] = {"last": int(trace["step"][-1])}
    for name in CURVES:
        if name not in trace:
            continue
        values = trace[name]
        finite = np.flatnonzero(np.isfinite(values))
        kept = finite[thinned(values[finite], num_points)] if len(finite) else finite
        found[name] = [_packed(trace["step"][kept], "<i4"), _packed(values[kept], "<f4")]
        if len(finite) < len(values):
            found[f"{name}_broken"] = int(trace["step"][np.flatnonzero(~np.isfinite(values))[0]])
    return found


def _validations(telemetry: Mapping[str, np.ndarray], num_points: int) -> dict[str, Any]:
    """The curve of the validation loss, if there is more than one."""
    losses = telemetry.get("validation_loss", np.empty(0))
    known = np.flatnonzero(np.isfinite(losses))
    if len(known) < 2:
        return {}
    kept = known[thinned(losses[known], num_points)]
    return {"validation_loss": [_packed(telemetry["step"][kept], "<i4"), _packed(losses[kept], "<f4")]}


def _packed(values: np.ndarray, dtype: str) -> str:
    with np.errstate(over="ignore"):
        numbers = values.astype(dtype)
    if dtype == "<f4":
        # A finite double may exceed float32; the largest float32 is drawn at the same place, the top.
        numbers = np.clip(numbers, np.finfo(np.float32).min, np.finfo(np.float32).max)
    return base64.b64encode(numbers.tobytes()).decode()

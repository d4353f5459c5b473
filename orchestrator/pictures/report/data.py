"""What the report's page knows of a sweep: axes, trials, thinned curves and their episodes, as JSON."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from orchestrator.detection.outcomes import OUTCOMES
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.axis_values import value_labels
from orchestrator.maps.curve_metrics import CURVE_METRICS, OF_TELEMETRY, OF_TRACES
from orchestrator.maps.stability import METRICS, sweep_axes
from orchestrator.pictures.thinning import thinned
from orchestrator.space import Axis, format_value

CURVES = ("loss", "grad_norm")
# The page stays below 10 MB: what all curves may take, and what one of them is worth.
_BYTES_FOR_CURVES = 6_000_000
_BYTES_PER_POINT = 8 * 4 / 3
_POINTS = (24, 400)
_DIGITS = 6
_NUM_TICKS = 6


def report_data(ledger: LedgerReader) -> dict[str, Any]:
    """The page's data; every number is finite or null. Curves are float32 and int32 in base64."""
    facts, axes, rows = ledger.facts(), sweep_axes(ledger), ledger.trials()
    place = [{value: i for i, value in enumerate(axis.values)} for axis in axes]
    num_points = _points_per_curve(len(CURVES) * sum(row["outcome"] is not None for row in rows))
    of_curves: dict[str, list[float | None]] = {name: [] for name in CURVE_METRICS}
    curves = []
    for row in rows:
        # The curves of one trial at a time: those of all of them may be larger than the memory.
        trace = ledger.trace(row["trial_id"], CURVES) if row["outcome"] else {}
        curves.append(_curves(trace, num_points))
        for name, metric in OF_TRACES.items():
            of_curves[name].append(metric(trace))
        telemetry = ledger.telemetry(row["trial_id"]) if row["outcome"] else {}
        for name, metric in OF_TELEMETRY.items():
            of_curves[name].append(metric(telemetry))
    return {
        "name": facts.get("name", ""),
        "is_sampled": facts.get("is_sampled") == "true",
        "outcomes": OUTCOMES,
        "metrics": METRICS,
        "axes": [_axis(axis) for axis in axes],
        "trials": {
            "id": [row["trial_id"] for row in rows],
            "cell": [[at[row["cell"][axis.name]] for at, axis in zip(place, axes, strict=True)] for row in rows],
            "seed": [row["seed"] for row in rows],
            "label": [row["outcome"] or row["status"] for row in rows],
            "reason": [row["reason"] or "" for row in rows],
            "steps": [row["steps"] for row in rows],
            "verdict_step": [row.get("verdict_step") for row in rows],
            **{name: [_number(row[name]) for row in rows] for name in METRICS if name not in of_curves},
            **{name: [_number(value) for value in values] for name, values in of_curves.items()},
        },
        "episodes": [json.loads(row.get("episodes") or "[]") for row in rows],
        "curves": curves,
        "num_points": num_points,
    }


def as_script(data: Mapping[str, Any]) -> str:
    """The data as JSON that may stand in a <script> element, whatever texts it holds."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _axis(axis: Axis) -> dict[str, Any]:
    values = axis.values
    ticks = [axis.at(unit) for unit in np.linspace(0, 1, _NUM_TICKS)] if axis.ends else list(values)
    return {
        "name": axis.name,
        "scale": axis.scale,
        "labels": value_labels(values),
        "positions": [_place(axis, i, value) for i, value in enumerate(values)],
        "ticks": [[_place(axis, i, value), format_value(value)] for i, value in enumerate(ticks)],
    }


def _place(axis: Axis, i: int, value: Any) -> float:
    """Where a value stands on the axis's own scale; its rank on an axis that has none."""
    return _number(axis.position(value)) if axis.ends else float(i)


def _number(value: float | None) -> float | None:
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{_DIGITS}g}")


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


def _packed(values: np.ndarray, dtype: str) -> str:
    with np.errstate(over="ignore"):
        numbers = values.astype(dtype)
    if dtype == "<f4":
        # A finite double may be beyond float32, whose largest number draws at the same place: the top.
        numbers = np.clip(numbers, np.finfo(np.float32).min, np.finfo(np.float32).max)
    return base64.b64encode(numbers.tobytes()).decode()

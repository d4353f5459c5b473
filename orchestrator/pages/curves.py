"""The curves of trials as the page draws them: thinned, float32 and int32 in base64."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from orchestrator.base.files import LEDGER
from orchestrator.base.trial_result import TrialResult
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.curve_metrics import OF_TRACES, headlines, last_reading
from orchestrator.maps.table import printed_metrics
from orchestrator.pages.packed import CURVE_BITS, READING_BITS, rounded
from orchestrator.render.traces import thinned_rows

CURVES = {"loss": "loss", "grad_norm": "gradient norm"}
VALIDATION = {"validation_loss": "validation loss"}  # shown where a trial was validated during training
RATE = {"lr": "learning rate"}  # shown where it changed
_VALIDATION, _RATE = "validation_loss", "lr"
_RATE_POINTS = 100
TITLES = {**CURVES, **VALIDATION, **RATE}  # from the top to the bottom
# A page that is a file stays below 10 MB: the bytes for all curves, those for all readings of telemetry, before they
# are compressed, and the points of one of them. Readings that would have fewer points are left out.
_BYTES_FOR_CURVES, _CURVE_POINTS = 6_000_000, (24, 400)
_BYTES_FOR_READINGS, _READING_POINTS = 1_500_000, (12, 100)
_BYTES_PER_POINT = 8 * 4 / 3

POINTS = 600  # of one curve that a served page asks for
Between = tuple[int, int]  # the first and the last step


def points_per_curve(num_curves: int) -> int:
    """How many points of each of ``num_curves`` a page that is a file holds."""
    low, high = _CURVE_POINTS
    return int(min(high, max(low, _BYTES_FOR_CURVES / (_BYTES_PER_POINT * max(1, num_curves)))))


def points_per_reading(num_readings: int) -> int:
    """The same of readings of telemetry; 0 if there are too many."""
    low, high = _READING_POINTS
    num = int(min(high, _BYTES_FOR_READINGS / (_BYTES_PER_POINT * max(1, num_readings))))
    return num if num >= low else 0


def reading_names(telemetry: Mapping[str, np.ndarray]) -> list[str]:
    """What was read of a trial besides its validation loss, which has a curve of its own."""
    return [name for name, values in telemetry.items() if name not in ("step", _VALIDATION) and _is_curve(values)]


def curves_and_readings(
    ledger: LedgerReader, row: TrialResult, num_points: int, points_of_reading: int = 0
) -> tuple[dict[str, Any], dict[str, float]]:
    """The thinned curves of a trial, and the metrics of maps that follow from its curves.

    With ``points_of_reading`` also its readings of telemetry.
    """
    trace = ledger.trace(row.trial_id, (*CURVES, _RATE)) if row.outcome else {}
    telemetry = ledger.telemetry(row.trial_id) if row.outcome else {}
    found = {name: metric(trace) for name, metric in OF_TRACES.items()} | headlines(telemetry, trace)
    found |= {name: last_reading(telemetry, name) for name in printed_metrics([row])}
    metrics = {name: value for name, value in found.items() if value is not None}
    readings = reading_names(telemetry) if points_of_reading else []
    curves = _curves(trace, num_points, CURVE_BITS) | _of_telemetry(telemetry, [_VALIDATION], num_points, CURVE_BITS)
    if readings:
        curves |= {"readings": readings} | _of_telemetry(telemetry, readings, points_of_reading, READING_BITS)
    return curves, metrics


def curves(
    folder: Path, trial_ids: Sequence[str], reading: str | None = None, between: Between | None = None
) -> list[dict[str, Any]]:
    """The curves so far of trials of the sweep in ``folder``; a trial that it does not have has none.

    Raises StorageError.
    """
    with LedgerReader(folder / LEDGER) as ledger:
        return [curves_so_far(ledger, each, POINTS, reading, between) for each in trial_ids]


def curves_so_far(
    ledger: LedgerReader,
    trial_id: str,
    num_points: int,
    reading: str | None = None,
    between: Between | None = None,
) -> dict[str, Any]:
    """The thinned curves of a trial, of one in training up to its last report, with the names of its readings.

    With ``reading`` also that one; with ``between`` only these steps, so that they have all points.
    """
    trace, telemetry = ledger.trace(trial_id, (*CURVES, _RATE)), ledger.telemetry(trial_id)
    names = reading_names(telemetry)
    shown = [_VALIDATION, *([reading] if reading in names else [])]
    last = {"last": int(trace["step"][-1])} if trace else {}
    if between is not None:
        trace, telemetry = _part(trace, between), _part(telemetry, between)
    found = _curves(trace, num_points) | _of_telemetry(telemetry, shown, num_points) | last
    return {**found, "readings": names} if names else found


def _part(curve: Mapping[str, np.ndarray], between: Between) -> dict[str, np.ndarray]:
    """The points between two steps, and the ones before and after them, so that lines leave the picture."""
    if not curve:
        return {}
    first, end = np.searchsorted(curve["step"], between[0]), np.searchsorted(curve["step"], between[1], side="right")
    return {name: values[max(0, first - 1) : end + 1] for name, values in curve.items()}


def _curves(trace: Mapping[str, np.ndarray], num_points: int, bits: int | None = None) -> dict[str, Any]:
    if not trace or not len(trace["step"]):
        return {}
    found: dict[str, Any] = {"last": int(trace["step"][-1])}
    for name in CURVES:
        if name not in trace:
            continue
        values = trace[name]
        found[name] = _thinned(trace["step"], values, num_points, bits)
        is_finite_N = np.isfinite(values)
        if not is_finite_N.all():
            found[f"{name}_broken"] = int(trace["step"][np.flatnonzero(~is_finite_N)[0]])
    if _RATE in trace and len(np.unique(trace[_RATE][np.isfinite(trace[_RATE])])) > 1:
        found[_RATE] = _thinned(trace["step"], trace[_RATE], min(num_points, _RATE_POINTS), bits)
    return found


def _of_telemetry(
    telemetry: Mapping[str, np.ndarray], names: Sequence[str], num_points: int, bits: int | None = None
) -> dict[str, Any]:
    """The curves of readings that have at least two points."""
    shown = [name for name in names if name in telemetry and _is_curve(telemetry[name])]
    alike: dict[bytes, list[str]] = {}  # those that were read at the same steps
    for name in shown:
        alike.setdefault(np.isfinite(telemetry[name]).tobytes(), []).append(name)
    found: dict[str, list[str]] = {}
    for group in alike.values():
        value_RN = np.stack([telemetry[name] for name in group])
        found |= zip(group, _thinned_rows(telemetry["step"], value_RN, num_points, bits), strict=True)
    return {name: found[name] for name in shown}


def _is_curve(values: np.ndarray) -> bool:
    return bool(np.isfinite(values).sum() > 1)


def _thinned(step_N: np.ndarray, value_N: np.ndarray, num_points: int, bits: int | None) -> list[str]:
    """Some of the points; ``bits`` of the values' mantissas, or all."""
    return _thinned_rows(step_N, value_N[None], num_points, bits)[0]


def _thinned_rows(step_N: np.ndarray, value_RN: np.ndarray, num_points: int, bits: int | None) -> list[list[str]]:
    """Some of the points of curves that are finite at the same steps."""
    finite_N = np.isfinite(value_RN[0])
    value_RF, step_F = value_RN[:, finite_N], step_N[finite_N].astype("<i4")
    with np.errstate(over="ignore"):
        drawn_RF = value_RF.astype("<f4")
    # A finite double may exceed float32; the largest float32 is drawn at the same place, the top.
    drawn_RF = np.clip(drawn_RF, np.finfo(np.float32).min, np.finfo(np.float32).max)
    drawn_RF = drawn_RF if bits is None else rounded(drawn_RF, bits)
    kept_R = thinned_rows(value_RF, num_points)
    return [[_packed(step_F[kept]), _packed(drawn_F[kept])] for kept, drawn_F in zip(kept_R, drawn_RF, strict=True)]


def _packed(number_N: np.ndarray) -> str:
    return base64.b64encode(number_N.tobytes()).decode()

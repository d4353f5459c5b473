"""The tracker's records of trials, from the ledger: keys of cells, log-scale columns, and curves with few points."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from orchestrator.base.columns import RESULTS, TAGS
from orchestrator.base.measure import SCORE
from orchestrator.base.packs import Trace
from orchestrator.base.space import Axis, canonical_text, is_number, on_natural_scale
from orchestrator.base.trial_result import TrialResult
from orchestrator.base.vocabulary import COLLAPSED, CUSTOM_KINDS, OUTCOMES
from orchestrator.base.words import listed
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.curve_metrics import headlines
from orchestrator.maps.table import printed_metrics, tied_settings, ties_of
from orchestrator.mirrors.tracker import CellKey, Point, TrialRecord

# Shapes: N steps of a curve, B buckets of S steps.

# By axis, the name and the function of its log column.
LogColumns = Mapping[str, tuple[str, Callable[[float], float]]]

# Increase it when the content of records changes: trackers then write all trials again.
_VERSION = 6
_MOST_FIRINGS = 20  # of rules, in a tag
# The most informative columns of telemetry, and their names in a tracker.
_HEADLINES = {
    "lambda_max_over_threshold": "lambda_max_over_threshold", "update_rms/all": "update_rms", "v_lag/all": "v_lag",
    "attention_logit": "attention_logit", "noise_scale": "noise_scale",
}  # fmt: skip
_HEADLINE_BUCKETS = 5  # the lowest, highest and last reading of each are shown


def version_of(row: TrialResult) -> str:
    """Return a text that changes whenever the trial's record does."""
    return f"{_VERSION}:{row.status}:{row.outcome}:{row.pack_id}"


def attempt_of(trial: TrialRecord) -> str:
    """Return the id of the attempt that a record describes."""
    return trial.version.rpartition(":")[2]


def trial_record(
    ledger: LedgerReader,
    row: TrialResult,
    every: int | str,
    logs: LogColumns,
    sweep: str,
    shares: Mapping[str, float] | None = None,
) -> TrialRecord:
    """Return the tracker's record of a trial; ``sweep`` is the name of the sweep."""
    is_finished, ties = row.status == "finished", ties_of(ledger.facts())
    tags = {name: getattr(row, name) for name in TAGS}
    tags |= {"audited": "true"} if row.is_audited else {}
    tags |= {"fired": listed(row.firings, _MOST_FIRINGS)} if row.fired else {}
    return TrialRecord(
        trial_id=row.trial_id,
        name=row.name,
        version=version_of(row),
        status=row.status,
        cell=cell_key(row, logs, sweep, ties),
        # The sweep has the settings that do not vary.
        values={**_values(row, logs, ties), "seed": row.seed, "sweep": sweep},
        tags={key: str(value) for key, value in tags.items() if value is not None},
        points=_points(ledger, row, every) if is_finished else [],
        shares=shares or {},
        started_s=row.started_at,
        finished_s=row.finished_at,
        position=row.position or 0,
    )


def running_record(
    ledger: LedgerReader, row: TrialResult, logs: LogColumns, sweep: str, after: int
) -> tuple[TrialRecord, int]:
    """Return the record of a running trial, with points after its first ``after`` rows, and the new number of rows."""
    trace = ledger.trace(row.trial_id)
    points, num_rows = [], after
    for name in set(SPIKY) & set(trace):
        value_N = trace[name]
        kept, num_rows = complete_rows(trace["step"], value_N, row.steps, after)
        points += [Point(name, float(value_N[i]), int(trace["step"][i])) for i in kept if math.isfinite(value_N[i])]
    return replace(trial_record(ledger, row, "auto", logs, sweep), points=points), num_rows


def cell_key(row: TrialResult, logs: LogColumns, sweep: str, ties: Mapping[str, str]) -> CellKey:
    """Return the key of a trial's cell, which also depends on the settings outside the axes and on the ties."""
    config = {key: value for key, value in row.config.items() if key not in row.cell}
    config |= tied_settings(row, ties)
    text = canonical_text([dict(row.cell), config])
    return CellKey(
        cell_id=hashlib.sha256(text.encode()).hexdigest()[:16],
        name=row.cell.name or "all seeds",
        values={**_values(row, logs, ties), "sweep": sweep},
        started_s=row.started_at,
        position=row.position or 0,
    )


def _values(row: TrialResult, logs: LogColumns, ties: Mapping[str, str]) -> dict[str, Any]:
    """Return a cell's values on the axes, and the values that follow from them."""
    return {**with_log_columns(row.cell, logs), **tied_settings(row, ties)}


def shown_value(value: Any) -> str:
    """Return the value of a field as text."""
    return "none" if value is None else json.dumps(value) if isinstance(value, list | tuple) else str(value)


def _points(ledger: LedgerReader, row: TrialResult, every: int | str) -> list[Point]:
    """Return a finished trial's curves, results and headline readings of telemetry."""
    trace, telemetry = ledger.trace(row.trial_id), ledger.telemetry(row.trial_id)
    readings = [Point(name, value, 0) for name, value in headlines(telemetry, trace).items()]
    return [*_curves(row, trace, telemetry, every), *_results(row), *readings]


def _curves(row: TrialResult, trace: Trace, telemetry: Trace, every: int | str) -> list[Point]:
    points = curve_points(trace, row.episodes, every)
    if not telemetry:
        return points
    if "lambda_max" in telemetry:
        ratio_N = telemetry["lambda_max"] / telemetry["curvature_threshold"]
        telemetry = {**telemetry, "lambda_max_over_threshold": ratio_N}
    if row.objective not in CUSTOM_KINDS:
        points += reading_points(telemetry, _HEADLINES, _HEADLINE_BUCKETS)
    own = {name: plain(name) for name in ("validation_loss", *printed_metrics([row]))}
    own[SCORE] = plain(row.config.get("metrics", {}).get("score", {}).get("name") or SCORE)
    return points + reading_points(telemetry, own, SPIKY["loss"])


def plain(text: str) -> str:
    """Replace the characters that MLflow rejects in a name, such as those of a glob or of a list of interventions."""
    return re.sub(r"[^\w./: -]", "_", text, flags=re.ASCII)


def _results(row: TrialResult) -> list[Point]:
    values = {name: value for name in RESULTS if (value := getattr(row, name)) is not None}
    values |= {outcome: float(row.outcome == outcome) for outcome in OUTCOMES}
    values |= {COLLAPSED: 1.0} if row.is_collapsed else {}
    values |= loss_columns(row.final_loss, row.initial_loss, has_diverged=row.outcome == "diverged")
    return [Point(name, float(value), 0) for name, value in values.items()]


# --- log-scale columns, for charts that have only linear axes --------------------------------------

_CAP = 2.0  # times the initial loss: a higher one is drawn there, so that one blow-up does not flatten the rest


def loss_columns(final: float | None, initial: float | None, *, has_diverged: bool) -> dict[str, float]:
    """Return the final loss on scales that keep the other losses visible next to a blow-up."""
    columns = {}
    if final is not None and final > 0:
        columns["log10_loss"] = math.log10(final)
    if initial is not None and initial > 0:
        cap = _CAP * initial
        if final is not None or has_diverged:
            columns["loss_capped"] = cap if final is None else min(final, cap)
    return columns


def log_columns(axes: Iterable[Axis]) -> LogColumns:
    """Return the log columns of the axes that have one, made once for all cells: it takes all values of an axis."""
    return {axis.name: column for axis in axes if (column := _log_column(axis)) is not None}


def with_log_columns(cell: Mapping[str, Any], logs: LogColumns) -> dict[str, Any]:
    """Return the values of a cell, plus their logarithms (as text) on logarithmic axes."""
    values = dict(cell)
    for name, (log_name, transform) in logs.items():
        if cell.get(name) is not None:
            values[log_name] = f"{transform(cell[name]):.6g}"
    return values


def logs_as_numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with their log columns converted from text to floats."""
    return {name: float(value) if name.startswith("log10_") else value for name, value in values.items()}


def map_params(axes: Sequence[Axis]) -> list[str]:
    """Return the params of cells along the first two numeric axes."""
    params = []
    for axis in axes:
        column = _log_column(axis)
        if column is not None or all(map(is_number, axis.values)):
            params.append(axis.name if column is None else column[0])
    return params[:2]


def _log_column(axis: Axis) -> tuple[str, Callable[[float], float]] | None:
    """Return the name and the function of an axis's log column, or None if its scale is linear."""
    numbers = [value for value in axis.values if value is not None]
    if not numbers or not all(is_number(value) for value in numbers):
        return None
    scale = on_natural_scale(axis).scale
    if scale == "log1m" and max(numbers) < 1:
        return f"log10_one_minus_{axis.name}", lambda value: math.log10(1 - value)
    return (f"log10_{axis.name}", math.log10) if scale == "log" and min(numbers) > 0 else None


# --- curves with few points, but every extreme and the steps around each spike ---------------------

MOST_POINTS = 200  # of a column; the peaks of episodes may exceed it
# Buckets of the columns with spikes; the lowest, highest and last value of each bucket are kept. A point costs a store
# 50 us, so less important columns have fewer.
SPIKY = {"loss": 32, "grad_norm": 12}
_FEW = 12  # points of the other columns
_STRAIGHT = 1e-6  # a curve bends where its slope changes by more than this share of the steepest slope
_AROUND = 10  # steps kept at the start and at the end of an episode

Episodes = Sequence[tuple[int, int | None]]  # onset and recovery


def curve_points(trace: Trace, episodes: Episodes, every: int | str) -> list[Point]:
    """Return the finite values at every ``every``-th step, or with "auto" as few as show the curves.

    "auto" applies `kept_rows` to columns with spikes and keeps the bends of the others. Non-finite values are left out:
    a tracker would store infinity as 1.8e308 and hide NaN.
    """
    if not trace:
        return []
    step_N = trace["step"]
    points = []
    for name, value_N in trace.items():
        if name == "step":
            continue
        if isinstance(every, int):
            kept = np.flatnonzero(step_N % every == 0)
        elif name in SPIKY:
            kept = kept_rows(step_N, value_N, episodes, SPIKY[name])
        else:
            kept = _bends(step_N, value_N)
        points += [Point(name, float(value_N[i]), int(step_N[i])) for i in kept if math.isfinite(value_N[i])]
    return points


def kept_rows(step_N: np.ndarray, value_N: np.ndarray, episodes: Episodes, num_buckets: int) -> np.ndarray:
    """Return ascending indices of about `MOST_POINTS` rows: each bucket's lowest, highest and last, and episodes.

    The highest row of an episode is always kept, its first and last ten rows while there is room. A curve with at most
    three rows per bucket is kept whole.
    """
    num = len(step_N)
    if num <= 3 * num_buckets:
        return np.arange(num)
    kept = set(_extremes(value_N, num_buckets)) | {0, num - 1}
    spans = [_rows_of(step_N, onset, recovery) for onset, recovery in episodes]
    kept |= {start + int(np.argmax(_low_if_missing(value_N[start:end]))) for start, end in spans if end > start}
    for start, end in spans:
        for row in (*range(start, min(end, start + _AROUND)), *range(max(start, end - _AROUND), end)):
            if len(kept) < MOST_POINTS:
                kept.add(row)
    return np.array(sorted(kept))


def complete_rows(step_N: np.ndarray, value_N: np.ndarray, num_steps: int, after: int) -> tuple[np.ndarray, int]:
    """Return the new rows to show of a growing curve, and the number of rows that are covered.

    The rows are the lowest, highest and last of each complete interval of ``num_steps`` / 32 steps after the first
    ``after`` rows.
    """
    size = max(1, -(-num_steps // SPIKY["loss"]))
    kept: set[int] = set()
    while after + size <= len(step_N):
        value_S = value_N[after : after + size]
        if np.isfinite(value_S).any():
            lowest = np.where(np.isfinite(value_S), value_S, np.inf).argmin()
            kept |= {after + int(lowest), after + int(_low_if_missing(value_S).argmax()), after + size - 1}
        after += size
    return np.array(sorted(kept), dtype=int), after


def _rows_of(step_N: np.ndarray, onset: int, recovery: int | None) -> tuple[int, int]:
    """Return the rows of an episode as a half-open range."""
    end = len(step_N) if recovery is None else int(np.searchsorted(step_N, recovery))
    return int(np.searchsorted(step_N, onset)), end


def _bends(step_N: np.ndarray, value_N: np.ndarray) -> np.ndarray:
    """Return the rows of a curve's bends, or `_FEW` evenly spaced rows if there are more."""
    num = len(step_N)
    slope = np.diff(value_N) / np.diff(step_N)
    scale = np.abs(slope).max(initial=0.0)
    bends = 1 + np.flatnonzero(~(np.abs(np.diff(slope)) <= _STRAIGHT * scale))
    if len(bends) > _FEW:
        return np.unique(np.linspace(0, num - 1, _FEW).astype(int))
    return np.unique([0, *bends, num - 1])


def _extremes(value_N: np.ndarray, num_buckets: int) -> list[int]:
    """Return the lowest, highest and last finite row of each bucket."""
    size = -(-len(value_N) // num_buckets)
    padded = np.full(num_buckets * size, np.nan)
    padded[: len(value_N)] = value_N
    value_BS = padded.reshape(num_buckets, size)
    is_finite_BS = np.isfinite(value_BS)
    has_any_B = is_finite_BS.any(axis=1)
    start_B = np.arange(num_buckets) * size
    lowest_B = start_B + np.where(is_finite_BS, value_BS, np.inf).argmin(axis=1)
    highest_B = start_B + _low_if_missing(value_BS).argmax(axis=1)
    last_B = start_B + size - 1 - is_finite_BS[:, ::-1].argmax(axis=1)
    return np.concatenate([lowest_B, highest_B, last_B])[np.tile(has_any_B, 3)].tolist()


def _low_if_missing(values: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(values), values, -np.inf)


def reading_points(telemetry: Trace, names: Mapping[str, str], num_buckets: int) -> list[Point]:
    """Return finite readings, including the extremes, of columns of telemetry; ``names`` maps them to new names."""
    points = []
    for column, shown in names.items():
        if column not in telemetry:
            continue
        step_N, value_N = telemetry["step"], telemetry[column]
        is_read_N = np.isfinite(value_N)
        step_R, value_R = step_N[is_read_N], value_N[is_read_N]
        kept = kept_rows(step_R, value_R, [], num_buckets)
        points += [Point(shown, float(value_R[i]), int(step_R[i])) for i in kept]
    return points


def differences(settings_of_sweeps: Iterable[Mapping[str, str]]) -> list[str]:
    """Return the names of settings that differ between sweeps of one objective, and the objective if it differs."""
    by_objective: dict[str, list[Mapping[str, str]]] = {}
    for settings in settings_of_sweeps:
        by_objective.setdefault(settings.get("objective", ""), []).append(settings)
    names = {name for group in by_objective.values() for name in differing(group)}
    return [*sorted(names), *(["objective"] if len(by_objective) > 1 else [])]


def differing(settings_of_sweeps: Iterable[Mapping[str, str]]) -> list[str]:
    """Return the names of settings with more than one value among the sweeps that have them."""
    values: dict[str, set[str]] = {}
    for settings in settings_of_sweeps:
        for name, value in settings.items():
            values.setdefault(name, set()).add(value)
    return sorted(name for name, own in values.items() if len(own) > 1 and name not in ("sweep", "seed"))

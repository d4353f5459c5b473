"""The tracker's records of trials and the keys of their cells, from the ledger."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from orchestrator.base.columns import RESULTS, TAGS
from orchestrator.base.packs import Trace
from orchestrator.base.space import Axis, canonical_text
from orchestrator.base.trial_result import TrialResult
from orchestrator.base.vocabulary import CUSTOM_KINDS, OUTCOMES
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.curve_metrics import headlines
from orchestrator.maps.table import printed_metrics, tied_settings, ties_of
from orchestrator.mirrors.curve_points import SPIKY, complete_rows, curve_points, reading_points
from orchestrator.mirrors.log_columns import loss_columns, with_log_columns
from orchestrator.mirrors.tracker import CellKey, Point, TrialRecord

# Increase it when the content of records changes: trackers then write all trials again.
_VERSION = 4
# The most informative columns of telemetry, and their names in a tracker.
_HEADLINES = {
    "lambda_max_over_threshold": "lambda_max_over_threshold", "update_rms/all": "update_rms", "v_lag/all": "v_lag",
    "attention_logit": "attention_logit", "noise_scale": "noise_scale",
}  # fmt: skip
_HEADLINE_BUCKETS = 5  # the lowest, highest and last reading of each are shown


def version_of(row: TrialResult) -> str:
    """Return a text that changes whenever the trial's record does."""
    return f"{_VERSION}:{row.status}:{row.pack_id}"


def attempt_of(trial: TrialRecord) -> str:
    """Return the id of the attempt that a record describes."""
    return trial.version.rpartition(":")[2]


def trial_record(
    ledger: LedgerReader,
    row: TrialResult,
    every: int | str,
    axes: Mapping[str, Axis],
    sweep: str,
    shares: Mapping[str, float] | None = None,
) -> TrialRecord:
    """Return the tracker's record of a trial; ``sweep`` is the name of the sweep."""
    is_finished, ties = row.status == "finished", ties_of(ledger.facts())
    tags = {name: getattr(row, name) for name in TAGS}
    tags |= {"audited": "true"} if row.is_audited else {}
    return TrialRecord(
        trial_id=row.trial_id,
        name=row.name,
        version=version_of(row),
        status=row.status,
        cell=cell_key(row, axes, sweep, ties),
        # The sweep has the settings that do not vary.
        values={**_values(row, axes, ties), "seed": row.seed, "sweep": sweep},
        tags={key: str(value) for key, value in tags.items() if value is not None},
        points=_points(ledger, row, every) if is_finished else [],
        shares=shares or {},
        started_s=row.started_at,
        finished_s=row.finished_at,
        position=row.position or 0,
    )


def running_record(
    ledger: LedgerReader, row: TrialResult, axes: Mapping[str, Axis], sweep: str, after: int
) -> tuple[TrialRecord, int]:
    """Return the record of a running trial, with points after its first ``after`` rows, and the new number of rows."""
    trace = ledger.trace(row.trial_id)
    points, num_rows = [], after
    for name in set(SPIKY) & set(trace):
        value_N = trace[name]
        kept, num_rows = complete_rows(trace["step"], value_N, row.steps, after)
        points += [Point(name, float(value_N[i]), int(trace["step"][i])) for i in kept if math.isfinite(value_N[i])]
    return replace(trial_record(ledger, row, "auto", axes, sweep), points=points), num_rows


def cell_key(row: TrialResult, axes: Mapping[str, Axis], sweep: str, ties: Mapping[str, str]) -> CellKey:
    """Return the key of a trial's cell, which also depends on the settings outside the axes and on the ties."""
    config = {key: value for key, value in row.config.items() if key not in row.cell}
    config |= tied_settings(row, ties)
    text = canonical_text([dict(row.cell), config])
    return CellKey(
        cell_id=hashlib.sha256(text.encode()).hexdigest()[:16],
        name=row.cell.name or "all seeds",
        values={**_values(row, axes, ties), "sweep": sweep},
        started_s=row.started_at,
        position=row.position or 0,
    )


def _values(row: TrialResult, axes: Mapping[str, Axis], ties: Mapping[str, str]) -> dict[str, Any]:
    """Return a cell's values on the axes, and the values that follow from them."""
    return {**with_log_columns(row.cell, axes), **tied_settings(row, ties)}


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
    own = {name: name for name in ("validation_loss", *printed_metrics([row]))}
    return points + reading_points(telemetry, own, SPIKY["loss"])


def _results(row: TrialResult) -> list[Point]:
    values = {name: value for name in RESULTS if (value := getattr(row, name)) is not None}
    values |= {outcome: float(row.outcome == outcome) for outcome in OUTCOMES}
    values |= loss_columns(row.final_loss, row.initial_loss, has_diverged=row.outcome == "diverged")
    return [Point(name, float(value), 0) for name, value in values.items()]

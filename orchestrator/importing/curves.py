"""Runs with curves: from logs, or a table with a loss in each row, to results that the detector judges.

So spikes, onsets and rises are known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from orchestrator.base.errors import InputError
from orchestrator.base.packs import Trace
from orchestrator.detection.config import StoppingConfig
from orchestrator.detection.outcomes import member_result
from orchestrator.importing.rows import BLANK, LeftOut, Row, cell_text
from orchestrator.importing.runs import Run, Settings
from orchestrator.importing.values import number_of
from orchestrator.logs.columns import Columns
from orchestrator.logs.tables import Log, Table, make_log
from orchestrator.maps.replay import Replayed, replay_logs

_MAX_STEP = 2**53


@dataclass(slots=True)
class LoggedRuns:
    """Runs with a row of settings and a log each, and what could not be used."""

    rows: list[Row] = field(default_factory=list)
    logs: list[Log] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)

    def add(self, row: Row, log: Log) -> None:
        """Append a run."""
        self.rows.append(row)
        self.logs.append(log)

    def join(self, other: LoggedRuns) -> None:
        """Append all runs of another source."""
        self.rows += other.rows
        self.logs += other.logs
        self.left_out += other.left_out


@dataclass(frozen=True, slots=True)
class CurveColumns:
    """Columns of a table with a loss in each row; the columns ``run`` identify a run."""

    step: str
    loss: str
    grad_norm: str | None
    run: Sequence[str]


def runs_of_logs(settings: Sequence[Settings], logs: Sequence[Log], stopping: StoppingConfig) -> list[Run]:
    """Judge each log to its end; a run of unknown length has the length of its log."""
    replayed = replay_logs(logs, stopping)
    return [_run(own, one, stopping) for own, one in zip(settings, replayed, strict=True)]


def _run(settings: Settings, replayed: Replayed, stopping: StoppingConfig) -> Run:
    log = replayed.log
    steps_done = int(log.step_N[-1]) + 1
    result = member_result("", replayed.record, stopping, steps_done, math.nan)
    num_points = f"{len(log.step_N):,} losses to step {log.step_N[-1]:,} of {log.name}"
    # The run went on after every verdict, as an audited trial does.
    result = replace(result, is_audited=True, reason=f"{result.reason}; {'; '.join([num_points, *log.notes])}")
    return Run(replace(settings, steps=settings.steps or steps_done), result, _trace(log))


def _trace(log: Log) -> Trace:
    norms = {} if log.grad_norm_N is None else {"grad_norm": log.grad_norm_N.astype(np.float64)}
    return {"step": log.step_N.astype(np.int64), "loss": log.loss_N.astype(np.float64), **norms}


# --- tables with a loss in each row ----------------------------------------------------------------


def logs_of_rows(rows: Sequence[Row], columns: CurveColumns, constant: Sequence[str]) -> LoggedRuns:
    """Return the runs of ``rows``, each with its first row.

    A run is left out if one of the ``constant`` columns changes in it: its rows belong to several runs.
    """
    by_run: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        by_run.setdefault(tuple(cell_text(row.values.get(name)) for name in columns.run), []).append(row)
    runs = LoggedRuns()
    for key, own in by_run.items():
        name = f"{own[0].where} ({' '.join(f'{n}={v}' for n, v in zip(columns.run, key, strict=True))})"
        changing = [column for column in constant if len({cell_text(row.values.get(column)) for row in own}) > 1]
        if changing:
            runs.left_out.append(LeftOut(name, f"{changing[0]} changes within the run"))
            continue
        points, invalid = _points(own, columns)
        runs.left_out += invalid
        if not points:
            runs.left_out.append(LeftOut(name, "has no loss"))
            continue
        try:
            runs.add(own[0], _log(name, points))
        except InputError as error:
            runs.left_out.append(LeftOut(name, str(error).partition("\n")[0]))
    return runs


def repeated_step(rows: Sequence[Row], columns: CurveColumns) -> str | None:
    """Return the place of a row whose step an earlier row of its run has with another loss, or None.

    Then the columns do not identify runs, or a run was resumed.
    """
    loss_at: dict[tuple[str, ...], str] = {}
    for row in rows:
        loss = cell_text(row.values.get(columns.loss))
        key = tuple(cell_text(row.values.get(name)) for name in (*columns.run, columns.step))
        if loss != BLANK and loss_at.setdefault(key, loss) != loss:
            return row.where
    return None


def _points(rows: Sequence[Row], columns: CurveColumns) -> tuple[list[dict[str, float]], list[LeftOut]]:
    """Return the rows that have a loss, sorted by step, and the invalid ones; a row without a loss was not logged."""
    points: list[dict[str, float]] = []
    invalid: list[LeftOut] = []
    for row in rows:
        if cell_text(row.values.get(columns.loss)) == BLANK:
            continue
        loss, step = _number(row, columns.loss), _number(row, columns.step)
        if loss is None:
            invalid.append(LeftOut(row.where, f"{columns.loss} is {row.values.get(columns.loss)!r}, not a number"))
        elif step is None or not (abs(step) < _MAX_STEP and step == round(step)):
            invalid.append(LeftOut(row.where, f"{columns.step} is {row.values.get(columns.step)!r}, not an integer"))
        else:
            point: dict[str, float] = {"step": step, "loss": loss}
            if columns.grad_norm is not None and (norm := _number(row, columns.grad_norm)) is not None:
                point["grad_norm"] = norm
            points.append(point)
    return sorted(points, key=lambda point: point["step"]), invalid


def _number(row: Row, column: str) -> float | None:
    value = number_of(cell_text(row.values.get(column)))
    return None if value is None else float(value)


def _log(name: str, points: Sequence[dict[str, float]]) -> Log:
    table = Table()
    for point in points:
        table.add(point)
    has_norms = any("grad_norm" in point for point in points)
    return make_log(name, table, Columns("step", "loss", "grad_norm" if has_norms else None))

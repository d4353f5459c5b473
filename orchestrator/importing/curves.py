"""Curves of elsewhere -> runs: the detector judges each, so that spikes, onsets and rises are known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from orchestrator.base.errors import InputError
from orchestrator.base.reports import Trace
from orchestrator.detection.config import StoppingConfig
from orchestrator.detection.outcomes import member_result
from orchestrator.importing.rows import BLANK, LeftOut, Row, cell_text
from orchestrator.importing.runs import Run, Settings
from orchestrator.importing.values import number_of
from orchestrator.logs.columns import Columns
from orchestrator.logs.tables import Log, Table, make_log
from orchestrator.maps.replay import Replayed, replay_logs


def runs_of_logs(settings: Sequence[Settings], logs: Sequence[Log], stopping: StoppingConfig) -> list[Run]:
    """A run for each log, judged to its end; a length that is not known is that of its log."""
    replayed = replay_logs(logs, stopping)
    return [_run(own, one, stopping) for own, one in zip(settings, replayed, strict=True)]


def _run(settings: Settings, replayed: Replayed, stopping: StoppingConfig) -> Run:
    log = replayed.log
    steps_done = int(log.step_N[-1]) + 1
    result = member_result("", replayed.record, stopping, steps_done, math.nan)
    num_points = f"{len(log.step_N):,} losses to step {log.step_N[-1]:,} of {log.name}"
    # It has trained on after every verdict: that is what an audit looks at.
    result = replace(result, is_audited=True, reason=f"{result.reason}; {'; '.join([num_points, *log.notes])}")
    return Run(replace(settings, steps=settings.steps or steps_done), result, _trace(log))


def _trace(log: Log) -> Trace:
    norms = {} if log.grad_norm_N is None else {"grad_norm": log.grad_norm_N.astype(np.float64)}
    return {"step": log.step_N.astype(np.int64), "loss": log.loss_N.astype(np.float64), **norms}


_LARGEST = 2**53


@dataclass(frozen=True, slots=True)
class CurveColumns:
    """Columns of a long table: its steps, its losses, its gradient norms, and what tells runs apart."""

    step: str
    loss: str
    grad_norm: str | None
    run: Sequence[str]


def logs_of_rows(
    rows: Sequence[Row], columns: CurveColumns, steady: Sequence[str]
) -> tuple[list[Row], list[Log], list[LeftOut]]:
    """For each run the first of its rows and its log; and rows and runs that cannot be used.

    A run whose ``steady`` columns change is none: its rows belong to several.
    """
    runs: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        runs.setdefault(tuple(cell_text(row.values.get(name)) for name in columns.run), []).append(row)
    firsts: list[Row] = []
    logs: list[Log] = []
    left_out: list[LeftOut] = []
    for key, own in runs.items():
        name = f"{own[0].where} ({' '.join(f'{n}={v}' for n, v in zip(columns.run, key, strict=True))})"
        changing = [one for one in steady if len({cell_text(row.values.get(one)) for row in own}) > 1]
        if changing:
            left_out.append(LeftOut(name, f"{changing[0]} changes within the run"))
            continue
        points, odd = _points(own, columns)
        left_out += odd
        if not points:
            left_out.append(LeftOut(name, "has no loss"))
            continue
        try:
            logs.append(_log(name, points, columns))
        except InputError as error:
            left_out.append(LeftOut(name, str(error).partition("\n")[0]))
            continue
        firsts.append(own[0])
    return firsts, logs, left_out


def repeated_steps(rows: Sequence[Row], columns: CurveColumns) -> str | None:
    """A row whose step an earlier row of its run has with another loss; None without one.

    Then the columns do not tell runs apart, or a run was resumed.
    """
    seen: dict[tuple[str, ...], str] = {}
    for row in rows:
        loss = cell_text(row.values.get(columns.loss))
        key = tuple(cell_text(row.values.get(name)) for name in (*columns.run, columns.step))
        if loss != BLANK and seen.setdefault(key, loss) != loss:
            return row.where
    return None


def _points(rows: Sequence[Row], columns: CurveColumns) -> tuple[list[dict[str, float]], list[LeftOut]]:
    """The rows that have a loss, in the order of their steps; a row without one was not logged."""
    points: list[dict[str, float]] = []
    odd: list[LeftOut] = []
    for row in rows:
        if cell_text(row.values.get(columns.loss)) == BLANK:
            continue
        loss, step = _number(row, columns.loss), _number(row, columns.step)
        if loss is None:
            odd.append(LeftOut(row.where, f"{columns.loss} is {row.values.get(columns.loss)!r}, not a number"))
        elif step is None or not (abs(step) < _LARGEST and step == round(step)):
            odd.append(LeftOut(row.where, f"{columns.step} is {row.values.get(columns.step)!r}, not a whole number"))
        else:
            point: dict[str, float] = {"step": step, "loss": loss}
            if columns.grad_norm is not None and (norm := _number(row, columns.grad_norm)) is not None:
                point["grad_norm"] = norm
            points.append(point)
    return sorted(points, key=lambda point: point["step"]), odd


def _number(row: Row, column: str) -> float | None:
    value: Any = number_of(cell_text(row.values.get(column)))
    return None if value is None else float(value)


def _log(name: str, points: Sequence[dict[str, float]], columns: CurveColumns) -> Log:
    table = Table()
    for point in points:
        table.add(point)
    has_norms = any("grad_norm" in point for point in points)
    return make_log(name, table, Columns("step", "loss", "grad_norm" if has_norms else None))

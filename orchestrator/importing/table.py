"""A table with one run in each row, without curves -> runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

from orchestrator.base.trial_result import MemberResult
from orchestrator.importing.outcomes import Judged, Rules, judge_rows
from orchestrator.importing.rows import LeftOut, Row
from orchestrator.importing.runs import Asked, Run, Settings, settings_of_rows
from orchestrator.importing.values import number_of


@dataclass(frozen=True, slots=True)
class ResultColumns:
    """The columns of results: words or final losses, final losses beside words, losses on held-out data.

    ``initial_loss`` is the loss before the training: a column, or one for all runs.
    """

    outcome: str
    loss: str | None = None
    validation_loss: str | None = None
    initial_loss: str | float | None = None


def runs_of_rows(
    rows: Sequence[Row], asked: Asked, results: ResultColumns, rules: Rules, unused: Sequence[str]
) -> tuple[str, list[Run], list[LeftOut]]:
    """What the outcomes follow from, the runs of ``rows``, and the rows that have none. Raises InputError."""
    judged_by, judged = judge_rows(rows, results.outcome, results.loss, rules)
    runs: list[Run] = []
    left_out: list[LeftOut] = []
    for row, settings, result in zip(rows, settings_of_rows(rows, asked, unused), judged, strict=True):
        if isinstance(settings, LeftOut):
            left_out.append(settings)
        elif isinstance(result, str):
            left_out.append(LeftOut(row.where, result))
        else:
            initial = results.initial_loss
            if not isinstance(initial, float):
                initial = _number(row, initial)
            validation = _number(row, results.validation_loss)
            runs.append(Run(settings, _finished(settings, result, validation, initial)))
    return judged_by, runs, left_out


def _number(row: Row, column: str | None) -> float | None:
    value = number_of(str(row.values.get(column))) if column is not None else None
    return float(value) if value is not None and isfinite(value) else None


def _finished(settings: Settings, judged: Judged, validation: float | None, initial: float | None) -> MemberResult:
    """The result of a run of which only the outcome and the end are known."""
    ran_on = judged.outcome in ("stable", "spiked")
    return MemberResult(
        trial_id="",
        outcome=judged.outcome,
        steps_done=settings.steps if ran_on else None,
        initial_loss=initial,
        final_loss=judged.loss,
        validation_loss=validation,
        reason=f"{judged.reason} ({settings.where})",
    )

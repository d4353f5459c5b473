"""Results of imported runs: from the labels or final losses of a table, or from curves that the detector judges."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from orchestrator.base.errors import InputError, Problem
from orchestrator.base.packs import Trace
from orchestrator.base.trial_result import MemberResult
from orchestrator.base.words import count
from orchestrator.detection.config import StoppingConfig
from orchestrator.detection.outcomes import member_result
from orchestrator.importing.options import LABELS, SKIP, ImportOptions
from orchestrator.importing.rows import BLANK, LeftOut, cell_text
from orchestrator.importing.runs import Run, SettingColumns, Settings, number_of, settings_of_rows
from orchestrator.importing.spool import Row, Spool
from orchestrator.ledger.facts import BY_FINAL_LOSSES, BY_WORDS
from orchestrator.logs.columns import Columns
from orchestrator.logs.tables import Log, Table, make_log
from orchestrator.maps.replay import Replayed, replay_logs

_MAX_LISTED = 8


class Judged(NamedTuple):
    """The outcome of a row, its final loss if it has one, and why."""

    outcome: str
    loss: float | None
    reason: str


@dataclass(frozen=True, slots=True)
class OutcomeRules:
    """The meaning of labels, in lower case, and the final loss above which a run has diverged, if given.

    ``has_direction`` says that the values are known to be losses or scores.
    """

    meanings: Mapping[str, str]
    diverged_above: float | None = None
    has_direction: bool = False

    def meaning(self, label: str) -> str | None:
        """Return the outcome or SKIP that ``label`` means, or None."""
        return self.meanings.get(label, label if label in LABELS else None)


@dataclass(frozen=True, slots=True)
class ResultColumns:
    """The columns of results. ``initial_loss`` is a column, or one number for all runs."""

    outcome: str
    loss: str | None = None
    validation_loss: str | None = None
    initial_loss: str | float | None = None


def outcome_rules(options: ImportOptions) -> OutcomeRules:
    """Return the rules that ``map`` and ``diverged_above`` give. Raises InputError."""
    meanings: dict[str, str] = {}
    for outcome, labels in options.keys.map.items():
        place = options.document.place(("map", outcome))
        key = "" if place.startswith("--") else f"map.{outcome}"
        if outcome not in (*LABELS, SKIP):
            remedy = f"the outcomes are {', '.join(LABELS)}, and {SKIP} leaves rows out: --map diverged=nan,crashed"
            raise InputError(Problem(place, key, f"{outcome!r} is not an outcome", remedy))
        for label in filter(None, (label.strip().lower() for label in labels)):
            if meanings.setdefault(label, outcome) != outcome:
                raise InputError(
                    Problem(place, key, f"{label!r} also means {meanings[label]}", "choose one of the two")
                )
    limit = options.keys.diverged_above
    if limit is not None and not math.isfinite(limit):
        raise InputError(Problem(*options.source("diverged_above"), f"{limit} is not finite", "write e.g. 7.5"))
    return OutcomeRules(meanings, limit, options.keys.maximize is not None)


def runs_of_rows(
    rows: Sequence[Row], columns: SettingColumns, results: ResultColumns, rules: OutcomeRules, unused: Sequence[str]
) -> tuple[str, list[Run], list[LeftOut]]:
    """Return what the outcomes follow from, the runs of ``rows``, and the rows that have none. Raises InputError."""
    judged_by, judged = judge_rows(rows, results.outcome, results.loss, rules)
    runs: list[Run] = []
    left_out: list[LeftOut] = []
    for row, settings, result in zip(rows, settings_of_rows(rows, columns, unused), judged, strict=True):
        if isinstance(settings, LeftOut):
            left_out.append(settings)
        elif isinstance(result, str):
            left_out.append(LeftOut(row.where, result))
        else:
            initial = results.initial_loss
            if initial is None or isinstance(initial, str):
                initial = _finite_number(row, initial)
            validation = _finite_number(row, results.validation_loss)
            runs.append(Run(settings, _result(settings, result, validation, initial)))
    return judged_by, runs, left_out


def _finite_number(row: Row, column: str | None) -> float | None:
    value = number_of(str(row.values.get(column))) if column is not None else None
    return float(value) if value is not None and math.isfinite(value) else None


def _result(settings: Settings, judged: Judged, validation: float | None, initial: float | None) -> MemberResult:
    """Return the result of a run without a curve: only its outcome and its end are known."""
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


def judge_rows(
    rows: Sequence[Row], column: str, loss: str | None, rules: OutcomeRules
) -> tuple[str, list[Judged | str]]:
    """Return what the outcomes follow from, and for each row its outcome, or why it has none.

    ``column`` has labels or final losses; with labels, ``loss`` has final losses. Raises InputError for labels whose
    meaning is unknown.
    """
    texts = [cell_text(row.values.get(column)) for row in rows]
    others = [text for text in texts if rules.meaning(text) is None and text != BLANK]
    numbers = [number for text in others if (number := number_of(text)) is not None]
    # Zeros and ones alone may be flags, unless the user says that they are losses.
    is_said = loss == column or (loss is None and (rules.diverged_above is not None or rules.has_direction))
    has_losses = any(math.isfinite(number) and (is_said or number not in (0, 1)) for number in numbers)
    unclear = [text for text in others if not (has_losses and number_of(text) is not None)]
    if unclear:
        raise InputError(_unclear(rows[0].where.rpartition(":")[0], column, unclear, has_losses=has_losses))
    if not has_losses and rules.diverged_above is not None and loss is None:
        remedy = "name the column of final losses with --loss, or leave --diverged-above out"
        raise InputError(Problem("--diverged-above", f"{rules.diverged_above:g}", f"{column} has labels", remedy))
    if has_losses:
        return BY_FINAL_LOSSES, [_by_loss(column, text, rules) for text in texts]
    return BY_WORDS, [_by_label(row, column, text, loss, rules) for row, text in zip(rows, texts, strict=True)]


def _unclear(where: str, column: str, texts: Sequence[str], *, has_losses: bool) -> Problem:
    counts = Counter(texts).most_common(_MAX_LISTED)
    shown = ", ".join(f"{text} ({count(num, 'row')})" for text, num in counts)
    labels = ",".join(text for text, _ in counts)
    also = "" if has_losses else ", and no final losses"
    remedy = (
        f"say what they mean, e.g. --map diverged={labels}, or --map {SKIP}={labels} to leave such rows out; "
        f"outcomes are {', '.join(LABELS)}"
    )
    return Problem(where, column, f"has labels that are not outcomes{also}: {shown}", remedy)


def _by_loss(column: str, text: str, rules: OutcomeRules) -> Judged | str:
    outcome = rules.meaning(text)
    if outcome == SKIP:
        return f"{column} is {text} (--map {SKIP})"
    if outcome is not None:
        return Judged(outcome, None, f"{column} is {text}")
    if text == BLANK:
        return f"{column} is empty; if that means a loss of nan, say --map diverged={BLANK}"
    return by_final_loss(column, float(text), rules.diverged_above)


def by_final_loss(column: str, loss: float, diverged_above: float | None) -> Judged:
    """Judge by a final loss alone: diverged if it is not finite or above the limit, else stable."""
    if not math.isfinite(loss):
        return Judged("diverged", None, f"{column} is {loss}")
    if diverged_above is not None and loss > diverged_above:
        return Judged("diverged", loss, f"{column} of {loss:g} is above {diverged_above:g}")
    return Judged("stable", loss, f"{column} is finite; spikes are not known without a curve")


def _by_label(row: Row, column: str, label: str, loss: str | None, rules: OutcomeRules) -> Judged | str:
    outcome = rules.meaning(label)
    if outcome is None:
        return f"{column} is empty"
    if outcome == SKIP:
        return f"{column} is {label} (--map {SKIP})"
    value = None if loss is None else number_of(cell_text(row.values.get(loss)))
    finite = float(value) if value is not None and math.isfinite(value) else None
    if outcome in ("stable", "spiked"):
        if value is not None and finite is None:
            return f"{column} is {label}, and {loss} is {value}"
        limit = rules.diverged_above
        if finite is not None and limit is not None and finite > limit:
            return Judged("diverged", finite, f"{loss} of {finite:g} is above {limit:g}, and {column} is {label}")
    return Judged(outcome, finite, f"{column} is {label}")


# --- runs with curves: from logs, or a table with a loss in each row -------------------------------

_MAX_STEP = 2**53
_MAX_LOGS, _MAX_POINTS = 64, 2**20  # that are judged together
_MAX_BUFFERED = 2**17  # rows of which the points are in memory


@dataclass(slots=True)
class LoggedRuns:
    """Runs with a row of settings, and a function that reads the log, each; and what could not be used."""

    runs: list[tuple[Row, Callable[[], Log]]] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)

    @property
    def rows(self) -> list[Row]:
        """The rows of settings."""
        return [row for row, _ in self.runs]


@dataclass(frozen=True, slots=True)
class CurveColumns:
    """Columns of a table with a loss in each row; the columns ``run`` identify a run."""

    step: str
    loss: str
    grad_norm: str | None
    run: Sequence[str]


def runs_of_logs(known: Sequence[tuple[Settings, Callable[[], Log]]], stopping: StoppingConfig) -> list[Run]:
    """Judge each log to its end, some at a time; a run of unknown length has the length of its log."""
    runs: list[Run] = []
    while len(runs) < len(known):
        part, logs = known[len(runs) : len(runs) + _MAX_LOGS], []
        for _, read in part:
            logs.append(read())
            if sum(len(log.step_N) for log in logs) > _MAX_POINTS:
                break
        replayed = replay_logs(logs, stopping)
        runs += [_run(settings, read, one, stopping) for (settings, read), one in zip(part, replayed, strict=False)]
    return runs


def _run(settings: Settings, read: Callable[[], Log], replayed: Replayed, stopping: StoppingConfig) -> Run:
    log = replayed.log
    steps_done = int(log.step_N[-1]) + 1
    result = member_result("", replayed.record, stopping, steps_done, math.nan)
    num_points = f"{count(len(log.step_N), 'loss', 'losses')} to step {log.step_N[-1]:,} of {log.name}"
    # The run went on after every verdict, as an audited trial does.
    result = replace(result, is_audited=True, reason=f"{result.reason}; {'; '.join([num_points, *log.notes])}")
    return Run(replace(settings, steps=settings.steps or steps_done), result, lambda: _trace(read()))


def _trace(log: Log) -> Trace:
    norms = {} if log.grad_norm_N is None else {"grad_norm": log.grad_norm_N.astype(np.float64)}
    return {"step": log.step_N.astype(np.int64), "loss": log.loss_N.astype(np.float64), **norms}


# --- tables with a loss in each row ----------------------------------------------------------------


@dataclass(slots=True)
class _RunOfRows:
    """The rows of one run: the first one, the values of columns that should be constant, and its points.

    A point is its step, its loss, its gradient norm, whether it has one, and the place of its row. The ``points`` that
    were read last are in memory.
    """

    row: Row
    constant: Sequence[str]
    changing: int | None = None
    invalid: list[LeftOut] = field(default_factory=list)
    points: array[float] = field(default_factory=lambda: array("d"))
    stored: list[Callable[[], array[float]]] = field(default_factory=list)

    def add(self, row: Row, place: int, columns: CurveColumns) -> None:
        """Add a row; one without a loss was not logged."""
        if cell_text(row.values.get(columns.loss)) == BLANK:
            return
        loss, step = _number(row, columns.loss), _number(row, columns.step)
        if loss is None:
            self.invalid.append(LeftOut(row.where, f"{columns.loss} is {row.values.get(columns.loss)!r}, not a number"))
        elif step is None or not (abs(step) < _MAX_STEP and step == round(step)):
            reason = f"{columns.step} is {row.values.get(columns.step)!r}, not an integer"
            self.invalid.append(LeftOut(row.where, reason))
        else:
            norm = None if columns.grad_norm is None else _number(row, columns.grad_norm)
            self.points.extend((step, loss, norm or 0.0, norm is not None, place))

    def store(self, spool: Spool) -> None:
        """Move the points to ``spool``."""
        if self.points:
            self.stored.append(spool.put(self.points))
            self.points = array("d")

    def sorted_points(self) -> np.ndarray:
        """Return the points by step, and within a step in the order of their rows."""
        parts = [np.array(part) for part in (*(read() for read in self.stored), self.points)]
        points_N5 = np.concatenate(parts).reshape(-1, 5)
        return points_N5[np.argsort(points_N5[:, 0], kind="stable")]


def logs_of_rows(rows: Iterable[Row], columns: CurveColumns, constant: Sequence[str]) -> tuple[LoggedRuns, int | None]:
    """Return the runs of ``rows``, each with its first row; and the first place of a row with another loss at a step of
    an earlier row of its run, or None. Then the columns do not identify runs, or a run was resumed.

    A run is left out if one of the ``constant`` columns changes in it: its rows belong to several runs.
    """
    spool, runs, repeated = Spool(), LoggedRuns(), []
    by_run = _by_run(rows, columns, constant, spool)
    for key, run in by_run.items():
        points_N5 = run.sorted_points()
        repeated += _repeated(points_N5)
        name = f"{run.row.where} ({' '.join(f'{n}={v}' for n, v in zip(columns.run, key, strict=True))})"
        if run.changing is not None:
            runs.left_out.append(LeftOut(name, f"{constant[run.changing]} changes within the run"))
            continue
        runs.left_out += run.invalid
        if not len(points_N5):
            runs.left_out.append(LeftOut(name, "has no loss"))
            continue
        try:
            runs.runs.append((run.row, spool.put(_log(name, points_N5))))
        except InputError as error:
            runs.left_out.append(LeftOut(name, str(error).partition("\n")[0]))
    return runs, min(repeated, default=None)


def _by_run(
    rows: Iterable[Row], columns: CurveColumns, constant: Sequence[str], spool: Spool
) -> dict[tuple[str, ...], _RunOfRows]:
    by_run: dict[tuple[str, ...], _RunOfRows] = {}
    for place, row in enumerate(rows, 1):
        key = tuple(cell_text(row.values.get(name)) for name in columns.run)
        values = [cell_text(row.values.get(name)) for name in constant]
        if (run := by_run.get(key)) is None:
            run = by_run[key] = _RunOfRows(row, values)
        if run.constant != values:
            changing = next(i for i, value in enumerate(values) if value != run.constant[i])
            run.changing = changing if run.changing is None else min(run.changing, changing)
        run.add(row, place - 1, columns)
        if place % _MAX_BUFFERED == 0:
            for each in by_run.values():
                each.store(spool)
    return by_run


def _repeated(points_N5: np.ndarray) -> list[int]:
    """Return the first place of a point, sorted by step, whose loss differs from the first one at its step."""
    step_N, loss_N, place_N = points_N5[:, 0], points_N5[:, 1], points_N5[:, 4]
    first_N = loss_N[np.searchsorted(step_N, step_N)]
    is_other_N = (loss_N != first_N) & ~(np.isnan(loss_N) & np.isnan(first_N))
    return [int(place_N[is_other_N].min())] if is_other_N.any() else []


def _number(row: Row, column: str) -> float | None:
    value = number_of(cell_text(row.values.get(column)))
    return None if value is None else float(value)


def _log(name: str, points_N5: np.ndarray) -> Log:
    table = Table()
    for step, loss, norm, has_norm, _ in points_N5.tolist():
        table.add({"step": step, "loss": loss, "grad_norm": norm} if has_norm else {"step": step, "loss": loss})
    return make_log(name, table, Columns("step", "loss", "grad_norm" if points_N5[:, 3].any() else None))

"""Whether what an import compares is a loss or a score: by the user, by the store, or by its name; never guessed."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.base.errors import InputError, Problem
from orchestrator.base.measure import SCORE, Measure, names_a_loss, names_a_score, unjudged
from orchestrator.importing.options import ImportOptions
from orchestrator.importing.outcomes import ResultColumns
from orchestrator.importing.rows import Rows
from orchestrator.importing.runs import Run
from orchestrator.ledger.facts import BY_FINAL_LOSSES, BY_FINAL_SCORES

_ASK = "say --maximize if more is better, or --minimize if less is"
_OF_LOSSES = ("diverged_above", "validation_loss")  # keys that mean nothing for a score


def imported_score(column: str | None, table: Rows, options: ImportOptions) -> Measure | None:
    """Return the score in ``column`` with its name, or None if it holds losses, or is None.

    Raises InputError if nothing says which, or if the options contradict the source or each other.
    """
    _check_validation_loss(options)
    given, (name, of_source) = options.keys.maximize, table.directions.get(column or "", (column, None))
    if column is None:
        if given is not None:
            message = "says what is better, but only labels are imported"
            raise InputError(Problem(*options.source("maximize"), message, "name the column of values with --loss"))
        return None
    if None not in (given, of_source) and given != of_source:
        message = f"contradicts the study, which {'maximizes' if of_source else 'minimizes'} {name}"
        raise InputError(Problem(*options.source("maximize"), message, "leave it out"))
    maximize = of_source if given is None else given
    if maximize is None:
        is_said = options.keys.loss == column or options.keys.diverged_above is not None
        if names_a_score(column) or not (is_said or names_a_loss(column)):
            what = "is the name of a score, not of a loss" if names_a_score(column) else "may hold losses or scores"
            key = "outcome" if options.keys.loss is None else "loss"
            raise InputError(Problem(*options.source(key), f"{column} {what}", _ASK))
        maximize = False
    if not maximize:
        return None
    options.reject(_OF_LOSSES, f"applies to losses, and {name} is a score")
    return Measure(SCORE, str(name), maximize=True)


def optimized_column(table: Rows) -> str:
    """Return the column of what a study optimizes. Raises InputError if there is none, or several."""
    names = list(table.directions)
    if len(names) == 1:
        return names[0]
    what = "nothing says how the runs ended"
    remedy = "say --outcome COLUMN (labels such as stable and diverged, or final losses), or --step and --loss"
    if names:
        what, remedy = f"the study optimizes {' and '.join(names)}", f"choose one: --outcome {names[0]}"
    raise InputError(Problem("--outcome", "", f"is missing: {what}", remedy))


def check_curves_of_losses(options: ImportOptions) -> None:
    """Raise InputError if the column of curves holds a score, since the detector judges losses."""
    loss, given = options.keys.loss, options.keys.maximize
    remedy = "name the column of losses; final scores are imported from a table with a run in each row, by --maximize"
    if given:
        message = "applies to a table with a run in each row: the detector judges curves of losses"
        raise InputError(Problem(*options.source("maximize"), message, remedy))
    if loss is not None and given is None and (why := unjudged(loss)) is not None:
        remedy = f"{remedy}; --minimize says that it is a loss"
        raise InputError(Problem(*options.source("loss"), f"{loss} {why}", remedy))


def _check_validation_loss(options: ImportOptions) -> None:
    name = options.keys.validation_loss
    if name is not None and options.keys.maximize is None and names_a_score(name):
        message = f"{name} is the name of a score, not of a loss"
        remedy = f"compare by it: --loss {name} --maximize; or say --minimize if it is a loss"
        raise InputError(Problem(*options.source("validation_loss"), message, remedy))


def scored(
    judged_by: str, runs: list[Run], columns: ResultColumns, table: Rows, options: ImportOptions
) -> tuple[str, list[Run], Measure | None]:
    """Return what outcomes follow from, the ``runs``, and their score: then their final and initial losses are none.

    Raises InputError as ``imported_score`` does.
    """
    score = imported_score(columns.outcome if judged_by == BY_FINAL_LOSSES else columns.loss, table, options)
    if score is None:
        return judged_by, runs, None
    results = [
        replace(
            run.result,
            score=run.result.final_loss,
            initial_score=run.result.initial_loss,
            final_loss=None,
            initial_loss=None,
        )
        for run in runs
    ]
    judged_by = BY_FINAL_SCORES if judged_by == BY_FINAL_LOSSES else judged_by
    return judged_by, [replace(run, result=result) for run, result in zip(runs, results, strict=True)], score

"""Outcomes of imported runs without a curve: by the words of the source, or by final losses. Nothing is guessed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import NamedTuple

from orchestrator.base.errors import InputError, Problem
from orchestrator.base.trial_result import MemberResult
from orchestrator.base.vocabulary import OUTCOMES, PRUNED
from orchestrator.importing.rows import BLANK, LeftOut, Row, cell_text
from orchestrator.importing.runs import Asked, Run, Settings, settings_of_rows
from orchestrator.importing.values import number_of
from orchestrator.ledger.facts import BY_FINAL_LOSSES, BY_WORDS

SKIP = "skip"  # a meaning of words: leave the row out
WORDS = (*OUTCOMES, "unknown", PRUNED)
_SHOWN = 8


class Judged(NamedTuple):
    """The outcome of a row, its final loss if it has one, and why."""

    outcome: str
    loss: float | None
    reason: str


@dataclass(frozen=True, slots=True)
class Rules:
    """What words mean, in small letters, and the final loss above which a run has diverged, if the user names one."""

    meanings: Mapping[str, str]
    diverged_above: float | None = None


def rules_of(maps: Sequence[str], diverged_above: float | None) -> Rules:
    """The rules that `--map OUTCOME=WORD,WORD` options and `--diverged-above` give. Raises InputError."""
    meanings: dict[str, str] = {}
    for text in maps:
        outcome, equals, words = text.partition("=")
        if not equals or outcome not in (*WORDS, SKIP):
            remedy = f"write e.g. diverged=nan,crashed; the outcomes are {', '.join(WORDS)}, and {SKIP} leaves rows out"
            raise InputError(Problem("--map", text, "is not OUTCOME=WORD,WORD", remedy))
        for word in filter(None, (word.strip().lower() for word in words.split(","))):
            if meanings.get(word, outcome) != outcome:
                raise InputError(Problem("--map", word, f"means both {meanings[word]} and {outcome}", "choose one"))
            meanings[word] = outcome
    if diverged_above is not None and not math.isfinite(diverged_above):
        raise InputError(Problem("--diverged-above", str(diverged_above), "is no finite loss", "write e.g. 7.5"))
    return Rules(meanings, diverged_above)


def judge_rows(rows: Sequence[Row], column: str, loss: str | None, rules: Rules) -> tuple[str, list[Judged | str]]:
    """What the outcomes follow from, and for each row its outcome or why it has none.

    ``column`` holds words or final losses, ``loss`` final losses beside words. Raises InputError for words whose
    meaning is not known.
    """
    texts = [cell_text(row.values.get(column)) for row in rows]
    open_texts = [text for text in texts if text not in rules.meanings and text not in WORDS and text != BLANK]
    numbers = [number for text in open_texts if (number := number_of(text)) is not None]
    # Zeros and ones alone may be flags, unless the user says that they are losses.
    is_said = loss == column or (loss is None and rules.diverged_above is not None)
    holds_losses = any(math.isfinite(number) and (is_said or number not in (0, 1)) for number in numbers)
    unclear = [text for text in open_texts if not (holds_losses and number_of(text) is not None)]
    if unclear:
        raise InputError(_unclear(rows[0].where.rpartition(":")[0], column, unclear, holds_losses=holds_losses))
    if not holds_losses and rules.diverged_above is not None and loss is None:
        remedy = "name the column of final losses with --loss, or leave --diverged-above out"
        raise InputError(Problem("--diverged-above", f"{rules.diverged_above:g}", f"{column} holds words", remedy))
    found = [
        _of_loss(column, text, rules) if holds_losses else _of_word(row, column, text, loss, rules)
        for row, text in zip(rows, texts, strict=True)
    ]
    return BY_FINAL_LOSSES if holds_losses else BY_WORDS, found


def _unclear(where: str, column: str, texts: Sequence[str], *, holds_losses: bool) -> Problem:
    counts = Counter(texts).most_common(_SHOWN)
    shown = ", ".join(f"{text} ({num} {'row' if num == 1 else 'rows'})" for text, num in counts)
    words = ",".join(text for text, _ in counts)
    also = "" if holds_losses else ", and no final losses"
    remedy = (
        f"say what they mean, e.g. --map diverged={words}, or --map {SKIP}={words} to leave such rows out; "
        f"outcomes are {', '.join(WORDS)}"
    )
    return Problem(where, column, f"holds words that are no outcomes{also}: {shown}", remedy)


def _of_loss(column: str, text: str, rules: Rules) -> Judged | str:
    outcome = rules.meanings.get(text, text if text in WORDS else None)
    if outcome == SKIP:
        return f"{column} is {text} (--map {SKIP})"
    if outcome is not None:
        return Judged(outcome, None, f"{column} is {text}")
    if text == BLANK:
        return f"{column} is empty; if that means a loss of nan, say --map diverged={BLANK}"
    return by_final_loss(column, float(text), rules.diverged_above)


def by_final_loss(column: str, loss: float, diverged_above: float | None) -> Judged:
    """The outcome by a final loss alone: diverged where it is not finite or above the threshold, else stable."""
    if not math.isfinite(loss):
        return Judged("diverged", None, f"{column} is {loss}")
    if diverged_above is not None and loss > diverged_above:
        return Judged("diverged", loss, f"{column} of {loss:g} is above {diverged_above:g}")
    return Judged("stable", loss, f"{column} is finite; spikes are not known without a curve")


def _of_word(row: Row, column: str, text: str, loss: str | None, rules: Rules) -> Judged | str:
    outcome = rules.meanings.get(text, text if text in WORDS else None)
    if outcome is None:
        return f"{column} is empty"
    if outcome == SKIP:
        return f"{column} is {text} (--map {SKIP})"
    value = None if loss is None else number_of(cell_text(row.values.get(loss)))
    finite = float(value) if value is not None and math.isfinite(value) else None
    if value is not None and finite is None and outcome in ("stable", "spiked"):
        return f"{column} is {text}, and {loss} is {value}"
    limit, ran_on = rules.diverged_above, outcome in ("stable", "spiked")
    if ran_on and finite is not None and limit is not None and finite > limit:
        return Judged("diverged", finite, f"{loss} of {finite:g} is above {limit:g}, and {column} is {text}")
    return Judged(outcome, finite, f"{column} is {text}")


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

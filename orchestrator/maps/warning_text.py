"""What the warning would have said, in words and as JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from string import ascii_lowercase
from typing import Any

from orchestrator.base.intervals import wilson
from orchestrator.base.space import format_value
from orchestrator.base.trial_result import TrialResult
from orchestrator.detection.warning.evaluation import GOOD_LEAD
from orchestrator.maps.warning import Alarm, Instability, WarnedSweep

_MOST_ROWS = 40
_WIDTH = 80
_READS = {
    "trend": "the trend of the curvature, and how much gradients cancel",
    "gradient": "the curvature along the gradient, and how much gradients cancel",
    "cheap": "sizes of gradients, moments, updates and logits; no curvature",
}


def warned_lines(found: WarnedSweep) -> Iterator[str]:
    """How many instabilities were warned of, each with its lead, and the false alarms; lines of 80 characters."""
    told = found.quality
    unread = f"; {found.num_unread} without telemetry are left out" if found.num_unread else ""
    num_onsets = told.num_onsets + told.early_onsets
    yield f"{found.name}: {found.num_runs} runs, {num_onsets} {_of(num_onsets)}{unread}"
    for model in found.models:
        by = f" ({model.num_runs} runs)" if len(found.models) > 1 else ""
        yield f"model {model.name}{by}: {_READS[model.name]}"
        yield f"  alarm where the risk of the next {found.horizon} steps is {model.threshold:.1%} or more"
    if found.with_curvature < found.num_runs:
        num_without = found.num_runs - found.with_curvature
        yield f"{num_without} runs have no curvature: telemetry: {{curvature: 25}} warns earlier"
    if told.early_onsets:
        yield f"{told.early_onsets} of them in the first {found.horizon} steps, which leaves no time to warn"
    letter_of: dict[str, str] = {}
    if told.num_onsets:
        others = f"{'the other ' if told.early_onsets else ''}{told.num_onsets}"
        yield f"warned of {told.num_warned} of {others}{_interval(told.num_warned, told.num_onsets)}"
        lead = "" if told.median_lead is None else f"; median lead {told.median_lead:.0f} steps"
        yield f"  {told.num_good} by {GOOD_LEAD} steps or more{_interval(told.num_good, told.num_onsets)}{lead}"
        head = ["trial", "seed", "alarm", "onset", "lead", "risk", "why", "cell"]
        yield from _table(head, found.instabilities, lambda one: _row(one, letter_of))
    alarms = "alarm" if told.num_false == 1 else "alarms"
    yield (
        f"{told.num_false} false {alarms} in {told.calm_steps:,} calm steps: {told.false_per_1000:.2f} per 1,000 steps"
    )
    if told.num_alarms:
        num_true = told.num_alarms - told.num_false
        yield f"  {num_true} of {told.num_alarms} alarms came true{_interval(num_true, told.num_alarms)}"
    if found.false_alarms:
        head = ["trial", "seed", "alarm", "risk", "why", "cell"]
        yield from _table(head, found.false_alarms, lambda one: _false_row(one, letter_of))
    if letter_of:
        yield "why: what raises the risk most"
        yield from (f"  {letter}  {reason}" for reason, letter in letter_of.items())


def _interval(num_hits: int, num: int) -> str:
    low, high = wilson(num_hits, num)
    return f" ({num_hits / num:.0%}, 95 % interval {low:.0%} to {high:.0%})"


def _of(number: int) -> str:
    return "instability" if number == 1 else "instabilities"


def warned_json(found: WarnedSweep) -> dict[str, Any]:
    """The same with all that is known."""
    told = found.quality
    return {
        "sweep": found.name,
        "horizon": found.horizon,
        "num_runs": found.num_runs,
        "num_with_curvature": found.with_curvature,
        "num_unread": found.num_unread,
        "models": [
            {"name": model.name, "threshold": model.threshold, "num_runs": model.num_runs} for model in found.models
        ],
        "num_early": told.early_onsets,
        "num_warned": told.num_warned,
        "num_good_lead": told.num_good,
        "median_lead": told.median_lead,
        "precision": told.precision,
        "recall": told.recall,
        "intervals": {
            "num_warned": _bounds(told.num_warned, told.num_onsets),
            "num_good_lead": _bounds(told.num_good, told.num_onsets),
            "precision": _bounds(told.num_alarms - told.num_false, told.num_alarms),
        },
        "calm_steps": told.calm_steps,
        "false_per_1000": told.false_per_1000,
        "instabilities": [
            {**_named(one.trial), "onset": one.onset, "lead": one.lead, "alarm": _alarm_json(one.alarm)}
            for one in found.instabilities
        ],
        "false_alarms": [{**_named(one.trial), "alarm": _alarm_json(one)} for one in found.false_alarms],
    }


def _bounds(num_hits: int, num: int) -> dict[str, float | None]:
    """The interval of a share; nulls where it is one of nothing."""
    low, high = wilson(num_hits, num) if num else (None, None)
    return {"low": low, "high": high}


def _named(trial: TrialResult) -> dict[str, Any]:
    return {"trial_id": trial.trial_id, "cell": dict(trial.cell), "seed": trial.seed, "outcome": trial.outcome}


def _alarm_json(alarm: Alarm | None) -> dict[str, Any] | None:
    if alarm is None:
        return None
    return {"step": alarm.step, "risk": alarm.risk, "reasons": list(alarm.reasons)}


def _cell(cell: Mapping[str, Any]) -> str:
    return ", ".join(f"{axis}={format_value(value)}" for axis, value in cell.items())


def _why(alarm: Alarm, letter_of: dict[str, str]) -> str:
    """A letter for each reason; new reasons get the next letters."""
    return ",".join(letter_of.setdefault(reason, ascii_lowercase[len(letter_of)]) for reason in alarm.reasons)


def _row(one: Instability, letter_of: dict[str, str]) -> list[str]:
    alarm, trial = one.alarm, one.trial
    told = ["-", str(one.onset), "-", "-", "-"]
    if alarm is not None:
        told = [str(alarm.step), str(one.onset), str(one.lead), f"{alarm.risk:.0%}", _why(alarm, letter_of)]
    return [trial.trial_id, str(trial.seed), *told, _cell(trial.cell)]


def _false_row(alarm: Alarm, letter_of: dict[str, str]) -> list[str]:
    trial, why = alarm.trial, _why(alarm, letter_of)
    return [trial.trial_id, str(trial.seed), str(alarm.step), f"{alarm.risk:.0%}", why, _cell(trial.cell)]


def _table(head: Sequence[str], found: Sequence[Any], row_of: Any) -> Iterator[str]:
    """Rows below their head; the last column, which may be long, goes on below itself."""
    rows = [list(head), *(row_of(one) for one in found[:_MOST_ROWS])]
    widths = [max(len(row[place]) for row in rows) for place in range(len(head) - 1)]
    for row in rows:
        start = "  " + "".join(word.ljust(width) + "  " for word, width in zip(row[:-1], widths, strict=True))
        yield from textwrap.wrap(
            row[-1],
            max(_WIDTH, len(start) + 16),
            initial_indent=start,
            subsequent_indent=" " * len(start),
            break_long_words=False,
            break_on_hyphens=False,
        ) or [start.rstrip()]
    if len(found) > _MOST_ROWS:
        yield f"  and {len(found) - _MOST_ROWS} more: --json FILE has all of them"

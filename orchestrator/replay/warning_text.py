"""What the warning would have said, in words and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from orchestrator.messages import TrialRow
from orchestrator.replay.warning import Alarm, Instability, WarnedSweep
from orchestrator.space import format_value
from orchestrator.warning.evaluation import GOOD_LEAD

_MOST_ROWS = 40


def warned_lines(found: WarnedSweep) -> Iterator[str]:
    """How many instabilities were warned of, each with its lead, and the false alarms."""
    told = found.quality
    unread = f"; {found.num_unread} without telemetry are left out" if found.num_unread else ""
    num_onsets = told.num_onsets + told.early_onsets
    yield f"{found.name}: {found.num_runs} runs, {num_onsets} {_of(num_onsets)}{unread}"
    if found.with_curvature < found.num_runs:
        yield (
            f"{found.num_runs - found.with_curvature} runs have no curvature and are judged by cheap readings: "
            "telemetry: {curvature: 25} warns earlier"
        )
    if told.early_onsets:
        yield f"{told.early_onsets} of them in the first {found.horizon} steps, which leaves no time to warn"
    if told.num_onsets:
        lead = "" if told.median_lead is None else f", median lead {told.median_lead:.0f} steps"
        others = f"{'the other ' if told.early_onsets else ''}{told.num_onsets}"
        yield f"warned of {told.num_warned} of {others}, {told.num_good} of them by {GOOD_LEAD} steps or more{lead}"
        yield from _table(["trial", "cell", "seed", "alarm", "onset", "lead", "risk", ""], found.instabilities, _row)
    alarms = "alarm" if told.num_false == 1 else "alarms"
    yield (
        f"{told.num_false} false {alarms} in {told.calm_steps:,} calm steps: {told.false_per_1000:.2f} per 1,000 steps"
    )
    if found.false_alarms:
        yield from _table(["trial", "cell", "seed", "alarm", "risk", ""], found.false_alarms, _false_row)


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
        "num_early": told.early_onsets,
        "num_warned": told.num_warned,
        "num_good_lead": told.num_good,
        "median_lead": told.median_lead,
        "precision": told.precision,
        "recall": told.recall,
        "calm_steps": told.calm_steps,
        "false_per_1000": told.false_per_1000,
        "instabilities": [
            {**_named(one.trial), "onset": one.onset, "lead": one.lead, "alarm": _alarm_json(one.alarm)}
            for one in found.instabilities
        ],
        "false_alarms": [{**_named(one.trial), "alarm": _alarm_json(one)} for one in found.false_alarms],
    }


def _named(trial: TrialRow) -> dict[str, Any]:
    return {"trial_id": trial.trial_id, "cell": dict(trial.cell), "seed": trial.seed, "outcome": trial.outcome}


def _alarm_json(alarm: Alarm | None) -> dict[str, Any] | None:
    if alarm is None:
        return None
    return {"step": alarm.step, "risk": alarm.risk, "reasons": list(alarm.reasons)}


def _cell(cell: Mapping[str, Any]) -> str:
    return ",".join(f"{axis}={format_value(value)}" for axis, value in cell.items())


def _row(one: Instability) -> list[str]:
    alarm, trial = one.alarm, one.trial
    told = ["-", str(one.onset), "-", "-", ""]
    if alarm is not None:
        told = [str(alarm.step), str(one.onset), str(one.lead), f"{alarm.risk:.0%}", ", ".join(alarm.reasons)]
    return [trial.trial_id, _cell(trial.cell), str(trial.seed), *told]


def _false_row(alarm: Alarm) -> list[str]:
    trial, why = alarm.trial, ", ".join(alarm.reasons)
    return [trial.trial_id, _cell(trial.cell), str(trial.seed), str(alarm.step), f"{alarm.risk:.0%}", why]


def _table(head: Sequence[str], found: Sequence[Any], row_of: Any) -> Iterator[str]:
    rows = [list(head), *(row_of(one) for one in found[:_MOST_ROWS])]
    widths = [max(len(row[place]) for row in rows) for place in range(len(head))]
    for row in rows:
        yield "  " + "  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip()
    if len(found) > _MOST_ROWS:
        yield f"  and {len(found) - _MOST_ROWS} more: --json FILE has all of them"

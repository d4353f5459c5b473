"""When telemetry would have warned of each instability of a sweep, and the false alarms."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from string import ascii_lowercase
from typing import TYPE_CHECKING, ClassVar

from orchestrator.base.query import Query, Say, flat, reported, silent
from orchestrator.base.space import format_value
from orchestrator.base.words import count
from orchestrator.render.answer import Answer
from orchestrator.render.blocks import Block, Line, Table

if TYPE_CHECKING:
    from orchestrator.base.trial_result import TrialResult
    from orchestrator.maps.table import SweepTable
    from orchestrator.maps.warning import Alarm, WarnedSweep

_MOST_ROWS = 40
_READS = {
    "trend": "the trend of the curvature, and how much gradients cancel",
    "gradient": "the curvature along the gradient, and how much gradients cancel",
    "cheap": "sizes of gradients, moments, updates and logits; no curvature",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WarnQuery(Query["SweepTable"]):
    """Show whether telemetry would have warned of each instability, by how many steps, and the false alarms.

    For example `sweep warn fit --json warned.json`. A sweep with telemetry.curvature is warned earlier.
    """

    panel: ClassVar[str] = "explain"

    def ask(self, subject: SweepTable, say: Say = silent) -> WarnAnswer:
        """Return the alarms that the package's risk raises on the sweep."""
        from orchestrator.maps.warning import warn

        return WarnAnswer(warn(subject.ledger))


@dataclass(frozen=True, slots=True)
class WarnAnswer(Answer):
    """What the warning would have said about each trial with readings."""

    result: WarnedSweep = flat()

    @reported
    def intervals(self) -> dict[str, dict[str, float | None]]:
        """The 95 % intervals of the shares; nulls for a share of nothing."""
        quality = self.result.quality
        return {
            "num_warned": _ends(quality.num_warned, quality.num_onsets),
            "num_good": _ends(quality.num_good, quality.num_onsets),
            "precision": _ends(quality.num_alarms - quality.num_false, quality.num_alarms),
        }

    def blocks(self) -> Iterator[Block]:
        """Yield how many instabilities were warned, each with its lead, and the false alarms."""
        from orchestrator.detection.warning.alarms import GOOD_LEAD

        result, quality = self.result, self.result.quality
        num_onsets = quality.num_onsets + quality.early_onsets
        unread = f"; {result.num_unread} left out, without telemetry" if result.num_unread else ""
        instabilities = "instability" if num_onsets == 1 else "instabilities"
        yield Line(f"{result.sweep}: {count(result.num_runs, 'run')}, {num_onsets} {instabilities}{unread}")
        for model in result.models:
            runs = f" ({count(model.num_runs, 'run')})" if len(result.models) > 1 else ""
            yield Line(f"model {model.name}{runs}: {_READS[model.name]}")
            yield Line(f"alarm if the risk of the next {result.horizon} steps is {model.threshold:.1%} or more", 1)
        if (num_without := result.num_runs - result.num_with_curvature) > 0:
            yield Line(
                f"{count(num_without, 'run has', 'runs have')} no curvature: telemetry: {{curvature: 25}} warns earlier"
            )
        if quality.early_onsets:
            yield Line(f"{quality.early_onsets} within the first {result.horizon} steps, which leaves no time to warn")
        letters: dict[str, str] = {}
        if quality.num_onsets:
            others = f"{'the other ' if quality.early_onsets else ''}{quality.num_onsets}"
            yield Line(f"warned of {quality.num_warned} of {others}{_share(quality.num_warned, quality.num_onsets)}")
            lead = "" if quality.median_lead is None else f"; median lead {quality.median_lead:.0f} steps"
            share = _share(quality.num_good, quality.num_onsets)
            yield Line(f"{quality.num_good} by {GOOD_LEAD} steps or more{share}{lead}", 1)
            yield from self._instabilities(letters)
        alarms = "alarm" if quality.num_false == 1 else "alarms"
        yield Line(
            f"{quality.num_false} false {alarms} in {quality.calm_steps:,} calm steps: {quality.false_per_1000:.2f} "
            "per 1,000 steps"
        )
        if quality.num_alarms:
            num_true = quality.num_alarms - quality.num_false
            yield Line(f"{num_true} of {quality.num_alarms} alarms came true{_share(num_true, quality.num_alarms)}", 1)
        yield from self._false_alarms(letters)
        if letters:
            yield Line("why: what raises the risk most")
            for reason, letter in letters.items():
                yield Line(f"{letter}  {reason}", 1)

    def _instabilities(self, letters: dict[str, str]) -> Iterator[Block]:
        rows = []
        for one in self.result.instabilities[:_MOST_ROWS]:
            alarm, trial = one.alarm, one.trial
            shown = ("-", str(one.onset), "-", "-", "-")
            if alarm is not None:
                shown = (str(alarm.step), str(one.onset), str(one.lead), f"{alarm.risk:.0%}", _why(alarm, letters))
            rows.append((trial.trial_id, str(trial.seed), *shown, _cell(trial)))
        yield Table(("trial", "seed", "alarm", "onset", "lead", "risk", "why", "cell"), tuple(rows), indent=1)
        yield from _more(len(self.result.instabilities))

    def _false_alarms(self, letters: dict[str, str]) -> Iterator[Block]:
        if not self.result.false_alarms:
            return
        rows = tuple(
            (
                alarm.trial.trial_id, str(alarm.trial.seed), str(alarm.step), f"{alarm.risk:.0%}", _why(alarm, letters),
                _cell(alarm.trial),
            )
            for alarm in self.result.false_alarms[:_MOST_ROWS]
        )  # fmt: skip
        yield Table(("trial", "seed", "alarm", "risk", "why", "cell"), rows, indent=1)
        yield from _more(len(self.result.false_alarms))


def _more(num: int) -> Iterator[Line]:
    if num > _MOST_ROWS:
        yield Line(f"and {num - _MOST_ROWS} more: --json FILE has them all", 1)


def _ends(num_hits: int, num: int) -> dict[str, float | None]:
    from orchestrator.base.intervals import wilson

    low, high = wilson(num_hits, num) if num else (None, None)
    return {"low": low, "high": high}


def _share(num_hits: int, num: int) -> str:
    from orchestrator.base.intervals import wilson

    low, high = wilson(num_hits, num)
    return f" ({num_hits / num:.0%}, 95 % interval {low:.0%} to {high:.0%})"


def _cell(trial: TrialResult) -> str:
    return ", ".join(f"{axis}={format_value(value)}" for axis, value in trial.cell.items())


def _why(alarm: Alarm, letters: dict[str, str]) -> str:
    """A letter for each reason; new reasons get the next letters."""
    return ",".join(letters.setdefault(reason, ascii_lowercase[len(letters)]) for reason in alarm.reasons)

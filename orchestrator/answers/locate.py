"""Where one run lies on a sweep's map."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.answers._margins import factor_text, margin_text
from orchestrator.answers._options import (
    degraded_option,
    format_option,
    grad_norm_option,
    loss_option,
    pattern_option,
    step_option,
)
from orchestrator.base.errors import InputError, Problem
from orchestrator.base.query import Query, Say, flat, hidden, option, reported, silent
from orchestrator.base.space import format_value
from orchestrator.render.answer import Answer
from orchestrator.render.blocks import Block, Caution, Line

if TYPE_CHECKING:
    from orchestrator.maps.edges import Escape
    from orchestrator.maps.located import Located, NearCell, Outside
    from orchestrator.maps.replay import Replayed
    from orchestrator.maps.table import SweepTable

_SHOWN = 8  # cautions
_PREDICTED = {
    "stable": "stable",
    "not stable": "not stable",
    "at the edge": "either, at the edge",
    "not known": "nothing, since its surroundings are not known",
    "outside": "nothing, outside its axes",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LocateQuery(Query["SweepTable"]):
    """Show where one run lies on a sweep's map: inside stable territory or not, and the factor to every edge.

    For example `sweep locate fit --at lr=3e-3 --at beta2=0.95`, or `sweep locate fit --config mine.yaml --log
    train.log`. It also lists the settings that differ from the sweep, and the nearest cells.
    """

    config: Path | None = option(None, "the run's settings: a YAML file with a line for each", metavar="FILE")
    at: tuple[str, ...] = option((), "a setting of the run: lr=3e-3; repeatable", metavar="NAME=VALUE")
    log: Path | None = option(None, "the run's log, to be judged as by replay", metavar="FILE")
    step: str | None = step_option()
    loss: str | None = loss_option()
    grad_norm: str | None = grad_norm_option()
    pattern: str | None = pattern_option()
    format: str = format_option()
    degraded: bool = degraded_option()

    def ask(self, subject: SweepTable, say: Say = silent) -> LocateAnswer:
        """Return the place of the run on the map, and what the detector says of its log."""
        from orchestrator.maps.edges import StableRule
        from orchestrator.maps.located import locate
        from orchestrator.sweepfile.settings import run_settings

        run = run_settings(self.config, self.at)
        judged = None if self.log is None else self._judged(self.log)
        return LocateAnswer(locate(subject, run, StableRule(self.degraded)), judged, subject.ledger.path.parent)

    def _judged(self, log: Path) -> Replayed:
        from orchestrator.answers._options import log_metrics
        from orchestrator.detection.config import StoppingConfig
        from orchestrator.logs.columns import Columns
        from orchestrator.logs.files import read_log
        from orchestrator.maps.replay import replay_logs

        if not log.is_file():
            remedy = "give the log of one run; `sweep replay` judges more"
            raise InputError(Problem(f"--log {log}", "", "no such file", remedy))
        columns = Columns(self.step, self.loss, self.grad_norm)
        metrics = log_metrics(self.pattern, self.format, self.loss)
        return replay_logs([read_log(log, columns, metrics)], StoppingConfig())[0]


@dataclass(frozen=True, slots=True)
class LocateAnswer(Answer):
    """A run on a sweep's map, with the verdict on its log if there is one."""

    result: Located = flat()
    judged: Replayed | None = hidden()
    folder: Path = hidden()

    @reported
    def log(self) -> Any:
        """The verdict on the log."""
        return None if self.judged is None else self.judged.summary()

    def blocks(self) -> Iterator[Block]:
        """Yield on which side of the edge it lies, how far the edges are, and what limits the answer."""
        result = self.result
        yield Line(f"{result.sweep}: {_setting(result.place.setting)}")
        yield from self._side()
        for margin in result.margins:
            yield Line(margin_text(margin, result.axes, result.is_fitted), 1)
        if any(margin.is_open for margin in result.margins):
            yield Line("open: nothing is known beyond what was tried", 1)
        for escape in result.escapes:
            yield Line(self._escape(escape), 1)
        if result.side not in ("stable", "outside") and not result.margins and not result.escapes:
            yield Line("changing one axis alone does not reach a stable cell", 1)
        for note in result.notes:
            yield Caution(f"{note}; the run's value is taken for it", "note")
        for caution in result.cautions[:_SHOWN]:
            text = f"{caution.place}: {caution.name} = {format_value(caution.run)}"
            if caution.is_known:
                yield Caution(f"{text}, where the sweep has {format_value(caution.sweep)}")
            else:
                remedy = f"; {caution.remedy}" if caution.remedy else ""
                yield Caution(f"{text} is not a setting of the sweep{remedy}")
        if len(result.cautions) > _SHOWN:
            yield Caution(f"... and {len(result.cautions) - _SHOWN} more, which --json lists")
        if result.not_given:
            num = len(result.not_given)
            yield Line(f"{num} other setting{'s' * (num > 1)} of the sweep not given, taken to be equal (see --json)")
        yield Line("nearest cells:")
        for cell in result.nearest:
            yield Line(f"{_setting(cell.setting)}: {_seeds(cell)}", 1)
        command = f"sweep diagnose {shlex.quote(str(self.folder))} --trial {result.nearest[0].trials[0]}"
        yield Line(f"curves of the first: `{command}`, or in {self.folder / 'report.html'}")
        if self.judged is not None:
            yield from self._log(self.judged)

    def _side(self) -> Iterator[Line]:
        result = self.result
        if result.side == "outside":
            for outside in result.outside:
                yield Line(_outside(outside))
            yield Line("nothing is extrapolated: how far the edge is from there is not known", 1)
            return
        if result.p_stable is not None:
            at, low, high = result.p_stable.at, result.p_stable.low, result.p_stable.high
            words = {
                "stable": "inside stable territory",
                "not stable": "outside stable territory",
                "at the edge": "at the edge: the interval reaches from one side to the other",
            }
            yield Line(f"{words[result.side]}: P(stable) is {at:.2g} ({low:.2g} .. {high:.2g}) by a fitted surface")
            return
        num, degraded = result.num_cells_around, result.num_degraded_around
        cells = "its cell is" if num == 1 else f"the {num} cells around it are"
        where = "stable, but cut off from the stable region" if result.is_island else "inside stable territory"
        stable = f"{where}: {cells} stable on all seeds"
        if degraded:
            around = "its cell" if num == 1 else f"{degraded} of the {num} cells around it"
            stable = f"inside the edge, with {around} degraded"
        none = f"{cells} not stable" if num == 1 else f"none of the {num} cells around it is stable"
        words = {
            "stable": stable,
            "not stable": f"outside stable territory: {none}",
            "at the edge": f"at the edge: of the {num} cells around it some are stable and some are not",
            "not known": "not known: a cell around it has no outcome on all seeds",
        }
        yield Line(words[result.side])

    def _escape(self, escape: Escape) -> str:
        from orchestrator.maps.surface_map import value_text

        (axis,) = (axis for axis in self.result.axes if axis.name == escape.axis)
        at = value_text(axis, escape.stable_from)
        direction = f"{escape.axis} {'up' if escape.is_upwards else 'down'}"
        return f"{direction}: stable from {at}{factor_text(escape.factor)}"

    def _log(self, judged: Replayed) -> Iterator[Block]:
        verdict, loss = judged.result, judged.record.recent_loss
        onset = "" if verdict.onset_step is None else f" from step {verdict.onset_step:,}"
        last = "" if loss is None else f"; final loss {loss:.4g}"
        yield Line(f"{judged.log.name}: {verdict.outcome}{onset}: {verdict.reason}{last}")
        yield Line(f"the map predicts {_PREDICTED[self.result.side]}{self._agreement(judged)}", 1)
        for note in judged.log.notes:
            yield Line(f"note: {note}", 1)

    def _agreement(self, judged: Replayed) -> str:
        side, outcome = self.result.side, judged.result.outcome
        if side not in ("stable", "not stable") or outcome == "unknown":
            return ""
        if (outcome == "stable") == (side == "stable"):
            return ": so it is"
        return ": it is not so" + (", and the cautions above may be why" if self.result.cautions else "")


def _outside(outside: Outside) -> str:
    return f"outside the axes: {outside.axis} = {format_value(outside.value)}, where the sweep has {outside.has}"


def _setting(setting: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={format_value(value)}" for name, value in setting.items())


def _seeds(cell: NearCell) -> str:
    num_seeds = sum(cell.outcomes.values())
    value = f"final loss {'none' if cell.median_final_loss is None else f'{cell.median_final_loss:.4g}'}"
    if cell.median_score is not None:
        value = f"score {cell.median_score:.4g}"
    return f"{cell.state}, {cell.outcomes.get('stable', 0)} of {num_seeds} seeds stable, median {value}"

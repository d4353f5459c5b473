"""The setting with the best loss or score that is stable on every seed and far enough from the edge."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from orchestrator.answers._margins import margin_text
from orchestrator.answers._options import degraded_option, direction_option, metric_option
from orchestrator.base.query import Query, Say, flat, hidden, option, silent
from orchestrator.base.space import format_value
from orchestrator.base.words import count
from orchestrator.render.answer import Answer
from orchestrator.render.blocks import Block, Heading, Line

if TYPE_CHECKING:
    from orchestrator.maps.recommendation import Candidate, Recommendation
    from orchestrator.maps.table import SweepTable

_SHOWN = 3  # candidates that are listed though an edge is too near


@dataclass(frozen=True, slots=True, kw_only=True)
class RecommendQuery(Query["SweepTable"]):
    """Recommend the setting with the best loss or score that is stable on all seeds and far enough from the edge.

    For example `sweep recommend lr_warmup --margin 3`.
    """

    section: ClassVar[str] = "Recommended setting"

    margin: float = option(2.0, "how far from every edge, as a factor of each axis")
    metric: str | None = metric_option(
        None,
        "final_loss, validation_loss, best_loss, the score of the sweep or what a trainer printed; by default the "
        "score, else validation_loss if all trials have one, else final_loss",
    )
    degraded: bool = degraded_option()
    maximize: bool | None = direction_option("--metric")
    paste: bool = option(False, "end with the whole setting, a line for each value, to paste into a configuration")

    def ask(self, subject: SweepTable, say: Say = silent) -> RecommendAnswer:
        """Return the recommended setting, or the reason why there is none."""
        from orchestrator.ledger.facts import IMPORTED_FACT
        from orchestrator.maps.edges import StableRule
        from orchestrator.maps.recommendation import recommend

        found = recommend(subject, self.margin, self.metric, StableRule(self.degraded), self.maximize)
        return RecommendAnswer(
            subject.name, found, _config(subject, found), IMPORTED_FACT in subject.facts, can_paste=self.paste
        )


@dataclass(frozen=True, slots=True)
class RecommendAnswer(Answer):
    """The recommended setting, and what it was chosen from."""

    sweep: str
    result: Recommendation = flat()
    config: Mapping[str, Any] | None = None
    is_imported: bool = hidden(default=False)
    can_paste: bool = hidden(default=False)

    def blocks(self) -> Iterator[Block]:
        """Yield the setting and its margins, then what was better but nearer to an edge."""
        if self.result.chosen is None:
            yield from self._none()
            yield from self._islands()
            return
        chosen = self.result.chosen
        seeds = f"{chosen.num_seeds} of {chosen.num_seeds} seeds stable"
        yield Line(f"{chosen.name}: median {self._loss_name} {chosen.loss:.4g}{self.result.measure.note}, {seeds}")
        for margin in chosen.margins:
            yield Line(margin_text(margin, self.result.axes, self.result.is_fitted), 1)
        for name in self.result.without_order:
            yield Line(f"{name}: its values have no order, so it has no margin", 1)
        if any(margin.is_open for margin in chosen.margins):
            yield Line("open directions pass, but nothing is known beyond them: add values to the axis to find out", 1)
        nearer = self.result.candidates[: self.result.candidates.index(chosen)]
        better = f"{self.result.measure.better} {self.result.measure.kind}"
        heading = f"{better}, but with an edge or an unknown cell within a factor {self.result.margin:g}:"
        yield from self._listed(heading, nearer)
        yield from self._untried()
        if self.result.is_fitted:
            num = self.result.stability.num_trials
            yield Line(f"margins by a surface fitted to {count(num, 'trial')}; surely: within its 95 % interval")
        yield from self._islands()
        yield Line(
            f"chosen from {count(len(self.result.candidates), 'cell')} of {self.result.num_cells} that are stable on "
            f"all seeds{', without islands' if self.result.islands else ''}"
        )
        if self.can_paste and self.config:
            yield Heading("to paste:")
            yield from (Line(f"{name}: {_yaml(value)}", 1) for name, value in self.config.items())

    @property
    def _loss_name(self) -> str:
        return self.result.measure.words

    def _none(self) -> Iterator[Block]:
        if not self.result.candidates:
            yield Line(f"none: no cell of {self.result.num_cells} is stable on all the seeds that were asked for")
            return
        num = len(self.result.candidates)
        whose = f"each of the {num} cells that are" if num > 1 else "the one cell that is"
        within = f"within a factor {self.result.margin:g}"
        widest = max(self.result.candidates, key=lambda each: (each.margin, -self.result.measure.cost(each.loss)))
        yield Line(f"none: {whose} stable on all seeds has an edge or an unknown cell {within}")
        yield Line("the farthest:")
        yield self._candidate(widest)
        for margin in widest.margins:
            yield Line(margin_text(margin, self.result.axes, self.result.is_fitted), 2)
        yield Line(f"--margin {widest.margin:.3g} would take it; a finer grid may show more room")
        yield from self._untried()

    def _untried(self) -> Iterator[Block]:
        """Yield what the grid is too coarse for, and the command that adds the values."""
        found = self.result.untried
        if found is None:
            return
        chosen = self.result.chosen
        gain = "" if chosen is None else f", {abs(chosen.loss - found.loss):.3g} better"
        ends = {axis: " and ".join(map(format_value, pair)) for axis, pair in found.between.items()}
        where = " and ".join(f"between {axis}={pair}" for axis, pair in ends.items())
        what = f"median {self._loss_name} {found.loss:.4g}{gain}"
        yield Line(f"the grid is too coarse to judge {found.name} ({what}): nothing was tried {where}")
        added = " ".join(f"{axis}={format_value(value)}" for axis, value in found.values.items())
        if self.is_imported:
            yield Line(f"train {added} too", 1)
            return
        options = " ".join(self._axis_option(axis, value) for axis, value in found.values.items())
        yield Line(f"`sweep run {self.sweep} {options}` adds {added}", 1)

    def _axis_option(self, name: str, added: float) -> str:
        """The option that adds a value to an axis; the others are written in full, so that their trials are kept."""
        from orchestrator.maps.axes import ordered

        (axis,) = (axis for axis in self.result.axes if axis.name == name)
        values = ",".join("none" if value is None else repr(value) for value in ordered([*axis.values, added]))
        return f"--axis {name}=values:{values}"

    def _islands(self) -> Iterator[Line]:
        heading = "islands, which do not count: stable, but cut off from the stable region:"
        yield from self._listed(heading, self.result.islands)

    def _listed(self, heading: str, listed: Sequence[Candidate]) -> Iterator[Line]:
        if listed:
            yield Line(heading)
            yield from map(self._candidate, listed[:_SHOWN])
        if len(listed) > _SHOWN:
            yield Line(f"... and {len(listed) - _SHOWN} more", 1)

    def _candidate(self, candidate: Candidate) -> Line:
        return Line(
            f"{candidate.name}: median {self._loss_name} {candidate.loss:.4g}, margin {candidate.margin:.3g}", 1
        )


def _config(table: SweepTable, found: Recommendation) -> Mapping[str, Any] | None:
    """Return the recommended setting with what else acts in its trials; None without one."""
    if found.chosen is None:
        return None
    first = table.by_cell()[found.chosen.setting][0]
    return {**first.config, **found.chosen.setting}


def _yaml(value: Any) -> str:
    """Return a value as YAML has it."""
    from orchestrator.render.answer import to_plain

    return json.dumps(to_plain(value))

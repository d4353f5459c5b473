"""The settings that no other beats in both loss and margin to the edge, or loss and steps."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.answers._options import along_option, degraded_option, direction_option, metric_option
from orchestrator.base.query import Query, Say, flat, option, silent
from orchestrator.base.words import count, listed
from orchestrator.render.answer import Answer
from orchestrator.render.blocks import Block, Figure, Line, picture_of

if TYPE_CHECKING:
    import pandas as pd

    from orchestrator.maps.front import Front, FrontCell
    from orchestrator.maps.table import SweepTable

_SHOWN = 5  # beaten settings that are listed
_MOST_STEPS = 12  # of the front that are listed; of more, as many that lie evenly in their order
_MARGIN = "margin"


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontQuery(Query["SweepTable"]):
    """Show the settings that no other beats in both a good loss or score and a wide margin, or few steps.

    Only cells that are stable on all seeds count. For example `sweep front fit`, or `sweep front fit --against steps
    --output front.png`.
    """

    metric: str | None = metric_option(
        None,
        "final_loss, validation_loss, best_loss, the score of the sweep or what a trainer printed; by default the "
        "score, else validation_loss if all trials have one, else final_loss",
    )
    against: str = option(
        _MARGIN,
        "margin (high), steps to a target loss (low), or a metric of maps (low, but for a score) or of a trainer",
        metavar="margin|steps|METRIC",
    )
    along: str | None = along_option("margins along this axis alone; by default along all")
    target: float | None = option(
        None, "training loss for --against steps; by default one that all settings reach", metavar="LOSS"
    )
    degraded: bool = degraded_option()
    maximize: bool | None = direction_option("--against, or of --metric,")

    def ask(self, subject: SweepTable, say: Say = silent) -> FrontAnswer:
        """Return the front, and what it beats."""
        from orchestrator.maps.edges import StableRule
        from orchestrator.maps.front import front

        rule = StableRule(self.degraded)
        return FrontAnswer(front(subject, self.metric, self.against, self.along, self.target, rule, self.maximize))


@dataclass(frozen=True, slots=True)
class FrontAnswer(Answer):
    """The front of a sweep in two numbers."""

    result: Front = flat()

    def frame(self) -> pd.DataFrame:
        """Return a row for each cell in the order of the sweep."""
        from orchestrator.maps.front import front_table

        return front_table(self.result)

    def blocks(self) -> Iterator[Block]:
        """Yield the settings, the best loss or score first, what each step costs and gives, and what they beat."""
        result, members, beaten = self.result, self.result.members, self.result.beaten_cells
        islands = [cell.name for cell in result.cells if cell.kind == "island"]
        left = Counter(cell.state for cell in result.cells if cell.kind == "no candidate")
        left += Counter({"cut off": len(islands)})
        others = ", ".join(f"{count} {state}" for state, count in left.most_common())
        if not members:
            what = f"no cell of {len(result.cells)} can be compared, which needs all seeds stable ({others})"
            yield Line(f"none: {what}")
            return
        num = len(members) + len(beaten)
        aim = "high" if result.measure.maximize else "low"
        which = "this one" if len(members) == 1 else f"these {len(members)}"
        yield Line(f"{result.sweep}: {aim} {result.measure.words} against {self._aim()}")
        yield Line(f"no setting beats {which} in both, among {num} that are stable on all seeds:")
        shown = _evenly(members, _MOST_STEPS)
        yield Line(f"{self._numbers(members[0])}: the {result.measure.best} {result.measure.kind}", 1)
        for before, here in itertools.pairwise(shown):
            yield Line(f"{self._numbers(here)}: {self._step(before, here)}", 1)
        if len(members) > len(shown):
            yield Line(f"{len(members) - len(shown)} between these are left out: --output front.csv has all", 1)
        if len({cell.numbers[1] for cell in (*members, *beaten)}) == 1 and num > 1:
            yield Line(f"all {num} have the same {_words(result.against)}, so there is nothing to weigh")
        if beaten:
            yield Line(f"beaten by one of these: {len(beaten)}")
            for cell in beaten[:_SHOWN]:
                assert cell.beaten_by is not None
                yield Line(f"{self._numbers(cell)}: by {cell.beaten_by.name}", 1)
            if len(beaten) > _SHOWN:
                yield Line(f"... and {len(beaten) - _SHOWN} more", 1)
        if any(result.against == _MARGIN and math.isinf(cell.numbers[1]) for cell in members):
            yield Line("open: every direction is stable to the end of what was tried; more values would show how far")
        if result.stability is not None and result.stability.is_fitted:
            num_trials = result.stability.num_trials
            yield Line(
                f"margins by a surface fitted to {count(num_trials, 'trial')}, as far as its 95 % interval is stable"
            )
        if islands:
            heading = "islands, which do not count: stable, but cut off from the stable region"
            yield Line(f"{heading}: {listed(islands, _SHOWN)}")
        if others:
            yield Line(f"no candidates: {left.total()} of {count(len(result.cells), 'cell')} ({others})")
        yield Figure(picture_of("front:front_picture", self.result), "the front among all cells")

    def _aim(self) -> str:
        result = self.result
        if result.against == _MARGIN:
            return f"a wide margin to the edge{'' if result.along is None else f' along {result.along}'}"
        if result.target is not None:
            return f"few steps to a training loss of {result.target:.4g}"
        return f"{'high' if result.is_high else 'low'} {_words(result.against)}"

    def _numbers(self, cell: FrontCell) -> str:
        loss, other = cell.numbers
        against = f"{_words(self.result.against)} {other:.6g}"
        if self.result.against == _MARGIN:
            against = "margin open" if math.isinf(other) else f"margin {other:.3g} ({cell.limit})"
        return f"{cell.name}: {_words(self.result.metric)} {loss:.4g}, {against}"

    def _step(self, before: FrontCell, here: FrontCell) -> str:
        """What ``here`` costs in loss and gives, compared with the member of the front before it."""
        (loss_before, other_before), (loss, other) = before.numbers, here.numbers
        if loss == loss_before:
            return "as good as the one before"
        measure = self.result.measure
        cost = measure.cost(loss) - measure.cost(loss_before)
        share = f" ({100 * cost / loss_before:.3g} %)" if loss_before > 0 else ""
        costs = f"costs {cost:.3g}{share} of {measure.kind}"
        if self.result.against != _MARGIN:
            change = other - other_before
            return f"{costs} for {abs(change):.4g} {'more' if change > 0 else 'less'} {_words(self.result.against)}"
        if math.isinf(other):
            return f"{costs} for an open margin"
        return f"{costs} for a margin {other / other_before:.3g} times as wide"


def _evenly(members: Sequence[FrontCell], most: int) -> list[FrontCell]:
    """The members, or ``most`` with the first and the last."""
    last = len(members) - 1
    return [members[round(i * last / (most - 1))] for i in range(most)] if last >= most else list(members)


def _words(name: str) -> str:
    return name.replace("_", " ")

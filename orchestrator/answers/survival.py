"""How long runs stay stable, and which cells would fail in longer runs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from orchestrator.answers._options import by_option
from orchestrator.base.query import Query, Say, flat, option, silent
from orchestrator.base.space import format_value
from orchestrator.render.answer import Answer
from orchestrator.render.blocks import Block, Caution, Line, Table

if TYPE_CHECKING:
    from orchestrator.maps.survival import Group, Share, Survival
    from orchestrator.maps.table import SweepTable

_MOST_ROWS = 40
_FAILS = 0.5  # a cell with a lower predicted P(stable) is named as one that would fail


@dataclass(frozen=True, slots=True, kw_only=True)
class SurvivalQuery(Query["SweepTable"]):
    """Show how long runs stay stable, what "stable so far" leaves open, and which cells would fail in longer runs.

    For example `sweep survival fit --until 3000`, or pooled by the values of an axis `sweep survival fit --by lr`.
    """

    panel: ClassVar[str] = "explain"

    by: str | None = by_option("pool the cells of each value of this axis")
    until: int | None = option(
        None,
        "predict to this step; ten times the longest run by default",
        metavar="STEP",
        minimum=1,
        maximum=10**12,
    )

    def ask(self, subject: SweepTable, say: Say = silent) -> SurvivalAnswer:
        """Return the shares of stable runs over steps, and the prediction."""
        from orchestrator.maps.survival import survival

        return SurvivalAnswer(survival(subject, self.by, self.until))


@dataclass(frozen=True, slots=True)
class SurvivalAnswer(Answer):
    """Survival of the cells of a sweep."""

    result: Survival = flat()

    def blocks(self) -> Iterator[Block]:
        """Yield the shares as a table, what its rows leave open, and the fit with its doubts."""
        result = self.result
        left_out = f"; {result.num_left_out} left out, whose outcome says nothing" if result.num_left_out else ""
        yield Line(
            f"{result.sweep}: {result.num_runs} runs of up to {result.longest} steps, {result.num_onsets} with an "
            f"onset{left_out}"
        )
        yield Line("P(stable to a step) with 95 % intervals (Kaplan-Meier); the last column is the fit's prediction:")
        yield self._table()
        if len(result.groups) > _MOST_ROWS:
            more = len(result.groups) - _MOST_ROWS
            yield Line(f"and {more} more: --by AXIS pools cells, --json FILE has them all", 1)
        yield from self._open()
        if result.shape is not None:
            yield from self._fit()
        for doubt in result.doubts:
            yield Caution(doubt, "no prediction" if result.shape is None else "do not trust the prediction")
        if result.shape is not None:
            yield from self._failing()

    def _table(self) -> Table:
        rows = []
        for group in self.result.groups[:_MOST_ROWS]:
            predicted = "-" if group.predicted is None else f"{group.predicted.share:.2f}"
            rows.append((_name(group), *map(_share, group.at_steps), predicted))
        head = ("", *(f"to {step}" for step in self.result.steps), f"to {self.result.until}")
        return Table(head, tuple(rows), indent=1)

    def _open(self) -> Iterator[Line]:
        """What groups without an onset leave open; they differ in how many runs they have and how long those are."""
        kinds: dict[tuple[int, int], list[float]] = {}
        for group in self.result.groups:
            if group.hazard_bound_per_step is not None:
                kinds.setdefault((group.num_runs, group.watched), []).append(group.hazard_bound_per_step)
        for (num, watched), bounds in kinds.items():
            bound, until = max(bounds), self.result.until
            runs = "1 run" if num == 1 else f"{num} runs"
            rows = "1 row has" if len(bounds) == 1 else f"{len(bounds)} rows have"
            yield Line(
                f"{rows} no onset in {runs} to step {watched}. Up to {1000 * bound:.3g} onsets in 1000 steps do not "
                f"contradict that (95 %, if as likely at every step): P(stable to {watched}) may be as low as "
                f"{math.exp(-bound * watched):.2g}, P(stable to {until}) as low as {math.exp(-bound * until):.2g}"
            )

    def _fit(self) -> Iterator[Line]:
        result = self.result
        at_start = result.num_failed_at_start
        without = f"; {at_start} left out, which failed at the start" if at_start else ""
        yield Line(f"Weibull regression of the time to an onset, shape {result.shape:.2g}{without}:")
        for effect in result.effects:
            interval = f"95 % {effect.low:.2g} to {effect.high:.2g}"
            yield Line(f"{effect.change}: the time is multiplied by {effect.factor:.2g} ({interval})", 1)
        if (test := result.backtest) is not None:
            yield Line(
                f"tried on this sweep: its first {test.seen} steps predict which of {test.num} runs, stable so far, "
                f"last to step {test.until} with a Brier score of {test.fit:.3f} ({test.stays:.3f} for `what is stable "
                f"stays so`, {test.base_rate:.3f} for the share that lasts; lower is better)"
            )

    def _failing(self) -> Iterator[Line]:
        """The groups that are stable so far and would fail by the step asked for."""
        result = self.result
        stable = [group for group in result.groups if group.num_onsets == 0 and group.predicted is not None]
        failing = [group for group in stable if group.predicted is not None and group.predicted.share < _FAILS]
        kind = "cells" if result.by is None else f"values of {result.by}"
        colon = ":" if failing else ""
        yield Line(
            f"of {len(stable)} {kind} without an onset, {len(failing)} are predicted to fail by step "
            f"{result.until}{colon}"
        )
        for group in failing[:_MOST_ROWS]:
            assert group.predicted is not None
            yield Line(f"{_name(group)}: P(stable) {_share(group.predicted)}", 1)


def _name(group: Group) -> str:
    return " ".join(f"{key}={format_value(value)}" for key, value in group.setting.items()) or "all"


def _share(share: Share | None) -> str:
    return "-" if share is None else f"{share.share:.2f} ({share.low:.2f}-{share.high:.2f})"

"""How long runs stay stable, and which cells would fail in longer runs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from orchestrator.answers._options import by_option, where_option
from orchestrator.base.query import Query, Say, flat, option, silent
from orchestrator.base.space import format_value
from orchestrator.base.words import count
from orchestrator.render.answer import Answer
from orchestrator.render.blocks import Block, Caution, Line, Table

if TYPE_CHECKING:
    from orchestrator.maps.edges import Interval
    from orchestrator.maps.prediction import Exponent
    from orchestrator.maps.survival import Group, RowLaw, Share, Survival
    from orchestrator.maps.table import SweepTable

_FEW_ROWS, _MOST_ROWS = 4, 40  # of cells, and of values that were asked for
_FEW_DOUBTS = 2
_FAILS = 0.5  # a cell with a lower predicted P(stable) counts as one that would fail


@dataclass(frozen=True, slots=True, kw_only=True)
class SurvivalQuery(Query["SweepTable"]):
    """Show how long runs stay stable, what "stable so far" leaves open, and which cells would fail in longer runs.

    For example `sweep survival fit --until 3000`, or pooled by the values of an axis `sweep survival fit --by lr`. It
    predicts as `sweep predict fit --at steps=3000`, row by row.
    """

    panel: ClassVar[str] = "explain"

    by: str | None = by_option("pool the cells of each value of this axis")
    where: Mapping[str, Any] = where_option()
    until: int | None = option(
        None,
        "predict to this step; four times the longest run by default",
        metavar="STEP",
        minimum=1,
        maximum=10**12,
    )

    def ask(self, subject: SweepTable, say: Say = silent) -> SurvivalAnswer:
        """Return the shares of stable runs over steps, and the prediction."""
        from orchestrator.maps.survival import survival

        return SurvivalAnswer(survival(subject.where("--where", self.where), self.by, self.until, say))


@dataclass(frozen=True, slots=True)
class SurvivalAnswer(Answer):
    """Survival of the cells of a sweep."""

    result: Survival = flat()

    def blocks(self) -> Iterator[Block]:
        """Yield the shares as a table, what its rows leave open, and the laws, or why there is none."""
        result = self.result
        left_out = f"; {result.num_left_out} left out, whose outcome says nothing" if result.num_left_out else ""
        yield Line(
            f"{result.sweep}: {count(result.num_runs, 'run')} of up to {count(result.longest, 'step')}, "
            f"{result.num_onsets} with an onset{left_out}"
        )
        yield from self._table()
        yield from self._open()
        yield from self._laws()

    def _table(self) -> Iterator[Block]:
        """The values of an axis, or the cells that are least certain to last."""
        result, groups = self.result, self.result.groups
        shown = groups[:_MOST_ROWS] if result.by else sorted(groups, key=_certainty)[:_FEW_ROWS]
        rest = f"; {len(shown)} of {len(groups)}, --json FILE has all" if len(shown) < len(groups) else ""
        has_law = any(law.edge for law in result.laws)
        how = f"Kaplan-Meier{', then the law of `sweep predict`' if has_law else ''}"
        yield Line(f"P(stable to a step) with 95 % intervals ({how}){rest}:")
        head = ["", *(f"to {step}" for step in (*result.steps[1:-1], result.longest))]
        rows = [[_name(group), *map(_number, group.at_steps[1:-1]), _share(group.at_steps[-1])] for group in shown]
        if has_law:
            head.append(f"to {result.until}")
            rows = [[*row, _share(group.predicted)] for row, group in zip(rows, shown, strict=True)]
        yield Table(tuple(head), tuple(map(tuple, rows)), indent=1)

    def _open(self) -> Iterator[Line]:
        """What groups without an onset leave open, of those with most runs."""
        result = self.result
        bounds = [(group.num_runs, group.watched, group.hazard_bound_per_step) for group in result.groups]
        stable = [(num, watched, bound) for num, watched, bound in bounds if bound is not None]
        if not stable:
            return
        num, watched, bound = max(stable)
        yield Line(
            f"{len(stable)} of {len(result.groups)} {self._kind} have no onset; after {count(num, 'run')} to step "
            f"{watched} P(stable to {watched}) may be as low as {math.exp(-bound * watched):.2g} (95 %)"
        )

    @property
    def _kind(self) -> str:
        return "cells" if self.result.by is None else f"values of {self.result.by}"

    def _laws(self) -> Iterator[Block]:
        result = self.result
        laws = [law for law in result.laws if law.edge is not None and law.exponent is not None]
        if laws:
            yield Line(
                f"the edge along {result.along} at step {result.until}, and the power of the steps with which it moves"
            )
        for law in laws[:_FEW_ROWS]:
            edge, power = _interval(law.edge, ".2g"), _interval(law.exponent, ".2f")
            yield Line(_of_row(law, f"{edge}, power {power}"), 1)
        if rest := laws[_FEW_ROWS:]:
            yield Line(f"... and {count(len(rest), 'more row')}: --json FILE has all", 1)
        stable = [group.predicted for group in result.groups if group.num_onsets == 0 and group.predicted is not None]
        failing = sum(predicted.share < _FAILS for predicted in stable)
        if stable:
            what = f"of {len(stable)} {self._kind} without an onset, {failing} are predicted to fail"
            yield Line(f"{what} by step {result.until}")
        doubted = [law for law in laws if law.doubts]
        for law in doubted[:_FEW_DOUBTS]:
            yield Caution(_of_row(law, law.doubts[0]))
        if rest := doubted[_FEW_DOUBTS:]:
            yield Caution(f"{count(len(rest), 'more row has', 'more rows have')} doubts: --json FILE has them")
        without: dict[str, list[RowLaw]] = {}
        for law in result.laws:
            if law.edge is None:
                without.setdefault(law.doubts[0], []).append(law)
        for reason, rows in without.items():
            if len(rows) == len(result.laws):
                yield Caution(reason, "no prediction")
            else:
                yield Caution(f"{len(rows)} rows: {reason}" if rows[1:] else _of_row(rows[0], reason), "no prediction")


def _of_row(law: RowLaw, text: str) -> str:
    return f"{_name(law)}: {text}" if law.setting else text


def _certainty(group: Group) -> float:
    """How far the share that lasts, by the prediction if there is one, is from one half."""
    share = group.predicted or group.at_steps[-1]
    return 1.0 if share is None else abs(share.share - 0.5)


def _interval(found: Interval | Exponent | None, digits: str) -> str:
    return "" if found is None else f"{found.at:{digits}} ({found.low:{digits}} to {found.high:{digits}})"


def _name(group: Group | RowLaw) -> str:
    return " ".join(f"{key}={format_value(value)}" for key, value in group.setting.items()) or "all"


def _number(share: Share | None) -> str:
    return "-" if share is None else f"{share.share:.2f}"


def _share(share: Share | None) -> str:
    return "-" if share is None else f"{share.share:.2f} ({share.low:.2f}-{share.high:.2f})"

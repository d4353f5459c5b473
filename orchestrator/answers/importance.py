"""Which axis moves stability, and which the loss."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from orchestrator.base.environment import is_installed
from orchestrator.base.query import Query, Say, flat, silent
from orchestrator.base.words import count
from orchestrator.render.answer import Answer
from orchestrator.render.blocks import Block, Caution, Line, Table

if TYPE_CHECKING:
    from orchestrator.maps.importance import Importance
    from orchestrator.maps.table import SweepTable

TARGETS = ("stability", "loss")
TITLES = {"ped_anova": "PED-ANOVA", "fanova": "fANOVA", "surface": "surface"}
_LIBRARIES = ("optuna", "sklearn")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportanceQuery(Query["SweepTable"]):
    """Show which axis moves stability and which the loss, with the diverged runs included.

    Shares are by PED-ANOVA, by fANOVA and by a fitted surface. For example `sweep importance fit --json shares.json`.
    """

    section: ClassVar[str] = "Which axis matters"

    is_on_page: bool = False  # no option

    def ask(self, subject: SweepTable, say: Say = silent) -> ImportanceAnswer:
        """Return the share of each axis."""
        from orchestrator.maps.importance import importance

        return ImportanceAnswer(importance(subject, self.is_on_page))

    @classmethod
    def on_page(cls, subject: SweepTable) -> ImportanceQuery | None:
        """Return the question, unless the libraries that compute the answer are missing."""
        return cls(is_on_page=True) if all(map(is_installed, _LIBRARIES)) else None


@dataclass(frozen=True, slots=True)
class ImportanceAnswer(Answer):
    """The shares of the axes in what moves stability and the loss."""

    result: Importance = flat()

    @property
    def is_worth_showing(self) -> bool:
        """Whether a page shows it: with several axes, and no doubt."""
        return len(self.result.axes) > 1 and not self.result.doubts

    def blocks(self) -> Iterator[Block]:
        """Yield the shares as a table, the axis that moves stability most first."""
        from orchestrator.search.study import MOST_FANOVA

        result = self.result
        columns = [(target, evaluator) for target in TARGETS for evaluator in result.shares[target]]
        rows = []
        for axis in sorted(result.axes, key=lambda axis: -self._most(axis)):
            shares = [result.shares[target][evaluator] for target, evaluator in columns]
            rows.append((axis, *("-" if share is None else f"{share[axis]:.2f}" for share in shares)))
        kind = result.measure.kind
        names = {"stability": "stability", "loss": kind}
        head = ("", *(f"{names[target]}: {TITLES[evaluator]}" for target, evaluator in columns))
        yield Line(
            f"{result.sweep}: which axis moves stability and which the {kind}, from "
            f"{count(result.num_trials, 'trial')}; a column adds up to 1"
        )
        yield Table(head, tuple(rows), indent=1)
        drawn = f", in {MOST_FANOVA:,} random trials" if result.num_trials > MOST_FANOVA else ""
        yield Line(
            f"stability: {result.num_inside} of {result.num_trials} trials are inside the edge (stable or degraded); "
            f"{kind}: rank of the {result.measure.words}{result.measure.note}, diverged ones last"
        )
        yield Line(
            f"PED-ANOVA: how the values of these {count(result.num_inside, 'trial')}, or of the {result.num_best} with "
            f"the {result.measure.best} {kind}, differ from all; fANOVA: the share of the variance that an axis "
            f"explains on its own{drawn}"
        )
        how = "how much P(stable) of a fitted surface changes when the values of an axis are shuffled"
        yield Line(f"surface: {how if result.no_surface is None else f'none, since {result.no_surface}'}")
        for doubt in result.doubts:
            yield Caution(doubt, "do not trust stability")

    def _most(self, axis: str) -> float:
        """The mean share of an axis in stability, or in the loss if nothing moves stability."""
        for target in TARGETS:
            known = [shares[axis] for shares in self.result.shares[target].values() if shares is not None]
            if known:
                return sum(known) / len(known)
        return 0.0

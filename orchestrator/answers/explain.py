"""Which mechanism rules which part of the unstable region."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from orchestrator.answers._options import x_option, y_option
from orchestrator.base.files import EXPLANATION
from orchestrator.base.query import Query, Say, silent
from orchestrator.render.answer import Answer
from orchestrator.render.blocks import Block, Figure, Line

if TYPE_CHECKING:
    from orchestrator.causes.explanation import Explanation
    from orchestrator.ledger.reader import LedgerReader

_MOST_EXPLAINED = 200  # cells that are not stable, whose trials are all diagnosed for a page


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainQuery(Query["LedgerReader"]):
    """Show which mechanism rules which part of the unstable region, and draw it on the map.

    For example `sweep explain lr_warmup`.
    """

    panel: ClassVar[str] = "explain"
    section: ClassVar[str] = "Explanation"

    x: str | None = x_option()
    y: str | None = y_option()

    def ask(self, subject: LedgerReader, say: Say = silent) -> ExplainAnswer:
        """Return the mechanism of each cell that is not stable."""
        from orchestrator.causes.explanation import explain

        return ExplainAnswer(explain(subject, self.x, self.y), subject.path.parent)

    @classmethod
    def is_on_page(cls, subject: LedgerReader) -> bool:
        """Return whether there is something to explain, and not too much."""
        from orchestrator.maps.stability import stability_map

        stability = stability_map(subject)
        return 0 < sum(map(stability.is_over_edge, stability.cells)) <= _MOST_EXPLAINED


@dataclass(frozen=True, slots=True)
class ExplainAnswer(Answer):
    """The mechanisms of the cells that are not stable."""

    result: Explanation
    folder: Path

    @property
    def is_worth_showing(self) -> bool:
        """Whether a page shows it: if some cell is explained."""
        from orchestrator.causes.explanation import UNEXPLAINED

        return any(cause.mechanism != UNEXPLAINED for cause in self.result.causes.values())

    def to_plain(self) -> Any:
        """Return everything it knows, as JSON has it."""
        from orchestrator.causes.explanation_text import explanation_json
        from orchestrator.render.json import to_plain

        return to_plain(explanation_json(self.result))

    def blocks(self) -> Iterator[Block]:
        """Yield the mechanisms, and the map with them."""
        from orchestrator.causes.explanation_text import explanation_lines

        yield from map(Line, explanation_lines(self.result))
        if self.result.causes:
            yield Line(f"`sweep diagnose {self.folder.name} --cell AXIS=VALUE,...` has the evidence of a cell")
        yield Figure(self._drawn, "the mechanisms on the map", self.folder / EXPLANATION)

    def _drawn(self, file_format: str) -> bytes:
        from orchestrator.render.explanation import explanation_figure

        return explanation_figure(self.result, file_format)

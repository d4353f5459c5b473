"""How sweeps differ, or the values of an axis of one sweep, and how certain that is."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from orchestrator.answers._options import by_option, degraded_option, reduce_option, x_option, y_option
from orchestrator.base.errors import InputError, Problem
from orchestrator.base.files import COMPARISONS
from orchestrator.base.query import Query, Say, Subject, hidden, option, silent
from orchestrator.render.answer import Answer
from orchestrator.render.blocks import Block, Figure, Line, picture_of

if TYPE_CHECKING:
    from orchestrator.maps.table import SweepTable

_LONGEST_NAME = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareQuery(Query["Sequence[SweepTable]"]):
    """Compare sweeps on the cells they share, or the values of an axis of one sweep, with confidence intervals.

    The first sweep is the base. If cells are scattered, fitted surfaces are compared. For example `sweep compare a b`,
    or `sweep compare a --by optimizer`.
    """

    panel: ClassVar[str] = "look"
    subject: ClassVar[Subject] = "sweeps"

    by: str | None = by_option("compare the values of this axis of one sweep")
    base: str | None = option(None, "with --by: the value to compare with; the first by default", metavar="VALUE")
    x: str | None = x_option()
    y: str | None = y_option()
    reduce: str = reduce_option()
    degraded: bool = degraded_option()

    def ask(self, subject: Sequence[SweepTable], say: Say = silent) -> Comparison:
        """Return the comparison of the further sweeps with the first, or of the values of an axis."""
        self._check(len(subject))
        folders = [table.ledger.path.parent for table in subject]
        names = [re.sub(r"[^\w.=-]+", "_", folder.name)[:_LONGEST_NAME] for folder in folders]
        file_name = "_vs_".join(names) if self.by is None else f"{names[0]}_by_{self.by}"
        picture = folders[0].parent / COMPARISONS / f"{file_name}.png"
        tables = subject
        if self.by is not None:
            from orchestrator.maps.table import slices

            tables = slices(subject[0], self.by, self.base)
        return self._compared(tables, picture)

    def _check(self, num: int) -> None:
        """Raise InputError if the number of sweeps does not fit the options."""
        if self.by is not None and num != 1:
            message = f"compares the values of an axis in one sweep, and {num} are given"
            raise InputError(Problem(f"--by {self.by}", "", message, "give one name, or leave it out"))
        if self.by is None and self.base is not None:
            message = "is a value of the axis of --by, which is not given"
            remedy = "add --by AXIS; among several sweeps the first is the base"
            raise InputError(Problem(f"--base {self.base}", "", message, remedy))
        if self.by is None and num < 2:
            remedy = "give two names or more, or --by AXIS for the values of one of its axes"
            raise InputError(Problem("NAME...", "", "one sweep cannot be compared", remedy))

    def _compared(self, tables: Sequence[SweepTable], picture: Path) -> Comparison:
        from orchestrator.answers._comparison import comparison_content, comparison_lines
        from orchestrator.maps.comparison import compare, compared_maps, compared_meshes
        from orchestrator.maps.edges import StableRule

        result = compare(tables, self.x, StableRule(self.degraded))
        maps = compared_maps(result, self.x, self.y, self.reduce)
        meshes = None
        if result.is_fitted:
            meshes = compared_meshes(result, maps[0].x.name, None if maps[0].y is None else maps[0].y.name)
        draw, title = picture_of("comparison:comparison_picture", maps, meshes), "the sweeps compared"
        texts = tuple(comparison_lines(result))
        return Comparison(comparison_content(result), texts, result, Figure(draw, title, picture))


@dataclass(frozen=True, slots=True)
class Comparison(Answer):
    """What differs between sweeps, and how certain that is; ``result`` has all numbers."""

    content: dict[str, Any] = hidden()
    texts: tuple[str, ...] = hidden()
    result: Any = hidden()
    picture: Figure = hidden()

    def to_plain(self) -> Any:
        """Return everything it knows, as JSON has it."""
        from orchestrator.render.answer import to_plain

        return to_plain(self.content)

    def blocks(self) -> Iterator[Block]:
        """Yield what is compared, the differences, and the maps side by side."""
        yield from map(Line, self.texts)
        yield self.picture

"""Which mechanism dominates which part of the unstable region."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from orchestrator.answers._options import x_option, y_option
from orchestrator.base.files import EXPLANATION
from orchestrator.base.query import Query, Say, hidden, silent
from orchestrator.base.space import format_value
from orchestrator.base.words import count
from orchestrator.render.answer import Answer
from orchestrator.render.blocks import Block, Figure, Line, picture_of

if TYPE_CHECKING:
    from orchestrator.causes.diagnosis import Explanation, Key
    from orchestrator.maps.cell_map import CellMap
    from orchestrator.maps.table import SweepTable

_MAX_EXPLAINED = 200  # unstable cells, whose trials are all diagnosed for a page


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainQuery(Query["SweepTable"]):
    """Show which mechanism dominates which part of the unstable region, and draw it on the map.

    For example `sweep explain lr_warmup`.
    """

    panel: ClassVar[str] = "explain"
    section: ClassVar[str] = "Explanation"

    x: str | None = x_option()
    y: str | None = y_option()

    def ask(self, subject: SweepTable, say: Say = silent) -> ExplainAnswer:
        """Find the mechanism of each cell that is not stable."""
        from orchestrator.causes.diagnosis import explain

        return ExplainAnswer.of(explain(subject, self.x, self.y), subject.ledger.path.parent)

    @classmethod
    def on_page(cls, subject: SweepTable) -> ExplainQuery | None:
        """Return the question if there is something to explain, and not too much."""
        from orchestrator.maps.cell_map import cell_map

        stability = cell_map(subject)
        return cls() if 0 < sum(map(stability.is_over_edge, stability.cells)) <= _MAX_EXPLAINED else None


@dataclass(frozen=True, slots=True)
class ExplainedCell:
    """A cell of the map with its state, and the mechanism that dominates it; None if it is stable or unexplained."""

    setting: Mapping[str, Any]
    state: str
    mechanism: str | None


@dataclass(frozen=True, slots=True)
class ExplainAnswer(Answer):
    """The mechanisms of the cells that are not stable."""

    sweep: str
    note: str
    cells: tuple[ExplainedCell, ...]
    result: Explanation = hidden()
    folder: Path = hidden()

    @classmethod
    def of(cls, explanation: Explanation, folder: Path) -> ExplainAnswer:
        """The answer with an explanation of the sweep in ``folder``."""
        from orchestrator.causes.diagnosis import UNEXPLAINED

        stability = explanation.stability
        names = [axis.name for axis in (stability.x, stability.y) if axis is not None]
        mechanisms = {key: explanation.mechanism(key) for key in stability.cells}
        cells = tuple(
            ExplainedCell(
                dict(zip(names, key, strict=False)),
                cell.state,
                None if mechanisms[key] == UNEXPLAINED else mechanisms[key],
            )
            for key, cell in stability.cells.items()
        )
        return cls(stability.name, stability.note, cells, explanation, folder)

    @property
    def is_worth_showing(self) -> bool:
        """Whether any cell is explained."""
        return any(cell.mechanism is not None for cell in self.cells)

    def blocks(self) -> Iterator[Block]:
        """Yield the mechanisms, the largest part of the region first, and the map with them."""
        from orchestrator.base.vocabulary import is_known
        from orchestrator.causes.diagnosis import UNEXPLAINED
        from orchestrator.causes.mechanisms.catalogue import MECHANISMS
        from orchestrator.causes.small_sweeps import CURVATURE_EVERY

        explanation, stability = self.result, self.result.stability
        num_known = sum(is_known(cell.state) for cell in stability.cells.values())
        note = f" ({self.note})" if self.note else ""
        yield Line(f"{self.sweep}: {len(explanation.causes)} of {num_known} known cells are over the edge{note}")
        by_mechanism: dict[str, list[Key]] = {key: [] for key in (*MECHANISMS, UNEXPLAINED)}
        for key, cause in explanation.causes.items():
            by_mechanism[cause.mechanism].append(key)
        for mechanism, keys in sorted(by_mechanism.items(), key=lambda item: -len(item[1])):
            if keys:
                title = MECHANISMS[mechanism].title if mechanism in MECHANISMS else mechanism
                yield Line(f"{title}: {count(len(keys), 'cell')}")
                yield from (Line(text, 1) for text in _ranges(stability, keys))
        if explanation.num_controlled:
            acted = f"{explanation.num_acted} of the {explanation.num_controlled} trials that have any"
            yield Line(f"control rules acted in {acted}")
        if any(explanation.causes[key].lacks_curvature for key in by_mechanism[UNEXPLAINED]):
            measure = f"telemetry: {{curvature: {CURVATURE_EVERY}}}"
            yield Line(f"the curvature was not measured; measure it with {measure}")
        if explanation.causes:
            yield Line(f"`sweep diagnose {self.folder.name} --cell AXIS=VALUE,...` shows the evidence on a cell")
        yield Figure(
            picture_of("kind_maps:explanation_figure", self.result),
            "the mechanisms on the map",
            self.folder / EXPLANATION,
        )


def _ranges(stability: CellMap, cells: Sequence[Key]) -> Iterator[str]:
    """The ranges of x that these cells cover, by value of y; equal rows share a line."""
    if not stability.is_grid:
        for x, y in cells:
            yield _at(stability.x.name, [x]) + (f", {_at(stability.y.name, [y])}" if stability.y else "")
        return
    covered = set(cells)
    rows: list[tuple[tuple[Any, ...], list[Any]]] = []
    for y in stability.y_values:
        row = tuple(x for x in stability.x_values if (x, y) in covered)
        if row and rows and rows[-1][0] == row and _follow(stability.y_values, rows[-1][1][-1], y):
            rows[-1][1].append(y)
        elif row:
            rows.append((row, [y]))
    for row, values in rows:
        stretches = " and ".join(_range(stretch) for stretch in _stretches(row, stability.x_values))
        yield f"{stability.x.name} {stretches}" + (f" at {stability.y.name} {_range(values)}" if stability.y else "")


def _stretches(values: Sequence[Any], all_values: Sequence[Any]) -> list[list[Any]]:
    """``values`` split at gaps in the order of ``all_values``."""
    parts: list[list[Any]] = []
    for value in values:
        if parts and _follow(all_values, parts[-1][-1], value):
            parts[-1].append(value)
        else:
            parts.append([value])
    return parts


def _follow(all_values: Sequence[Any], a: Any, b: Any) -> bool:
    return list(all_values).index(b) == list(all_values).index(a) + 1


def _range(values: Sequence[Any]) -> str:
    ends = [values[0], values[-1]] if len(values) > 1 else values
    return " .. ".join(format_value(value) for value in ends)


def _at(name: str, values: Sequence[Any]) -> str:
    return f"{name} {_range(values)}"

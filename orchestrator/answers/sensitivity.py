"""What a wrong learning rate costs, for each setting of the other axes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from orchestrator.answers._options import along_option
from orchestrator.base.measure import FINAL_LOSS, Measure
from orchestrator.base.query import Query, Say, hidden, number_range, option, silent
from orchestrator.base.space import format_value
from orchestrator.base.words import count
from orchestrator.render.answer import Answer
from orchestrator.render.blocks import Block, Line

if TYPE_CHECKING:
    from orchestrator.maps.sensitivity import Sensitivities, Sensitivity
    from orchestrator.maps.table import SweepTable


@dataclass(frozen=True, slots=True, kw_only=True)
class SensitivityQuery(Query["SweepTable"]):
    """Show what a wrong learning rate costs, for each setting of the other axes.

    For example `sweep sensitivity lr_warmup --range 1e-3:1e-1`.
    """

    section: ClassVar[str] = "Learning-rate sensitivity"

    along: str | None = along_option("the learning rate's axis; lr by default")
    range: tuple[float, float] | None = option(
        None,
        "the values that count, e.g. 1e-4:1e-1; by default all that were tried",
        metavar="LOW:HIGH",
        read=number_range,
    )

    def ask(self, subject: SweepTable, say: Say = silent) -> SensitivityAnswer:
        """Return the sensitivity over the values of a grid, or over a range if cells are scattered."""
        from orchestrator.detection.relative import lr_axis
        from orchestrator.maps.sensitivity import lr_sensitivity

        along = self.along or lr_axis([axis.name for axis in subject.axes]) or "lr"
        return _answer(subject.name, lr_sensitivity(subject, along, self.range))


def _answer(name: str, found: Sensitivities) -> SensitivityAnswer:
    axis, is_grid = found.axis.name, found.num_values is not None
    if is_grid and not found.settings:
        return SensitivityAnswer(name, axis, settings=[], texts=(), num_values=0)
    sparse = [{"low": low, "high": high, "num_cells": num} for low, high, num in found.sparse]
    ranked = sorted(found.settings, key=lambda each: _rank(each.value))
    return SensitivityAnswer(
        name,
        axis,
        found.low,
        found.high,
        found.measure.name,
        [_content(each, is_grid) for each in found.settings],
        tuple(_text(each, found) for each in ranked),
        num_values=found.num_values,
        num_cells=found.num_cells,
        sparse=None if is_grid else sparse,
        measure=found.measure,
    )


def _rank(value: float | None) -> float:
    return math.inf if value is None or not math.isfinite(value) else value


def _content(each: Sensitivity, is_grid: bool) -> dict[str, Any]:
    seeds = {str(seed): value for seed, value in each.by_seed.items()}
    content = {"setting": each.setting, "sensitivity": each.value, "best": each.best}
    return content | ({"seeds": seeds} if is_grid else {})


def _text(each: Sensitivity, found: Sensitivities) -> str:
    """Say what a wrong value costs at one setting, and where the loss is lowest."""
    from orchestrator.maps.surface_map import setting_text

    axis, best = found.axis.name, f"{found.measure.best} {found.measure.kind}"
    if found.num_values is None:
        return f"{setting_text(each.setting, found.axes)}: {each.value:.3g}, {best} at {axis}={each.best:.3g}"
    setting = each.setting.name or "all"
    if each.value is None:
        return f"{setting}: no seed has a {found.measure.kind} at every {axis}"
    seeds = each.by_seed.values()
    spread = f" (seeds {min(seeds):.3g} to {max(seeds):.3g})" if len(seeds) > 1 else " (one seed)"
    return f"{setting}: {each.value:.3g}{spread}, {best} at {axis}={format_value(each.best)}"


@dataclass(frozen=True, slots=True)
class SensitivityAnswer(Answer):
    """The sensitivity of each setting in units of the loss, and its best learning rate.

    On a grid ``num_values`` learning rates count; if cells are scattered, ``sparse`` are the parts of the range with
    few of the ``num_cells`` cells.
    """

    sweep: str
    axis: str
    low: float | None = None
    high: float | None = None
    loss: str = ""
    settings: list[dict[str, Any]] | None = None
    texts: tuple[str, ...] = hidden(default=())
    num_values: int | None = None
    num_cells: int | None = None
    sparse: list[dict[str, Any]] | None = None
    measure: Measure = hidden(default=FINAL_LOSS)

    def blocks(self) -> Iterator[Block]:
        """Yield a line for each setting, the most forgiving first."""
        if self.low is None or self.high is None:
            yield Line("no trial has finished")
            return
        low, high, measure = format_value(self.low), format_value(self.high), self.measure
        what = "mean of min(loss, initial loss) less the lowest"
        if not measure.is_loss:
            what = f"mean distance of the {measure.kind} to the best, and at most that of the initial one"
        over = f"from {low} to {high}"
        how = f"interpolated between {count(self.num_cells or 0, 'cell')}"
        if self.num_values is not None:
            over, how = f"over {count(self.num_values, 'value')} {over}", ""
        detail = "; ".join(filter(None, (what, measure.words, how)))
        yield Line(f"{self.axis} sensitivity {over} ({detail}):")
        for text in self.texts:
            yield Line(text, 1)
        for part in self.sparse or ():
            where = f"{self.axis} from {part['low']:.3g} to {part['high']:.3g}"
            yield Line(f"a guess for {where}: {part['num_cells']} of {self.num_cells} cells are there")

"""What a wrong learning rate costs, for each setting of the other axes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from orchestrator.answers._options import along_option
from orchestrator.base.query import Query, Say, hidden, number_range, option, silent
from orchestrator.base.space import format_value
from orchestrator.render.answer import Answer
from orchestrator.render.blocks import Block, Line

if TYPE_CHECKING:
    from orchestrator.maps.fitted_sensitivity import FittedSensitivities
    from orchestrator.maps.sensitivity import Sensitivity
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
        from orchestrator.maps.fitted import setting_text
        from orchestrator.maps.fitted_sensitivity import fitted_lr_sensitivity
        from orchestrator.maps.sensitivity import lr_sensitivity

        name, axis = subject.name, self.along or "lr"
        if subject.is_grid:
            return _of_grid(name, axis, lr_sensitivity(subject, axis, self.range))
        fitted = fitted_lr_sensitivity(subject, axis, self.range)
        return _of_range(name, fitted, [setting_text(each.setting, fitted.axes) for each in fitted.of_setting])


def _of_grid(name: str, axis: str, found: list[Sensitivity]) -> SensitivityAnswer:
    settings = [
        {
            "setting": each.setting,
            "sensitivity": each.value,
            "best": each.best,
            "seeds": {str(seed): value for seed, value in each.of_seed.items()},
        }
        for each in found
    ]
    texts = []
    for each in sorted(found, key=lambda one: math.inf if one.value is None else one.value):
        setting = " ".join(f"{key}={format_value(value)}" for key, value in each.setting.items()) or "all"
        if each.value is None:
            texts.append(f"{setting}: no seed has a loss at every {axis}")
            continue
        seeds = each.of_seed.values()
        spread = f" (seeds {min(seeds):.3g} to {max(seeds):.3g})" if len(seeds) > 1 else " (one seed)"
        texts.append(f"{setting}: {each.value:.3g}{spread}, lowest loss at {axis}={format_value(each.best)}")
    if not found:
        return SensitivityAnswer(name, axis, settings=[], texts=(), num_values=0)
    low, high, loss = found[0].low, found[0].high, found[0].loss
    return SensitivityAnswer(name, axis, low, high, loss, settings, tuple(texts), num_values=found[0].num_values)


def _of_range(name: str, found: FittedSensitivities, names: list[str]) -> SensitivityAnswer:
    axis = found.axis.name
    settings = [{"setting": s.setting, "sensitivity": s.value, "best": s.best} for s in found.of_setting]
    ranked = sorted(
        zip(found.of_setting, names, strict=True),
        key=lambda pair: pair[0].value if math.isfinite(pair[0].value) else math.inf,
    )
    return SensitivityAnswer(
        name,
        axis,
        found.low,
        found.high,
        found.loss,
        settings,
        tuple(f"{text}: {s.value:.3g}, lowest loss at {axis}={s.best:.3g}" for s, text in ranked),
        num_cells=found.num_cells,
        sparse=[{"low": low, "high": high, "num_cells": num} for low, high, num in found.sparse],
    )


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

    def blocks(self) -> Iterator[Block]:
        """Yield a line for each setting, the most forgiving first."""
        if self.low is None or self.high is None:
            yield Line("no trial has finished")
            return
        low, high, kind = format_value(self.low), format_value(self.high), self.loss.replace("_", " ")
        over = f"from {low} to {high}"
        how = f"interpolated between {self.num_cells} cells"
        if self.num_values is not None:
            over, how = f"over {self.num_values} values {over}", ""
        detail = "; ".join(filter(None, ("mean of min(loss, initial loss) less the lowest", kind, how)))
        yield Line(f"{self.axis} sensitivity {over} ({detail}):")
        for text in self.texts:
            yield Line(text, 1)
        for part in self.sparse or ():
            where = f"{self.axis} from {part['low']:.3g} to {part['high']:.3g}"
            yield Line(f"a guess for {where}: {part['num_cells']} of {self.num_cells} cells are there")

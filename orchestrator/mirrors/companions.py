"""Second scales of values and losses, for charts that have only linear axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from orchestrator.base.space import Axis, is_number, on_natural_scale

# A loss of so many times the initial one is drawn at that height, so that one blow-up does not flatten the rest.
_CAP = 2.0


def on_scales(final: float | None, initial: float | None, *, is_over: bool) -> dict[str, float]:
    """The final loss on scales on which a blow-up leaves the others visible."""
    found = {}
    if final is not None and final > 0:
        found["log10_loss"] = math.log10(final)
    if initial is not None and initial > 0:
        cap = _CAP * initial
        if final is not None or is_over:
            found["loss_capped"] = cap if final is None else min(final, cap)
    return found


def with_companions(cell: Mapping[str, Any], axes: Mapping[str, Axis]) -> dict[str, Any]:
    """The values of a cell, with the logarithms of those on a logarithmic scale."""
    values = dict(cell)
    for name, value in cell.items():
        companion = _companion(axes[name]) if name in axes else None
        if companion is not None and value is not None:
            shown, transform = companion
            values[shown] = f"{transform(value):.6g}"
    return values


def _companion(axis: Axis) -> tuple[str, Callable[[float], float]] | None:
    """The name and the function of an axis's second scale; None where a linear one is right."""
    numbers = [value for value in axis.values if value is not None]
    if not numbers or not all(is_number(value) for value in numbers):
        return None
    scale = on_natural_scale(axis).scale
    if scale == "log1m" and max(numbers) < 1:
        return f"log10_one_minus_{axis.name}", lambda value: math.log10(1 - value)
    return (f"log10_{axis.name}", math.log10) if scale == "log" and min(numbers) > 0 else None


def map_axes(axes: Sequence[Axis]) -> list[str]:
    """The params of cells along the first two axes of numbers."""
    found = []
    for axis in axes:
        companion = _companion(axis)
        if companion is not None or all(map(is_number, axis.values)):
            found.append(axis.name if companion is None else companion[0])
    return found[:2]

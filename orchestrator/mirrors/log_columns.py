"""Log-scale columns of values and losses, for charts that have only linear axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from orchestrator.base.space import Axis, is_number, on_natural_scale

_CAP = 2.0  # times the initial loss: a higher one is drawn there, so that one blow-up does not flatten the rest


def loss_columns(final: float | None, initial: float | None, *, has_diverged: bool) -> dict[str, float]:
    """Return the final loss on scales that keep the other losses visible next to a blow-up."""
    columns = {}
    if final is not None and final > 0:
        columns["log10_loss"] = math.log10(final)
    if initial is not None and initial > 0:
        cap = _CAP * initial
        if final is not None or has_diverged:
            columns["loss_capped"] = cap if final is None else min(final, cap)
    return columns


def with_log_columns(cell: Mapping[str, Any], axes: Mapping[str, Axis]) -> dict[str, Any]:
    """Return the values of a cell, plus their logarithms (as text) on logarithmic axes."""
    values = dict(cell)
    for name, value in cell.items():
        column = _log_column(axes[name]) if name in axes else None
        if column is not None and value is not None:
            log_name, transform = column
            values[log_name] = f"{transform(value):.6g}"
    return values


def logs_as_numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with their log columns converted from text to floats."""
    return {name: float(value) if name.startswith("log10_") else value for name, value in values.items()}


def map_params(axes: Sequence[Axis]) -> list[str]:
    """Return the params of cells along the first two numeric axes."""
    params = []
    for axis in axes:
        column = _log_column(axis)
        if column is not None or all(map(is_number, axis.values)):
            params.append(axis.name if column is None else column[0])
    return params[:2]


def _log_column(axis: Axis) -> tuple[str, Callable[[float], float]] | None:
    """Return the name and the function of an axis's log column, or None if its scale is linear."""
    numbers = [value for value in axis.values if value is not None]
    if not numbers or not all(is_number(value) for value in numbers):
        return None
    scale = on_natural_scale(axis).scale
    if scale == "log1m" and max(numbers) < 1:
        return f"log10_one_minus_{axis.name}", lambda value: math.log10(1 - value)
    return (f"log10_{axis.name}", math.log10) if scale == "log" and min(numbers) > 0 else None

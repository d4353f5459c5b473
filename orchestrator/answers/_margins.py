"""Margins in words: how far one direction of an axis is stable, and where the edge is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from orchestrator.base.space import Axis

if TYPE_CHECKING:
    from orchestrator.maps.boundary import Margin
    from orchestrator.maps.fitted import Fit

_SHOWN = 3  # values without a result that are listed


def margin_text(margin: Margin, axes: Sequence[Axis], fitted: Fit | None) -> str:
    """Return one direction in words; by the surface ``fitted`` if cells are scattered."""
    return _on_grid(margin, axes) if fitted is None else _on_surface(margin, fitted)


def _on_grid(margin: Margin, axes: Sequence[Axis]) -> str:
    from orchestrator.maps.axes import value_labels

    (values,) = (axis.values for axis in axes if axis.name == margin.axis)
    labels = dict(zip(values, value_labels(values), strict=True))
    direction = f"{margin.axis} {'up' if margin.is_upwards else 'down'}"
    stable = f"stable to {labels[margin.last_stable]} (factor {margin.known:.3g})"
    if margin.first_degraded is not None:
        stable += f", degraded from {labels[margin.first_degraded]}"
    if margin.is_open:
        at_end = margin.known == 1
        return f"{direction}: open: " + ("it is the axis's end" if at_end else f"{stable}, where what was tried ends")
    parts = [stable]
    if margin.missing:
        shown = [labels[value] for value in margin.missing[:_SHOWN]]
        more = f" and {len(margin.missing) - _SHOWN} more" if len(margin.missing) > _SHOWN else ""
        parts.append(f"not known at {', '.join(shown)}{more}")
    if margin.edge is not None:
        parts.append(f"not at {labels[margin.first_not_stable]} (factor {margin.edge:.3g})")
    return f"{direction}: {', '.join(parts)}"


def _on_surface(margin: Margin, fitted: Fit) -> str:
    from orchestrator.maps.fitted import value_text

    (axis,) = (axis for axis in fitted.axes if axis.name == margin.axis)
    direction = f"{margin.axis} {'up' if margin.is_upwards else 'down'}"
    stable = f"surely stable to {value_text(axis, margin.last_stable)} (factor {margin.known:.3g})"
    if margin.is_open:
        at_end = margin.known == 1
        return f"{direction}: open: " + ("it is the axis's end" if at_end else f"{stable}, where what was tried ends")
    if margin.edge is None:
        return f"{direction}: {stable}, and perhaps to the axis's end"
    return f"{direction}: {stable}, edge near {value_text(axis, margin.first_not_stable)} (factor {margin.edge:.3g})"

"""Margins in words: how far one direction of an axis is stable, and where the edge is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from orchestrator.base.space import Axis
from orchestrator.base.words import listed

if TYPE_CHECKING:
    from orchestrator.maps.edges import Margin

_SHOWN = 3  # values without a result that are listed


def margin_text(margin: Margin, axes: Sequence[Axis], is_fitted: bool) -> str:
    """Return one direction of one of ``axes`` in words; with ``is_fitted`` it is read off a surface."""
    (axis,) = (axis for axis in axes if axis.name == margin.axis)
    return _on_surface(margin, axis) if is_fitted else _on_grid(margin, axis)


def _on_grid(margin: Margin, axis: Axis) -> str:
    from orchestrator.maps.axes import value_labels

    labels = dict(zip(axis.values, value_labels(axis.values), strict=True))
    direction = f"{margin.axis} {'up' if margin.is_upwards else 'down'}"
    stable = f"stable to {labels[margin.last_stable]}{factor_text(margin.known)}"
    if margin.first_degraded is not None:
        stable = f"inside the edge{stable.removeprefix('stable')}, degraded from {labels[margin.first_degraded]}"
    if margin.is_open:
        at_end = margin.known == 1
        return f"{direction}: open: " + ("it is the axis's end" if at_end else f"{stable}, where what was tried ends")
    parts = [stable]
    if margin.not_known:
        parts.append(f"not known at {listed([labels[value] for value in margin.not_known], _SHOWN)}")
    if margin.edge is not None:
        parts.append(f"not at {labels[margin.first_not_stable]}{factor_text(margin.edge)}")
    return f"{direction}: {', '.join(parts)}"


def _on_surface(margin: Margin, axis: Axis) -> str:
    from orchestrator.maps.surface_map import value_text

    direction = f"{margin.axis} {'up' if margin.is_upwards else 'down'}"
    stable = f"surely stable to {value_text(axis, margin.last_stable)}{factor_text(margin.known)}"
    if margin.is_open:
        at_end = margin.known == 1
        return f"{direction}: open: " + ("it is the axis's end" if at_end else f"{stable}, where its range ends")
    if margin.edge is None:
        return f"{direction}: {stable}, and perhaps to the axis's end"
    return f"{direction}: {stable}, edge near {value_text(axis, margin.first_not_stable)}{factor_text(margin.edge)}"


def factor_text(factor: float) -> str:
    """The factor in words; empty from zero and from no clipping, which have none."""
    return f" (factor {factor:.3g})" if math.isfinite(factor) else ""

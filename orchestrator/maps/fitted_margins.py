"""How far a setting is from the edge where cells are scattered: by the fitted surface of P(stable)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from orchestrator.base.space import Axis, is_ordered
from orchestrator.maps.boundary import Margin
from orchestrator.maps.fitted import Fit, value_text
from orchestrator.surface.surface import CONFIDENCE

_PLACES = 129  # between a setting and the end of a range


def fitted_margins(fitted: Fit, setting: Mapping[str, Any]) -> list[Margin]:
    """The margins of a setting along each ordered axis, with the other axes fixed.

    ``known`` is the factor up to which the 95 % interval of P(stable) lies above the fit's level, and ``edge`` the
    factor at which P(stable) falls below it. Where the interval reaches down to the level before there is an edge,
    ``missing`` has the first value of which that holds.
    """
    found = []
    for axis in fitted.axes:
        if len(axis.values) != 1 and (not axis.values or is_ordered(axis.values)):
            found += [_margin(fitted, setting, axis, is_upwards) for is_upwards in (False, True)]
    return found


def _margin(fitted: Fit, setting: Mapping[str, Any], axis: Axis, is_upwards: bool) -> Margin:
    here = setting[axis.name]
    values = beyond(axis, here, is_upwards)
    latent = fitted.surface.latent(np.array([fitted.lattice.point({**setting, axis.name: value}) for value in values]))
    above_M = latent.mean_M - math.log(fitted.level / (1 - fitted.level))
    first_unsure = _first(above_M < CONFIDENCE * latent.sd_M)
    first_below = _first(above_M < 0)
    last_stable = here if first_unsure is None or first_unsure == 0 else values[first_unsure - 1]
    last_stable = values[-1] if first_unsure is None else last_stable
    edge = None if first_below is None else values[first_below]
    is_doubted = first_unsure is not None and edge is None
    return Margin(
        axis=axis.name,
        is_upwards=is_upwards,
        known=axis.factor(here, last_stable),
        edge=None if edge is None else axis.factor(here, edge),
        last_stable=last_stable,
        first_not_stable=edge,
        missing=(values[first_unsure],) if is_doubted and first_unsure is not None else (),
    )


def beyond(axis: Axis, here: Any, is_upwards: bool) -> list[Any]:
    """The values from ``here`` to the end of the axis, which come first and last."""
    if axis.values:
        place = axis.values.index(here)
        return list(axis.values[place:] if is_upwards else axis.values[place::-1])
    inside = np.linspace(axis.unit(here), float(is_upwards), _PLACES)[1:]
    return [here, *(axis.at(float(unit)) for unit in inside)]


def _first(is_so_M: np.ndarray) -> int | None:
    return int(np.argmax(is_so_M)) if is_so_M.any() else None


def fitted_margin_text(margin: Margin, fitted: Fit) -> str:
    """One direction: how far it is surely stable, and where the edge is."""
    (axis,) = (axis for axis in fitted.axes if axis.name == margin.axis)
    way = f"{margin.axis} {'up' if margin.is_upwards else 'down'}"
    stable = f"surely stable to {value_text(axis, margin.last_stable)} (factor {margin.known:.3g})"
    if margin.is_open:
        at_end = margin.known == 1
        return f"{way}: open: " + ("it is the axis's end" if at_end else f"{stable}, where what was tried ends")
    if margin.edge is None:
        return f"{way}: {stable}, and perhaps to the axis's end"
    return f"{way}: {stable}, edge near {value_text(axis, margin.first_not_stable)} (factor {margin.edge:.3g})"

"""From a place that is not surely stable: how far each axis must move until what is tried there is stable."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from orchestrator.base.space import Axis, is_ordered
from orchestrator.base.vocabulary import is_known
from orchestrator.maps.fitted import Fit
from orchestrator.maps.fitted_margins import beyond
from orchestrator.maps.rule import StableRule


@dataclass(frozen=True, slots=True)
class Way:
    """One direction of an axis in which stable values begin: the first of them, and the factor to it."""

    axis: str
    is_upwards: bool
    stable_from: Any
    factor: float


def way_along(axis: Axis, here: Any, is_upwards: bool, row: Sequence[tuple[Any, str]], rule: StableRule) -> Way | None:
    """The way from ``here`` along ``row``, values in one direction with the states of their cells; None without one."""
    for value, state in row:
        if is_known(state) and not rule.is_over(state):
            return Way(axis.name, is_upwards, value, axis.factor(here, value))
    return None


def fitted_ways(fitted: Fit, setting: Mapping[str, Any]) -> list[Way]:
    """The ways from ``setting``, with the other axes fixed, to where P(stable) of the surface reaches its level."""
    found = []
    level = math.log(fitted.level / (1 - fitted.level))
    for axis in fitted.axes:
        if len(axis.values) == 1 or (axis.values and not is_ordered(axis.values)):
            continue
        for is_upwards in (False, True):
            values = beyond(axis, setting[axis.name], is_upwards)
            latent = fitted.latent([{**setting, axis.name: value} for value in values])
            above = np.flatnonzero(latent.mean_M > level)
            if len(above):
                value = values[int(above[0])]
                found.append(Way(axis.name, is_upwards, value, axis.factor(setting[axis.name], value)))
    return found

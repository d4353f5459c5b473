"""Whether the router of a mixture of experts has collapsed, from readings of its loads."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

ROUTER_COLUMNS = ("router_gini", "router_dead")  # of telemetry: Gini coefficient of the loads, number of dead experts
MOST_GINI = 0.5
_LAST = 0.1  # share of the readings that must all be collapsed


def has_router(columns: Mapping[str, np.ndarray]) -> bool:
    """Return whether any of the ``columns`` is a reading of a router."""
    return any(name in columns for name in ROUTER_COLUMNS)


def collapsed_since(telemetry: Mapping[str, np.ndarray]) -> int | None:
    """Return the step since which every reading of the router is collapsed, or None.

    A reading is collapsed if the Gini coefficient of the loads is above 0.5 or an expert is dead. The readings since
    that step must be a tenth of all at least. ``telemetry`` has a ``step``, and NaN for missing readings.
    """
    if not has_router(telemetry):
        return None
    step_N = telemetry["step"]
    gini_N, dead_N = (telemetry.get(name, np.full(len(step_N), np.nan)) for name in ROUTER_COLUMNS)
    is_known_N = np.isfinite(gini_N) | np.isfinite(dead_N)
    is_collapsed_M = ((gini_N > MOST_GINI) | (dead_N > 0))[is_known_N]
    balanced = np.flatnonzero(~is_collapsed_M)
    first = int(balanced[-1]) + 1 if len(balanced) else 0
    if len(is_collapsed_M) - first < max(1, math.ceil(_LAST * len(is_collapsed_M))):
        return None
    return int(step_N[is_known_N][first])

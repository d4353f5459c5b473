"""The spike score of OLMo-core: the share of steps at which a curve stands far above its recent past.

It is not this project's count of episodes: a spike of thirty steps is one episode, and as many steps of
the score as its window takes to get used to it. Maps name which of the two they show.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

WINDOW = 128
SIGMAS = 6.0
_LEAST_DEVIATION = 1e-10


def spike_score(curves: Iterable[np.ndarray], window: int = WINDOW, sigmas: float = SIGMAS) -> float | None:
    """Share of steps, 0 to 1, at which any of ``curves``, (N,) each, is over mean + ``sigmas`` deviations.

    Mean and population deviation are of the ``window`` values before the step (OLMo-core's
    StabilityMonitorCallback: 6 deviations of the last 128 losses or gradient norms). Steps without a full
    and finite window never count as spikes. None where no step has a full window.
    """
    curves = [np.asarray(curve, dtype=np.float64) for curve in curves]
    if not curves or len(curves[0]) <= window:
        return None
    is_spike = np.zeros(len(curves[0]) - window, dtype=bool)
    for curve in curves:
        past = np.lib.stride_tricks.sliding_window_view(curve, window)[:-1]
        with np.errstate(invalid="ignore", over="ignore"):
            mean, deviation = past.mean(axis=1), past.std(axis=1)
            is_spike |= (deviation > _LEAST_DEVIATION) & (curve[window:] > mean + sigmas * deviation)
    return float(is_spike.sum() / len(curves[0]))

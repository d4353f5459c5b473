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
_STEPS_AT_ONCE = 1024  # all windows of these take a megabyte


def spike_score(curves: Iterable[np.ndarray], window: int = WINDOW, sigmas: float = SIGMAS) -> float | None:
    """Share of steps, 0 to 1, at which any of ``curves``, (N,) each, is over mean + ``sigmas`` deviations.

    Mean and population deviation are of the ``window`` values before the step (OLMo-core's
    StabilityMonitorCallback: 6 deviations of the last 128 losses or gradient norms). Steps without a full
    and finite window never count as spikes. None where no step has a full window.
    """
    curves = [np.asarray(curve, dtype=np.float64) for curve in curves]
    if not curves or len(curves[0]) <= window:
        return None
    num_spikes, num_steps = 0, len(curves[0])
    for start in range(0, num_steps - window, _STEPS_AT_ONCE):
        end = min(start + _STEPS_AT_ONCE, num_steps - window) + window
        num_spikes += int(np.any([_is_spike(curve[start:end], window, sigmas) for curve in curves], axis=0).sum())
    return num_spikes / num_steps


def _is_spike(curve_N: np.ndarray, window: int, sigmas: float) -> np.ndarray:
    """Which of the steps from ``window`` on are over mean + ``sigmas`` deviations of the ``window`` before them.

    Each window (W values, M windows) is measured from its first value and in units of its largest distance from it,
    so that neither a large offset nor huge values cost digits. A constant window has no unit, and flags nothing.
    """
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        quarter_N = curve_N / 4  # a difference of two finite numbers is finite then
        past_MW = np.lib.stride_tricks.sliding_window_view(quarter_N[:-1], window)
        first_M = past_MW[:, 0]
        past_MW = past_MW - first_M[:, None]
        unit_M = np.maximum(past_MW.max(axis=1), -past_MW.min(axis=1))
        past_MW /= unit_M[:, None]
        mean_M, deviation_M = past_MW.mean(axis=1), past_MW.std(axis=1)
        is_over_M = (quarter_N[window:] - first_M) / unit_M > mean_M + sigmas * deviation_M
        return is_over_M & (deviation_M * unit_M > _LEAST_DEVIATION / 4)

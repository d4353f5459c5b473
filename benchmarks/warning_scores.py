"""Scores with which a warning from telemetry is compared: single readings, and statistics of every step's curve."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from orchestrator.detection.warning.risk import running_median, windows

# Shapes: N steps or readings, W of a window.

Score = Callable[[Mapping[str, np.ndarray]], np.ndarray]

_WINDOW = 50  # steps before the one that is scored
_SLACK = 0.5  # deviations that a CUSUM forgives each step


def _past(value_N: np.ndarray) -> np.ndarray:
    """The finite window before each value, without it, (N, W)."""
    return windows(np.concatenate([[np.nan], value_N[:-1]]), _WINDOW)


def deviations(value_N: np.ndarray) -> np.ndarray:
    """How many robust deviations each value is above the window before it, (N,); NaN without a full window."""
    past_NW = _past(value_N)
    centre_N = np.median(past_NW, axis=1)
    spread_N = 1.4826 * np.median(np.abs(past_NW - centre_N[:, None]), axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return (value_N - centre_N) / np.maximum(spread_N, 1e-3 * np.abs(centre_N) + 1e-12)


def cusum(value_N: np.ndarray) -> np.ndarray:
    """The one-sided cumulative sum of deviations above the past, (N,), as in Page's test with a slack of 0.5."""
    sums_N, total = np.full(len(value_N), np.nan), 0.0
    for i, deviation in enumerate(np.clip(deviations(value_N), -10, 10).tolist()):
        if np.isfinite(deviation):
            total = max(0.0, total + deviation - _SLACK)
            sums_N[i] = total
    return sums_N


def kurtosis(value_N: np.ndarray) -> np.ndarray:
    """The excess kurtosis of the last 50 values, (N,); NaN without a full window."""
    past_NW = windows(value_N, _WINDOW)
    centred_NW = past_NW - past_NW.mean(axis=1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        return (centred_NW**4).mean(axis=1) / (centred_NW**2).mean(axis=1) ** 2 - 3


def _log_norm(trace: Mapping[str, np.ndarray]) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(trace["grad_norm"])


def norm_rise(trace: Mapping[str, np.ndarray]) -> np.ndarray:
    """The log of the gradient norm's median of 10 steps over that of 128, (N,)."""
    return running_median(_log_norm(trace), 10) - running_median(_log_norm(trace), 128)


# Of the curves that every run has, at every step.
OF_CURVES: dict[str, Score] = {
    "loss, deviations": lambda trace: deviations(trace["loss"]),
    "norm, deviations": lambda trace: deviations(trace["grad_norm"]),
    "norm, 10 over 128": norm_rise,
    "norm, CUSUM": lambda trace: cusum(_log_norm(trace)),
    "norm, kurtosis": lambda trace: kurtosis(trace["grad_norm"]),
}

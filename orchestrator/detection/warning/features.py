"""Features of a run's telemetry, from which its risk follows; each is larger where an instability is nearer.

Every feature at a reading uses that reading and those before it, never later ones. A feature whose columns were not
read is NaN: what is not known counts neither way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from orchestrator.detection.warning.alarms import HORIZON

# Shapes: N readings, F features, W readings of a window, M readings at which something was measured.

Telemetry = Mapping[str, np.ndarray]

# Readings in "recent" and in "usual"; both end at the reading itself.
RECENT, USUAL = 5, 40
# Measurements of the curvature in a trend, and steps by which a trend is drawn on: as far as an alarm speaks.
TREND, AHEAD = 5, HORIZON
# Steps for which a measurement of the curvature stands in for the next.
STANDS = 100
# A feature at a reading needs this many readings before it at most, if the curvature is measured at every twentieth.
MEMORY = 128
_LEAST, _MOST = 2.0**-6, 2.0**6  # ratios are cut here: beyond, how far says nothing more
_LEAST_LAG = 1e-4
_NEAR = 0.15  # a tenth, in powers of two


@dataclass(frozen=True, slots=True)
class Feature:
    """A number of each reading: ``of`` gives it as (N,) from the telemetry, NaN where not known.

    ``needs_curvature`` says that it costs Hessian-vector products. ``says`` completes "the risk comes from ...".
    """

    name: str
    says: str
    of: Callable[[Telemetry], np.ndarray]
    needs_curvature: bool = False


def features(telemetry: Telemetry) -> np.ndarray:
    """All ``FEATURES`` of each reading, (N, F)."""
    return np.stack([feature.of(telemetry) for feature in FEATURES], axis=1)


def ratio(telemetry: Telemetry, name: str) -> np.ndarray:
    """The curvature ``name`` over its threshold 2 / lr where it was measured, (N,); cut to 1/64 to 64."""
    if name not in telemetry:
        return unknown(telemetry)
    threshold_N = telemetry["curvature_threshold"]
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.clip(np.where(np.isfinite(threshold_N), telemetry[name] / threshold_N, np.nan), _LEAST, _MOST)


def unknown(telemetry: Telemetry) -> np.ndarray:
    """NaN for each reading, (N,)."""
    return np.full(len(telemetry["step"]), np.nan)


def windows(value_N: np.ndarray, size: int) -> np.ndarray:
    """The last ``size`` values at each reading, itself included, (N, W); NaN before the first."""
    if not len(value_N):
        return np.empty((0, size))
    padded = np.concatenate([np.full(size - 1, np.nan), value_N])
    return np.lib.stride_tricks.sliding_window_view(padded, size)


def running_median(value_N: np.ndarray, size: int) -> np.ndarray:
    """The median of the finite ones among the last ``size`` values, (N,); NaN without one."""
    past_NW = windows(np.where(np.isfinite(value_N), value_N, np.nan), size)
    median_N = np.full(len(value_N), np.nan)
    has_any_N = np.isfinite(past_NW).any(axis=1)
    median_N[has_any_N] = np.nanmedian(past_NW[has_any_N], axis=1)
    return median_N


def held(step_N: np.ndarray, is_measured_N: np.ndarray, value_M: np.ndarray) -> np.ndarray:
    """Values of the measured readings, each standing until the next one and for ``STANDS`` steps at most, (N,)."""
    if not len(value_M):
        return np.full(len(step_N), np.nan)
    place_N = np.cumsum(is_measured_N) - 1
    value_N = np.where(place_N >= 0, value_M[place_N], np.nan)
    age_N = step_N - step_N[is_measured_N][place_N]
    return np.where((place_N >= 0) & (age_N <= STANDS), value_N, np.nan)


def slopes(step_M: np.ndarray, value_M: np.ndarray, size: int) -> np.ndarray:
    """Least-squares slope per step of the last ``size`` values, (M,); NaN where there are fewer."""
    x_MW, y_MW = windows(step_M.astype(np.float64), size), windows(value_M, size)
    x_MW = x_MW - x_MW.mean(axis=1, keepdims=True)
    y_MW = y_MW - y_MW.mean(axis=1, keepdims=True)
    return (x_MW * y_MW).sum(axis=1) / (x_MW**2).sum(axis=1)


def _log(value_N: np.ndarray) -> np.ndarray:
    """log2 of positive values, NaN of others."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(value_N > 0, np.log2(value_N), np.nan)


def _curved(telemetry: Telemetry, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Steps of all readings, which have the curvature ``name``, and log2 of its ratio at those."""
    ratio_N = ratio(telemetry, name)
    is_measured_N = np.isfinite(ratio_N)
    return telemetry["step"], is_measured_N, _log(ratio_N[is_measured_N])


def _near(telemetry: Telemetry) -> np.ndarray:
    """log2 of the ratio where it is within a tenth of the threshold, cut beyond: on a full batch per cents count."""
    step_N, is_measured_N, log_M = _curved(telemetry, "lambda_max")
    return held(step_N, is_measured_N, running_median(np.clip(log_M, -_NEAR, _NEAR), 3))


def _mean(telemetry: Telemetry, name: str) -> np.ndarray:
    """log2 of the geometric mean of the last ratios: above 0 a perturbation grows on the whole."""
    step_N, is_measured_N, log_M = _curved(telemetry, name)
    return held(step_N, is_measured_N, np.nanmean(windows(log_M, TREND), axis=1))


def _peak(telemetry: Telemetry, name: str) -> np.ndarray:
    """log2 of the highest of the last ratios."""
    step_N, is_measured_N, log_M = _curved(telemetry, name)
    return held(step_N, is_measured_N, np.nanmax(windows(log_M, TREND), axis=1))


def _ahead(telemetry: Telemetry) -> np.ndarray:
    """log2 of the ratio that the trend of the last measurements reaches in ``AHEAD`` steps, cut to 1/2 to 2."""
    step_N, is_measured_N, log_M = _curved(telemetry, "lambda_max")
    rise_M = slopes(step_N[is_measured_N], log_M, TREND) * AHEAD
    expected_M = running_median(log_M, TREND) + np.clip(rise_M, -1.0, 1.0)
    return held(step_N, is_measured_N, np.clip(expected_M, -1.0, 1.0))


def _column(telemetry: Telemetry, name: str) -> np.ndarray:
    return telemetry[name] if name in telemetry else unknown(telemetry)


def _rise(telemetry: Telemetry, name: str, recent: int = RECENT) -> np.ndarray:
    """log2 of the recent median of a column over its usual one, cut to 1/64 to 64."""
    value_N = _column(telemetry, name)
    usual_N = running_median(value_N, USUAL)
    with np.errstate(divide="ignore", invalid="ignore"):
        return _log(np.clip(running_median(value_N, recent) / usual_N, _LEAST, _MOST))


def _lag(telemetry: Telemetry) -> np.ndarray:
    """log10 of |g|^2 / sum(v)."""
    return np.log10(np.maximum(_column(telemetry, "v_lag/all"), _LEAST_LAG))


def _decayed(telemetry: Telemetry) -> np.ndarray:
    """-log10 of the recent median of |g|^2 / sum(v): large while v only decays."""
    return -running_median(_lag(telemetry), 2 * RECENT)


def _incoherent(telemetry: Telemetry) -> np.ndarray:
    """-log2 of the RMS of m / sqrt(v): large where gradients cancel from step to step, or v is a relic."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return -_log(np.maximum(running_median(_column(telemetry, "direction_rms/all"), RECENT), _LEAST))


def _logit(telemetry: Telemetry) -> np.ndarray:
    return np.log10(np.maximum(_column(telemetry, "attention_logit"), 1.0))


FEATURES: tuple[Feature, ...] = (
    Feature("edge_near", "the curvature at its threshold", _near, True),
    Feature("edge", "the curvature over its threshold", lambda t: _mean(t, "lambda_max"), True),
    Feature("edge_peak", "a recent high curvature", lambda t: _peak(t, "lambda_max"), True),
    Feature("edge_ahead", "the trend of the curvature", _ahead, True),
    Feature("gradient_edge", "the curvature along the gradient", lambda t: _mean(t, "lambda_grad"), True),
    Feature("gradient_peak", "a recent high curvature along the gradient", lambda t: _peak(t, "lambda_grad"), True),
    Feature("v_decayed", "a second moment that only decays", _decayed),
    Feature("v_lag", "a gradient that outgrows the second moment", _lag),
    Feature("incoherent", "gradients that cancel from step to step", _incoherent),
    Feature("norm_rise", "a rising gradient norm", lambda t: _rise(t, "grad_norm/all")),
    Feature("update_rise", "growing steps", lambda t: _rise(t, "update_rms/all")),
    Feature("below_eps", "a second moment below eps", lambda t: _column(t, "share_below_eps/all")),
    Feature("logit", "large attention logits", _logit),
    Feature("logit_rise", "growing attention logits", lambda t: _rise(t, "attention_logit")),
)
TREND_NAME = "edge_ahead"  # 0 where the trend reaches the threshold 2 / lr
NAMES = tuple(feature.name for feature in FEATURES)
# All columns of telemetry that any feature is made from.
COLUMNS = (
    "lambda_max", "lambda_grad", "curvature_threshold", "grad_norm/all", "v_lag/all", "direction_rms/all",
    "update_rms/all", "share_below_eps/all", "attention_logit",
)  # fmt: skip

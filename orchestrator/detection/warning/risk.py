"""The risk that a run becomes unstable within the next steps: a logistic regression on features of its telemetry.

log(risk / (1 - risk)) = bias + sum of coefficient * (feature - centre) / spread, with coefficients of at least zero:
more of a feature never lowers the risk. An unknown feature adds nothing, as if it were at its centre.

A feature at a reading uses this and earlier readings, never later ones, and grows as an instability approaches. A
feature whose columns were not read is NaN, and counts neither way.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from orchestrator.detection.warning.alarms import HORIZON

# Shapes: N readings, F features, W readings of a window, M readings at which something was measured.

_FILE = "risk.json"
_MOST_SPREADS = 4.0  # features are clipped at this distance from their centre


@dataclass(frozen=True, slots=True)
class RiskModel:
    """Coefficients, (F,), of the features ``names``. A risk of at least ``threshold`` is an alarm."""

    names: tuple[str, ...]
    centre: tuple[float, ...]
    spread: tuple[float, ...]
    coefficient: tuple[float, ...]
    bias: float
    threshold: float = float("inf")
    horizon: int = HORIZON

    def contributions(self, feature_NF: np.ndarray) -> np.ndarray:
        """Return what each feature adds to log(risk / (1 - risk)), (N, F), from the columns of ``FEATURES``."""
        scaled_NF = scaled(feature_NF[:, self._columns], np.array(self.centre), np.array(self.spread))
        return scaled_NF * np.array(self.coefficient)

    def risks(self, feature_NF: np.ndarray) -> np.ndarray:
        """Return the risk of each reading, 0 to 1, (N,), or NaN if no feature is known."""
        is_known_N = np.isfinite(feature_NF[:, self._columns]).any(axis=1)
        return np.where(is_known_N, logistic(self.bias + self.contributions(feature_NF).sum(axis=1)), np.nan)

    @property
    def _columns(self) -> list[int]:
        return [NAMES.index(name) for name in self.names]


def logistic(value_N: np.ndarray) -> np.ndarray:
    """Return 1 / (1 + exp(-value))."""
    return 0.5 * (1 + np.tanh(value_N / 2))


def scaled(feature_NF: np.ndarray, centre_F: np.ndarray, spread_F: np.ndarray) -> np.ndarray:
    """Return features in spreads from their centre, clipped at 4; 0 if unknown."""
    return np.clip(np.nan_to_num((feature_NF - centre_F) / spread_F, nan=0.0), -_MOST_SPREADS, _MOST_SPREADS)


@cache
def shipped() -> dict[str, RiskModel]:
    """Return the models of the package: ``trend``, ``gradient`` and ``cheap``. ``model_for`` chooses one."""
    text = resources.files("orchestrator.detection.warning").joinpath(_FILE).read_text()
    models: dict[str, dict[str, Any]] = json.loads(text)["models"]
    return {
        name: RiskModel(**values | {key: tuple(values[key]) for key in ("names", "centre", "spread", "coefficient")})
        for name, values in models.items()
    }


# --- features --------------------------------------------------------------------------------------

Telemetry = Mapping[str, np.ndarray]
ALONG_GRADIENT, ALONG_UPDATE = "lambda_grad", "lambda_crit"

# Readings in "recent" and "usual" windows; both end at the reading itself.
RECENT, USUAL = 5, 40
# Measurements of the curvature in a trend, and steps of extrapolation: as far as an alarm reaches.
TREND, AHEAD = 5, HORIZON
# Steps for which a measurement of the curvature stays valid.
STANDS = 100
# Most earlier readings that a feature needs, if the curvature is measured at every twentieth reading.
MEMORY = 128
_LEAST, _MOST = 2.0**-6, 2.0**6  # ratios are clipped here: beyond, the value says nothing more
_LEAST_LAG = 1e-4
_NEAR = 0.15  # a tenth, in powers of two


@dataclass(frozen=True, slots=True)
class Feature:
    """A number for each reading: ``of`` computes it from the telemetry, (N,), NaN if unknown.

    ``needs_curvature`` marks those features which cost Hessian-vector products. ``phrase`` completes "due to ...".
    """

    name: str
    phrase: str
    of: Callable[[Telemetry], np.ndarray]
    needs_curvature: bool = False


def features(telemetry: Telemetry) -> np.ndarray:
    """Return all ``FEATURES`` of each reading, (N, F)."""
    return np.stack([feature.of(telemetry) for feature in FEATURES], axis=1)


def ratio(telemetry: Telemetry, name: str) -> np.ndarray:
    """Return the curvature ``name`` over its threshold 2 / lr, clipped to 1/64 to 64, (N,); NaN if not measured.

    By forward passes the curvature along the update stands for the one along the gradient (docs/warning.md).
    """
    name = ALONG_UPDATE if name == ALONG_GRADIENT and name not in telemetry else name
    if name not in telemetry:
        return unknown(telemetry)
    threshold_N = telemetry["curvature_threshold"]
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.clip(np.where(np.isfinite(threshold_N), telemetry[name] / threshold_N, np.nan), _LEAST, _MOST)


def unknown(telemetry: Telemetry) -> np.ndarray:
    """Return NaN for each reading, (N,)."""
    return np.full(len(telemetry["step"]), np.nan)


def windows(value_N: np.ndarray, size: int) -> np.ndarray:
    """Return the last ``size`` values up to each reading, (N, W); NaN before the first."""
    if not len(value_N):
        return np.empty((0, size))
    padded = np.concatenate([np.full(size - 1, np.nan), value_N])
    return np.lib.stride_tricks.sliding_window_view(padded, size)


def running_median(value_N: np.ndarray, size: int) -> np.ndarray:
    """Return the median of the finite values among the last ``size``, (N,); NaN without any."""
    past_NW = windows(np.where(np.isfinite(value_N), value_N, np.nan), size)
    median_N = np.full(len(value_N), np.nan)
    has_any_N = np.isfinite(past_NW).any(axis=1)
    median_N[has_any_N] = np.nanmedian(past_NW[has_any_N], axis=1)
    return median_N


def held(step_N: np.ndarray, is_measured_N: np.ndarray, value_M: np.ndarray) -> np.ndarray:
    """Return measured values held until the next one and for at most ``STANDS`` steps, (N,)."""
    if not len(value_M):
        return np.full(len(step_N), np.nan)
    last_N = np.cumsum(is_measured_N) - 1
    value_N = np.where(last_N >= 0, value_M[last_N], np.nan)
    age_N = step_N - step_N[is_measured_N][last_N]
    return np.where((last_N >= 0) & (age_N <= STANDS), value_N, np.nan)


def slopes(step_M: np.ndarray, value_M: np.ndarray, size: int) -> np.ndarray:
    """Return the least-squares slope per step of the last ``size`` values, (M,); NaN with fewer."""
    x_MW, y_MW = windows(step_M.astype(np.float64), size), windows(value_M, size)
    x_MW = x_MW - x_MW.mean(axis=1, keepdims=True)
    y_MW = y_MW - y_MW.mean(axis=1, keepdims=True)
    return (x_MW * y_MW).sum(axis=1) / (x_MW**2).sum(axis=1)


def _log(value_N: np.ndarray) -> np.ndarray:
    """Return log2 of positive values, NaN for others."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(value_N > 0, np.log2(value_N), np.nan)


def _curved(telemetry: Telemetry, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return steps of all readings, which ones measured the curvature ``name``, and log2 of its ratio there."""
    ratio_N = ratio(telemetry, name)
    is_measured_N = np.isfinite(ratio_N)
    return telemetry["step"], is_measured_N, _log(ratio_N[is_measured_N])


def _near(telemetry: Telemetry) -> np.ndarray:
    """Return log2 of the ratio, clipped at a tenth around the threshold: on a full batch, per cents count."""
    step_N, is_measured_N, log_M = _curved(telemetry, "lambda_max")
    return held(step_N, is_measured_N, running_median(np.clip(log_M, -_NEAR, _NEAR), 3))


def _mean(telemetry: Telemetry, name: str) -> np.ndarray:
    """Return log2 of the geometric mean of the last ratios: above 0, perturbations grow overall."""
    step_N, is_measured_N, log_M = _curved(telemetry, name)
    return held(step_N, is_measured_N, np.nanmean(windows(log_M, TREND), axis=1))


def _peak(telemetry: Telemetry, name: str) -> np.ndarray:
    """Return log2 of the highest of the last ratios."""
    step_N, is_measured_N, log_M = _curved(telemetry, name)
    return held(step_N, is_measured_N, np.nanmax(windows(log_M, TREND), axis=1))


def _ahead(telemetry: Telemetry) -> np.ndarray:
    """Return log2 of the ratio that the trend reaches in ``AHEAD`` steps, clipped to 1/2 to 2."""
    step_N, is_measured_N, log_M = _curved(telemetry, "lambda_max")
    rise_M = slopes(step_N[is_measured_N], log_M, TREND) * AHEAD
    expected_M = running_median(log_M, TREND) + np.clip(rise_M, -1.0, 1.0)
    return held(step_N, is_measured_N, np.clip(expected_M, -1.0, 1.0))


def _column(telemetry: Telemetry, name: str) -> np.ndarray:
    return telemetry[name] if name in telemetry else unknown(telemetry)


def _rise(telemetry: Telemetry, name: str, recent: int = RECENT) -> np.ndarray:
    """Return log2 of the recent median of a column over its usual one, clipped to 1/64 to 64."""
    value_N = _column(telemetry, name)
    usual_N = running_median(value_N, USUAL)
    with np.errstate(divide="ignore", invalid="ignore"):
        return _log(np.clip(running_median(value_N, recent) / usual_N, _LEAST, _MOST))


def _lag(telemetry: Telemetry) -> np.ndarray:
    """Return log10 of |g|^2 / sum(v)."""
    return np.log10(np.maximum(_column(telemetry, "v_lag/all"), _LEAST_LAG))


def _decayed(telemetry: Telemetry) -> np.ndarray:
    """Return -log10 of the recent median of |g|^2 / sum(v): large while v only decays."""
    return -running_median(_lag(telemetry), 2 * RECENT)


def _incoherent(telemetry: Telemetry) -> np.ndarray:
    """Return -log2 of the RMS of m / sqrt(v): large if gradients cancel from step to step, or v is outdated."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return -_log(np.maximum(running_median(_column(telemetry, "direction_rms/all"), RECENT), _LEAST))


def _logit(telemetry: Telemetry) -> np.ndarray:
    return np.log10(np.maximum(_column(telemetry, "attention_logit"), 1.0))


TREND_NAME = "edge_ahead"  # 0 if the trend reaches the threshold 2 / lr
FEATURES: tuple[Feature, ...] = (
    Feature("edge_near", "the curvature at its threshold", _near, True),
    Feature("edge", "the curvature over its threshold", lambda t: _mean(t, "lambda_max"), True),
    Feature("edge_peak", "a recent high curvature", lambda t: _peak(t, "lambda_max"), True),
    Feature(TREND_NAME, "the trend of the curvature", _ahead, True),
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
NAMES = tuple(feature.name for feature in FEATURES)
# Columns of telemetry that features use.
COLUMNS = (
    "lambda_max", ALONG_GRADIENT, ALONG_UPDATE, "curvature_threshold", "grad_norm/all", "v_lag/all",
    "direction_rms/all", "update_rms/all", "share_below_eps/all", "attention_logit",
)  # fmt: skip

"""Metrics of a map that are computed from a trial's curves, since the ledger's table has no column for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from orchestrator.base.packs import Trace
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.table import SweepTable

SCORED = ("loss", "grad_norm")  # columns of a trace that the score uses
_UPDATE, _LAG = "update_rms/all", "v_lag/all"  # columns of telemetry

# Of the spike score.
WINDOW = 128
SIGMAS = 6.0
_LEAST_DEVIATION = 1e-10
LOSS_RATIO = 1.2
_STEPS_AT_ONCE = 1024  # all windows of these take a megabyte

Measured = Mapping[str, Mapping[str, float]]  # metric -> trial_id -> value


def edge_crossings(step_N: np.ndarray, lambda_max_N: np.ndarray, threshold_N: np.ndarray) -> int | None:
    """How often lambda_max rises above its threshold in the second half of training; None if it was not measured.

    Tang et al. (arXiv 2609.18314) distinguish spiking from settled Adam by such crossings, without the first half.
    """
    is_measured_N = np.isfinite(lambda_max_N) & np.isfinite(threshold_N)
    if is_measured_N.sum() < 2:
        return None
    is_late_M, is_over_M = _is_late(step_N)[is_measured_N], (lambda_max_N > threshold_N)[is_measured_N]
    rises_M = is_over_M[1:] & ~is_over_M[:-1]
    return int((rises_M & is_late_M[1:]).sum())


def _is_late(step_N: np.ndarray) -> np.ndarray:
    """Which of the steps lie in the second half of what was trained."""
    return step_N > step_N[-1] / 2


def _late_median(telemetry: Trace, value_N: np.ndarray) -> float | None:
    """The median of the finite values in the second half of training, None without one."""
    known_M = value_N[_is_late(telemetry["step"]) & np.isfinite(value_N)]
    return float(np.median(known_M)) if len(known_M) else None


def _edge_ratios(telemetry: Trace) -> np.ndarray:
    """lambda_max over its threshold 2 / lr of each reading; NaN where it was not measured, or the rate is zero."""
    if "lambda_max" not in telemetry:
        return np.full(len(telemetry.get("step", ())), np.nan)
    threshold_N = telemetry["curvature_threshold"]
    return np.where(np.isfinite(threshold_N), telemetry["lambda_max"] / threshold_N, np.nan)


def with_rates(telemetry: Trace, trace: Trace) -> Trace:
    """``telemetry`` with the learning rate of each reading's step in the column ``lr``, if ``trace`` has rates.

    Where not every step of the curve was kept (``telemetry.curves``), the rate between two steps is interpolated.
    """
    if not telemetry or "lr" not in trace:
        return telemetry
    is_known_N = np.isfinite(trace["lr"])
    if not is_known_N.any():
        return telemetry
    return {**telemetry, "lr": np.interp(telemetry["step"], trace["step"][is_known_N], trace["lr"][is_known_N])}


def _spike_score(trace: Trace) -> float | None:
    return spike_score([trace[name] for name in SCORED if name in trace])


def _loss_ratio_steps(trace: Trace) -> float | None:
    return loss_ratio_steps(trace["loss"]) if "loss" in trace else None


def loss_ratio_steps(loss_N: np.ndarray) -> int | None:
    """At how many steps the loss is above 1.2 times the least one before, or not finite; None for less than two.

    The loss ratio of Li et al. (arXiv 2108.06084). A loss of zero or below has no ratio.
    """
    if len(loss_N) < 2:
        return None
    least_M = np.fmin.accumulate(np.where(np.isfinite(loss_N), loss_N, np.nan))[:-1]
    is_over_M = (loss_N[1:] > LOSS_RATIO * least_M) & (least_M > 0)
    return int((is_over_M | ~np.isfinite(loss_N[1:])).sum())


def _edge_crossings(telemetry: Trace) -> float | None:
    if "lambda_max" not in telemetry:
        return None
    return edge_crossings(telemetry["step"], telemetry["lambda_max"], telemetry["curvature_threshold"])


def _late_edge_ratio(telemetry: Trace) -> float | None:
    return _late_median(telemetry, _edge_ratios(telemetry)) if telemetry else None


def _last_edge_ratio(telemetry: Trace) -> float | None:
    return last_reading({"ratio": _edge_ratios(telemetry)}, "ratio")


def _late_update_over_lr(telemetry: Trace) -> float | None:
    if _UPDATE not in telemetry or "lr" not in telemetry:
        return None
    rate_N = telemetry["lr"]
    return _late_median(telemetry, telemetry[_UPDATE] / np.where(rate_N > 0, rate_N, np.nan))


def _late_v_lag(telemetry: Trace) -> float | None:
    return _late_median(telemetry, telemetry[_LAG]) if _LAG in telemetry else None


def _late_router_gini(telemetry: Trace) -> float | None:
    return _late_median(telemetry, telemetry["router_gini"]) if "router_gini" in telemetry else None


OF_TRACES: Mapping[str, Callable[[Trace], float | None]] = {
    "spike_score": _spike_score,
    "loss_ratio_steps": _loss_ratio_steps,
}
# Of telemetry `with_rates`.
OF_TELEMETRY: Mapping[str, Callable[[Trace], float | None]] = {
    "edge_crossings": _edge_crossings,
    "late_edge_ratio": _late_edge_ratio,
    "last_edge_ratio": _last_edge_ratio,
    "late_update_over_lr": _late_update_over_lr,
    "late_v_lag": _late_v_lag,
    "late_router_gini": _late_router_gini,
}
CURVE_METRICS = (*OF_TRACES, *OF_TELEMETRY)


def headlines(telemetry: Trace, trace: Trace) -> dict[str, float]:
    """The metrics of one trial's telemetry that it has, by name; ``trace`` has the learning rates."""
    rated = with_rates(telemetry, trace)
    found = {name: metric(rated) for name, metric in OF_TELEMETRY.items()}
    return {name: value for name, value in found.items() if value is not None}


def last_reading(telemetry: Trace, name: str) -> float | None:
    """The last finite reading of ``name``, None without one."""
    values_N = telemetry.get(name, np.empty(0))
    known_M = values_N[np.isfinite(values_N)]
    return float(known_M[-1]) if len(known_M) else None


def measured(table: SweepTable, names: Iterable[str]) -> dict[str, dict[str, float]]:
    """The metrics ``names`` of all trials by id: curve metrics, and metrics that a custom trainer printed.

    Other names are ignored, and a trial without a metric is left out.
    """
    known = (*CURVE_METRICS, *table.printed_metrics)
    values: dict[str, dict[str, float]] = {name: {} for name in names if name in known}
    for trial in table.trials if values else ():
        for name, value in _measured_in(table.ledger, trial.trial_id, list(values)).items():
            if value is not None:
                values[name][trial.trial_id] = value
    return values


def _measured_in(ledger: LedgerReader, trial_id: str, names: Sequence[str]) -> dict[str, float | None]:
    """The metrics ``names`` of one trial, whose curves are read once."""
    values: dict[str, float | None] = {}
    if of_traces := [name for name in names if name in OF_TRACES]:
        trace = ledger.trace(trial_id, SCORED)
        values = {name: OF_TRACES[name](trace) for name in of_traces}
    if of_telemetry := [name for name in names if name not in OF_TRACES]:
        telemetry: Trace = ledger.telemetry(trial_id)
        if _UPDATE in telemetry:
            telemetry = with_rates(telemetry, ledger.trace(trial_id, ("lr",)))
        for name in of_telemetry:
            values[name] = OF_TELEMETRY[name](telemetry) if name in OF_TELEMETRY else last_reading(telemetry, name)
    return values


def spike_score(curves: Iterable[np.ndarray], window: int = WINDOW, sigmas: float = SIGMAS) -> float | None:
    """Share of steps, 0 to 1, at which any of ``curves``, (N,) each, is over mean + ``sigmas`` deviations.

    The spike score of OLMo-core's StabilityMonitorCallback (6 deviations of the last 128 losses or gradient norms). It
    does not count episodes: a spike of thirty steps is one episode, but scores as many steps as its window takes to
    adapt. Mean and population deviation are of the ``window`` values before the step. Steps without a full and finite
    window never count as spikes. None if no step has a full window.
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
    """Which of the steps from ``window`` on are over mean + ``sigmas`` deviations of the ``window`` before them."""
    is_spike_M = _may_be_spike(curve_N, window, sigmas)
    past_MW = np.lib.stride_tricks.sliding_window_view(curve_N[:-1], window)
    is_spike_M[is_spike_M] = _is_over(curve_N[window:][is_spike_M], past_MW[is_spike_M], sigmas)
    return is_spike_M


def _is_over(value_M: np.ndarray, past_MW: np.ndarray, sigmas: float) -> np.ndarray:
    """Whether each value is over mean + ``sigmas`` deviations of its window.

    Each window is taken relative to its first value and in units of its largest distance from it, so that neither a
    large offset nor huge values cost precision. A constant window has no unit, and flags nothing.
    """
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        value_M, past_MW = value_M / 4, past_MW / 4  # so that a difference of two finite numbers is finite
        first_M = past_MW[:, 0].copy()
        past_MW -= first_M[:, None]
        unit_M = np.abs(past_MW).max(axis=1)
        past_MW /= unit_M[:, None]
        mean_M, deviation_M = past_MW.mean(axis=1), past_MW.std(axis=1)
        is_over_M = (value_M - first_M) / unit_M > mean_M + sigmas * deviation_M
        return is_over_M & (deviation_M * unit_M > _LEAST_DEVIATION / 4)


def _may_be_spike(curve_N: np.ndarray, window: int, sigmas: float) -> np.ndarray:
    """Which steps from ``window`` on cannot be excluded by running sums, allowing for their rounding."""
    is_finite_N = np.isfinite(curve_N)
    with np.errstate(invalid="ignore", over="ignore"):
        kept_N = np.where(is_finite_N, curve_N, 0.0)
        kept_N = np.where(is_finite_N, kept_N - kept_N.mean(), 0.0)
        square_N = np.square(kept_N)
        # The error of a sum of n numbers is below n roundings of the sum of their sizes; for a difference, twice that.
        rounding = 8 * len(curve_N) * np.finfo(np.float64).eps / window
        mean_M = _sums(kept_N, window) / window
        at_most_M = np.abs(mean_M) + rounding * np.abs(kept_N).sum()
        variance_M = _sums(square_N, window) / window - rounding * square_N.sum() - np.square(at_most_M)
        bound_M = mean_M - rounding * np.abs(kept_N).sum() + sigmas * np.sqrt(np.maximum(variance_M, 0.0))
        is_ruled_out_M = np.where(is_finite_N, kept_N, curve_N)[window:] <= bound_M
    return ~is_ruled_out_M & (_sums(~is_finite_N, window) == 0)


def _sums(value_N: np.ndarray, window: int) -> np.ndarray:
    """The sum of the ``window`` values before each step from ``window`` on."""
    total_N = np.concatenate([[0], np.cumsum(value_N)])
    return total_N[window:-1] - total_N[: -window - 1]

"""Metrics of a map that are read off a trial's curves, as the ledger's table has no column for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.spike_score import spike_score
from orchestrator.messages import Trace

SCORED = ("loss", "grad_norm")  # columns of a trace that metrics are read off

Measured = Mapping[str, Mapping[str, float]]  # metric -> trial_id -> value


def edge_crossings(step_N: np.ndarray, lambda_max_N: np.ndarray, threshold_N: np.ndarray) -> int | None:
    """How often lambda_max rises above its threshold in the second half of training; None where it was not measured.

    Tang et al. (arXiv 2609.18314) tell spiking from settled Adam by such crossings, without the first half.
    """
    is_measured_N = np.isfinite(lambda_max_N) & np.isfinite(threshold_N)
    if is_measured_N.sum() < 2:
        return None
    step_M, is_over_M = step_N[is_measured_N], (lambda_max_N > threshold_N)[is_measured_N]
    rises_M = is_over_M[1:] & ~is_over_M[:-1]
    return int((rises_M & (step_M[1:] > step_N[-1] / 2)).sum())


def _spike_score(trace: Trace) -> float | None:
    return spike_score([trace[name] for name in SCORED if name in trace])


def _edge_crossings(telemetry: Trace) -> float | None:
    if "lambda_max" not in telemetry:
        return None
    return edge_crossings(telemetry["step"], telemetry["lambda_max"], telemetry["curvature_threshold"])


OF_TRACES: Mapping[str, Callable[[Trace], float | None]] = {"spike_score": _spike_score}
OF_TELEMETRY: Mapping[str, Callable[[Trace], float | None]] = {"edge_crossings": _edge_crossings}
CURVE_METRICS = (*OF_TRACES, *OF_TELEMETRY)


def measured(ledger: LedgerReader, names: Iterable[str], trial_ids: Iterable[str]) -> dict[str, dict[str, float]]:
    """Each metric in ``names`` of each of these trials that has it; names that are no curve metrics are left out."""
    trial_ids, found = list(trial_ids), {}
    for name in names:
        if name in OF_TRACES:
            values = {t: OF_TRACES[name](ledger.trace(t, SCORED)) for t in trial_ids}
        elif name in OF_TELEMETRY:
            values = {t: OF_TELEMETRY[name](ledger.telemetry(t)) for t in trial_ids}
        else:
            continue
        found[name] = {t: value for t, value in values.items() if value is not None}
    return found

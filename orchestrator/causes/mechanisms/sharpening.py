"""Curvature that grows over training until a step that was fine before overshoots."""

from __future__ import annotations

from orchestrator.causes.evidence import Evidence
from orchestrator.causes.mechanisms import thresholds as at
from orchestrator.causes.mechanisms.finding import NOT_MEASURED, Finding, MakeFinding
from orchestrator.causes.mechanisms.mechanism import Mechanism
from orchestrator.causes.mechanisms.moves import HIGHER_EPS, LOWER_LR
from orchestrator.causes.series import known


def sharpening(evidence: Evidence, found: MakeFinding) -> Finding:
    """Progressive sharpening (Cohen et al., arXiv 2207.14484): curvature rises to its threshold after a good start.

    Supported where the run trained at its full learning rate for a while, and the curvature was over the threshold at
    the last reading before the onset, or at two or more, and at least a fifth, of the last ones. Excluded where it came
    nowhere near, and where v had decayed before that: then the preconditioner grew, not the curvature of the loss.
    """
    if evidence.onset is None:
        return found("excluded", "the loss never left its trend upwards")
    if evidence.num_full_rate_steps <= at.START_STEPS:
        return found("excluded", "the learning rate had been this high for a few steps only")
    readings = evidence.edge.between(evidence.full_rate_step, evidence.onset).last(at.RECENT_READINGS)
    if len(readings) < at.LEAST_OVER:
        return found("unknown", f"{NOT_MEASURED} often enough" if len(readings) else NOT_MEASURED)
    num_over = int((readings.value_N > at.EDGE).sum())
    numbers = [
        f"curvature over the threshold at {num_over} of the last {len(readings)} readings before the onset, "
        f"{readings.largest():.3g} times it at most"
    ]
    if known(readings.largest()) < at.NEAR_EDGE:
        return found("excluded", "the curvature stayed far below its threshold", numbers)
    is_often_over = num_over >= max(at.LEAST_OVER, at.SELDOM_OVER * len(readings))
    if not is_often_over and readings.value_N[-1] <= at.EDGE:
        return found("unknown", "the curvature came near its threshold, and was seldom or never over it", numbers)
    began = known(readings.first(lambda ratio_N: ratio_N > at.EDGE))
    lowest = evidence.v_lag.between(began - at.DECAY_WINDOW, began + 1).smoothed(at.DECAY_SMOOTHING).smallest()
    if lowest is not None and lowest < at.DECAYED:
        return found("excluded", f"|g|^2 / sum v had fallen to {lowest:.2g}: the preconditioner grew", numbers)
    return found("supported", "the curvature had grown to where a step of this size overshoots", numbers, began)


SHARPENING = Mechanism(
    key="sharpening",
    title="curvature grew to the edge",
    find=sharpening,
    label="sharp",
    colour="#F0A08A",
    moves=(LOWER_LR, HIGHER_EPS),
)

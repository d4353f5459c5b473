"""Decay of the preconditioner: gradients become small, v forgets, and steps grow until one overshoots."""

from __future__ import annotations

import numpy as np

from orchestrator.causes.evidence import Evidence
from orchestrator.causes.mechanisms import limits as at
from orchestrator.causes.mechanisms.mechanism import (
    HIGHER_EPS,
    LOWER_EPS,
    LOWER_LR,
    NO_ONSET,
    NOT_MEASURED,
    SHORTER_MEMORY,
    Finding,
    MakeFinding,
    Mechanism,
    Move,
    scaled,
    steps,
)
from orchestrator.causes.series import Series, known

_ANY_GROWTH = "v lags at the peak of any gradient that grows"


def preconditioner_decay(evidence: Evidence, finding: MakeFinding) -> Finding:
    """The spike of Bai et al. (arXiv 2506.04805), from |g|^2 / sum(vhat), the curvature and the rise of the gradient.

    Supported if v only decayed before the onset, or decayed a little while the curvature crossed its threshold, and the
    gradient then grew over several steps until v lagged behind it. Excluded if one of these is false.
    """
    onset, peak = evidence.onset, evidence.peak
    if onset is None or peak is None:
        return finding("excluded", NO_ONSET if onset is None else "the loss broke off without a rise")
    if evidence.is_adam is False:
        return finding("excluded", "the optimizer has no second moment")
    before = evidence.v_lag.between(onset - at.DECAY_WINDOW, onset)
    if len(before) == 0:
        return finding("unknown", "neither |g|^2 / sum v nor the gradient norms of all steps are known")
    decayed = known(before.smoothed(at.DECAY_SMOOTHING).smallest())
    risen = evidence.v_lag.between(onset - at.NEIGHBOURS, evidence.reach).largest()
    began = evidence.v_lag.between(0, onset).smoothed(at.DECAY_SMOOTHING).began(lambda lag_N: lag_N < at.DECAYED)
    numbers = [f"|g|^2 / sum v fell to {decayed:.2g} in the {at.DECAY_WINDOW} steps before the onset"]
    numbers += [f"and rose to {risen:.3g} at the peak (step {peak})"] if risen is not None else []
    if risen is None or risen <= at.LAGGING:
        return finding("excluded", "the gradient never outgrew v", numbers)
    if evidence.num_full_rate_steps <= at.START_STEPS:
        reason = f"the learning rate had been this high for a few steps only; {_ANY_GROWTH}"
        return finding("excluded", reason, numbers)
    if decayed >= at.KEPT_UP:
        return finding("excluded", f"v had not decayed on its own; {_ANY_GROWTH}", numbers)
    growth = growth_steps(evidence.grad_norm, onset, evidence.reach)
    if growth is not None:
        numbers.append(f"the gradient grew for {steps(growth)} up to its peak")
        if growth < at.GROWTH_STEPS:
            return finding("excluded", "the gradient jumped; an instability grows", numbers)
    first, end = onset - 2 * at.DECAY_WINDOW, peak + 1
    curvature = evidence.threshold_ratio.between(first, end)
    has_crossed = curvature.first(lambda ratio_N: ratio_N > at.THRESHOLD) is not None
    if len(curvature) > 1 and known(curvature.largest()) < at.NEAR_THRESHOLD:
        reason = f"the curvature stayed below {curvature.largest():.2g} times its threshold"
        return finding("excluded", reason, numbers)
    if len(curvature):
        numbers.append(f"curvature up to {curvature.largest():.3g} times its threshold before the peak")
    if has_crossed:
        numbers.append(_crossings(evidence, first, end))
    if decayed >= at.DECAYED and not has_crossed:
        missing = "the curvature did not cross its threshold" if len(curvature) else NOT_MEASURED
        return finding("unknown", f"v had decayed a little, and {missing}", numbers)
    return finding("supported", "v decayed on its own until a step overshot, then lagged behind", numbers, began)


def growth_steps(norm: Series, onset: int, reach: int) -> int | None:
    """Steps that the gradient norm took to rise from twice its past median to its peak near the onset.

    None unless the norm of every step is known.
    """
    past = norm.between(onset - at.DECAY_WINDOW, onset - at.NEIGHBOURS).median()
    rise = norm.between(onset - at.DECAY_WINDOW, reach)
    if past is None or len(rise) < 2 or int(np.diff(rise.step_N).max()) > 1:
        return None
    peak = int(rise.value_N.argmax())
    calm = np.flatnonzero(rise.value_N[:peak] <= at.GROWTH_LEVEL * past)
    return peak - int(calm[-1]) if len(calm) else peak


def _crossings(evidence: Evidence, first: int, end: int) -> str:
    """When each of the two curvatures first exceeded the threshold of its step."""
    threshold = evidence.column("curvature_threshold")
    words = []
    for name in ("lambda_max", "lambda_grad"):
        readings = evidence.column(name).between(first, end)
        limit_N = np.array([threshold.at(step) or np.inf for step in readings.step_N])
        over_N = readings.step_N[readings.value_N > limit_N]
        words.append(f"{name} first over it at step {over_N[0]}" if len(over_N) else f"{name} never read over it")
    return ", ".join(words)


PRECONDITIONER_DECAY = Mechanism(
    key="preconditioner_decay",
    title="preconditioner decay",
    find=preconditioner_decay,
    label="decay",
    colour="#CC79A7",
    moves=(
        SHORTER_MEMORY,
        Move("beta2_half_life", "lower", SHORTER_MEMORY.reason, scaled("beta2_half_life", 0.3, 0.1)),
        LOWER_LR,
        HIGHER_EPS,
        LOWER_EPS,
    ),
)

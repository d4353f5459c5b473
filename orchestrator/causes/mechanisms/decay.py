"""Decay of the preconditioner: gradients become small, v forgets, and the step grows until it overshoots."""

from __future__ import annotations

import numpy as np

from orchestrator.causes.evidence import Evidence
from orchestrator.causes.mechanisms import thresholds as at
from orchestrator.causes.mechanisms.finding import NOT_MEASURED, Finding, MakeFinding, steps
from orchestrator.causes.mechanisms.mechanism import Mechanism
from orchestrator.causes.mechanisms.moves import HIGHER_EPS, LOWER_EPS, LOWER_LR, SHORTER_MEMORY, Move, scaled
from orchestrator.causes.series import Series, known

_FOLLOWS = "that v lags at the peak is what any gradient that grows brings about"


def preconditioner_decay(evidence: Evidence, found: MakeFinding) -> Finding:
    """The spike of Bai et al. (arXiv 2506.04805), from |g|^2 / sum(vhat), the curvature and the rise of the gradient.

    Supported where v only decayed before the onset, or decayed a little while the curvature is known to have crossed
    its threshold, and the gradient then grew over several steps until v lagged behind it. Excluded where one of these
    is known to be false.
    """
    onset, peak = evidence.onset, evidence.peak
    if onset is None or peak is None:
        rise = "the loss never left its trend upwards" if onset is None else "the loss broke off without a rise"
        return found("excluded", rise)
    if evidence.is_adam is False:
        return found("excluded", "the optimizer has no second moment")
    before = evidence.v_lag.between(onset - at.DECAY_WINDOW, onset)
    if len(before) == 0:
        return found("unknown", "neither |g|^2 / sum v nor the gradient norms of all steps are known")
    decayed = known(before.smoothed(at.DECAY_SMOOTHING).smallest())
    risen = evidence.v_lag.between(onset - at.NEIGHBOURS, evidence.reach).largest()
    began = evidence.v_lag.between(0, onset).smoothed(at.DECAY_SMOOTHING).began(lambda lag_N: lag_N < at.DECAYED)
    numbers = [f"|g|^2 / sum v fell to {decayed:.2g} in the {at.DECAY_WINDOW} steps before the onset"]
    numbers += [f"and rose to {risen:.3g} at the peak (step {peak})"] if risen is not None else []
    if risen is None or risen <= at.LAGGING:
        return found("excluded", "the gradient never outgrew v", numbers)
    if evidence.num_full_rate_steps <= at.START_STEPS:
        return found("excluded", f"the learning rate had been this high for a few steps only; {_FOLLOWS}", numbers)
    if decayed >= at.KEPT_UP:
        return found("excluded", f"v had not decayed on its own; {_FOLLOWS}", numbers)
    growth = growth_steps(evidence.grad_norm, onset, evidence.reach)
    if growth is not None:
        numbers.append(f"the gradient grew for {steps(growth)} up to its peak")
        if growth < at.GROWTH_STEPS:
            return found("excluded", "the gradient jumped, where an instability grows", numbers)
    edge = evidence.edge.between(onset - 2 * at.DECAY_WINDOW, peak + 1)
    crossed = edge.first(lambda ratio_N: ratio_N > at.EDGE)
    if len(edge) > 1 and known(edge.largest()) < at.NEAR_EDGE:
        return found("excluded", f"the curvature stayed below {edge.largest():.2g} times its threshold", numbers)
    if len(edge):
        numbers.append(f"curvature up to {edge.largest():.3g} times its threshold before the peak")
    if crossed is not None:
        numbers.append(_crossings(evidence, onset - 2 * at.DECAY_WINDOW, peak + 1))
    if decayed >= at.DECAYED and crossed is None:
        missing = "the curvature did not cross its threshold" if len(edge) else NOT_MEASURED
        return found("unknown", f"v had decayed a little, and {missing}", numbers)
    return found("supported", "v decayed on its own until a step overshot, and then lagged behind", numbers, began)


def growth_steps(norm: Series, onset: int, reach: int) -> int | None:
    """Steps in which the gradient norm rose from twice its past median to its peak near the onset.

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
    said = []
    for name in ("lambda_max", "lambda_grad"):
        readings = evidence.column(name).between(first, end)
        limit_N = np.array([threshold.at(step) or np.inf for step in readings.step_N])
        over_N = readings.step_N[readings.value_N > limit_N]
        said.append(f"{name} first over it at step {over_N[0]}" if len(over_N) else f"{name} never read over it")
    return ", ".join(said)


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

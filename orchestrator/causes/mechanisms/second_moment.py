"""A second moment that forgets: v decays until a step overshoots, or its memory is shorter than the momentum's.

After a coordinate's gradient has faded, m shrinks by beta1 per step and sqrt(v) by sqrt(beta2), so m / sqrt(v) grows
without bound if beta2 < beta1^2. If beta2 is larger, m / sqrt(v) stays below (1 - beta1) / sqrt((1 - beta2) (1 -
beta1^2 / beta2)) for any gradients (Cauchy and Schwarz). Proofs of Adam's convergence require beta1 < sqrt(beta2):
Zhang et al. (arXiv 2208.09632).
"""

from __future__ import annotations

import math

import numpy as np

from orchestrator.base.space import format_value
from orchestrator.causes.evidence import BY_FORWARDS, BY_PRODUCTS, Evidence
from orchestrator.causes.mechanisms import limits as at
from orchestrator.causes.mechanisms.mechanism import (
    HIGHER_EPS,
    LOWER_EPS,
    LOWER_LR,
    NO_ONSET,
    SHORTER_MEMORY,
    Finding,
    MakeFinding,
    Move,
    is_far_over,
    longer_memories,
    lower_momentum,
    mechanism,
    results_with,
    scaled,
    settles_below,
    steps,
)
from orchestrator.causes.mechanisms.removal import from_the_start, still_v
from orchestrator.causes.moments import averages_squares
from orchestrator.causes.series import Series, known
from orchestrator.maps.neighbours import above, below

_ROUNDING = 1e-9  # of beta1^2, for a beta2 that is meant to equal it
_ANY_GROWTH = "v lags at the peak of any gradient that grows"


@mechanism(
    "preconditioner decay",
    label="decay",
    colour="#CC79A7",
    moves=(
        SHORTER_MEMORY,
        Move("beta2_half_life", "lower", SHORTER_MEMORY.reason, scaled("beta2_half_life", 0.3, 0.1)),
        LOWER_LR,
        HIGHER_EPS,
        LOWER_EPS,
    ),
    removal=still_v,
)
def preconditioner_decay(evidence: Evidence, finding: MakeFinding) -> Finding:
    """The spike of Bai et al. (arXiv 2506.04805), from |g|^2 / sum(vhat), the curvature and the rise of the gradient.

    Supported if v only decayed before the onset, and the gradient then grew over several steps until v lagged behind.
    Excluded if one of these is false, or if a single gradient had raised v; unknown if v decayed a little, as it does
    between noisy gradients.
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
    if evidence.had_full_rate_for(at.START_STEPS) is False:
        reason = f"the learning rate had been this high for a few steps only; {_ANY_GROWTH}"
        return finding("excluded", reason, numbers)
    if decayed >= at.KEPT_UP:
        return finding("excluded", f"v had not decayed on its own; {_ANY_GROWTH}", numbers)
    if decayed < at.DECAYED and (burst := _burst(before)) is not None:
        numbers.append(f"after {burst.largest():.3g} in a burst of the gradient")
        return finding("excluded", "one gradient had raised v, which did not decay", numbers)
    growth = growth_steps(evidence.grad_norm, onset, evidence.reach)
    if growth is not None:
        numbers.append(f"the gradient grew for {steps(growth)} up to its peak")
        if growth < at.GROWTH_STEPS:
            return finding("excluded", "the gradient jumped; an instability grows", numbers)
    first, end = onset - 2 * at.DECAY_WINDOW, peak + 1
    curvature = evidence.threshold_ratio.between(first, end)
    has_crossed = curvature.first(lambda ratio_N: ratio_N > at.THRESHOLD) is not None
    if evidence.bounds_curvature and len(curvature) > 1 and known(curvature.largest()) < at.NEAR_THRESHOLD:
        reason = f"the curvature stayed below {curvature.largest():.2g} times its threshold"
        why = settles_below(evidence)
        return finding("excluded", reason, numbers) if why is None else finding("unknown", why, numbers)
    if is_far_over(evidence):
        reason = f"the curvature was often more than {at.FAR_OVER:g} times its threshold, whatever v did"
        return finding("excluded", reason, numbers)
    if len(curvature):
        numbers.append(f"curvature up to {curvature.largest():.3g} times its threshold before the peak")
    if has_crossed:
        numbers.append(_crossings(evidence, first, end))
    if decayed >= at.DECAYED:
        return finding("unknown", "v had decayed a little, as it does between noisy gradients", numbers)
    return finding("supported", "v decayed on its own until a step overshot, then lagged behind", numbers, began)


def _burst(before: Series) -> Series | None:
    """Where |g|^2 / sum v was so high before its lowest that a single gradient raised v; None if nowhere."""
    smooth = before.smoothed(at.DECAY_SMOOTHING)
    earlier = before.between(-math.inf, int(smooth.step_N[smooth.value_N.argmin()]))
    return earlier if len(earlier) and known(earlier.largest()) > at.INFLATED else None


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
    """When each curvature that was read first exceeded the threshold of its step."""
    threshold = evidence.column("curvature_threshold")
    words = []
    for name in (*BY_PRODUCTS, BY_FORWARDS):
        if not len(evidence.column(name)):
            continue
        readings = evidence.column(name).between(first, end)
        limit_N = np.array([threshold.at(step) or np.inf for step in readings.step_N])
        over_N = readings.step_N[readings.value_N > limit_N]
        words.append(f"{name} first over it at step {over_N[0]}" if len(over_N) else f"{name} never read over it")
    return ", ".join(words)


@mechanism(
    "memory shorter than momentum",
    label="memory",
    colour="#882255",
    moves=(
        Move("beta2", "raise", "with beta2 above beta1^2 steps cannot grow without bound", longer_memories),
        Move(
            "beta2_half_life",
            "raise",
            "with beta2 = (1/2)^(tokens of a step / half-life) above beta1^2 steps cannot grow without bound",
            scaled("beta2_half_life", 2, 4),
        ),
        Move("beta1", "lower", "momentum that fades before v does leaves no step to grow", lower_momentum),
        HIGHER_EPS,
    ),
    removal=from_the_start("beta2", lambda evidence: next(iter(longer_memories(evidence)), None)),
)
def short_memory(evidence: Evidence, finding: MakeFinding) -> Finding:
    """Momentum with a longer memory than the second moment: beta2 < beta1^2, and steps much longer than sign descent.

    Supported if the RMS of the update was a few times the learning rate shortly before the onset; in sign descent it is
    one. Excluded if the second moment's memory is long enough, if the optimizer divides by no such average, or if steps
    were so short shortly before the onset that they cannot have grown enough since.
    """
    onset, beta1, beta2 = evidence.onset, evidence.beta1, evidence.beta2
    if onset is None:
        return finding("excluded", NO_ONSET)
    has_average = averages_squares(evidence.objective, evidence.config_in_force)
    if has_average is False:
        reason = "the optimizer does not divide by a plain average of squared gradients with decay beta2"
        return finding("excluded", reason)
    if beta1 is None or beta2 is None:
        return finding("unknown", f"{'beta1' if beta1 is None else 'beta2'} is not known")
    if beta2 >= beta1**2 * (1 - _ROUNDING):
        text = f"beta2 {format_value(beta2)} >= beta1^2 = {beta1**2:.4g}"
        return finding("excluded", f"v remembers for as long as the momentum: {text}")
    if has_average is None:
        return finding("unknown", "what the optimizer divides by is not known")
    growth = beta1 / math.sqrt(beta2) if beta2 > 0 else math.inf
    text = f"beta2 {format_value(beta2)} < beta1^2 = {beta1**2:.4g}"
    numbers = [f"{text}: m / sqrt(v) grows {growth:.3g} times a step once g is gone"]
    # The first step is sign descent for any memory, and the step of the onset comes after its loss.
    before = evidence.step_size.between(1, onset)
    if len(before) == 0:
        return finding("unknown", "no step between the start and the onset was read", numbers)
    recent = before.between(onset - at.DECAY_WINDOW, onset)
    recent = recent if len(recent) else before.last(1)
    longest, step = known(recent.largest()), int(recent.step_N[recent.value_N.argmax()])
    numbers.append(f"RMS of the update up to {longest:.3g} times the lr (step {step}; sign descent is 1)")
    numbers += _stable_results(evidence)
    if longest > at.LONG_STEP:
        reason = "steps became longer than in sign descent: v forgot before the momentum"
        return finding("supported", reason, numbers, before.began(lambda size_N: size_N > at.LONG_STEP))
    gap = onset - int(recent.step_N[-1])
    if longest_after(float(recent.value_N[-1]), gap, beta1, beta2) > at.LONG_STEP:
        reason = f"steps were not that long {steps(gap)} before the onset, and none was read since"
        return finding("unknown", reason, numbers)
    reason = f"no step before the onset was {at.LONG_STEP:g} times as long as in sign descent"
    return finding("excluded", reason, numbers)


def longest_after(size: float, num_steps: int, beta1: float, beta2: float) -> float:
    """The largest possible RMS of m / sqrt(v), now ``size``, after ``num_steps`` more steps, for any gradients.

    A step multiplies its square by at most beta1^2 / beta2 and adds at most (1 - beta1)^2 / (1 - beta2), by Cauchy and
    Schwarz; at beta2 = 0 it may be anything.
    """
    if beta2 == 0:
        return math.inf if num_steps else size
    ratio, added = beta1**2 / beta2, (1 - beta1) ** 2 / (1 - beta2)
    square = size**2
    for _ in range(num_steps):
        square = ratio * square + added
        if square > at.LONG_STEP**2:
            break  # it only grows from here, until it overflows
    return math.sqrt(square)


def _stable_results(evidence: Evidence) -> list[str]:
    """The results of the nearest stable cells with a longer memory and with less momentum."""
    memory = evidence.memory_setting
    sides = {
        memory: above(evidence.cells(memory), evidence.config.get(memory)),
        "beta1": below(evidence.cells("beta1"), evidence.config.get("beta1")),
    }
    stable = {name: next((cell for cell in cells if cell.is_stable), None) for name, cells in sides.items()}
    return [results_with(name, cell) for name, cell in stable.items() if cell is not None]

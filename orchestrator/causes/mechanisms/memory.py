"""A second moment with a shorter memory than the momentum: steps grow while a gradient fades, up to epsilon's limit.

After a coordinate's gradient has faded, m shrinks by beta1 per step and sqrt(v) by sqrt(beta2), so m / sqrt(v) grows
without bound if beta2 < beta1^2. If beta2 is larger, m / sqrt(v) stays below (1 - beta1) / sqrt((1 - beta2) (1 -
beta1^2 / beta2)) for any gradients (Cauchy and Schwarz). Proofs of Adam's convergence require beta1 < sqrt(beta2):
Zhang et al. (arXiv 2208.09632).
"""

from __future__ import annotations

import math

from orchestrator.base.space import format_value
from orchestrator.causes.evidence import Evidence
from orchestrator.causes.mechanisms import limits as at
from orchestrator.causes.mechanisms.mechanism import (
    HIGHER_EPS,
    NO_ONSET,
    Finding,
    MakeFinding,
    Mechanism,
    Move,
    results_with,
    scaled,
    steps,
)
from orchestrator.causes.moments import averages_squares
from orchestrator.causes.series import known
from orchestrator.maps.neighbours import above, below

_ROUNDING = 1e-9  # of beta1^2, for a beta2 that is meant to equal it


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


def _longer_memories(evidence: Evidence) -> list[float]:
    """Values of beta2 with two and four times the memory of the momentum."""
    beta1 = evidence.beta1
    return [] if beta1 is None else [float(f"{1 - (1 - beta1**2) / factor:.12g}") for factor in (2, 4)]


def _lower_momentum(evidence: Evidence) -> list[float]:
    """Nine tenths and half of the largest beta1 that this v supports, sqrt(beta2)."""
    beta2 = evidence.beta2
    return [] if beta2 is None else [float(f"{factor * beta2**0.5:.3g}") for factor in (0.9, 0.5)]


SHORT_MEMORY = Mechanism(
    key="short_memory",
    title="memory shorter than momentum",
    find=short_memory,
    label="memory",
    colour="#882255",
    moves=(
        Move("beta2", "raise", "with beta2 above beta1^2 steps cannot grow without bound", _longer_memories),
        Move(
            "beta2_half_life",
            "raise",
            "with beta2 = (1/2)^(tokens of a step / half-life) above beta1^2 steps cannot grow without bound",
            scaled("beta2_half_life", 2, 4),
        ),
        Move("beta1", "lower", "momentum that fades before v does leaves no step to grow", _lower_momentum),
        HIGHER_EPS,
    ),
)

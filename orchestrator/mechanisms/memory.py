"""A second moment that forgets before the momentum does: steps grow where a gradient fades, until epsilon ends it.

After a coordinate's gradient has faded m shrinks by beta1 a step and sqrt(v) by sqrt(beta2), so that m / sqrt(v) grows
without a bound where beta2 < beta1^2, and stays below (1 - beta1) / sqrt((1 - beta2) (1 - beta1^2 / beta2)) where it
is above, whatever the gradients are (Cauchy and Schwarz). That beta1 < sqrt(beta2) is what proofs of Adam's
convergence ask for: Zhang et al. (arXiv 2208.09632).
"""

from __future__ import annotations

import math

from orchestrator.evidence import Evidence
from orchestrator.mechanisms import thresholds as at
from orchestrator.mechanisms.finding import Finding, finding_for, seeds_text, steps
from orchestrator.neighbours import above, below
from orchestrator.space import format_value

SHORT_MEMORY = "short_memory"


def short_memory(evidence: Evidence) -> Finding:
    """Momentum that outlives the second moment: beta2 < beta1^2, and steps longer than any sound Adam takes.

    Supported where before the onset the RMS of the update was a few times the learning rate, of which sign descent
    is one. Excluded where the memory is long enough, or steps were no longer than that shortly before the onset:
    so shortly that m / sqrt(v) cannot have grown so far since.
    """
    found = finding_for(SHORT_MEMORY, evidence)
    if evidence.onset is None:
        return found("excluded", "the loss never left its trend upwards")
    if evidence.is_adam is False:
        return found("excluded", "the optimizer has no second moment")
    beta1, beta2 = evidence.number("beta1"), evidence.beta2
    if beta1 is None or beta2 is None:
        return found("unknown", f"{'beta1' if beta1 is None else 'beta2'} is not known")
    compared = f"beta1^2 = {beta1**2:.4g}"
    if beta2 >= beta1**2:
        return found("excluded", f"v remembers for as long as the momentum: beta2 {format_value(beta2)} >= {compared}")
    growth = beta1 / math.sqrt(beta2) if beta2 > 0 else math.inf
    numbers = [f"beta2 {format_value(beta2)} < {compared}: m / sqrt(v) grows {growth:.3g} times a step as g fades"]
    # The first step is sign descent, whatever the memory is.
    sizes = evidence.step_size.between(1, evidence.onset + 1)
    if len(sizes) == 0:
        return found("unknown", "no step between the start and the onset was read", numbers)
    longest, last = sizes.largest(), int(sizes.step_N[-1])
    where = int(sizes.step_N[sizes.value_N.argmax()])
    numbers.append(f"RMS of the update up to {longest:.3g} times the lr (step {where}; sign descent is 1)")
    numbers += _cells_text(evidence)
    began = sizes.first(lambda size_N: size_N > at.LONG_STEP)
    if began is not None:
        return found("supported", "steps grew where gradients faded: v forgot before the momentum", numbers, began)
    gap = evidence.onset - last
    # In logarithms, as a power of so many steps may be no number.
    if gap and math.log(max(sizes.at(last), at.LEAST_STEP)) + gap * math.log(growth) > math.log(at.LONG_STEP):
        return found("unknown", f"steps were not that long {steps(gap)} before the onset; none was read since", numbers)
    return found("excluded", "no step before the onset was longer than sign descent takes", numbers)


def _cells_text(evidence: Evidence) -> list[str]:
    """What the nearest stable cells with a longer memory and with less momentum say."""
    sides = {
        "beta2": above(evidence.cells("beta2"), evidence.config.get("beta2")),
        "beta1": below(evidence.cells("beta1"), evidence.config.get("beta1")),
    }
    nearest = {name: next((cell for cell in cells if cell.is_stable), None) for name, cells in sides.items()}
    return [
        f"with {name} {format_value(cell.value)}: {seeds_text(cell)}"
        for name, cell in nearest.items()
        if cell is not None
    ]

"""Probabilities that round to 1: the gradient of what is learned is then exactly zero.

The probability of the right class of K rounds to 1 from a gap of 16.6 + ln(K - 1) between logits in float32, and from
about 6 in bfloat16 (arXiv 2605.06152). Its gradient is lost, the gradients of other examples are not, and spikes come
that float64 does not have.
"""

from __future__ import annotations

from orchestrator.causes.evidence import Evidence
from orchestrator.causes.mechanisms import limits as at
from orchestrator.causes.mechanisms.mechanism import LOWER_LR, NO_ONSET, Finding, MakeFinding, Move, just, mechanism
from orchestrator.causes.mechanisms.removal import held

_HALF = ("bfloat16", "float16")


@mechanism(
    "absorption",
    label="round",
    colour="#A6761D",
    moves=(
        Move("precision", "switch", "with more bits fewer probabilities round to 1", just("float32")),
        LOWER_LR,
    ),
    removal=held(precision="float64"),
)
def absorption(evidence: Evidence, finding: MakeFinding) -> Finding:
    """The loss before the onset is so small that rounding takes it away.

    Supported if the median loss before the onset is below the limit of the precision and the model has logits; unknown
    if it is near the limit, or nothing is known about logits. Excluded if the loss is far above it, and in float64.
    """
    if evidence.onset is None:
        return finding("excluded", NO_ONSET)
    objective, precision = evidence.objective, evidence.config.get("precision")
    if objective is not None and not objective.has_logits:
        return finding("excluded", "the model has no logits")
    level = evidence.loss.between(0, evidence.until + 1).last(at.MIN_HISTORY).median()
    if level is None:
        return finding("unknown", "no loss before the onset is known")
    limit = at.ABSORBED_HALF if precision in _HALF else at.ABSORBED
    numbers = [f"the loss before the onset was {level:.2g}; rounding leaves nothing of {limit:g}"]
    if level > at.NEARLY_ABSORBED * limit:
        return finding("excluded", "the loss is far above what rounding takes away", numbers)
    if level > limit or not evidence.has_logits:
        missing = "the loss is near what rounding takes away" if level > limit else "whether it has logits is not known"
        return finding("unknown", missing, numbers)
    began = evidence.loss.between(0, evidence.until).began(lambda loss_N: loss_N <= limit)
    return finding("supported", "probabilities had rounded to 1, so most gradients were lost", numbers, began)

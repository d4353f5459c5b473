"""Probabilities that round to 1: the gradient of what is learned is then exactly zero.

The probability of the right class of K rounds to 1 from a gap of 16.6 + ln(K - 1) between logits in float32, where the
cross-entropy of a token is exp(-16.6) for any K, and from a gap of about 6 if it is computed in bfloat16
(arXiv 2605.06152). Its gradient is lost, the gradients of the other classes are not, so weights drift, and spikes come
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

    Supported if the median loss before the onset is below the limit and the model has logits; unknown if it is near the
    limit, or nothing is known about logits. Excluded if the loss is far above it. Built-in objectives compute the loss
    in float32 in any precision; a custom one in half precision may do so in 16 bits.
    """
    if evidence.onset is None:
        return finding("excluded", NO_ONSET)
    objective, precision = evidence.objective, evidence.config.get("precision")
    if evidence.has_logits is False:
        return finding("excluded", "the model has no logits")
    level = evidence.loss.between(0, evidence.until + 1).last(at.MIN_HISTORY).median()
    if level is None:
        return finding("unknown", "no loss before the onset is known")
    numbers = [f"the loss before the onset was {level:.2g}; rounding leaves nothing of {at.ABSORBED:g} in float32"]
    may_be_half = objective is None and precision in _HALF
    highest = at.ABSORBED_HALF if may_be_half else at.NEARLY_ABSORBED * at.ABSORBED
    if level > highest:
        return finding("excluded", "the loss is far above what rounding takes away", numbers)
    is_near = level > at.ABSORBED
    if is_near or not evidence.has_logits:
        near = "whether its loss is of 16 bits is not known" if may_be_half else "rounding takes a part of the loss"
        missing = near if is_near else "whether it has logits is not known"
        return finding("unknown", missing, numbers)
    began = evidence.loss.between(0, evidence.until).began(lambda loss_N: loss_N <= at.ABSORBED)
    return finding("supported", "probabilities had rounded to 1, so most gradients were lost", numbers, began)

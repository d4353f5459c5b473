"""Half precision: numbers beyond the range of 16 bits, in a run that is otherwise calm."""

from __future__ import annotations

from orchestrator.causes.evidence import Evidence
from orchestrator.causes.mechanisms import limits as at
from orchestrator.causes.mechanisms.mechanism import (
    LOWER_LR,
    NO_ONSET,
    Finding,
    MakeFinding,
    Mechanism,
    Move,
    just,
    results_with,
)
from orchestrator.maps.neighbours import Neighbour

HALF = "float16"
_LARGEST = 65504.0
_WIDER = ("float32", "tf32", "bfloat16")


def half_precision_overflow(evidence: Evidence, finding: MakeFinding) -> Finding:
    """Non-finite losses or gradients in float16, in a run that was calm.

    Supported if updates were skipped near the onset, the loss scale collapsed, or the loss became non-finite: either
    within one step from no higher than its initial value, or in any way if more bits are stable. Excluded in other
    precisions, if nothing overflowed, or if the same run is not stable with more bits either.
    """
    precision = evidence.config.get("precision")
    if precision != HALF:
        if precision is None and evidence.is_custom_trainer:
            return finding("unknown", "the precision is not known")
        reason = f"the precision is {precision}" if precision else "it does not train in half precision"
        return finding("excluded", reason)
    if evidence.onset is None and evidence.outcome != "stalled":
        return finding("excluded", NO_ONSET)
    first, end = evidence.until - at.OVERFLOW_WINDOW, evidence.reach + 1
    skipped = evidence.column("is_skipped").between(first, end)
    num_skipped = int(skipped.value_N.sum())
    scale = evidence.column("loss_scale").between(0, end).smallest()
    break_off = _break_off(evidence)
    numbers = [f"{num_skipped} updates skipped from step {max(0, first)} to {end - 1}"]
    numbers += [f"loss scale down to {scale:g}"] if scale is not None else []
    numbers += [break_off] if break_off else []
    logit = evidence.column("attention_logit").between(0, end).largest()
    if logit is not None and logit > _LARGEST:
        numbers.append(f"the largest attention logit was {logit:.3g}; float16 ends at {_LARGEST:.0f}")
    wider = cells_with_more_bits(evidence)
    numbers += [results_with("precision", cell) for cell in wider]
    if wider and not any(cell.is_stable for cell in wider):
        return finding("excluded", "with more bits the same run is not stable either", numbers)
    is_stuck = num_skipped >= at.SKIPPED or (scale is not None and scale <= at.MIN_LOSS_SCALE)
    if not is_stuck and break_off is None:
        return finding("excluded", "no update around the onset was skipped, and the loss stayed finite", numbers)
    if not is_stuck and not wider and not _was_calm(evidence):
        return finding("unknown", "the loss had risen far before it broke off, and no cell has more bits", numbers)
    steps_skipped = skipped.step_N[skipped.value_N > 0]
    began = int(steps_skipped[0]) if len(steps_skipped) else evidence.onset
    return finding("supported", "numbers left the range of float16", numbers, began)


def cells_with_more_bits(evidence: Evidence) -> list[Neighbour]:
    """For a trial in float16, the same cell in wider precisions."""
    if evidence.config.get("precision") != HALF:
        return []
    return [cell for cell in evidence.cells("precision") if cell.value in _WIDER]


def stable_with_more_bits(evidence: Evidence) -> Neighbour | None:
    """For a trial in float16, the same cell in a wider precision, if that is stable."""
    return next((cell for cell in cells_with_more_bits(evidence) if cell.is_stable), None)


def _break_off(evidence: Evidence) -> str | None:
    """The last finite loss in words, if the loss or the gradient was not finite at the end."""
    loss, norm = evidence.loss, evidence.grad_norm
    last = min((int(readings.step_N[-1]) for readings in (loss, norm) if len(readings)), default=None)
    if last is None or not evidence.has_every_step or last + 1 >= evidence.end:
        return None
    return f"the loss was {loss.at(last):.4g} at step {last}; after that it or the gradient was not finite"


def _was_calm(evidence: Evidence) -> bool:
    """Whether the last losses are at most as high as the first."""
    initial, last = evidence.trial.initial_loss, evidence.loss.last(at.NEIGHBOURS).largest()
    return initial is not None and last is not None and last <= initial


HALF_PRECISION_OVERFLOW = Mechanism(
    key="half_precision_overflow",
    title="half-precision overflow",
    find=half_precision_overflow,
    label="16 bit",
    colour="#000000",
    moves=(
        Move("precision", "switch", "float16 ends at 65504, bfloat16 and float32 at 3e38", just("bfloat16", "float32")),
        LOWER_LR,
    ),
)

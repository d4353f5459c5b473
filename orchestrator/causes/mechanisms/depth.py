"""Shallow stall: the shallow blocks stood still while the deep ones trained, and then the data changed."""

from __future__ import annotations

import math

from orchestrator.causes.evidence import Evidence
from orchestrator.causes.mechanisms import limits as at
from orchestrator.causes.mechanisms.batches import falls_back, jump_near
from orchestrator.causes.mechanisms.mechanism import NO_ONSET, Finding, MakeFinding, Mechanism, Move, scaled
from orchestrator.causes.mechanisms.scales import recent
from orchestrator.causes.series import Series, joined


def shallow_stall(evidence: Evidence, finding: MakeFinding) -> Finding:
    """Shallow blocks whose updates had died away, and a gradient that bursts when the data change.

    Supported if the RMS of the updates of the shallow third of the blocks was less than a tenth of the deep third's at
    the last readings before the onset, and the gradient norm jumped at the onset. Excluded if one of these is false, or
    if the loss fell back at once, as after a single bad batch.
    """
    onset = evidence.onset
    if onset is None:
        return finding("excluded", NO_ONSET)
    if evidence.objective is not None and (evidence.number("depth") or 1) < 2:
        return finding("excluded", "the model has only one block")
    if onset < at.MIN_HISTORY:
        return finding("excluded", "it left its trend too early for blocks to have stalled before")
    shallow, deep = (evidence.column(f"update_rms/{part}") for part in ("shallow", "deep"))
    ratio = joined(shallow, deep, lambda shallow_N, deep_N: shallow_N / deep_N)
    last = recent(ratio, evidence)
    level = last.median()
    if level is None or len(last) < at.STALL_READINGS:
        return finding("unknown", "updates by depth were read too seldom before the onset, or not at all")
    numbers = [
        f"RMS of the update before the onset {recent(shallow, evidence).median():.2g} in the shallow third, "
        f"{recent(deep, evidence).median():.2g} in the deep third of the blocks: {_times(1, level)}"
    ]
    if level * at.SHALLOW_STALL >= 1:
        return finding("excluded", "the shallow blocks moved with the deep ones", numbers)
    before, after = _burst(evidence.grad_norm, onset)
    if before is None or after is None:
        reason = "the shallow blocks stood still; gradient norms around the onset are not known"
        return finding("unknown", reason, numbers)
    numbers.append(f"gradient norm {before:.2g} before the onset, up to {after:.2g} at it: {_times(after, before)}")
    numbers += _shallow_gradient(evidence)
    if after < at.BURST * before:
        return finding("excluded", "the shallow blocks stood still, and the gradient did not burst", numbers)
    jump, shift = jump_near(evidence.loss, onset), evidence.number("shift_at")
    if shift is not None and abs(shift - onset) <= at.JUMP_REACH:
        numbers.append(f"the text changes at step {shift:.0f} (shift_at)")
    elif jump is not None and falls_back(evidence.loss, jump):
        reason = f"the loss fell back after step {jump}: one bad batch, not a change of the data"
        return finding("excluded", reason, numbers)
    began = ratio.between(0, onset).began(lambda ratio_N: ratio_N * at.SHALLOW_STALL < 1)
    return finding("supported", "the shallow blocks had stopped moving when the gradient burst", numbers, began)


def _burst(norm: Series, onset: int) -> tuple[float | None, float | None]:
    """The usual gradient norm before the onset, and the largest one at it."""
    before = norm.between(onset - at.JUMP_HISTORY, onset - at.JUMP_REACH).median()
    return before, norm.between(onset - at.JUMP_REACH, onset + at.FALLS_BACK_STEPS).largest()


def _shallow_gradient(evidence: Evidence) -> list[str]:
    """How the gradient of the shallow blocks grew, if it was read soon after the onset."""
    norm = evidence.column("grad_norm/shallow")
    before, after = recent(norm, evidence).median(), norm.between(evidence.until, evidence.reach).largest()
    if before is None or after is None:
        return []
    return [f"in the shallow third {before:.2g}, then up to {after:.2g}: {_times(after, before)}"]


def _times(large: float, small: float) -> str:
    return f"{large / small if small > 0 else math.inf:.3g} times as much"


SHALLOW_STALL = Mechanism(
    key="shallow_stall",
    title="shallow stall",
    find=shallow_stall,
    label="stall",
    colour="#004D40",
    moves=(
        Move(
            "eps",
            "lower",
            "an epsilon above the gradients of the shallow blocks holds them back, before and after a change of the "
            "data",
            scaled("eps", 0.1, 0.01),
        ),
    ),
)

"""The data: a single bad batch, and a change of the data that meets shallow blocks which stood still."""

from __future__ import annotations

import math

import numpy as np

from orchestrator.base.words import count
from orchestrator.causes.evidence import Evidence
from orchestrator.causes.mechanisms import limits as at
from orchestrator.causes.mechanisms.mechanism import (
    CLIP,
    NO_ONSET,
    NOT_BOUNDED,
    Finding,
    MakeFinding,
    Move,
    just,
    mechanism,
    scaled,
    whole,
)
from orchestrator.causes.mechanisms.removal import from_the_start, other_batch
from orchestrator.causes.mechanisms.scales import recent
from orchestrator.causes.series import Series, joined, known

_MAD_TO_DEVIATION = 1.4826  # of a normal distribution
_TINY = 1e-12  # the noise of identical losses


@mechanism(
    "a single bad batch",
    label="batch",
    colour="#009E73",
    moves=(
        Move("corrupted", "lower", "fewer batches of this kind", just(0.0)),
        CLIP,
        Move("batch_size", "raise", "one bad sequence weighs less", whole("batch_size", 2, 4)),
    ),
    removal=other_batch,
)
def bad_batch(evidence: Evidence, finding: MakeFinding) -> Finding:
    """One step's loss jumps away from its neighbours, with the curvature under its threshold, and falls back.

    Supported if the loss at the onset jumps within one step, half of the jump is gone a few steps later, and the
    curvature was below its threshold before or other trials jump at the same step on the same batch. The batch is named
    by its text position if the objective knows it. Excluded if all steps see the same data, the text changes for good
    there, the loss rose over several steps, or trials that saw the same batch do not notice it.
    """
    if evidence.onset is None:
        return finding("excluded", NO_ONSET)
    if evidence.is_full_batch:
        return finding("excluded", "every step sees the same data")
    if not evidence.has_every_step:
        return finding("unknown", "losses of single steps were not kept (telemetry: {curves: 1} keeps them)")
    step = jump_near(evidence.loss, evidence.onset)
    if step is not None and step == evidence.number("shift_at"):
        reason = f"the text changes for good at step {step} (shift_at)"
        return finding("excluded", reason, [_jump_in_words(evidence, step)])
    if step is None:
        return finding("excluded", "no single step jumps away from the ones before it")
    numbers = [_jump_in_words(evidence, step)]
    others = [jump for losses in evidence.same_data if (jump := jumps_at(losses, step)) is not None]
    share = float(np.mean(others)) if others else None
    if share is not None:
        numbers.append(f"{sum(others)} of {len(others)} other trials that saw this batch jump at this step too")
    readings = evidence.threshold_ratio.between(0, step).last(at.CURVATURE_READINGS)
    ratio = readings.median()
    if ratio is not None:
        numbers.append(
            f"curvature before it {ratio:.2g} times the threshold (median of {count(len(readings), 'reading')})"
        )
    if (text := evidence.batch_text(step)) is not None:
        numbers.append(f"the batch of step {step}: {text}")
    is_shared = share is not None and share >= at.SHARED_JUMP
    if not is_shared and not falls_back(evidence.loss, step):
        return finding("excluded", "the loss did not fall back after the step that jumped", numbers)
    if share is not None and not is_shared:
        return finding("excluded", "other trials that saw this batch did not jump", numbers)
    is_low = ratio is not None and ratio <= at.THRESHOLD
    if is_shared or (is_low and evidence.bounds_curvature):
        return finding("supported", f"the loss jumped at step {step} alone", numbers, step)
    if is_low:
        return finding("unknown", f"one step jumped; {NOT_BOUNDED}", numbers)
    if ratio is not None:
        return finding("excluded", "the curvature was over its threshold before", numbers)
    reason = "one step jumped; whether the curvature was over its threshold then was not measured"
    return finding("unknown", reason, numbers)


def jump_near(loss: Series, onset: int) -> int | None:
    """The step near the onset whose loss jumps away from the losses before it, if any."""
    near = range(max(0, onset - at.JUMP_REACH), onset + at.JUMP_REACH + 1)
    return next((step for step in near if jumps_at(loss, step)), None)


def jumps_at(loss: Series, step: int) -> bool | None:
    """Whether the loss at ``step`` is far above its history while the last losses before it are not.

    None without enough history.
    """
    past = loss.between(step - at.JUMP_HISTORY, step)
    here = loss.between(step, step + 1)
    if len(past) < at.MIN_HISTORY or len(here) == 0:
        return None
    level, deviation = float(np.median(past.last(at.MIN_HISTORY).value_N)), _noise(past)
    is_calm = known(past.last(at.NEIGHBOURS).largest()) < level + at.CALM_BEFORE * deviation
    return bool(is_calm and here.value_N[0] > level + at.JUMP * deviation)


def _noise(past: Series) -> float:
    """The robust deviation of ``past`` from the line through it: a descent is not noise."""
    steps_N = past.step_N - past.step_N[-1]
    slope, level = np.polyfit(steps_N, past.value_N, 1)
    rest_N = past.value_N - (level + slope * steps_N)
    return max(_MAD_TO_DEVIATION * float(np.median(np.abs(rest_N - np.median(rest_N)))), _TINY)


def falls_back(loss: Series, step: int) -> bool:
    """Whether half of the jump is gone soon after ``step``, and no loss until then was much higher."""
    past, here = loss.between(step - at.MIN_HISTORY, step).median(), loss.at(step)
    after = loss.between(step + 1, step + 1 + at.FALLS_BACK_STEPS)
    if past is None or here is None or len(after) == 0:
        return False
    lowest, highest = known(after.smallest()), known(after.largest())
    return lowest - past < at.FALLS_BACK * (here - past) and highest - past < 2 * (here - past)


def _jump_in_words(evidence: Evidence, step: int) -> str:
    before, here = evidence.loss.between(step - at.MIN_HISTORY, step).median(), evidence.loss.at(step)
    text = f"the loss at step {step} is {here:.4g}, before it {before:.4g}"
    norm, past = evidence.grad_norm.at(step), evidence.grad_norm.between(step - at.MIN_HISTORY, step).median()
    return f"{text}; the gradient norm {norm:.3g}, before it {past:.3g}" if norm is not None and past else text


@mechanism(
    "shallow stall",
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
    removal=from_the_start("eps", lambda evidence: "x1e-05"),
)
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

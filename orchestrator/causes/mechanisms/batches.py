"""A single bad batch: the loss of one step stands out, and the next step is as before."""

from __future__ import annotations

import numpy as np

from orchestrator.causes.evidence import Evidence
from orchestrator.causes.mechanisms import thresholds as at
from orchestrator.causes.mechanisms.finding import Finding, MakeFinding
from orchestrator.causes.mechanisms.mechanism import Mechanism
from orchestrator.causes.mechanisms.moves import CLIP, Move, just, whole
from orchestrator.causes.series import Series, known

_MAD_TO_DEVIATION = 1.4826  # of a normal distribution
_TINY = 1e-12  # the noise of identical losses


def bad_batch(evidence: Evidence, found: MakeFinding) -> Finding:
    """One step's loss jumps away from its neighbours, under the threshold of curvature, and falls back.

    Supported where the loss at the onset jumps within one step, half of the jump is gone a few steps later, and the
    curvature was below its threshold before or other trials jump at the same step on the same batch. The batch is
    named by its text position where the objective knows it. Excluded where all steps see the same data, the text
    changes for good there, the loss rose over several steps, or trials that saw the same batch do not notice it.
    """
    if evidence.onset is None:
        return found("excluded", "the loss never left its trend upwards")
    if _is_full_batch(evidence):
        return found("excluded", "every step sees the same data")
    if not evidence.has_every_step:
        return found("unknown", "losses of single steps are not there (telemetry: {curves: 1} keeps them)")
    step = jump_near(evidence.loss, evidence.onset)
    if step is not None and step == evidence.number("shift_at"):
        return found("excluded", f"the text changes for good at step {step} (shift_at)", [_jump_text(evidence, step)])
    if step is None:
        return found("excluded", "no single step jumps away from those before it")
    numbers = [_jump_text(evidence, step)]
    is_back = falls_back(evidence.loss, step)
    others = [jump for losses in evidence.same_data if (jump := jumps_at(losses, step)) is not None]
    share = float(np.mean(others)) if others else None
    if share is not None:
        numbers.append(f"{sum(others)} of {len(others)} other trials that saw this batch jump at this step too")
    readings = evidence.edge.between(0, step).last(at.EDGE_READINGS)
    edge = readings.median()
    if edge is not None:
        numbers.append(f"curvature before it {edge:.2g} times the threshold (median of {len(readings)} readings)")
    where = evidence.batch_text(step)
    if where is not None:
        numbers.append(f"the batch of step {step}: {where}")
    is_shared = share is not None and share >= at.SHARED_JUMP
    if not is_back and not is_shared:
        return found("excluded", "the loss did not fall back after the step that jumped", numbers)
    if share is not None and not is_shared:
        return found("excluded", "others that saw this batch did not notice it", numbers)
    if is_shared or (edge is not None and edge <= at.EDGE):
        return found("supported", f"the loss jumped at step {step} alone", numbers, step)
    if edge is not None:
        return found("excluded", "the run was over the edge before", numbers)
    return found("unknown", "one step jumped; whether the run was over the edge then was not measured", numbers)


def jump_near(loss: Series, onset: int) -> int | None:
    """The step near the onset at which the loss jumps away from those before it, if any."""
    near = range(max(0, onset - at.JUMP_REACH), onset + at.JUMP_REACH + 1)
    return next((step for step in near if jumps_at(loss, step)), None)


def jumps_at(loss: Series, step: int) -> bool | None:
    """Whether the loss at ``step`` is far above those before it, and the last of these are not.

    None without enough history.
    """
    past = loss.between(step - at.JUMP_HISTORY, step)
    here = loss.between(step, step + 1)
    if len(past) < at.LEAST_HISTORY or len(here) == 0:
        return None
    level, deviation = float(np.median(past.last(at.LEAST_HISTORY).value_N)), _noise(past)
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
    past, here = loss.between(step - at.LEAST_HISTORY, step).median(), loss.at(step)
    after = loss.between(step + 1, step + 1 + at.FALLS_BACK_STEPS)
    if past is None or here is None or len(after) == 0:
        return False
    lowest, highest = known(after.smallest()), known(after.largest())
    return lowest - past < at.FALLS_BACK * (here - past) and highest - past < 2 * (here - past)


def _is_full_batch(evidence: Evidence) -> bool:
    return evidence.objective is not None and evidence.objective.is_full_batch(evidence.config)


def _jump_text(evidence: Evidence, step: int) -> str:
    before, here = evidence.loss.between(step - at.LEAST_HISTORY, step).median(), evidence.loss.at(step)
    text = f"the loss at step {step} is {here:.4g}, before it {before:.4g}"
    norm, past = evidence.grad_norm.at(step), evidence.grad_norm.between(step - at.LEAST_HISTORY, step).median()
    return f"{text}; the gradient norm {norm:.3g}, before it {past:.3g}" if norm is not None and past else text


BAD_BATCH = Mechanism(
    key="bad_batch",
    title="a single bad batch",
    find=bad_batch,
    label="batch",
    colour="#009E73",
    moves=(
        Move("corrupted", "lower", "fewer batches of the kind", just(0.0)),
        CLIP,
        Move("batch_size", "raise", "one bad sequence weighs less", whole("batch_size", 2, 4)),
    ),
)

"""Gradients of the wrong size: below epsilon, out of step between layers, always clipped, or never."""

from __future__ import annotations

from orchestrator.base.space import format_value
from orchestrator.causes.evidence import ALL, Evidence
from orchestrator.causes.mechanisms import limits as at
from orchestrator.causes.mechanisms.mechanism import (
    CLIP,
    LOWER_EPS,
    SHORTER_MEMORY,
    Finding,
    MakeFinding,
    Mechanism,
    Move,
    Verdict,
    results_with,
    scaled,
    times_usual_norm,
)
from orchestrator.causes.moments import clip_factors, number_of
from orchestrator.causes.series import NOTHING, Series, known, series
from orchestrator.maps.neighbours import Neighbour, below


def epsilon_floor(evidence: Evidence, finding: MakeFinding) -> Finding:
    """Gradients so small that epsilon, not the second moment, sets the step (Wortsman et al., arXiv 2309.14322).

    Supported if RMS(g) < 10 eps in a layer group at the last readings before the onset, or over the whole run without
    an onset. Without telemetry |g| alone can support it, as RMS(g) <= |g|. Excluded if RMS(g) is larger, or if the
    sweep has cells with a lower eps and none is more stable.
    """
    eps = number_of(evidence.config_in_force, "eps")
    if evidence.is_adam is False:
        return finding("excluded", "the optimizer does not divide by a second moment")
    if (lower := _no_better_below(evidence)) is not None:
        return finding("excluded", "no lower eps is more stable", [results_with("eps", lower)])
    readings = {**evidence.groups("grad_rms_over_eps"), ALL: evidence.column(f"grad_rms_over_eps/{ALL}")}
    medians = {group: recent(ratio, evidence).median() for group, ratio in readings.items()}
    levels = {group: level for group, level in medians.items() if level is not None}
    if not levels:
        return _floor_by_norm(evidence, finding, eps)
    lowest = min(levels, key=lambda group: levels[group])
    numbers = [
        f"RMS(g) / eps is {levels[group]:.3g} in {_group(group)}"
        for group in dict.fromkeys([lowest, ALL])
        if group in levels
    ]
    share = recent(evidence.column(f"share_below_eps/{lowest}"), evidence).median()
    if share is not None:
        numbers.append(f"sqrt(v) is below eps in {share:.0%} of the coordinates of {_group(lowest)}")
    if levels[lowest] >= at.EPSILON_FLOOR:
        return finding("excluded", f"gradients are {levels[lowest]:.2g} times eps or more", numbers[:1])
    began = readings[lowest].first(lambda ratio_N: ratio_N < at.EPSILON_FLOOR)
    left = levels[lowest] / (1 + levels[lowest])
    numbers.append(f"a step there has about {left:.2g} of its length without eps")
    return finding("supported", f"gradients of {_group(lowest)} are below {at.EPSILON_FLOOR:.0f} eps", numbers, began)


def _no_better_below(evidence: Evidence) -> Neighbour | None:
    """The nearest cell with a lower eps, if the sweep has any and none is stable at more of its seeds."""
    lower = below(evidence.cells("eps"), evidence.config.get("eps"))
    own = evidence.own_cell("eps")
    if not lower or own is None or any(cell.stable_share > own.stable_share for cell in lower):
        return None
    return lower[0]


def _floor_by_norm(evidence: Evidence, finding: MakeFinding, eps: float | None) -> Finding:
    norm = recent(evidence.grad_norm, evidence).median()
    if eps is None or norm is None:
        return finding("unknown", "eps is not known" if eps is None else "gradient norms are not known")
    numbers = [f"|g| is {norm / eps:.3g} eps, and RMS(g) is smaller"]
    if norm < at.EPSILON_FLOOR * eps:
        began = evidence.grad_norm.first(lambda norm_N: norm_N < at.EPSILON_FLOOR * eps)
        return finding("supported", f"the whole gradient is below {at.EPSILON_FLOOR:.0f} eps", numbers, began)
    if norm / at.MAX_COORDINATES**0.5 > at.EPSILON_FLOOR * eps:
        return finding("excluded", f"all parameters together are far above {at.EPSILON_FLOOR:.0f} eps", numbers)
    return finding("unknown", "RMS(g) was not read", numbers)


def layers_out_of_step(evidence: Evidence, finding: MakeFinding) -> Finding:
    """Shallow layers that hardly move while deep ones do (after Molybog et al., arXiv 2304.09871).

    Supported if the relative update |update| / |weights| of the layers next to the input is less than a hundredth of
    the median of the others, at the last readings before the onset.
    """
    groups = [group for group in evidence.layer_groups if group in evidence.groups("update_to_weight")]
    if len(groups) < 2:
        if (evidence.objective is not None or evidence.groups("update_to_weight")) and len(evidence.layer_groups) < 2:
            return finding("excluded", "the model has only one layer")
        return finding("unknown", "the updates of layers were not read")
    moved = {group: evidence.column(f"update_to_weight/{group}") for group in groups}
    shallow, deep = groups[0], groups[1:]
    levels = {group: recent(readings, evidence).median() or 0.0 for group, readings in moved.items()}
    middle = sorted(levels[group] for group in deep)[len(deep) // 2]
    numbers = [f"|update| / |weights| is {levels[group]:.2g} in {group}" for group in groups]
    if levels[shallow] * at.OUT_OF_STEP >= middle:
        return finding("excluded", f"{shallow} moves with the layers above it", numbers)
    stalled = moved[shallow].first(lambda moved_N: moved_N * at.OUT_OF_STEP < middle)
    return finding("supported", f"{shallow} stands still while the layers above it move", numbers, stalled)


def clipping_saturated(evidence: Evidence, finding: MakeFinding) -> Finding:
    """Nearly every gradient is clipped to a small part: clipping sets the gradient's size."""
    factor = clip_factor(evidence)
    if not len(factor):
        return finding(*_without_clipping(evidence))
    share = known(factor.share(lambda factor_N: factor_N < at.SATURATED_FACTOR))
    numbers = [
        f"clipping multiplied the gradient by {factor.median():.3g} at the median",
        f"and by less than {at.SATURATED_FACTOR} at {share:.0%} of the steps",
    ]
    if share < at.SATURATED_SHARE:
        return finding("excluded", "clipping changed most gradients little or not at all", numbers)
    began = factor.first(lambda factor_N: factor_N < at.SATURATED_FACTOR)
    return finding("supported", "clipping cut nearly every gradient to a small part", numbers, began)


def clipping_inactive(evidence: Evidence, finding: MakeFinding) -> Finding:
    """Clipping is set but had no effect, not even on the gradients of the instability."""
    factor, largest = clip_factor(evidence), evidence.grad_norm.between(0, evidence.reach).largest()
    if not len(factor):
        return finding(*_without_clipping(evidence))
    numbers = [f"clip is {format_value(evidence.config_in_force['clip'])}"]
    numbers += [f"the largest gradient norm was {largest:.3g}"] if largest is not None else []
    if known(factor.smallest()) < 1.0:
        return finding("excluded", "clipping was active", numbers)
    return finding("supported", "clipping is set but was never active", numbers, 0)


def clip_factor(evidence: Evidence) -> Series:
    """The clipping factors of the gradients up to the peak; empty without clipping or if unknown."""
    clip, norm = evidence.number("clip"), evidence.grad_norm.between(0, evidence.reach)
    if clip is None and not evidence.sets_clipping:
        return NOTHING
    if len(norm) and clip is not None and not evidence.sets_clipping:
        return series(norm.step_N, clip_factors(norm.value_N, clip))
    return evidence.column("clip_factor").between(0, evidence.reach)


def _without_clipping(evidence: Evidence) -> tuple[Verdict, str]:
    if evidence.number("clip") is not None:
        return "unknown", "gradient norms are not known"
    if evidence.is_custom_trainer:
        return "unknown", "whether gradients are clipped is not known"
    return "excluded", "gradients are not clipped"


def recent(readings: Series, evidence: Evidence) -> Series:
    """The last readings before the onset; all readings without an onset."""
    before = readings.between(0, evidence.until)
    return before if evidence.onset is None else (before if len(before) else readings).last(at.RECENT_READINGS)


def _group(group: str) -> str:
    return "all parameters" if group == ALL else group


EPSILON_FLOOR = Mechanism(
    key="epsilon_floor",
    title="epsilon floor",
    find=epsilon_floor,
    label="eps",
    colour="#F0E442",
    moves=(LOWER_EPS,),
)


LAYERS_OUT_OF_STEP = Mechanism(
    key="layers_out_of_step",
    title="layers out of step",
    find=layers_out_of_step,
    label="layers",
    colour="#8C6D31",
    moves=(
        LOWER_EPS,
        Move("embedding_lr", "raise", "gives larger steps to layers that stand still", scaled("embedding_lr", 3, 10)),
        SHORTER_MEMORY,
    ),
)


CLIPPING_SATURATED = Mechanism(
    key="clipping_saturated",
    title="clipping saturated",
    find=clipping_saturated,
    label="clip",
    colour="#999933",
    moves=(Move("clip", "raise", "above the usual norm, it cuts only what stands out", times_usual_norm(2.0, 10.0)),),
)


CLIPPING_INACTIVE = Mechanism(
    key="clipping_inactive",
    title="clipping never active",
    find=clipping_inactive,
    label="no clip",
    colour="#DDDDAA",
    moves=(CLIP,),
    is_companion=True,
)

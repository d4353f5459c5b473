"""Gradients of the wrong size: below epsilon, out of step between layers, or always or never clipped."""

from __future__ import annotations

from orchestrator.base.space import format_value
from orchestrator.causes.evidence import ALL, Evidence, number_of
from orchestrator.causes.mechanisms import thresholds as at
from orchestrator.causes.mechanisms.finding import Finding, MakeFinding, Verdict, seeds_text
from orchestrator.causes.mechanisms.mechanism import Mechanism
from orchestrator.causes.mechanisms.moves import CLIP, LOWER_EPS, SHORTER_MEMORY, Move, about_the_norm, scaled
from orchestrator.causes.moments import clip_factors
from orchestrator.causes.series import NOTHING, Series, known, series
from orchestrator.maps.neighbours import Neighbour, below


def epsilon_floor(evidence: Evidence, found: MakeFinding) -> Finding:
    """Gradients so small that epsilon, not the second moment, sets the step (Wortsman et al., arXiv 2309.14322).

    Supported where RMS(g) < 10 eps in a layer group at the last readings before the onset, or over the whole run if it
    has none. Without telemetry |g| alone can support it, as RMS(g) <= |g|. Excluded where RMS(g) is larger, or where
    the sweep has cells with a lower eps and none of them is more stable.
    """
    eps = number_of(evidence.config_in_force, "eps")
    if evidence.is_adam is False:
        return found("excluded", "the optimizer divides by no second moment")
    refuted_by = _no_better_below(evidence)
    if refuted_by is not None:
        lower = f"with eps {format_value(refuted_by.value)}: {seeds_text(refuted_by)}"
        return found("excluded", "no lower eps is more stable", [lower])
    readings = {**evidence.groups("grad_rms_over_eps"), ALL: evidence.column(f"grad_rms_over_eps/{ALL}")}
    medians = {group: recent(ratio, evidence).median() for group, ratio in readings.items()}
    levels = {group: level for group, level in medians.items() if level is not None}
    if not levels:
        return _floor_by_norm(evidence, found, eps)
    ascending = sorted(levels, key=lambda group: levels[group])
    lowest = ascending[0]
    shown = dict.fromkeys([lowest, *([ALL] if ALL in levels else [])])
    numbers = [f"RMS(g) / eps is {levels[group]:.3g} in {_group(group)}" for group in shown]
    share = recent(evidence.column(f"share_below_eps/{lowest}"), evidence).median()
    if share is not None:
        numbers.append(f"sqrt(v) is below eps in {share:.0%} of the coordinates of {_group(lowest)}")
    if levels[lowest] >= at.EPSILON_FLOOR:
        return found("excluded", f"gradients are {levels[lowest]:.2g} times eps or more", numbers[:1])
    began = readings[lowest].first(lambda ratio_N: ratio_N < at.EPSILON_FLOOR)
    left = levels[lowest] / (1 + levels[lowest])
    numbers.append(f"a step there is about {left:.2g} of what it were without eps")
    return found("supported", f"gradients of {_group(lowest)} are below {at.EPSILON_FLOOR:.0f} eps", numbers, began)


def _no_better_below(evidence: Evidence) -> Neighbour | None:
    """The nearest cell with a lower eps, if the sweep has some and none is stable at more of its seeds."""
    lower = below(evidence.cells("eps"), evidence.config.get("eps"))
    own = evidence.own_cell("eps")
    if not lower or own is None or any(cell.stable_share > own.stable_share for cell in lower):
        return None
    return lower[0]


def _floor_by_norm(evidence: Evidence, found: MakeFinding, eps: float | None) -> Finding:
    norm = recent(evidence.grad_norm, evidence).median()
    if eps is None or norm is None:
        return found("unknown", "eps is not known" if eps is None else "no gradient norms are known")
    numbers = [f"|g| is {norm / eps:.3g} eps, RMS(g) is less"]
    if norm < at.EPSILON_FLOOR * eps:
        began = evidence.grad_norm.first(lambda norm_N: norm_N < at.EPSILON_FLOOR * eps)
        return found("supported", f"the whole gradient is below {at.EPSILON_FLOOR:.0f} eps", numbers, began)
    if norm / at.MOST_COORDINATES**0.5 > at.EPSILON_FLOOR * eps:
        return found("excluded", f"all parameters together are far above {at.EPSILON_FLOOR:.0f} eps", numbers)
    return found("unknown", "RMS(g) was not read", numbers)


def layers_out_of_step(evidence: Evidence, found: MakeFinding) -> Finding:
    """Shallow layers that hardly move while deep ones do (after Molybog et al., arXiv 2304.09871).

    Supported where the relative update |update| / |weights| of the layers next to the input is less than a
    hundredth of the median of the others, at the last readings before the onset.
    """
    groups = [group for group in evidence.layer_groups if group in evidence.groups("update_to_weight")]
    if len(groups) < 2:
        if (evidence.objective is not None or evidence.groups("update_to_weight")) and len(evidence.layer_groups) < 2:
            return found("excluded", "there is one layer only")
        return found("unknown", "updates of layers were not read")
    moved = {group: evidence.column(f"update_to_weight/{group}") for group in groups}
    shallow, deep = groups[0], groups[1:]
    levels = {group: recent(readings, evidence).median() or 0.0 for group, readings in moved.items()}
    middle = sorted(levels[group] for group in deep)[len(deep) // 2]
    numbers = [f"|update| / |weights| is {levels[group]:.2g} in {group}" for group in groups]
    if levels[shallow] * at.OUT_OF_STEP >= middle:
        return found("excluded", f"{shallow} moves with the layers above it", numbers)
    stalled = moved[shallow].first(lambda moved_N: moved_N * at.OUT_OF_STEP < middle)
    return found("supported", f"{shallow} stands still while the layers above it move", numbers, stalled)


def clipping_saturated(evidence: Evidence, found: MakeFinding) -> Finding:
    """Nearly every gradient is clipped to a small part: the threshold sets the gradient's size."""
    factor = clip_factor(evidence)
    if not len(factor):
        return found(*_without_clipping(evidence))
    share = known(factor.share(lambda factor_N: factor_N < at.SATURATED_FACTOR))
    numbers = [
        f"clipping multiplied the gradient by {factor.median():.3g} at the median",
        f"and by less than {at.SATURATED_FACTOR} at {share:.0%} of the steps",
    ]
    if share < at.SATURATED_SHARE:
        return found("excluded", "clipping left most gradients alone, or nearly so", numbers)
    began = factor.first(lambda factor_N: factor_N < at.SATURATED_FACTOR)
    return found("supported", "clipping shortened nearly every gradient to a small part", numbers, began)


def clipping_inactive(evidence: Evidence, found: MakeFinding) -> Finding:
    """Clipping is on but had no effect, not even on the gradients of the instability."""
    factor, largest = clip_factor(evidence), evidence.grad_norm.between(0, evidence.reach).largest()
    if not len(factor):
        return found(*_without_clipping(evidence))
    numbers = [f"clip is {format_value(evidence.config_in_force['clip'])}"]
    numbers += [f"the largest gradient norm was {largest:.3g}"] if largest is not None else []
    if known(factor.smallest()) < 1.0:
        return found("excluded", "clipping was active", numbers)
    return found("supported", "clipping is set and was never active", numbers, 0)


def clip_factor(evidence: Evidence) -> Series:
    """The clipping factors of the gradients up to the peak; empty without clipping, or if unknown."""
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
    return "excluded", "there is no clipping"


def recent(readings: Series, evidence: Evidence) -> Series:
    """The last readings before the onset; all of them if the run has none."""
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
        Move("embedding_lr", "raise", "what stands still gets larger steps", scaled("embedding_lr", 3, 10)),
        SHORTER_MEMORY,
    ),
)


CLIPPING_SATURATED = Mechanism(
    key="clipping_saturated",
    title="clipping saturated",
    find=clipping_saturated,
    label="clip",
    colour="#999933",
    moves=(
        Move("clip", "raise", "a threshold above the usual norm cuts only what stands out", about_the_norm(2.0, 10.0)),
    ),
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

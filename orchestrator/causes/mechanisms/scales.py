"""Numbers of the wrong size: beyond half precision, below epsilon, out of step, clipped always or never, big logits."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.base.space import format_value
from orchestrator.causes.evidence import ALL, Evidence
from orchestrator.causes.mechanisms import limits as at
from orchestrator.causes.mechanisms.mechanism import (
    CLIP,
    LOWER_EPS,
    LOWER_LR,
    NO_ONSET,
    SHORTER_MEMORY,
    Finding,
    MakeFinding,
    Move,
    Verdict,
    just,
    mechanism,
    results_with,
    scaled,
    times_usual_norm,
)
from orchestrator.causes.mechanisms.removal import Removal, from_the_start, held
from orchestrator.causes.moments import clip_factors, number_of
from orchestrator.causes.series import NOTHING, Series, known, series
from orchestrator.maps.neighbours import Neighbour, below

HALF = "float16"
_LARGEST = 65504.0
_WIDER = ("float32", "tf32", "bfloat16")


@mechanism(
    "half-precision overflow",
    label="16 bit",
    colour="#000000",
    moves=(
        Move("precision", "switch", "float16 ends at 65504, bfloat16 and float32 at 3e38", just("bfloat16", "float32")),
        LOWER_LR,
    ),
    removal=held(precision="float64"),
)
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


@mechanism(
    "epsilon floor",
    label="eps",
    colour="#F0E442",
    moves=(LOWER_EPS,),
    removal=from_the_start("eps", lambda evidence: small_eps(evidence)),
)
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


def small_eps(evidence: Evidence) -> float | None:
    """An epsilon of a hundredth of the smallest RMS of a group's gradient before the onset; None if it is not lower."""
    eps = number_of(evidence.config_in_force, "eps")
    readings = {**evidence.groups("grad_rms_over_eps"), ALL: evidence.column(f"grad_rms_over_eps/{ALL}")}
    levels = [level for ratio in readings.values() if (level := recent(ratio, evidence).median()) is not None]
    if eps is None or not levels:
        return None
    lower = float(f"{eps * min(levels) / 100:.2g}")
    return lower if 0 < lower < eps else None


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


@mechanism(
    "layers out of step",
    label="layers",
    colour="#8C6D31",
    moves=(
        LOWER_EPS,
        Move("embedding_lr", "raise", "gives larger steps to layers that stand still", scaled("embedding_lr", 3, 10)),
        SHORTER_MEMORY,
    ),
    removal=lambda evidence, began: _in_step(evidence, began),
)
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
    shallow, levels, middle = _moves(evidence, groups)
    numbers = [f"|update| / |weights| is {levels[group]:.2g} in {group}" for group in groups]
    if levels[shallow] * at.OUT_OF_STEP >= middle:
        return finding("excluded", f"{shallow} moves with the layers above it", numbers)
    moved = evidence.column(f"update_to_weight/{shallow}")
    stalled = moved.first(lambda moved_N: moved_N * at.OUT_OF_STEP < middle)
    return finding("supported", f"{shallow} stands still while the layers above it move", numbers, stalled)


def _moves(evidence: Evidence, groups: Sequence[str]) -> tuple[str, dict[str, float], float]:
    """The shallowest group, how much each group last moved, and the median of the others."""
    shallow, deep = groups[0], groups[1:]
    levels = {group: recent(evidence.column(f"update_to_weight/{group}"), evidence).median() or 0.0 for group in groups}
    return shallow, levels, sorted(levels[group] for group in deep)[len(deep) // 2]


def _in_step(evidence: Evidence, began: int | None) -> Removal | None:
    """Let the shallowest layers move as the others do, by their own learning rate: the others' own one if it was 0.

    None if there is no such rate, or if they did not move at another.
    """
    groups = [group for group in evidence.layer_groups if group in evidence.groups("update_to_weight")]
    if len(groups) < 2:
        return None
    shallow, levels, middle = _moves(evidence, groups)
    own = evidence.number(f"{shallow}_lr")
    if own is None or (own > 0 and levels[shallow] <= 0):
        return None
    faster = float(f"{own * middle / levels[shallow]:.3g}") if own else 1.0
    return from_the_start(f"{shallow}_lr", lambda _: faster)(evidence, began)


@mechanism(
    "clipping saturated",
    label="clip",
    colour="#999933",
    moves=(Move("clip", "raise", "above the usual norm, it cuts only what stands out", times_usual_norm(2.0, 10.0)),),
    removal=held(set={"clip": None}),
)
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


@mechanism("clipping never active", label="no clip", colour="#DDDDAA", moves=(CLIP,), is_companion=True)
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


@mechanism(
    "growth of the logits",
    label="logits",
    colour="#56B4E9",
    moves=(
        Move("qk_norm", "switch", "normed queries and keys bound the attention logits (Wortsman et al.)", just(True)),
        Move("z_loss", "raise", "a penalty on log^2 Z holds the output logits (Wortsman et al.: 1e-4)", just(1e-4)),
        LOWER_LR,
    ),
    removal=lambda evidence, began: _capped(evidence, began),
)
def logit_growth(evidence: Evidence, finding: MakeFinding) -> Finding:
    """Attention logits or log Z that grow before the onset (Wortsman et al., arXiv 2309.14322).

    Supported if the largest attention logit is above 1e4, or above 1e3 and ten times its first reading, or if the mean
    of |log Z| is five times its first reading, all before the onset. Excluded if both are calm.
    """
    columns = {name: evidence.column(name) for name in ("attention_logit", "log_z")}
    if evidence.has_logits is False and not any(map(len, columns.values())):
        return finding("excluded", "the model has no logits")
    numbers, verdicts = [], []
    began: list[int] = []
    for name, column in columns.items():
        readings = column.between(0, evidence.until + 1)
        if not len(readings):
            continue
        highest, first = known(readings.largest()), float(readings.value_N[0])
        if name == "attention_logit":
            numbers.append(f"the largest attention logit went from {first:.3g} to {highest:.3g}")
            high, calm = min(at.ATTENTION_LOST, max(at.ATTENTION_HIGH, 10 * first)), at.ATTENTION_CALM
            start = at.ATTENTION_HIGH
        else:
            numbers.append(f"mean |log Z| went from {first:.3g} to {highest:.3g}")
            high, calm = at.LOG_Z_HIGH * first, at.LOG_Z_CALM * first
            start = high
        verdicts.append("supported" if highest > high else "excluded" if highest < calm else "unknown")
        if highest > high:
            began.append(int(readings.step_N[readings.value_N > start][0]))
    if not verdicts:
        return finding("unknown", "logits were not read")
    if "supported" in verdicts:
        return finding("supported", "logits had grown before the onset", numbers, min(began))
    if "unknown" in verdicts:
        return finding("unknown", "logits had grown, but not to where runs are known to be lost", numbers)
    return finding("excluded", "logits were calm up to the onset", numbers)


def _capped(evidence: Evidence, began: int | None) -> Removal | None:
    """Cap attention if its logits grew, or else stop the head."""
    attention = evidence.column("attention_logit").between(0, evidence.until + 1).largest()
    grew = attention is not None and attention >= at.ATTENTION_CALM
    return (held(attention="capped") if grew else held(freeze="head"))(evidence, began)

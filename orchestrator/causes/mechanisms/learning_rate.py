"""The learning rate: over 2 / curvature from the start, while v is young or after the curvature grew; or too low."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.base.space import format_value, is_number
from orchestrator.base.words import count
from orchestrator.causes.evidence import ALL, Evidence
from orchestrator.causes.mechanisms import limits as at
from orchestrator.causes.mechanisms.mechanism import (
    HIGHER_EPS,
    HIGHER_LR,
    LOWER_LR,
    NO_ONSET,
    NOT_BOUNDED,
    NOT_MEASURED,
    UNKNOWN_RATE,
    Finding,
    MakeFinding,
    Move,
    is_far_over,
    longer_warmups,
    mechanism,
    probe_of,
    results_with,
    settles_below,
    shorter_memories,
    steps,
    warmup_by_the_rule,
)
from orchestrator.causes.mechanisms.removal import calm_rate, from_the_start, gradual_rate
from orchestrator.causes.mechanisms.scales import stable_with_more_bits
from orchestrator.causes.series import known
from orchestrator.maps.neighbours import Neighbour, above, below


@mechanism(
    "step over the threshold from the start",
    label="2/lr",
    colour="#D55E00",
    moves=(
        LOWER_LR,
        Move("warmup", "raise", "gives the curvature time to fall, as it often does at first", longer_warmups),
    ),
    probe=probe_of(LOWER_LR),
    removal=calm_rate,
)
def over_the_threshold(evidence: Evidence, finding: MakeFinding) -> Finding:
    """The learning rate is too high for the loss from the first steps at full rate.

    Supported if the run leaves its trend (or never finds one) soon after the learning rate is full, and either the
    curvature is over the threshold at most readings or the same run with a lower rate is stable. Excluded if a longer
    warmup or more bits get the run through its start, if it trained for long before, or if the curvature never came
    near the threshold.
    """
    if evidence.onset is None:
        return finding("excluded", NO_ONSET)
    readings = evidence.threshold_ratio.between(evidence.rate_step(at.HALF_RATE) or 0, evidence.onset + 1)
    share_over = readings.share(lambda ratio_N: ratio_N > at.THRESHOLD)
    slower = below(evidence.cells("lr"), evidence.config.get("lr"))
    numbers = [_age(evidence)]
    if share_over is not None:
        since = " since the learning rate was half full" if evidence.rate_step(at.HALF_RATE) is not None else ""
        over = f"{share_over:.0%} of {count(len(readings), 'reading')}{since}"
        numbers.append(f"curvature over the threshold at {over}, at most {readings.largest():.3g} times it")
    numbers += _nearest_results("lr", slower)
    had_trained = evidence.had_full_rate_for(at.START_STEPS)
    if had_trained is None and has_learned(evidence):
        return finding("unknown", UNKNOWN_RATE, numbers)
    is_early = not had_trained or not has_learned(evidence)
    if is_early and (longer := helped_by_warmup(evidence)) is not None:
        reason = f"with a warmup of {format_value(longer.value)} it does not fail so early"
        return finding("excluded", reason, numbers)
    if (wider := stable_with_more_bits(evidence)) is not None:
        return finding("excluded", f"it is stable with precision {wider.value}", numbers)
    if is_early and evidence.bounds_curvature and len(readings) and known(readings.largest()) < at.NEAR_THRESHOLD:
        if (why := settles_below(evidence)) is not None:
            return finding("unknown", why, numbers)
        if len(readings) > 1:
            return finding("excluded", "the curvature was far below the threshold before the onset", numbers)
        reason = f"the only reading of the curvature is {readings.largest():.3g} of the threshold"
        return finding("unknown", reason, numbers)
    helps = any(cell.is_stable for cell in slower)
    if is_early and (helps or (share_over is not None and share_over >= at.MOSTLY_OVER)):
        began = readings.first(lambda ratio_N: ratio_N > at.THRESHOLD)
        reason = "it left its trend as soon as the learning rate was this high"
        return finding("supported", reason, numbers, evidence.full_rate_step if began is None else began)
    if not is_early and share_over is None and helps:
        return finding("unknown", f"it had trained at this learning rate, and {_not_read(evidence)}", numbers)
    if not is_early:
        return finding("excluded", "it had trained at this learning rate", numbers)
    missing = "the curvature was over the threshold now and then" if share_over is not None else _not_read(evidence)
    missing = NOT_BOUNDED if share_over == 0 and not evidence.bounds_curvature else missing
    tried = "no lower learning rate is stable either" if slower else "no cell has a lower learning rate"
    return finding("unknown", f"{missing}, and {tried}", numbers)


@mechanism(
    "warmup too short",
    label="warmup",
    colour="#E69F00",
    moves=(
        Move(
            "warmup",
            "raise",
            "keeps steps small until v has seen 2 / (1 - beta2) gradients (Ma and Yarats)",
            longer_warmups,
        ),
        Move(
            "beta2",
            "lower",
            "v is young for 1 / (1 - beta2) steps, so a short warmup will do",
            shorter_memories,
        ),
        LOWER_LR,
    ),
    probe=warmup_by_the_rule,
    removal=gradual_rate(lambda evidence: None if evidence.memory is None else at.WARMUP_RULE * evidence.memory),
)
def warmup_too_short(evidence: Evidence, finding: MakeFinding) -> Finding:
    """The learning rate is high before the second moment has seen enough gradients, so steps are of full size, by sign.

    Supported if the onset is within 1 / (1 - beta2) steps, the warmup is shorter than the rule of Ma and Yarats
    (arXiv 1910.04209), the direction was near sign descent at a high learning rate, and the same run with a longer
    warmup is stable or fails much later, or the run comes back and the curvature is below the threshold once v is
    older. Excluded if one of the first three is false, or if a warmup by the rule does not help.
    """
    warmup, memory = evidence.number("warmup"), evidence.memory
    if evidence.onset is None:
        return finding("excluded", NO_ONSET)
    if memory is None:
        if evidence.is_adam is False:
            return finding("excluded", "the optimizer has no second moment")
        return finding("unknown", "beta2 is not known")
    if warmup is None:
        return finding("unknown", "the warmup is not known")
    young, needed = max(memory, at.MIN_YOUNG_STEPS), at.WARMUP_RULE * memory
    numbers = [
        f"onset at step {evidence.onset}; v is young for {steps(young)}",
        f"warmup {format_value(int(warmup))}; the rule 2 / (1 - beta2) asks for {needed:.0f}",
    ]
    if warmup >= needed:
        return finding("excluded", "the warmup is as long as the rule asks for", numbers)
    if evidence.onset >= young + warmup:
        return finding("excluded", "v was no longer young at the onset", numbers)
    direction = sign_descent(evidence)
    if direction is not None:
        numbers.append(f"RMS of mhat / sqrt(vhat) up to {direction:.2f} shortly before the onset (1 is sign descent)")
        if direction < at.SIGN_DESCENT:
            return finding("excluded", "the steps before the onset were far from sign descent", numbers)
    longer = with_longer_warmup(evidence)
    if (helped := helped_by_warmup(evidence)) is not None:
        numbers += _nearest_results("warmup", [cell for cell in longer if cell is helped or cell.is_stable])
        return finding("supported", "with a longer warmup the same learning rate does not fail so early", numbers, 0)
    numbers += _nearest_results("warmup", longer)
    if any(cell.value >= needed for cell in longer):
        return finding("excluded", "with a warmup as long as the rule asks for it fails as early", numbers)
    if direction is None:
        return finding("unknown", "the direction of the steps before the onset was not read", numbers)
    later = evidence.threshold_ratio.between(young, evidence.end)
    share_later = later.share(lambda ratio_N: ratio_N > at.THRESHOLD)
    is_lost = evidence.outcome == "diverged"  # then its curvature falls for other reasons
    if not is_lost and evidence.bounds_curvature and len(later) > 1 and known(share_later) <= at.SELDOM_OVER:
        began = evidence.threshold_ratio.first(lambda ratio_N: ratio_N > at.THRESHOLD)
        if began is not None and began < young:
            return finding("supported", "the curvature was over the threshold only while v was young", numbers, began)
    return finding("unknown", "no cell with a longer warmup shows whether that would be enough", numbers)


@mechanism(
    "curvature grew to the threshold", label="sharp", colour="#F0A08A", moves=(LOWER_LR, HIGHER_EPS), removal=calm_rate
)
def sharpening(evidence: Evidence, finding: MakeFinding) -> Finding:
    """Progressive sharpening (Cohen et al., arXiv 2207.14484): curvature rises to its threshold after a good start.

    Supported if the run trained at its full learning rate for a while, and the curvature was over the threshold at the
    last reading before the onset, or at two or more, and at least a fifth, of the last ones. Excluded if it came
    nowhere near, or if v had decayed before: then the preconditioner grew, not the curvature of the loss.
    """
    if evidence.onset is None:
        return finding("excluded", NO_ONSET)
    had_trained = evidence.had_full_rate_for(at.START_STEPS)
    if had_trained is False:
        return finding("excluded", "the learning rate had been this high for a few steps only")
    if had_trained is None:
        return finding("unknown", UNKNOWN_RATE)
    readings = evidence.threshold_ratio.between(evidence.full_rate_step or 0, evidence.onset).last(at.RECENT_READINGS)
    if len(readings) < at.MIN_OVER:
        return finding("unknown", f"{NOT_MEASURED} often enough" if len(readings) else NOT_MEASURED)
    num_over = int((readings.value_N > at.THRESHOLD).sum())
    numbers = [
        f"curvature over the threshold at {num_over} of the last {len(readings)} readings before the onset, at most "
        f"{readings.largest():.3g} times it"
    ]
    if not num_over and not evidence.bounds_curvature:
        return finding("unknown", NOT_BOUNDED, numbers)
    if known(readings.largest()) < at.NEAR_THRESHOLD:
        if (why := settles_below(evidence)) is not None:
            return finding("unknown", why, numbers)
        return finding("excluded", "the curvature stayed far below its threshold", numbers)
    is_often_over = num_over >= max(at.MIN_OVER, at.SELDOM_OVER * len(readings))
    if not is_often_over and readings.value_N[-1] <= at.THRESHOLD:
        return finding("unknown", "the curvature came near its threshold and was seldom or never over it", numbers)
    began = known(readings.first(lambda ratio_N: ratio_N > at.THRESHOLD))
    lowest = evidence.v_lag.between(began - at.DECAY_WINDOW, began + 1).smoothed(at.DECAY_SMOOTHING).smallest()
    if lowest is not None and lowest < at.DECAYED and not is_far_over(evidence):
        return finding("excluded", f"|g|^2 / sum v had fallen to {lowest:.2g}: the preconditioner grew", numbers)
    return finding("supported", "the curvature had grown until a step of this size overshot", numbers, began)


def with_longer_warmup(evidence: Evidence) -> list[Neighbour]:
    """The cells with a longer warmup and otherwise the same settings, the nearest first."""
    return [cell for cell in above(evidence.cells("warmup"), evidence.config.get("warmup")) if is_number(cell.value)]


def helped_by_warmup(evidence: Evidence) -> Neighbour | None:
    """The nearest cell with only a longer warmup that gets through its warmup and the time after it.

    All its seeds are stable, or leave their trend so much later that the cause is another one.
    """
    young = max(evidence.memory or 0.0, at.MIN_YOUNG_STEPS)

    def gets_through(cell: Neighbour) -> bool:
        return all(onset is not None and onset > cell.value + young + at.START_STEPS for onset in cell.onsets)

    return next((cell for cell in with_longer_warmup(evidence) if gets_through(cell)), None)


def has_learned(evidence: Evidence) -> bool:
    """Whether the loss fell by a good part of its initial value before the onset."""
    initial, best = evidence.trial.initial_loss, evidence.loss.between(0, evidence.until).smallest()
    return initial is not None and best is not None and initial - best > at.LEARNED * abs(initial)


def sign_descent(evidence: Evidence) -> float | None:
    """The largest RMS of mhat / sqrt(vhat) shortly before the onset, at half of the full learning rate or more.

    Adam's first step is the sign of any gradient, so it needs no reading. None without readings.
    """
    half = evidence.rate_step(at.HALF_RATE)
    first = max(half or 0, evidence.until - at.START_STEPS)
    largest = evidence.column(f"direction_rms/{ALL}").between(first, evidence.until + 1).largest()
    return max(largest or 0.0, 1.0) if first == 0 and half is not None else largest


def _not_read(evidence: Evidence) -> str:
    return "the curvature was not measured at this learning rate" if len(evidence.threshold_ratio) else NOT_MEASURED


def _age(evidence: Evidence) -> str:
    """When the onset was, counted from the full learning rate, or within the warmup."""
    warmup, full = evidence.number("warmup") or 0, evidence.full_rate_step
    if evidence.until < warmup:
        return f"onset at step {evidence.onset}, after {evidence.until} of {warmup:.0f} steps of its warmup"
    if full is None:
        return f"onset at step {evidence.onset}"
    after = steps(evidence.until - full)
    return f"onset at step {evidence.onset}, {after} after the learning rate was full (step {full})"


def _nearest_results(setting: str, cells: Sequence[Neighbour]) -> list[str]:
    """The results of the nearest cell and of the nearest stable one."""
    nearest_stable = [cell for cell in cells if cell.is_stable][:1]
    return [results_with(setting, cell) for cell in dict.fromkeys([*cells[:1], *nearest_stable])]


@mechanism(
    "learning rate too low",
    label="too low",
    colour="#AA4466",
    moves=(HIGHER_LR,),
    probe=probe_of(HIGHER_LR),
    removal=from_the_start("lr", lambda evidence: "x10", changes_rate=True),
)
def learning_rate_too_low(evidence: Evidence, finding: MakeFinding) -> Finding:
    """Steps too small to learn within the length of the run.

    Supported if a run stalled without a blow-up, and the same cell with a higher learning rate is stable and ends
    lower. Excluded if it did not stall, or blew up.
    """
    if evidence.outcome != "stalled":
        return finding("excluded", "its loss fell")
    if evidence.blow_up is not None:
        return finding("excluded", "the loss rose at the start")
    rate, final = evidence.number("lr"), evidence.trial.final_loss
    if rate is None:
        return finding("unknown", "the learning rate is not known")
    higher = above(evidence.cells("lr"), rate)
    for cell in higher:
        if cell.is_stable and cell.loss is not None and final is not None and cell.loss < final:
            numbers = [f"{results_with('lr', cell)}, final loss {final:.4g} -> {cell.loss:.4g}"]
            return finding("supported", "with a higher learning rate the same run learns", numbers, 0)
    tried = "no higher learning rate is stable and ends lower" if higher else "no cell has a higher learning rate"
    return finding("unknown", tried, [f"lr {format_value(rate)}"])

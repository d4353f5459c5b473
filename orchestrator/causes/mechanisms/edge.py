"""Steps that overshoot: over the edge of stability from the start, or while the second moment is young."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.base.space import format_value, is_number
from orchestrator.causes.evidence import ALL, Evidence
from orchestrator.causes.mechanisms import thresholds as at
from orchestrator.causes.mechanisms.finding import NOT_MEASURED, Finding, MakeFinding, seeds_text, steps
from orchestrator.causes.mechanisms.mechanism import Mechanism, Probe
from orchestrator.causes.mechanisms.moves import LOWER_LR, Move, forgetting_faster, warmups
from orchestrator.causes.mechanisms.precision import stable_with_more_bits
from orchestrator.causes.series import known
from orchestrator.maps.neighbours import Neighbour, above, below


def over_the_edge(evidence: Evidence, found: MakeFinding) -> Finding:
    """The learning rate is too high for the loss from the first steps at full rate.

    Supported where the run leaves its trend (or never finds one) soon after the learning rate is full, and either the
    curvature is over the threshold at most readings or the same run with a lower rate is stable. Excluded where a
    longer warmup or more bits get the run through its start, where it trained for long before, or where the curvature
    never came near the threshold.
    """
    if evidence.onset is None:
        return found("excluded", "the loss never left its trend upwards")
    numbers = [_age_text(evidence)]
    readings = evidence.edge.between(evidence.rate_step(at.HALF_RATE), evidence.onset + 1)
    share = readings.share(lambda ratio_N: ratio_N > at.EDGE)
    if share is not None:
        numbers.append(
            f"curvature over the threshold at {share:.0%} of {len(readings)} readings since it was half of that, "
            f"{readings.largest():.3g} times it at most"
        )
    slower, longer = below(evidence.cells("lr"), evidence.config.get("lr")), helped_by_warmup(evidence)
    numbers += _cells_text("lr", slower)
    began = readings.first(lambda ratio_N: ratio_N > at.EDGE)
    is_early = evidence.num_full_rate_steps <= at.START_STEPS or not has_learned(evidence)
    if is_early and longer is not None:
        return found("excluded", f"with a warmup of {format_value(longer.value)} it does not fail so early", numbers)
    wider = stable_with_more_bits(evidence)
    if wider is not None:
        return found("excluded", f"with precision {wider.value} it is stable", numbers)
    is_over = share is not None and share >= at.MOSTLY_OVER
    if is_early and len(readings) and known(readings.largest()) < at.NEAR_EDGE:
        if len(readings) > 1:
            return found("excluded", "the curvature was far below the threshold before the onset", numbers)
        return found(
            "unknown", f"the only reading of the curvature is {readings.largest():.3g} of the threshold", numbers
        )
    if is_early and (is_over or any(cell.is_stable for cell in slower)):
        began = evidence.full_rate_step if began is None else began
        return found("supported", "it left its trend as soon as the learning rate was this high", numbers, began)
    if not is_early and share is None and any(cell.is_stable for cell in slower):
        return found("unknown", f"it trained at this learning rate before, and {_not_read(evidence)}", numbers)
    if not is_early:
        return found("excluded", "it trained at this learning rate before", numbers)
    missing = "the curvature was over the threshold now and then"
    if share is None:
        missing = _not_read(evidence)
    tried = "no cell has a lower learning rate" if not slower else "no lower learning rate is stable either"
    return found("unknown", f"{missing}, and {tried}", numbers)


def warmup_too_short(evidence: Evidence, found: MakeFinding) -> Finding:
    """The learning rate is high while the second moment has seen few gradients, so steps are of full size, by sign.

    Supported where the onset is within 1 / (1 - beta2) steps, the warmup is shorter than the rule of Ma and Yarats
    (arXiv 1910.04209), the direction was near sign descent at a high learning rate, and the same run with a longer
    warmup is stable or fails much later, or the curvature is below the threshold once v is older. Excluded where one of
    the first three does not hold, or where a warmup by the rule does not help.
    """
    warmup, memory = evidence.number("warmup"), evidence.memory
    if evidence.onset is None:
        return found("excluded", "the loss never left its trend upwards")
    if memory is None:
        has_none = evidence.is_adam is False
        reason = "the optimizer has no second moment" if has_none else "beta2 is not known"
        return found("excluded" if has_none else "unknown", reason)
    if warmup is None:
        return found("unknown", "the warmup is not known")
    young, needed = max(memory, at.LEAST_YOUNG), at.WARMUP_RULE * memory
    numbers = [
        f"onset at step {evidence.onset}, v is young for {steps(young)}",
        f"warmup {format_value(int(warmup))}, the rule 2 / (1 - beta2) asks for {needed:.0f}",
    ]
    if warmup >= needed:
        return found("excluded", "the warmup is as long as the rule asks for", numbers)
    if evidence.onset >= young + warmup:
        return found("excluded", "v was no longer young at the onset", numbers)
    direction = sign_descent(evidence)
    if direction is not None:
        numbers.append(f"RMS of mhat / sqrt(vhat) up to {direction:.2f} shortly before the onset (1 is sign descent)")
        if direction < at.SIGN_DESCENT:
            return found("excluded", "the steps before the onset were far from sign descent", numbers)
    longer = with_longer_warmup(evidence)
    if (helped := helped_by_warmup(evidence)) is not None:
        numbers += _cells_text("warmup", [cell for cell in longer if cell is helped or cell.is_stable])
        return found("supported", "with a longer warmup the same learning rate does not fail so early", numbers, 0)
    numbers += _cells_text("warmup", longer)
    if any(cell.value >= needed for cell in longer):
        return found("excluded", "with a warmup as long as the rule asks for it fails as early", numbers)
    if direction is None:
        return found("unknown", "the direction of the steps before the onset was not read", numbers)
    later = evidence.edge.between(young, evidence.end)
    if len(later) > 1 and known(later.share(lambda ratio_N: ratio_N > at.EDGE)) <= at.SELDOM_OVER:
        began = evidence.edge.first(lambda ratio_N: ratio_N > at.EDGE)
        if began is not None and began < young:
            return found("supported", "it was over the edge only while v was young", numbers, began)
    return found("unknown", "no cell with a longer warmup tells whether that would be enough", numbers)


def with_longer_warmup(evidence: Evidence) -> list[Neighbour]:
    """The cells with a longer warmup and otherwise the same settings, the nearest first."""
    return [cell for cell in above(evidence.cells("warmup"), evidence.config.get("warmup")) if is_number(cell.value)]


def helped_by_warmup(evidence: Evidence) -> Neighbour | None:
    """The nearest cell with only a longer warmup that gets through its warmup and the time after it.

    All its seeds are stable, or leave their trend so much later that the cause is another one.
    """
    young = max(evidence.memory or 0.0, at.LEAST_YOUNG)

    def gets_through(cell: Neighbour) -> bool:
        return all(onset is not None and onset > cell.value + young + at.START_STEPS for onset in cell.onsets)

    return next((cell for cell in with_longer_warmup(evidence) if gets_through(cell)), None)


def has_learned(evidence: Evidence) -> bool:
    """Whether the loss had fallen by a good part of its initial value before the onset."""
    initial, best = evidence.trial.initial_loss, evidence.loss.between(0, evidence.until).smallest()
    return initial is not None and best is not None and initial - best > at.LEARNED * abs(initial)


def sign_descent(evidence: Evidence) -> float | None:
    """The largest RMS of mhat / sqrt(vhat) shortly before the onset, at half of the full learning rate or more.

    Adam's first step is the sign of the gradient for any gradient, so it needs no reading. None where none was read.
    """
    first = max(evidence.rate_step(at.HALF_RATE), evidence.until - at.START_STEPS)
    read = evidence.column(f"direction_rms/{ALL}").between(first, evidence.until + 1).largest()
    return max(read or 0.0, 1.0) if first == 0 else read


def _not_read(evidence: Evidence) -> str:
    return "the curvature was not measured at this learning rate" if len(evidence.edge) else NOT_MEASURED


def _age_text(evidence: Evidence) -> str:
    """When the onset was, counted from where the learning rate was full: within its warmup it never was."""
    warmup = evidence.number("warmup") or 0
    if evidence.until < warmup:
        return f"onset at step {evidence.onset}, after {evidence.until} of {warmup:.0f} steps of its warmup"
    return (
        f"onset at step {evidence.onset}, {steps(evidence.num_full_rate_steps)} after the learning rate was full "
        f"(step {evidence.full_rate_step})"
    )


def _cells_text(setting: str, cells: Sequence[Neighbour]) -> list[str]:
    """The results of the nearest cell and of the nearest stable one."""
    nearest_stable = next((cell for cell in cells if cell.is_stable), None)
    shown = [*cells[:1], *([nearest_stable] if nearest_stable and nearest_stable not in cells[:1] else [])]
    return [f"with {setting} {format_value(cell.value)}: {seeds_text(cell)}" for cell in shown]


def _lower_rates(evidence: Evidence) -> Probe | None:
    values = LOWER_LR.values(evidence)
    return ("lr", values) if values else None


OVER_THE_EDGE = Mechanism(
    key="over_the_edge",
    title="step over the edge from the start",
    find=over_the_edge,
    label="edge",
    colour="#D55E00",
    moves=(
        LOWER_LR,
        Move("warmup", "raise", "curvature often falls in the first steps, and a slow start waits for that", warmups),
    ),
    probe=_lower_rates,
)


def _warmup_by_the_rule(evidence: Evidence) -> Probe | None:
    memory = evidence.memory
    if memory is None or evidence.number("warmup") is None:
        return None
    return "warmup", [min(int(evidence.trial.steps) // 2, round(at.WARMUP_RULE * memory))]


WARMUP_TOO_SHORT = Mechanism(
    key="warmup_too_short",
    title="warmup too short",
    find=warmup_too_short,
    label="warmup",
    colour="#E69F00",
    moves=(
        Move(
            "warmup",
            "raise",
            "steps stay small until v has seen 2 / (1 - beta2) gradients (Ma and Yarats)",
            warmups,
        ),
        Move(
            "beta2",
            "lower",
            "v is young for 1 / (1 - beta2) steps, so that a short warmup will do",
            forgetting_faster,
        ),
        LOWER_LR,
    ),
    probe=_warmup_by_the_rule,
)

"""A learning rate at which nothing moves: no instability, but a run that stalls."""

from __future__ import annotations

from orchestrator.base.space import format_value
from orchestrator.causes.evidence import Evidence
from orchestrator.causes.mechanisms.finding import Finding, MakeFinding, seeds_text
from orchestrator.causes.mechanisms.mechanism import Mechanism, Probe
from orchestrator.causes.mechanisms.moves import HIGHER_LR
from orchestrator.maps.neighbours import above


def learning_rate_too_low(evidence: Evidence, found: MakeFinding) -> Finding:
    """Steps too small to learn in the time that there was.

    Supported where a run stalled without a blow-up, and the same cell with a higher learning rate is stable and ends
    lower. Excluded where it did not stall, or blew up.
    """
    if evidence.outcome != "stalled":
        return found("excluded", "it lowered its loss")
    if evidence.blow_up is not None:
        return found("excluded", "the loss rose at the start")
    rate, final = evidence.number("lr"), evidence.trial.final_loss
    if rate is None:
        return found("unknown", "the learning rate is not known")
    higher = above(evidence.cells("lr"), rate)
    learned = [cell for cell in higher if cell.is_stable and cell.loss is not None and final is not None]
    better = next((cell for cell in learned if (cell.loss or 0.0) < (final or 0.0)), None)
    if better is None:
        tried = (
            "no cell has a higher learning rate" if not higher else "no higher learning rate is stable and ends lower"
        )
        return found("unknown", tried, [f"lr {format_value(rate)}"])
    numbers = [
        f"with lr {format_value(better.value)}: {seeds_text(better)}, final loss {final:.4g} -> {better.loss:.4g}"
    ]
    return found("supported", "with a higher learning rate the same run learns", numbers, 0)


def _higher_rates(evidence: Evidence) -> Probe | None:
    values = HIGHER_LR.values(evidence)
    return ("lr", values) if values else None


LEARNING_RATE_TOO_LOW = Mechanism(
    key="learning_rate_too_low",
    title="learning rate too low",
    find=learning_rate_too_low,
    label="too low",
    colour="#AA4466",
    moves=(HIGHER_LR,),
    probe=_higher_rates,
)

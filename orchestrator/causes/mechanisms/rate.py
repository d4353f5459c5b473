"""A learning rate so low that the run stalls."""

from __future__ import annotations

from orchestrator.base.space import format_value
from orchestrator.causes.evidence import Evidence
from orchestrator.causes.mechanisms.mechanism import (
    HIGHER_LR,
    Finding,
    MakeFinding,
    Mechanism,
    probe_of,
    results_with,
)
from orchestrator.maps.neighbours import above


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


LEARNING_RATE_TOO_LOW = Mechanism(
    key="learning_rate_too_low",
    title="learning rate too low",
    find=learning_rate_too_low,
    label="too low",
    colour="#AA4466",
    moves=(HIGHER_LR,),
    probe=probe_of(HIGHER_LR),
)

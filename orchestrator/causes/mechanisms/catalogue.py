"""The table of the mechanisms by which training becomes unstable, in the order of their priority.

An earlier mechanism causes the later ones, or comes with them. Steps that grow by themselves make losses jump, and so
does a change of the data; a batch that jumps makes the second moment lag; norms that shrink raise the curvature; a step
over the threshold makes the logits grow. An epsilon that stalls the shallow blocks is above their gradients, so the
stall comes before the epsilon floor.
A new mechanism is a module, or a part of one, with all its facts, and a line in the table.
"""

from __future__ import annotations

from orchestrator.causes.mechanisms.data import bad_batch, shallow_stall
from orchestrator.causes.mechanisms.learning_rate import (
    learning_rate_too_low,
    over_the_threshold,
    sharpening,
    warmup_too_short,
)
from orchestrator.causes.mechanisms.mechanism import Mechanism
from orchestrator.causes.mechanisms.rounding import absorption
from orchestrator.causes.mechanisms.routing import router_collapse
from orchestrator.causes.mechanisms.scales import (
    clipping_inactive,
    clipping_saturated,
    epsilon_floor,
    half_precision_overflow,
    layers_out_of_step,
    logit_growth,
)
from orchestrator.causes.mechanisms.second_moment import preconditioner_decay, short_memory
from orchestrator.causes.mechanisms.weights import norm_collapse

MECHANISMS: dict[str, Mechanism] = {
    mechanism.key: mechanism
    for mechanism in (
        half_precision_overflow,
        learning_rate_too_low,
        short_memory,
        absorption,
        shallow_stall,
        bad_batch,
        norm_collapse,
        warmup_too_short,
        over_the_threshold,
        preconditioner_decay,
        sharpening,
        epsilon_floor,
        layers_out_of_step,
        logit_growth,
        router_collapse,
        clipping_saturated,
        clipping_inactive,
    )
}


def title_of(key: str) -> str:
    """The title of the mechanism ``key``."""
    return MECHANISMS[key].title

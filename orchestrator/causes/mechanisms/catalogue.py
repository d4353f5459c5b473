"""The table of the mechanisms by which training becomes unstable, in the order of their priority.

An earlier mechanism causes the later ones, or comes with them. Steps that grow by themselves make losses jump, and so
does a change of the data; a batch that jumps makes the second moment lag; a step over the threshold makes the logits
grow. An epsilon that stalls the shallow blocks is above their gradients, so the stall comes before the epsilon floor.
A new mechanism is a module, or a part of one, with all its facts, and a line in the table.
"""

from __future__ import annotations

from orchestrator.causes.mechanisms.data import BAD_BATCH, SHALLOW_STALL
from orchestrator.causes.mechanisms.learning_rate import (
    LEARNING_RATE_TOO_LOW,
    OVER_THE_THRESHOLD,
    SHARPENING,
    WARMUP_TOO_SHORT,
)
from orchestrator.causes.mechanisms.mechanism import Mechanism
from orchestrator.causes.mechanisms.scales import (
    CLIPPING_INACTIVE,
    CLIPPING_SATURATED,
    EPSILON_FLOOR,
    HALF_PRECISION_OVERFLOW,
    LAYERS_OUT_OF_STEP,
    LOGIT_GROWTH,
)
from orchestrator.causes.mechanisms.second_moment import PRECONDITIONER_DECAY, SHORT_MEMORY

MECHANISMS: dict[str, Mechanism] = {
    mechanism.key: mechanism
    for mechanism in (
        HALF_PRECISION_OVERFLOW,
        LEARNING_RATE_TOO_LOW,
        SHORT_MEMORY,
        SHALLOW_STALL,
        BAD_BATCH,
        WARMUP_TOO_SHORT,
        OVER_THE_THRESHOLD,
        PRECONDITIONER_DECAY,
        SHARPENING,
        EPSILON_FLOOR,
        LAYERS_OUT_OF_STEP,
        LOGIT_GROWTH,
        CLIPPING_SATURATED,
        CLIPPING_INACTIVE,
    )
}


def title_of(key: str) -> str:
    """The title of the mechanism ``key``."""
    return MECHANISMS[key].title

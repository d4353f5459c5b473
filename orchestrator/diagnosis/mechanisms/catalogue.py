"""The mechanisms by which training becomes unstable: a closed list, each a function of a trial's evidence.

The order is the one in which they lead: what comes first brings about, or takes along, what comes after it. Steps
that grow by themselves make losses jump; a batch that jumps makes the second moment lag; a step over the edge makes the
logits grow.
"""

from __future__ import annotations

from orchestrator.diagnosis.mechanisms.batches import BAD_BATCH, bad_batch
from orchestrator.diagnosis.mechanisms.decay import PRECONDITIONER_DECAY, preconditioner_decay
from orchestrator.diagnosis.mechanisms.edge import OVER_THE_EDGE, WARMUP_TOO_SHORT, over_the_edge, warmup_too_short
from orchestrator.diagnosis.mechanisms.finding import Mechanism
from orchestrator.diagnosis.mechanisms.logits import LOGIT_GROWTH, logit_growth
from orchestrator.diagnosis.mechanisms.memory import SHORT_MEMORY, short_memory
from orchestrator.diagnosis.mechanisms.precision import HALF_PRECISION_OVERFLOW, half_precision_overflow
from orchestrator.diagnosis.mechanisms.scales import (
    CLIPPING_INACTIVE,
    CLIPPING_SATURATED,
    EPSILON_FLOOR,
    LAYERS_OUT_OF_STEP,
    clipping_inactive,
    clipping_saturated,
    epsilon_floor,
    layers_out_of_step,
)

MECHANISMS: tuple[Mechanism, ...] = (
    Mechanism(HALF_PRECISION_OVERFLOW, "half-precision overflow", half_precision_overflow),
    Mechanism(SHORT_MEMORY, "memory shorter than momentum", short_memory),
    Mechanism(BAD_BATCH, "a single bad batch", bad_batch),
    Mechanism(WARMUP_TOO_SHORT, "warmup too short", warmup_too_short),
    Mechanism(OVER_THE_EDGE, "step over the edge from the start", over_the_edge),
    Mechanism(PRECONDITIONER_DECAY, "preconditioner decay", preconditioner_decay),
    Mechanism(EPSILON_FLOOR, "epsilon floor", epsilon_floor),
    Mechanism(LAYERS_OUT_OF_STEP, "layers out of step", layers_out_of_step),
    Mechanism(LOGIT_GROWTH, "growth of the logits", logit_growth),
    Mechanism(CLIPPING_SATURATED, "clipping saturated", clipping_saturated),
    Mechanism(CLIPPING_INACTIVE, "clipping never active", clipping_inactive, is_companion=True),
)
TITLES = {mechanism.key: mechanism.title for mechanism in MECHANISMS}

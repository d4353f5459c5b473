"""Adam with 8-bit moments (Dettmers et al., arXiv 2110.02861)."""

from __future__ import annotations

from pydantic import BaseModel

from objectives.fields import structural, when
from objectives.optimizers.facts.optimizer import Optimizer, always

_CHOSEN = when("optimizer", "adam8bit")


class Adam8bitFields(BaseModel):
    """Which weights have 8-bit moments, and how many entries share a scale."""

    adam8bit_block: int = structural(
        256, "entries", "adam8bit: entries that share a scale", acts=_CHOSEN, ge=32, multiple_of=32
    )
    adam8bit_smallest: int = structural(
        4096, "entries", "adam8bit: smallest weight with 8-bit moments", acts=_CHOSEN, ge=0
    )


# Where v is rounded down to zero, the step's length does not depend on beta2, so averages_squares stays False.
ADAM8BIT = Optimizer(
    "adam8bit",
    "objectives.optimizers.rules.adam8bit:Adam8bit",
    Adam8bitFields,
    first_moments=("first_plain", "first_scales"),
    second_moments=("second_plain", "second_scales"),
    divides_by_root=always,
    examples={"adam8bit_block": (32, 64, 256), "adam8bit_smallest": (0, 100, 4096)},
)

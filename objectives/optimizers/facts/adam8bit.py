"""Adam with 8-bit moments (Dettmers et al., arXiv 2110.02861)."""

from __future__ import annotations

from pydantic import BaseModel

from objectives.fields import structural, when
from objectives.optimizers.facts.optimizer import Optimizer, always

_CHOSEN = when("optimizer", "adam8bit")


class Adam8bitFields(BaseModel):
    """Which weights have 8-bit moments, and how many entries share a scale."""

    adam8bit_block: int = structural(
        256, "entries", "adam8bit: block of entries with one scale", acts=_CHOSEN, ge=32, multiple_of=32
    )
    adam8bit_smallest: int = structural(
        4096, "entries", "adam8bit: size of the smallest weight with 8-bit moments", acts=_CHOSEN, ge=0
    )


# v is rounded down to zero in places, where the step has the same length whatever beta2 is: it averages no squares.
ADAM8BIT = Optimizer(
    "adam8bit",
    "objectives.optimizers.rules.adam8bit:Adam8bit",
    Adam8bitFields,
    first_moments=("first_plain", "first_scales"),
    second_moments=("second_plain", "second_scales"),
    divides_by_root=always,
    examples={"adam8bit_block": (32, 64, 256), "adam8bit_smallest": (0, 100, 4096)},
)
